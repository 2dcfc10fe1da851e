"""The parts of the processor of a channel with state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.extensions.keyed.state_reader import no_operators

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.config import ChannelConfig
    from headrace.core.records import TopicPartition
    from headrace.extensions.keyed.api import Phases
    from headrace.extensions.keyed.sink import KeyedSink
    from headrace.extensions.keyed.state import LayeredState
    from headrace.extensions.keyed.state_reader import OperatorsReader
    from headrace.extensions.keyed.store import RocksStore
    from headrace.kafka import KafkaTopicCatalog
    from headrace.kafka.ports import RecordSource


@dataclass(frozen=True, slots=True)
class KeyedParts:
    """The parts of a channel with state. Its clients are opened with the processor.

    ``follow`` has the next micro-batch folded as a configuration says. ``operators`` reads the
    figures of a topology's operators.
    """

    follow: Callable[[ChannelConfig], None]
    sink: KeyedSink
    state: LayeredState
    store: RocksStore
    catalog: Callable[[], KafkaTopicCatalog]
    source: Callable[[], RecordSource]
    holder: Callable[[TopicPartition], str]
    phases: Phases | None = None
    operators: OperatorsReader = no_operators
