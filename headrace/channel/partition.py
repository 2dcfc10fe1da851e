"""One owned partition: what a claim on it amounts to in this member."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from headrace.channel.letter_limits import DeadLetterLimits, UndecodableLimits
from headrace.channel.life import Life
from headrace.channel.log_doubt import LogDoubt
from headrace.channel.pending_commits import PendingCommits
from headrace.channel.progress import Progress
from headrace.channel.retries import Retries
from headrace.channel.states import ENDING, EndReason, PartitionState
from headrace.core.records import offset_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.channel.buffer import BatchSlice
    from headrace.channel.events import PartitionEvent
    from headrace.channel.pauses import DeliveryGate
    from headrace.channel.progress import Outstanding
    from headrace.channel.settings import LiveSettings
    from headrace.coordinators.claims import Claim
    from headrace.core.records import TopicPartition


@dataclass(frozen=True, slots=True)
class RunningCallback:
    """A callback that has not come back: monotonic time of its begin, and its thread."""

    since: float
    thread: int


class WorkerHold:
    """The worker that has a partition, and the callback that it is in. The scheduler's.

    ``holder`` is another object with each hold, so that a worker sees that it was taken away.
    """

    def __init__(self) -> None:
        self.holder: object = None
        self.callback: RunningCallback | None = None

    def begin(self) -> None:
        """Mark the partition as held by a worker."""
        self.holder = object()

    def end(self) -> None:
        """Mark the partition as held by no worker."""
        self.holder = None

    def begin_callback(self, callback: RunningCallback) -> None:
        """Record the callback that the holder is running."""
        self.callback = callback

    def end_callback(self) -> None:
        """Record that the callback has returned, or that its worker is abandoned."""
        self.callback = None


class OwnedPartition:
    """One claim on one partition, with all that this member has of it; an ``Assignment``.

    Exactly one thread at a time holds it, as the scheduler hands it out, and only the holder
    calls methods that change it or one of its values. Other threads use what is marked so: ``post``
    and ``life.end`` leave word, the fetcher fills ``progress.buffer``, and attributes and
    properties may be read at any time. Only the module of a value assigns its attributes.
    """

    def __init__(
        self,
        claim: Claim,
        settings: LiveSettings,
        *,
        channel: str,
        copies: int,
        delivery_gate: DeliveryGate,
        bound: float = inf,
    ) -> None:
        self.life = Life(claim, channel)
        self.progress = Progress(settings, copies=copies, bound=bound)
        self.retries = Retries()
        self.log_doubt = LogDoubt()
        self.hold = WorkerHold()
        self.pending_commits = PendingCommits()
        self.letters = DeadLetterLimits()
        self.undecodable = UndecodableLimits()
        self.events: deque[PartitionEvent] = deque()
        self._settings = settings
        self._delivery_gate = delivery_gate

    # --- read on any thread ---------------------------------------------------------------------

    @property
    def partition(self) -> TopicPartition:
        """Return the partition held."""
        return self.life.claim.partition

    @property
    def identity(self) -> str:
        """Return the name of the partition's log in a sink; empty before it is known."""
        return self.life.identity

    @property
    def epoch(self) -> int:
        """Return the claim's epoch."""
        return self.life.claim.epoch

    @property
    def transactional_id(self) -> str | None:
        """Return the producer that the claim names for this member."""
        return self.life.claim.transactional_id

    @property
    def leader_epoch(self) -> int | None:
        """Return a leader epoch under which the log was seen to lead to all that was fetched."""
        return self.progress.buffer.leader_epoch

    @property
    def position(self) -> int:
        """Return the next offset to deliver."""
        return self.progress.position

    @property
    def high_watermark(self) -> int | None:
        """Return the end of the partition's log as last seen by the fetcher."""
        return self.progress.high_watermark

    @property
    def delivery_end(self) -> int | None:
        """Return where delivery ends: the end of the log, or the bound of a run before that."""
        end = self.progress.high_watermark
        return None if end is None else int(min(end, self.progress.buffer.bound))

    @property
    def committed(self) -> int | None:
        """Return the offset known to be stored, None before the start position is."""
        return self.pending_commits.committed

    @property
    def batch(self) -> tuple[int, int] | None:
        """Return first record and end of the oldest batch that is out, or failed and is retried.

        The position is after it while it is out.
        """
        cut = self.progress.oldest_out
        if cut is None:
            failed = self.retries.failed_between(self.progress.processed_offset, self.position)
            if failed is not None:
                return failed
            if self.retries.attempts or self.progress.suspect_records:
                try:
                    cut = self.progress.pending[0]
                except IndexError:
                    return None
        return None if cut is None else (offset_of(cut.records[0]), cut.next_offset)

    def is_current(self) -> bool:
        """Return whether work for it may still take effect.

        While ZooKeeper is silent that takes a sink that refuses what comes too late: where nothing
        but the lease stands between two owners, nothing takes effect on the lease alone.
        """
        return (
            not self.life.is_lost
            and not self.life.final
            and (self._delivery_gate.sink_refuses or not self._delivery_gate.suspended.is_set())
            and self.life.claim.lease.valid()
        )

    def may_act(self) -> bool:
        """Return whether new work may begin for it: ZooKeeper answers, and the lease holds."""
        return not self._delivery_gate.suspended.is_set() and self.life.claim.lease.valid()

    def may_commit(self) -> bool:
        """Return whether an offset may be stored for it at this moment."""
        return self.is_current() and self.may_act()

    def held_bytes(self) -> int:
        """Return the bytes of records fetched for it that something here still holds on to."""
        return self.progress.held_bytes() + self.pending_commits.size

    # --- leave word, on any thread --------------------------------------------------------------

    def post(self, event: PartitionEvent) -> None:
        """Leave an event for the next holder."""
        self.events.append(event)

    # --- the holder only ------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Enter WAITING: the start position is stored and the processor knows of it."""
        self.retries.hold_until(now)
        self.progress.begin_idle(now)
        self.life.become(PartitionState.WAITING)

    def raise_epoch(self, claim: Claim) -> None:
        """Adopt a higher epoch; a partition that has not started looks up its position again."""
        self.life.renew_claim(claim)
        if self.life.is_to_start:
            self.log_doubt.drop_look()
            self.retries.hold_until(0.0)

    def forget_look(self) -> None:
        """Retry the look-up of the start position at once, unless it waits for an event."""
        self.log_doubt.drop_look()
        if not self.retries.awaits_event:
            self.retries.hold_until(0.0)

    def rest(self, now: float) -> None:
        """Leave RUNNING for the state that says what it waits for."""
        if self.life.state is PartitionState.RUNNING:
            held = self.retries.not_before > now or self.log_doubt.waits(now)
            self.life.become(PartitionState.BACKING_OFF if held else PartitionState.WAITING)

    def due(self) -> float | None:
        """Return when it next needs a worker, in monotonic seconds: 0.0 for at once.

        None means that nothing needs doing until it is touched: by the fetcher, an answer, an
        event or an ending.
        """
        self.life.forget_predecessor()
        if self.life.final or self.life.awaits_predecessor:
            return None
        if self._urgent():
            return 0.0
        release_by = self.life.release_by
        if self.life.state is PartitionState.SUSPENDED:
            return release_by
        if self.life.state in ENDING:
            return earliest(release_by, self.progress.answer_due)
        if self.life.state is PartitionState.STARTING:
            at = None if self.retries.awaits_event else self.retries.not_before
            return earliest(release_by, at)
        return self._active_due()

    @property
    def rests(self) -> bool:
        """Return whether nothing of it may be delivered: it is paused, or has to be moved first."""
        return self.log_doubt.halted or self._delivery_gate.pauses.rests(self.partition)

    @property
    def is_urgent(self) -> bool:
        """Return whether a caller waits for it to rest or to end: by a short turn, a commit at
        once.
        """
        to_rest = self.life.state is not PartitionState.PAUSED
        return self.life.ending is not EndReason.NONE or (to_rest and self.rests)

    def _urgent(self) -> bool:
        if self.life.is_lost:
            return True
        if self.life.state is PartitionState.SUSPENDED:
            return self.may_act()
        if self.life.state not in ENDING and not self.may_act():
            return True
        return self._is_to_end() or bool(self.events) or self.progress.is_answered

    def _is_to_end(self) -> bool:
        """Return whether an ending has still to begin; before the start it waits for a commit."""
        if self.life.ending is not EndReason.RELEASE or self.life.state in ENDING:
            return False
        is_starting = self.life.state is PartitionState.STARTING
        return not is_starting or not self.pending_commits.has_pending_commit

    def _active_due(self) -> float | None:
        paused = self.life.state is PartitionState.PAUSED
        asks_at = self.log_doubt.asks_at
        answer_due = self.progress.answer_due
        if self.rests:
            has_pending = self.pending_commits.has_pending_commit
            still_busy = paused or self.progress.outstanding or has_pending
            return earliest(answer_due, asks_at) if still_busy else 0.0
        if paused:
            return 0.0
        return earliest(self._delivery_due(), answer_due, self.progress.idle_at, asks_at)

    def _delivery_due(self) -> float | None:
        if self.log_doubt.doubt is not None:
            return None
        progress = self.progress
        out = progress.outstanding
        if len(out) >= self._settings.now.max_in_flight or (out and self._stands_alone(out[-1])):
            return None
        at = 0.0 if progress.pending else progress.buffer.due(progress.next_batch.waits_for())
        if at and out:  # neither full nor a second delivery
            at = max(at, self._delivery_gate.next_batch_at())
        return None if at is None else max(at, self.retries.not_before)

    def _stands_alone(self, last: Outstanding) -> bool:
        """Return whether nothing may be out together with ``last``, or with what comes next.

        What comes after a batch that passes is for a sink that has moved past it as well; and
        of suspects each is to be answered before the next.
        """
        pending = self.progress.pending
        comes_next = pending[0].failures if pending else 0
        return last.passes or last.cut.failures > 0 or comes_next > 0

    def take_batch(self, now: float) -> BatchSlice | None:
        """Return the next batch to deliver, None if none is due yet."""
        due = self._delivery_due()
        return None if due is None or due > now else self.progress.take_batch()

    def restart_at(
        self, offset: int, *, leader_epoch: int | None = None, reverts: bool = False
    ) -> None:
        """Move the position to ``offset``, whatever is buffered: the one way to do so.

        Reset is what speaks of the former position:

        * ``outstanding``, whose answers would advance from there: withdrawn;
        * ``pending``, the buffer and the gap after it: dropped. The buffer begins a generation,
          so that what the fetcher has on the way for the former one is refused;
        * ``leader_epoch`` of the buffer: the one given, under which the log leads to ``offset``;
        * ``attempts``: the next batch is another one than the one that failed.

        A start, a seek and a reset of the range have compared ``offset`` with the log, and take
        all that lies before it as done. So these are reset as well:

        * ``processed_offset``, which follows, and which the caller has committed;
        * ``log_doubt``: what was heard of the log concerned the former position;
        * ``not_before``: the batch that was held back is gone.

        With ``reverts``, as a processor's answer moves it, they stay: what is done is said by the
        answer's commit, the wait by the answer, and no leader was asked whether the log has
        ``offset``. The fetcher has to be told of the new position in either case.
        """
        self.progress.withdraw()
        self.progress.drop_to(offset, leader_epoch)
        self.retries.clear_failures()
        if not reverts:
            self.progress.process_to(offset, None)
            self.log_doubt.clear()
            self.retries.hold_until(0.0)

    def rewind(self, target: int, retained: Iterable[BatchSlice]) -> bool:
        """Move the position to ``target`` as a processor answers, without a fetch where possible.

        ``retained`` are records just taken back, which the pending ones and the buffer continue.

        Returns:
            whether the buffered records cover it; if not, it is a ``restart_at``, and the fetcher
            has to seek.
        """
        at_hand = list(retained)
        covered = at_hand[0].start if at_hand else self.position
        if not self.progress.go_back_to(target, at_hand):
            self.restart_at(target, reverts=True)
            return False
        if target != covered:
            self.retries.clear_failures()
        return True


def earliest(*times: float | None) -> float | None:
    """Return the first of the times that are given, None if none is."""
    return min((at for at in times if at is not None), default=None)
