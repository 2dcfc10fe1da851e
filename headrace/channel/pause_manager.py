"""Bringing a channel in line with its pauses, and the thread that ends them."""

from __future__ import annotations

from dataclasses import replace
from threading import Event, Lock
from typing import TYPE_CHECKING

import structlog

from headrace.channel.partition import earliest
from headrace.channel.pauses import Pause, PauseMode, PauseReason, key_of
from headrace.channel.states import PartitionState
from headrace.core.errors import Refusal, RefusedError
from headrace.core.supervision import PeriodicThread

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.channel.commits import Committer
    from headrace.channel.environment import ChannelEnvironment
    from headrace.channel.lasting_failures import LastingFailures
    from headrace.channel.partition_manager import PartitionManager
    from headrace.channel.pauses import DeliveryGate, PauseFile
    from headrace.coordinators.coordinator import Coordinator
    from headrace.core.clock import Clock, Deadline
    from headrace.core.records import TopicPartition

log = structlog.get_logger(__name__)

#: Pauses that no ``pause.max_duration`` ends.
_UNLIMITED = {
    PauseReason.ERROR,
    PauseReason.RESTORING,
    PauseReason.STATE,
    PauseReason.TASK,
    PauseReason.MISFIT,
}

#: Seconds between two looks at the clock, which may be set between two looks.
LONGEST_INTERVAL = 60.0


