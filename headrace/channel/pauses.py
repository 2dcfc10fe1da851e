"""Pauses: who asked for which, since when, what they hold up, and the thread that ends them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from enum import Enum
from threading import Condition, Event, Lock
from typing import TYPE_CHECKING

import structlog
from pydantic import TypeAdapter

from headrace.channel.states import PartitionState
from headrace.core.errors import PausedByOthersError, ShorterPauseError, StartError
from headrace.core.files import write_whole
from headrace.core.records import TopicPartition  # noqa: TC001 - pydantic reads the type of a kept pause when it runs
from headrace.core.supervision import PeriodicThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from headrace.channel.runtime import ChannelRuntime
    from headrace.core.clock import Clock, Deadline


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
    RESTORING = "restoring"
    """The processor's state of a partition is not there yet: nothing else ends it."""


#: Pauses that no ``pause.max_duration`` ends.
_UNLIMITED = {PauseReason.ERROR, PauseReason.RESTORING}


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
            StartError: the file cannot be read. Delivering though somebody paused may do harm.
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


log = structlog.get_logger(__name__)

#: Seconds between two looks at the clock, which may be set while nobody looks.
LONGEST_INTERVAL = 60.0


class PauseManager(PeriodicThread):
    """The pauses of one channel, and what follows from them. Safe on any thread.

    Only ``wait`` blocks, and a kept pause for as long as a file takes.
    """

    def __init__(self, runtime: ChannelRuntime, file: PauseFile | None) -> None:
        self._runtime = runtime
        self._pauses = runtime.delivery_gate.pauses
        self._file = file
        self._lock = Lock()
        self._withdrawn = False
        self._wake = Event()
        super().__init__(f"{runtime.name}-pauses", runtime.fail)

    # --- beginning and ending ---------------------------------------------------------------

    def restore(self) -> None:
        """Take up what a former process kept. Before the channel starts.

        Raises:
            StartError: the file cannot be read.
        """
        for pause in self._file.load() if self._file is not None and self._keeps else []:
            self._pauses.add(pause)
            log.warning("pause_restored", **self._facts(pause))
        self._follow()

    def begin(
        self,
        reason: PauseReason,
        *,
        by: str,
        mode: PauseMode = PauseMode.HOLD,
        partition: TopicPartition | None = None,
        until: float | None = None,
        note: str = "",
        shorten: bool = False,
    ) -> Pause:
        """Begin a pause that ``pause.max_duration`` bounds; see ``InboundKafkaChannel.pause``."""
        pause = Pause(reason, by, self._runtime.clock.time(), until, mode, partition, note)
        pause = self._limited(pause)
        with self._lock:
            if not shorten:
                self._require_longest(pause)
            self._pauses.add(pause)
        log.info("channel_paused", **self._facts(pause))
        self._follow()
        return pause

    def _require_longest(self, pause: Pause) -> None:
        """Raise if the holder's own of the same reason and scope goes on for longer."""
        own = next((each for each in self._pauses.all() if _key(each) == _key(pause)), None)
        if own is None or pause.until is None:
            return
        if own.until is None:
            goes_on = "without an end"
        elif own.until > pause.until:
            goes_on = f"for {own.until - pause.until:.1f} s longer than this one would"
        else:
            return
        scope = pause.partition or f"the channel {self._runtime.name}"
        raise ShorterPauseError(
            f"{scope} is paused by {pause.by} already, {goes_on}",
            value=pause.by,
            next_step="leave it, give a later end, or say that it may end sooner: shorten, "
            "or --shorten",
        )

    def end(
        self,
        reason: PauseReason,
        *,
        by: str,
        partition: TopicPartition | None = None,
        of: str | None = None,
    ) -> Pause | None:
        """End a pause; see ``InboundKafkaChannel.resume``."""
        there = [pause for pause in self._pauses.all() if pause.is_of(reason, partition)]
        holder = by if of is None and reason is PauseReason.OPERATOR else of
        meant = [pause for pause in there if holder in {None, pause.by}]
        if there and not meant and of is None:
            raise self._held_by_others(there, by)
        ended = next((pause for pause in meant if self._pauses.remove(pause)), None)
        if ended is not None:
            log.info("channel_resumed", resumed_by=by, **self._facts(ended))
            self._follow()
        return ended

    def _held_by_others(self, there: list[Pause], by: str) -> PausedByOthersError:
        scope = there[0].partition or f"the channel {self._runtime.name}"
        holders = ", ".join(pause.by for pause in there)
        return PausedByOthersError(
            f"{scope} is paused by {holders}, and not by {by}",
            value=by,
            next_step=f"ask {holders}, or name whose pause is to end: of, or --of '{there[0].by}'",
        )

    def take_over(self, pauses: Iterable[Pause]) -> None:
        """Begin pauses as they are: another channel in our place had them.

        What its processor had to restore is the business of the new one.
        """
        for pause in pauses:
            if pause.reason is not PauseReason.RESTORING:
                self._pauses.add(self._limited(pause))
        self._follow()

    def follow_settings(self) -> None:
        """Do as the settings say now: a shorter ``max_duration`` holds for what is paused too."""
        for pause in self._pauses.all():
            limited = self._limited(pause)
            if limited is not pause:
                self._pauses.add(limited)
        if self._file is not None and not self._keeps:
            self._forget()
        self._follow()

    @property
    def _keeps(self) -> bool:
        return self._runtime.config.pause.persist

    def _limited(self, pause: Pause) -> Pause:
        """Return the pause with an end that ``pause.max_duration`` allows."""
        longest = self._runtime.config.pause.max_duration
        if longest is None or pause.reason in _UNLIMITED:
            return pause
        latest = pause.since + longest
        if pause.until is not None and pause.until <= latest:
            return pause
        return replace(pause, until=latest)

    def all(self) -> tuple[Pause, ...]:
        """Return all pauses, the oldest first."""
        return self._pauses.all()

    def wait(self, deadline: Deadline) -> bool:
        """Wait until every pause has its effect; see ``InboundKafkaChannel.wait_paused``."""
        if not self._pauses.wait(self._rests, deadline):
            return False
        if self._pauses.drains:
            return self._runtime.coordinator.wait_away(deadline)
        return self._runtime.coordinator.wait_given_back(self._pauses.drained_partitions, deadline)

    def _rests(self) -> bool:
        held = self._runtime.manager.all()
        if self._pauses.drains:
            return not held
        given_back = self._pauses.drained_partitions
        return all(
            owned.state is PartitionState.PAUSED and owned.partition not in given_back
            for owned in held
            if self._pauses.rests(owned.partition)
        )

    # --- what follows -----------------------------------------------------------------------

    def _follow(self) -> None:
        """Bring the channel in line with its pauses."""
        with self._lock:
            self._save()
            drains = self._pauses.drains
            if drains != self._withdrawn:
                self._withdrawn = drains
                (
                    self._runtime.coordinator.withdraw
                    if drains
                    else self._runtime.coordinator.undrain
                )()
            self._runtime.coordinator.leave_out(self._pauses.drained_partitions)
        self._measure()
        self._runtime.committer.flush()
        self._runtime.manager.touch_all()
        self._wake.set()

    def _save(self) -> None:
        """Keep the operator's pauses; a processor's or a failure's are its own matter."""
        if self._file is None or not self._keeps:
            return
        try:
            self._file.save(p for p in self._pauses.all() if p.reason is PauseReason.OPERATOR)
        except OSError as error:
            log.error("pauses_not_persisted", channel=self._runtime.name, error=str(error))  # noqa: TRY400 - the reason says it all

    def _forget(self) -> None:
        assert self._file is not None
        try:
            self._file.forget()
        except OSError as error:
            log.error("pauses_not_persisted", channel=self._runtime.name, error=str(error))  # noqa: TRY400 - as above

    def _measure(self) -> None:
        for reason in PauseReason:
            begun = [p.since for p in self._pauses.all() if p.reason is reason]
            labels = self._runtime.name, reason.value
            self._runtime.metrics.pauses.labels(*labels).set(len(begun))
            self._runtime.metrics.paused_since.labels(*labels).set(min(begun, default=0))

    def _facts(self, pause: Pause) -> dict[str, object]:
        return {
            "channel": self._runtime.name,
            "reason": pause.reason.value,
            "by": pause.by,
            "mode": pause.mode.value,
            "partition": None if pause.partition is None else str(pause.partition),
            "until": pause.until,
            "note": pause.note,
        }

    # --- the thread -------------------------------------------------------------------------

    def _wake_up(self) -> None:
        self._wake.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            end = self._pauses.next_end
            wait = LONGEST_INTERVAL if end is None else end - self._runtime.clock.time()
            self._wake.wait(max(0.0, min(LONGEST_INTERVAL, wait)))
            self._wake.clear()
            over = self._pauses.expire(self._runtime.clock.time())
            for pause in over:
                log.warning("pause_expired", **self._facts(pause))
            if over:
                self._follow()


class ProcessorPauseControl:
    """A processor's hand on the pauses of its channel; see ``headrace.processors.PauseControl``."""

    def __init__(
        self,
        pause_manager: PauseManager,
        clock: Clock,
        reason: PauseReason = PauseReason.DOWNSTREAM,
    ) -> None:
        self._pause_manager = pause_manager
        self._clock = clock
        self._reason = reason

    def pause(
        self, note: str, *, seconds: float | None = None, partition: TopicPartition | None = None
    ) -> None:
        self._pause_manager.begin(
            self._reason,
            by="processor",
            partition=partition,
            until=None if seconds is None else self._clock.time() + seconds,
            note=note,
            shorten=True,
        )

    def resume(self, *, partition: TopicPartition | None = None) -> None:
        self._pause_manager.end(self._reason, by="processor", partition=partition)
