"""What connects a channel to the world."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.kafka.ports import NoDeadLetters
from headrace.spans import NO_TRACER

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.pause_file import PauseFile
    from headrace.coordinators.coordinator import Coordinator
    from headrace.coordinators.listener import Listener
    from headrace.kafka.ports import (
        DeadLetterStore,
        OffsetStore,
        RecordReader,
        RecordSource,
        TopicCatalog,
    )
    from headrace.spans import Tracer


@dataclass(frozen=True, slots=True)
class ChannelPorts:
    """The adapters of one channel, which owns all of them and closes them.

    ``prefetch`` is the part of the memory budget, in bytes, that the source fills by itself.
    ``coordinator`` builds the coordinator for the listener it is to tell. ``pauses`` is where the
    operator's are kept, while the configuration has them kept.
    """

    source: RecordSource
    store: OffsetStore
    catalog: TopicCatalog
    coordinator: Callable[[Listener], Coordinator]
    prefetch: int = 0
    pauses: PauseFile | None = None
    tracer: Tracer = NO_TRACER
    dead_letters: DeadLetterStore = field(default_factory=NoDeadLetters)
    reader: RecordReader = field(default_factory=NoDeadLetters)