class PauseManager(PeriodicThread):
    """The pauses of one channel, and what follows from them. Safe on any thread.

    Only ``wait`` blocks, and a kept pause for as long as a file takes.
    """

    def __init__(
        self,
        environment: ChannelEnvironment,
        file: PauseFile | None,
        *,
        committer: Committer,
        coordinator: Coordinator,
        delivery_gate: DeliveryGate,
        lasting: LastingFailures,
        manager: PartitionManager,
    ) -> None:
        self._environment = environment
        self._committer = committer
        self._coordinator = coordinator
        self._lasting = lasting
        self._manager = manager
        self._pauses = delivery_gate.pauses
        self._file = file
        self._lock = Lock()
        self._withdrawn = False
        self._wake = Event()
        super().__init__(f"{environment.name}-pauses", environment.fail)

    # --- beginning and ending ---------------------------------------------------------------

    def restore(self) -> None:
        """Restore the pauses that a former process stored. Before the channel starts.

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
        """Add a pause that ``pause.max_duration`` bounds; see ``InboundKafkaChannel.pause``."""
        pause = Pause(reason, by, self._environment.clock.time(), until, mode, partition, note)
        pause = self._limit_pause(pause)
        with self._lock:
            if not shorten:
                self._require_longest(pause)
            self._pauses.add(pause)
        log.info("channel_paused", **self._facts(pause))
        self._follow()
        return pause

    def _require_longest(self, pause: Pause) -> None:
        """Raise if the holder's own of the same reason and scope goes on for longer."""
        own = next((each for each in self._pauses.all() if key_of(each) == key_of(pause)), None)
        if own is None or pause.until is None:
            return
        if own.until is None:
            goes_on = "without an end"
        elif own.until > pause.until:
            goes_on = f"for {own.until - pause.until:.1f} s longer than this one would"
        else:
            return
        scope = pause.partition or f"the channel {self._environment.name}"
        raise RefusedError(
            Refusal.SHORTER_PAUSE,
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
        if reason is PauseReason.MISFIT:
            return self._end_misfit(by, partition)
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

    def _end_misfit(self, by: str, partition: TopicPartition | None) -> Pause | None:
        """Resume partitions that rest for a misfit: one, or all of them."""
        ended = self._pauses.remove_misfit(partition)
        for pause in ended:
            log.info("channel_resumed", resumed_by=by, **self._facts(pause))
        if ended:
            self._follow()
        return next(iter(ended), None)

    def _held_by_others(self, there: list[Pause], by: str) -> RefusedError:
        scope = there[0].partition or f"the channel {self._environment.name}"
        holders = ", ".join(pause.by for pause in there)
        return RefusedError(
            Refusal.PAUSED_BY_OTHERS,
            f"{scope} is paused by {holders}, and not by {by}",
            value=by,
            next_step=f"ask {holders}, or name whose pause is to end: of, or --of '{there[0].by}'",
        )

    def take_over(self, pauses: Iterable[Pause]) -> None:
        """Adopt pauses unchanged from the channel that this one replaces.

        What its processor had to restore, or found wrong, is the business of the new one.
        """
        for pause in pauses:
            if pause.reason not in {PauseReason.RESTORING, PauseReason.STATE}:
                self._pauses.add(self._limit_pause(pause))
        self._follow()

    def follow_settings(self) -> None:
        """Apply changed settings: a shorter ``max_duration`` holds for existing pauses too.

        What fits nowhere is tried again: the settings may be what was wrong.
        """
        self._end_misfit("headrace", None)
        for pause in self._pauses.all():
            limited = self._limit_pause(pause)
            if limited is not pause:
                self._pauses.add(limited)
        if self._file is not None and not self._keeps:
            self._delete_file()
        self._follow()

    @property
    def _keeps(self) -> bool:
        return self._environment.config.pause.persist

    def _limit_pause(self, pause: Pause) -> Pause:
        """Return the pause with an end that ``pause.max_duration`` allows."""
        longest = self._environment.config.pause.max_duration
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
            return self._coordinator.wait_away(deadline)
        return self._coordinator.wait_given_back(self._pauses.drained_partitions, deadline)

    def _rests(self) -> bool:
        held = self._manager.all()
        if self._pauses.drains:
            return not held
        given_back = self._pauses.drained_partitions
        return all(
            owned.life.state is PartitionState.PAUSED and owned.partition not in given_back
            for owned in held
            if self._pauses.rests(owned.partition)
        )

    # --- what follows -----------------------------------------------------------------------

    def _follow(self) -> None:
        """Apply the pauses to the channel."""
        with self._lock:
            self._save()
            drains = self._pauses.drains
            if drains != self._withdrawn:
                self._withdrawn = drains
                (self._coordinator.withdraw if drains else self._coordinator.undrain)()
            self._coordinator.leave_out(self._pauses.drained_partitions)
        self._measure()
        self._committer.flush()
        self._manager.check_tasks()
        self._manager.touch_all()
        self._wake.set()

    def _save(self) -> None:
        """Keep the operator's pauses; a processor's or a failure's are its own matter."""
        if self._file is None or not self._keeps:
            return
        try:
            self._file.save(p for p in self._pauses.all() if p.reason is PauseReason.OPERATOR)
        except OSError as error:
            log.error("pauses_not_persisted", channel=self._environment.name, error=str(error))  # noqa: TRY400 - the reason says it all

    def _delete_file(self) -> None:
        assert self._file is not None
        try:
            self._file.forget()
        except OSError as error:
            log.error("pauses_not_persisted", channel=self._environment.name, error=str(error))  # noqa: TRY400 - the reason says it all

    def _measure(self) -> None:
        for reason in PauseReason:
            begun = [p.since for p in self._pauses.all() if p.reason is reason]
            labels = self._environment.name, reason.value
            self._environment.metrics.pauses.labels(*labels).set(len(begun))
            self._environment.metrics.paused_since.labels(*labels).set(min(begun, default=0))

    def _facts(self, pause: Pause) -> dict[str, object]:
        return {
            "channel": self._environment.name,
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
            now = self._environment.clock.time()
            end = earliest(
                self._pauses.next_end, self._lasting.look_at_rests(self._pauses.all(), now)
            )
            wait = LONGEST_INTERVAL if end is None else end - now
            self._wake.wait(max(0.0, min(LONGEST_INTERVAL, wait)))
            self._wake.clear()
            self._measure()  # what ended with a claim as well
            over = self._pauses.expire(self._environment.clock.time())
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
