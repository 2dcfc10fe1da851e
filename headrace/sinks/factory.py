"""From the configuration to a channel's sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace import config
from headrace.core.extras import Extra, required

if TYPE_CHECKING:
    from headrace.sinks.contract import Sink


def build_sink(section: config.SinkConfig, member: str) -> Sink[Any]:
    """Build what ``sink`` of a channel of type spark or arrow describes, for a member of this name.

    Imports that sink and what it needs, and no other.

    Raises:
        ConfigError: the path or the url cannot be used.
        StartError: the sink takes an extra that is not installed, or its factory cannot be used.
    """
    match section:
        case config.DeltaSinkConfig():
            return _delta_sink(section, member)
        case config.SqlSinkConfig():
            return _sql_sink(section, member)
        case config.JsonLinesSinkConfig(path=path):
            from headrace.sinks.jsonl import JsonLinesSink  # noqa: PLC0415 - for this sink only

            return JsonLinesSink(path)
        case config.ConsoleSinkConfig() | config.NoopSinkConfig() | config.CustomSinkConfig():
            return _plain_sink(section)
        case config.KafkaSinkConfig() | config.SeveralSinkConfig():
            raise AssertionError("headrace.processors.factory builds them, with their clients")
        case config.FunctionSinkConfig():
            raise AssertionError("the configuration refuses a function for these processors")


def _delta_sink(section: config.DeltaSinkConfig, member: str) -> Sink[Any]:
    with required(Extra.DELTA, f"the sink of table {section.path}"):
        from headrace.extensions.delta import DeltaSink, MaintenanceConfig  # noqa: PLC0415 - an extra
        from headrace.extensions.delta.schema import SchemaChanges  # noqa: PLC0415 - as above

    return DeltaSink(
        section.path,
        partition_by=section.partition_by,
        member=member,
        schema_changes=SchemaChanges(section.schema_changes),
        maintenance=MaintenanceConfig(
            section.compact_every, section.log_retention, section.file_retention
        ),
        origin=section.origin,
    )


def _plain_sink(
    section: config.ConsoleSinkConfig | config.NoopSinkConfig | config.CustomSinkConfig,
) -> Sink[Any]:
    from headrace.sinks.console import ConsoleSink, NoopSink, custom_sink  # noqa: PLC0415 - as above

    match section:
        case config.ConsoleSinkConfig(rows=rows):
            return ConsoleSink(rows=rows)
        case config.NoopSinkConfig():
            return NoopSink()
        case config.CustomSinkConfig():
            return custom_sink(section)


def _sql_sink(section: config.SqlSinkConfig, member: str) -> Sink[Any]:
    with required(Extra.SQL, f"the sink of table {section.table}"):
        from headrace.extensions.sql import SqlSink, WriteMode  # noqa: PLC0415 - an extra

    return SqlSink(
        section.url.get_secret_value(),
        section.table,
        password=None if section.password is None else section.password.get_secret_value(),
        mode=WriteMode(section.mode),
        key=section.key,
        offsets_table=section.offsets_table,
        origin=section.origin,
        origins_table=section.origins_table,
        member=member,
    )
