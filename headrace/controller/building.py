"""From a channel's configuration to what connects it to the world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from headrace.channel.offset_stores import open_offset_store, transactional_prefix
from headrace.channel.pause_file import PauseFile
from headrace.channel.ports import ChannelPorts
from headrace.columns import load_pandas
from headrace.coordinators.factory import build_coordinator
from headrace.coordinators.zookeeper_registry import ZooKeeperRegistry
from headrace.kafka import KafkaRangeSource, KafkaRecordSource, KafkaTopicCatalog
from headrace.kafka.clients import client_properties
from headrace.kafka.columnar import ColumnarRecordSource
from headrace.kafka.columnar.library import LibraryMissingError
from headrace.kafka.dead_letters import KafkaDeadLetterStore
from headrace.kafka.properties import PREFETCH_SHARE
from headrace.kafka.reader import KafkaRecordReader

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headrace.clock import Clock
    from headrace.config import ChannelConfig, KafkaConfig
    from headrace.coordinators.coordinator import Coordinator
    from headrace.coordinators.listener import Listener
    from headrace.kafka.ports import RecordSource
    from headrace.spans import Tracer
    from headrace.zookeeper.session import ZooKeeperSession


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the channels of a process share. ``directory`` is the process's own."""

    member: str
    kafka: KafkaConfig
    session: ZooKeeperSession
    directory: Path
    clock: Clock
    tracer: Tracer

    def ports(self, name: str, channel: ChannelConfig, *, in_columns: bool) -> ChannelPorts:
        """Build the adapters of a channel; nobody is asked.

        ``in_columns``: its processor wants records in columns.
        """
        kafka = client_properties(self.kafka)
        prefetch = 0 if channel.by_reference else int(channel.buffer.max_bytes * PREFETCH_SHARE)
        registry = ZooKeeperRegistry(
            self.session,
            channel.group,
            self.member,
            transactional_prefix=transactional_prefix(channel, self.member),
            clock=self.clock,
        )

        def coordinator(listener: Listener) -> Coordinator:
            return build_coordinator(channel, registry, listener, self.clock)

        return ChannelPorts(
            source=self._source(name, channel, kafka, prefetch, in_columns=in_columns),
            store=open_offset_store(channel, kafka, self.session, self.clock),
            catalog=KafkaTopicCatalog(kafka, channel.group),
            coordinator=coordinator,
            prefetch=prefetch,
            pauses=PauseFile(self.directory / f"pauses-{name}.json"),
            tracer=self.tracer,
            dead_letters=KafkaDeadLetterStore(kafka),
            reader=KafkaRecordReader(kafka, channel.group),
        )

    def _source(
        self,
        name: str,
        channel: ChannelConfig,
        kafka: Mapping[str, Any],
        prefetch: int,
        *,
        in_columns: bool,
    ) -> RecordSource:
        if channel.by_reference:
            return KafkaRangeSource(kafka, channel.group, self.clock)
        source = columns_of(name, channel.group, kafka, prefetch) if in_columns else None
        return source or KafkaRecordSource(kafka, channel.group, prefetch)


def columns_of(
    name: str, group: str, kafka: Mapping[str, Any], prefetch: int
) -> ColumnarRecordSource | None:
    """Return what fetches records in columns; None, and a line in the log, where nothing can."""
    try:
        return ColumnarRecordSource(kafka, group, prefetch)
    except LibraryMissingError as missing:
        log.info("columns_missing", channel=name, reason=str(missing))
        load_pandas()
        return None
