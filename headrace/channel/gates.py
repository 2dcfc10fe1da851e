"""What keeps all partitions of a channel from delivery: pauses, a silent ZooKeeper, a busy lane."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING

from headrace.channel.pauses import Pauses

if TYPE_CHECKING:
    from collections.abc import Callable


def _at_once() -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Gates:
    """The gates that every delivery of a channel passes. Safe on any thread.

    ``wanted_at`` is the processor's own: see :meth:`BatchProcessor.wanted_at`. ``sink_refuses``:
    whether all that the sink writes to keeps offsets, by which it refuses what a former owner has
    it store.
    """

    pauses: Pauses = field(default_factory=Pauses)
    suspended: Event = field(default_factory=Event)
    wanted_at: Callable[[], float] = _at_once
    sink_refuses: bool = False
