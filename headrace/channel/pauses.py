"""Pauses: who asked for which, since when, and what they hold up."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from threading import Condition, Event
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from headrace.core.errors import StartError
from headrace.core.files import write_whole
from headrace.core.records import TopicPartition  # noqa: TC001 - pydantic reads the type of a kept pause when it runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from headrace.core.clock import Deadline


class PauseReason(Enum):
    """The reason for a pause."""

    OPERATOR = "operator"
    """An operator asked for it, by the library or the command line."""
    DOWNSTREAM = "downstream"
    """The processor asked for it, because what it writes to cannot take more."""
    ERROR = "error"
    """The channel has failed and is to be stopped."""
    CONFIG = "config"
    """New configuration or code is being put in place."""
    RESTORING = "restoring"
    """The processor's state of a partition is not there yet: nothing else ends it."""
    STATE = "state"
    """The processor's state is not reliable, and an operator has to act: nothing else ends it."""
    TASK = "task"
    """The partition waits for others of its task, which this member does not hold: nothing else
    ends it."""
    MISFIT = "misfit"
    """The code returns something that goes nowhere, or cannot be had, and trying again is no use.

    An operator has to act, and then to end it; it ends with the claim, and with new settings, too.
    """


class PauseMode(Enum):
    """The effect of a pause on partitions."""

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
        """Return whether it has this reason and this scope, whatever its holder."""
        return (self.reason, self.partition) == (reason, partition)


def key_of(pause: Pause) -> tuple[PauseReason, TopicPartition | None, str]:
    """Return the reason, the scope and the holder, which a channel has one pause of."""
    return pause.reason, pause.partition, pause.by


class Pauses:
    """The pauses of a channel. Safe on any thread; only ``wait`` blocks."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._pauses: dict[tuple[PauseReason, TopicPartition | None, str], Pause] = {}
        self._whole = False
        self._partitions: frozenset[TopicPartition] = frozenset()

    def add(self, pause: Pause) -> None:
        """Add a pause, in place of its holder's former one of the same reason and scope."""
        with self._changed:
            self._pauses[key_of(pause)] = pause
            self._take_note()

    def remove(self, pause: Pause) -> bool:
        """End a pause; others go on. False: it has ended or was replaced meanwhile."""
        with self._changed:
            is_there = self._pauses.get(key_of(pause)) is pause
            if is_there:
                del self._pauses[key_of(pause)]
                self._take_note()
            return is_there

    def remove_misfit(self, partition: TopicPartition | None = None) -> list[Pause]:
        """End the pauses for what fits nowhere, of one partition or of all; return them."""
        with self._changed:
            ended = [
                pause
                for pause in self._pauses.values()
                if pause.reason is PauseReason.MISFIT and partition in {None, pause.partition}
            ]
            for pause in ended:
                del self._pauses[key_of(pause)]
            if ended:
                self._take_note()
            return ended

    def expire(self, now: float) -> list[Pause]:
        """End the pauses whose time is over, and return them. ``now``: seconds since the epoch."""
        with self._changed:
            over = [p for p in self._pauses.values() if p.until is not None and p.until <= now]
            for pause in over:
                del self._pauses[key_of(pause)]
            self._take_note()
            return over

    def _take_note(self) -> None:
        partitions = [pause.partition for pause in self._pauses.values()]
        self._whole = None in partitions
        self._partitions = frozenset(p for p in partitions if p is not None)
        self._changed.notify_all()

    def rests(self, partition: TopicPartition) -> bool:
        """Return whether nothing of the partition may be delivered."""
        return self._whole or partition in self._partitions

    def paused_besides(self, reason: PauseReason) -> frozenset[TopicPartition]:
        """Return the partitions that have a pause of their own for another reason than this."""
        found = (pause.partition for pause in self.all() if pause.reason is not reason)
        return frozenset(partition for partition in found if partition is not None)

    def all(self) -> tuple[Pause, ...]:
        """Return all pauses, the oldest first."""
        with self._changed:
            return tuple(sorted(self._pauses.values(), key=lambda pause: pause.since))

    @property
    def next_end(self) -> float | None:
        """Return when the next pause ends by itself, in seconds since the epoch, or None."""
        return min((p.until for p in self.all() if p.until is not None), default=None)

    @property
    def drains(self) -> bool:
        """Return whether the whole channel is to give everything back."""
        return any(p.mode is PauseMode.DRAIN and p.partition is None for p in self.all())

    @property
    def drained_partitions(self) -> frozenset[TopicPartition]:
        """Return the partitions that are to be given back by themselves."""
        found = (p.partition for p in self.all() if p.mode is PauseMode.DRAIN)
        return frozenset(partition for partition in found if partition is not None)

    def progress(self) -> None:
        """Wake waiting threads, because a partition came to rest or is gone."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, condition: Callable[[], bool], deadline: Deadline) -> bool:
        """Wait until something is so that a pause or a partition's rest makes so."""
        with self._changed:
            return self._changed.wait_for(condition, deadline.remaining)


def _at_once() -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class DeliveryGate:
    """The gates that every delivery of a channel passes. Safe on any thread.

    ``next_batch_at`` is :meth:`BatchProcessor.next_batch_at` of the processor. ``sink_refuses``:
    whether all that the sink writes to keeps offsets, by which it refuses what a former owner has
    it store.
    """

    pauses: Pauses = field(default_factory=Pauses)
    suspended: Event = field(default_factory=Event)
    next_batch_at: Callable[[], float] = _at_once
    sink_refuses: bool = False


FORMAT_VERSION = 1


class PauseFile:
    """One channel's pauses as JSON. Used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> list[Pause]:
        """Return what a former process kept; none without a file.

        Raises:
            StartError: the file cannot be read. Delivering in spite of a pause may do harm.
        """
        try:
            document = json.loads(self._path.read_text(encoding="utf-8"))
            if document["version"] != FORMAT_VERSION:
                raise _unreadable(self._path, f"format version {document['version']}")
            return TypeAdapter(list[Pause]).validate_python(document["pauses"])
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _unreadable(self._path, " ".join(repr(error).split())) from error

    def save(self, pauses: Iterable[Pause]) -> None:
        """Keep these pauses, in place of those before: a reader finds the old or the new ones.

        Raises:
            OSError: they could not be written; the former ones stand.
        """
        kept = TypeAdapter(list[Pause]).dump_python(list(pauses), mode="json")
        document = {"version": FORMAT_VERSION, "pauses": kept}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self._path, json.dumps(document))

    def forget(self) -> None:
        """Keep none: what is over by then must not come back. Raises OSError."""
        self._path.unlink(missing_ok=True)


def _unreadable(path: Path, reason: str) -> StartError:
    return StartError(
        f"the pauses kept in {path} cannot be read ({reason}); delete the file to start without a "
        "pause, or set pause.persist to false"
    )
