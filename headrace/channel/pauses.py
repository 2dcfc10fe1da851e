"""Why delivery rests, of a channel or of single partitions: a set of reasons, each with its end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from threading import Condition
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.clock import Deadline
    from headrace.records import TopicPartition


class PauseReason(Enum):
    """Why there is a pause."""

    OPERATOR = "operator"
    """Somebody asked for it, by the library or the command line."""
    DOWNSTREAM = "downstream"
    """The processor asked for it, because what it writes to cannot take more."""
    ERROR = "error"
    """The channel has failed and is to be stopped."""
    CONFIG = "config"
    """New configuration or code is being put in place."""


class PauseMode(Enum):
    """What a pause does with partitions."""

    HOLD = "hold"
    """They are kept, with heartbeats: nothing is delivered, what was answered is committed."""
    DRAIN = "drain"
    """They are given back in order. A channel leaves its group; a partition is another member's."""


@dataclass(frozen=True, slots=True)
class Pause:
    """One pause. ``since`` and ``until`` are seconds since the epoch; None: no end by itself.

    Without a ``partition`` it is the channel's. ``by`` is its holder: of each reason everybody has
    one for the channel and for each partition, beside those of others.
    """

    reason: PauseReason
    by: str
    since: float
    until: float | None = None
    mode: PauseMode = PauseMode.HOLD
    partition: TopicPartition | None = None
    note: str = ""

    def is_of(self, reason: PauseReason, partition: TopicPartition | None) -> bool:
        """Whether it has this reason and this scope, whoever holds it."""
        return (self.reason, self.partition) == (reason, partition)


def _key(pause: Pause) -> tuple[PauseReason, TopicPartition | None, str]:
    return pause.reason, pause.partition, pause.by


class Pauses:
    """The pauses of a channel. Safe on any thread; only ``wait`` blocks."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._pauses: dict[tuple[PauseReason, TopicPartition | None, str], Pause] = {}
        self._whole = False
        self._partitions: frozenset[TopicPartition] = frozenset()

    def add(self, pause: Pause) -> None:
        """Begin a pause, in place of its holder's former one of the same reason and scope."""
        with self._changed:
            self._pauses[_key(pause)] = pause
            self._take_note()

    def remove(self, pause: Pause) -> bool:
        """End a pause; others go on. False: it has ended or was replaced meanwhile."""
        with self._changed:
            is_there = self._pauses.get(_key(pause)) is pause
            if is_there:
                del self._pauses[_key(pause)]
                self._take_note()
            return is_there

    def expire(self, now: float) -> list[Pause]:
        """End the pauses whose time is over, and return them. ``now``: seconds since the epoch."""
        with self._changed:
            over = [p for p in self._pauses.values() if p.until is not None and p.until <= now]
            for pause in over:
                del self._pauses[_key(pause)]
            self._take_note()
            return over

    def _take_note(self) -> None:
        partitions = [pause.partition for pause in self._pauses.values()]
        self._whole = None in partitions
        self._partitions = frozenset(p for p in partitions if p is not None)
        self._changed.notify_all()

    def rests(self, partition: TopicPartition) -> bool:
        """Whether nothing of the partition may be delivered."""
        return self._whole or partition in self._partitions

    def all(self) -> tuple[Pause, ...]:
        """Return all pauses, the oldest first."""
        with self._changed:
            return tuple(sorted(self._pauses.values(), key=lambda pause: pause.since))

    @property
    def next_end(self) -> float | None:
        """When the next pause ends by itself, in seconds since the epoch; None: none does."""
        return min((p.until for p in self.all() if p.until is not None), default=None)

    @property
    def drains(self) -> bool:
        """Whether the whole channel is to give everything back."""
        return any(p.mode is PauseMode.DRAIN and p.partition is None for p in self.all())

    @property
    def drained_partitions(self) -> frozenset[TopicPartition]:
        """The partitions that are to be given back by themselves."""
        found = (p.partition for p in self.all() if p.mode is PauseMode.DRAIN)
        return frozenset(partition for partition in found if partition is not None)

    def progress(self) -> None:
        """Tell those who wait that a partition came to rest, or is gone."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], deadline: Deadline) -> bool:
        """Wait until something is so that a pause or a partition's rest makes so."""
        with self._changed:
            return self._changed.wait_for(condition, deadline.remaining)
