"""From a channel's configuration to its sink, with what the sink takes of other adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from headrace import config
from headrace.kafka import KafkaResults
from headrace.kafka.clients import client_properties
from headrace.spark.factory import build_sink
from headrace.spark.sinks.kafka import KafkaSink
from headrace.spark.sinks.several import Group, SeveralSink, alone

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from headrace.spark.sinks import Sink


def open_sink(channel: config.ChannelConfig, member: str, kafka: config.KafkaConfig) -> Sink[Any]:
    """Build a channel's sink for a member of this name; ``kafka`` is the cluster that is read.

    Raises:
        ConfigError: the path, the url or a property cannot be used.
        StartError: the sink takes an extra that is not installed, or its factory cannot be used.
    """
    match channel.sink:
        case None:
            raise AssertionError("the configuration demands a sink")
        case config.KafkaSinkConfig(topic=topic):
            return KafkaSink(_transactions(channel, member, kafka), topic)
        case config.SeveralSinkConfig(outputs=outputs):
            return cast("Sink[Any]", SeveralSink(_groups(outputs, channel, member, kafka)))
        case section:
            return build_sink(section, member)


def _transactions(
    channel: config.ChannelConfig, member: str, kafka: config.KafkaConfig
) -> KafkaResults:
    return KafkaResults(client_properties(kafka), channel.group, member)


def _groups(
    outputs: Mapping[str, config.OutputConfig],
    channel: config.ChannelConfig,
    member: str,
    kafka: config.KafkaConfig,
) -> list[Group]:
    """Return the outputs in the order of the file; a group stands where its first output does.

    Tables of one database are a group, and the topics, because a member has one transactional
    producer.
    """
    grouped: dict[Hashable, dict[str, config.OutputConfig]] = {}
    for name, section in outputs.items():
        grouped.setdefault(_transaction_of(name, section), {})[name] = section
    transactions = _transactions(channel, member, kafka)

    def built(section: config.OutputConfig) -> Sink[Any]:
        if isinstance(section, config.KafkaSinkConfig):
            return KafkaSink(transactions, section.topic)
        return build_sink(section, member)

    return [
        _group(sections, {name: built(section) for name, section in sections.items()})
        for sections in grouped.values()
    ]


def _transaction_of(name: str, section: config.OutputConfig) -> Hashable:
    """Return what is the same for outputs that one transaction can have."""
    match section:
        case config.KafkaSinkConfig():
            return "kafka"
        case config.SqlSinkConfig(url=url, password=password):
            return url, password
        case _:
            return "alone", name


def _group(sections: Mapping[str, config.OutputConfig], sinks: dict[str, Sink[Any]]) -> Group:
    match next(iter(sections.values())):
        case config.KafkaSinkConfig():
            return Group(sinks, KafkaSink.commit_together)
        case config.SqlSinkConfig():
            from headrace.spark.sinks.sql import SqlSink  # noqa: PLC0415 - an extra

            return Group(sinks, SqlSink.commit_together)
        case _:
            ((name, sink),) = sinks.items()
            return alone(name, sink)
