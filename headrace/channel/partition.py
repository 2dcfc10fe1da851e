"""One owned partition: its state, its positions, and the batches that are out.

Its offsets keep this order, each meaning the next record to read:

``committed <= processed_offset <= position <= fetch_offset <= high_watermark``

``committed`` is known to be stored, ``processed_offset`` was declared done by the processor,
``position`` is delivered next, ``fetch_offset`` (of the buffer) is fetched next, and
``high_watermark`` is where the log ends. The watermark is looked at now and then only, so that what
was fetched since may be past it. A move back (``restart_at``) has ``committed`` follow with the
next commit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf
from threading import Lock
from typing import TYPE_CHECKING

import structlog

from headrace.channel.buffer import BatchSlice, NextBatch, PartitionBuffer, divide, split
from headrace.channel.letter_limits import DeadLetterLimits
from headrace.channel.pending_commits import PendingCommits
from headrace.channel.states import ENDING, FINAL, TRANSITIONS, EndReason, PartitionState
from headrace.core.errors import FatalError
from headrace.core.records import made_at, offset_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future

    from headrace.channel.events import LogTruncated, OffsetOutOfRange, PartitionEvent
    from headrace.channel.pauses import DeliveryGate
    from headrace.channel.settings import LiveSettings
    from headrace.coordinators.claims import Claim
    from headrace.core.records import Batch, TopicPartition
    from headrace.kafka.ports import LogLook
    from headrace.processors import BatchResponse

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Outstanding:
    """A batch that was handed out, and where its answer will be. ``deadline`` is monotonic.

    One that ``passes`` was handed to nobody, because all its records are left out.
    """

    batch: Batch
    cut: BatchSlice
    answer: Future[BatchResponse]
    deadline: float
    passes: bool = False


@dataclass(frozen=True, slots=True)
class RunningCallback:
    """A callback that has not come back: monotonic time of its begin, and its thread."""

    since: float
    thread: int


class OwnedPartition:
    """What one claim on one partition amounts to in this member; an ``Assignment``.

    Exactly one thread at a time holds it, as the scheduler hands it out, and only the holder
    calls methods that change it. Other threads use what is marked so: ``post`` and ``end`` leave
    word, the fetcher fills ``buffer``, and attributes and properties may be read at any time. Only
    this module assigns them.
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
        self.claim = claim
        # how the sink and the broker know it; told before anybody is asked
        self.identity = ""
        self.topic_id: str | None = None
        self.state = PartitionState.STARTING
        self.buffer = PartitionBuffer(bound)
        self.pending: deque[BatchSlice] = deque()
        self.outstanding: deque[Outstanding] = deque()
        self.handing_out: BatchSlice | None = None
        self._settling: BatchSlice | None = None
        self.events: deque[PartitionEvent] = deque()
        self.processed_offset = 0
        self.pending_commits = PendingCommits()
        self.high_watermark: int | None = None
        self.caught_up_at: float | None = None
        self.newest: float | None = None
        self.attempts = 0
        self.not_before = 0.0
        self._idle_since: float | None = None
        self._release_by: float | None = None
        self._gap_end: int | None = None
        self.holder: object = None
        self.callback: RunningCallback | None = None
        self._predecessor: OwnedPartition | None = None
        self.last_error: str | None = None
        # what was heard of its log: nothing is fetched or delivered until that is settled
        self.doubt: OffsetOutOfRange | LogTruncated | None = None
        # when its leader is asked about that; a batch that backs off does not put it off
        self._asks_at = 0.0
        # the look at its log that its start waits for
        self._look: Future[LogLook] | None = None
        # its log lost records before its position: nothing is delivered until it is moved
        self.halted = False
        self.letters = DeadLetterLimits()
        # start, first record and end of the batch that failed last: its records may be dropped
        self._failed: tuple[int, int, int] | None = None
        self._channel = channel
        self._settings = settings
        self.next_batch = NextBatch(settings, copies)
        self._delivery_gate = delivery_gate
        self._resting = PartitionState.WAITING
        self._ending = EndReason.NONE
        self._ending_lock = Lock()

    # --- read on any thread ---------------------------------------------------------------------

    @property
    def partition(self) -> TopicPartition:
        """The partition held."""
        return self.claim.partition

    @property
    def epoch(self) -> int:
        """The claim's epoch."""
        return self.claim.epoch

    @property
    def log_fields(self) -> dict[str, str | int]:
        """The fields by which a line of the log says that it is about this claim."""
        topic, number = self.claim.partition
        return {
            "channel": self._channel,
            "topic": topic,
            "partition": number,
            "epoch": self.claim.epoch,
        }

    @property
    def transactional_id(self) -> str | None:
        """The producer that the claim names for this member."""
        return self.claim.transactional_id

    @property
    def leader_epoch(self) -> int | None:
        """A leader epoch under which the log was seen to lead to all that was fetched."""
        return self.buffer.leader_epoch

    @property
    def position(self) -> int:
        """The next offset to deliver."""
        try:
            return self.pending[0].start
        except IndexError:
            return self.buffer.position

    def leader_epoch_at(self, offset: int) -> int | None:
        """Return a leader epoch under which the log was seen to lead to an offset."""
        return self.buffer.leader_epoch if offset <= self.buffer.fetch_offset else None

    @property
    def batch(self) -> tuple[int, int] | None:
        """First record and end of the oldest batch that is out, or that failed and comes again.

        The position is after it while it is out.
        """
        try:
            cut = self._settling or (
                self.outstanding[0].cut if self.outstanding else self.handing_out
            )
            if cut is None and self.attempts and self._failed is not None:
                start, first, end = self._failed
                if start == self.position:
                    return first, end
            if cut is None and (self.attempts or self.suspect_records):
                cut = self.pending[0]
        except IndexError:
            return None
        return None if cut is None else (offset_of(cut.records[0]), cut.next_offset)

    @property
    def committed(self) -> int | None:
        """The offset known to be stored, None before the start position is."""
        return self.pending_commits.committed

    @property
    def ending(self) -> EndReason:
        """Whether and how the partition has to end."""
        return self._ending

    @property
    def final(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in FINAL

    def is_current(self) -> bool:
        """Whether work for it may still take effect.

        While ZooKeeper is silent that takes a sink that refuses what comes too late: where nothing
        but the lease stands between two owners, nothing takes effect on the lease alone.
        """
        return (
            self._ending.value < EndReason.LOST.value
            and self.state not in FINAL
            and (self._delivery_gate.sink_refuses or not self._delivery_gate.suspended.is_set())
            and self.claim.lease.valid()
        )

    @property
    def idle_at(self) -> float | None:
        """When it has been idle for so long that the processor is told; None: it is not idle."""
        idle_since = self._idle_since
        return None if idle_since is None else idle_since + self._settings.config.idle_time

    def may_act(self) -> bool:
        """Whether new work may begin for it: ZooKeeper answers, and the lease holds."""
        return not self._delivery_gate.suspended.is_set() and self.claim.lease.valid()

    def may_commit(self) -> bool:
        """Whether an offset may be stored for it at this moment."""
        return self.is_current() and self.may_act()

    @property
    def suspect_records(self) -> int:
        """The records among which one that fails is being looked for."""
        return sum(len(cut.records) for cut in self.unanswered() if cut.failures)

    def unanswered(self) -> list[BatchSlice]:
        """Return what was cut from the buffer and is not answered, the oldest first. Any thread."""
        # mostly nothing is there, and with many partitions it is asked often
        if not (self.outstanding or self.handing_out or self.pending):
            return []
        out = [item.cut for item in tuple(self.outstanding)]
        cuts = (*out, self.handing_out, *tuple(self.pending))
        return [cut for cut in cuts if cut is not None]

    @property
    def has_pending_commit(self) -> bool:
        """Whether an offset was staged that is not known to be stored."""
        return self.pending_commits.has_pending_commit

    @property
    def is_to_start(self) -> bool:
        """Whether its start is still to come, and nothing asks it to end."""
        return self.state is PartitionState.STARTING and self._ending is EndReason.NONE

    def is_unresolved(self) -> bool:
        """Whether its start position is still to be looked for, and nothing of before remains."""
        return (
            self.state is PartitionState.STARTING
            and self.pending_commits.staged == 0
            and (self._predecessor is None or self._predecessor.final)
        )

    def held_bytes(self) -> int:
        """Bytes of records fetched for it that something here still holds on to."""
        held = self.buffer.size + self.pending_commits.size
        # mostly nothing is there, and with many partitions it is asked often
        if self.outstanding:
            out = sum(item.cut.size for item in tuple(self.outstanding))
            held += self.next_batch.copies * out
        if self.pending:
            held += sum(cut.size for cut in tuple(self.pending))
        return held

    # --- leave word, on any thread --------------------------------------------------------------

    def post(self, event: PartitionEvent) -> None:
        """Leave an event for the next holder."""
        self.events.append(event)

    def end(self, ending: EndReason) -> None:
        """Have it end; a weaker ending than one already asked for changes nothing."""
        with self._ending_lock:
            if ending.value > self._ending.value:
                self._ending = ending

    def request_release(self, by: float) -> None:
        """Have it given back in order until ``by`` (monotonic)."""
        self._release_by = by
        self.end(EndReason.RELEASE)

    def note_end(self, end: int, now: float) -> None:
        """Note where the log ends, ``now`` in seconds since the epoch. The fetcher's thread."""
        self.high_watermark = end
        if self.buffer.fetch_offset >= end:
            self.caught_up_at = now

    # --- the scheduler only ---------------------------------------------------------------------

    def await_end_of(self, predecessor: OwnedPartition) -> None:
        """Begin only when a former claim on the same partition has ended. Before the first turn."""
        self._predecessor = predecessor

    def take_hold(self) -> None:
        """Hand it to a worker."""
        self.holder = object()

    def end_hold(self) -> None:
        """Take it back from its worker."""
        self.holder = None

    def begin_callback(self, callback: RunningCallback) -> None:
        """Note the callback that the holder is in."""
        self.callback = callback

    def end_callback(self) -> None:
        """Note that it has come back, or that nobody waits for it any more."""
        self.callback = None

    # --- the holder only: start and claim -------------------------------------------------------

    def renew_claim(self, claim: Claim) -> None:
        """Go on under the same claim, with other former owners that are to be shut out."""
        self.claim = claim

    def bind_topic(self, topic_id: str, identity: str) -> None:
        """Take the log for that of this topic; ``identity`` is its name in a sink."""
        self.topic_id, self.identity = topic_id, identity

    def begin_attempt(self) -> None:
        """Count a look for its start position."""
        self.attempts += 1

    def await_look(self, look: Future[LogLook], until: float) -> None:
        """Look for the start again only when ``look`` has answered, or at ``until``."""
        self._look, self.not_before = look, until

    def take_look(self, look: Future[LogLook]) -> bool:
        """Wait for ``look`` no longer; False if the start does not wait for it any more."""
        if look is not self._look:
            return False
        self._look = None
        return True

    def raise_epoch(self, claim: Claim) -> None:
        """Go on under a higher epoch; its start position is looked for again, if it is to start."""
        self.claim = claim
        if self.is_to_start:
            self._look, self.not_before = None, 0.0

    def forget_look(self) -> None:
        """Look for its start position again at once, unless that waits for an event."""
        self._look = None
        if not self.awaits_event:
            self.not_before = 0.0

    def await_event(self) -> None:
        """Do nothing before there is an event: time alone brings nothing."""
        self.not_before = inf

    @property
    def awaits_event(self) -> bool:
        """Whether its start goes on with an event only."""
        return self.not_before == inf

    def begin(self, now: float) -> None:
        """Enter WAITING: the start position is stored and the processor knows of it."""
        self.not_before = self._idle_since = now
        self.become(PartitionState.WAITING)

    # --- the holder only: errors and what holds it back -----------------------------------------

    def note_error(self, error: str | None) -> None:
        """Remember an error for the status, or that there is none any more."""
        self.last_error = error

    def count_failure(self, cut: BatchSlice) -> None:
        """Count an attempt that failed with a batch."""
        self._failed = cut.start, offset_of(cut.records[0]), cut.next_offset
        self.attempts += 1

    def clear_failures(self) -> None:
        """Count from 0 again: what comes next is another batch."""
        self.attempts = 0

    def retry_at(self, now: float) -> None:
        """Deliver a batch that has failed again now: it is another one without a record."""
        self.attempts, self.not_before = 0, now

    def hold_until(self, at: float) -> None:
        """Deliver nothing before ``at`` (monotonic)."""
        self.not_before = at

    def doubt_log(self, doubt: OffsetOutOfRange | LogTruncated, asks_at: float = 0.0) -> None:
        """Deliver nothing before it is settled what is in doubt of the log; ask at ``asks_at``."""
        self.doubt, self._asks_at = doubt, asks_at

    def trust_log(self) -> None:
        """Take what was in doubt of the log as settled."""
        self.doubt = None

    def is_ask_due(self, now: float) -> bool:
        """Whether it is time to ask about the log."""
        return self._asks_at <= now

    def halt(self) -> None:
        """Deliver nothing until it is moved."""
        self.halted = True

    def note_gap(self, end: int, generation: int) -> None:
        """Note that nothing readable is left before ``end``, in that generation of the buffer."""
        if generation == self.buffer.generation:
            self._gap_end = end

    def take_gap(self) -> int | None:
        """Return the end of a gap once everything before it is answered, None otherwise."""
        if self.outstanding or self.pending or self.doubt is not None:
            return None
        end, self._gap_end = self._gap_end, None
        return end

    def limit_release(self, latest: float) -> None:
        """Have the release end at ``latest``, if not sooner."""
        self._release_by = earliest(self._release_by, latest)

    def is_overdue(self, now: float) -> bool:
        """Whether a release has used up its time."""
        return self._release_by is not None and now >= self._release_by

    def become(self, state: PartitionState) -> None:
        """Enter ``state``.

        Raises:
            FatalError: the transition table does not allow it, so the bookkeeping is wrong.
        """
        if state is self.state:
            return
        if state not in TRANSITIONS[self.state]:
            raise FatalError(f"{self.partition} cannot go from {self.state} to {state}")
        before, self.state = self.state, state
        if PartitionState.RUNNING not in (before, state):
            names = {"before": before.value, "state": state.value}
            log.debug("partition_state_changed", **self.log_fields, **names)

    def suspend(self) -> None:
        """Enter SUSPENDED, to come back to where it was before: starting, paused or delivering."""
        rests = self.state in (PartitionState.STARTING, PartitionState.PAUSED)
        self._resting = self.state if rests else PartitionState.WAITING
        self.become(PartitionState.SUSPENDED)

    def unsuspend(self) -> None:
        """Leave SUSPENDED, because the lease is confirmed again."""
        self.become(self._resting)

    def rest(self, now: float) -> None:
        """Leave RUNNING for the state that says what it waits for."""
        if self.state is PartitionState.RUNNING:
            held = self.not_before > now or (self.doubt is not None and not self.is_ask_due(now))
            self.become(PartitionState.BACKING_OFF if held else PartitionState.WAITING)

    def due(self) -> float | None:
        """Return when it next needs a worker, in monotonic seconds: 0.0 for at once.

        None means that nothing needs doing until it is touched: by the fetcher, an answer, an
        event or an ending.
        """
        if self._predecessor is not None and self._predecessor.final:
            self._predecessor = None
        if self.final or self._predecessor is not None:
            return None
        if self._urgent():
            return 0.0
        if self.state is PartitionState.SUSPENDED:
            return self._release_by
        if self.state in ENDING:
            return earliest(self._release_by, self._timeout_due())
        if self.state is PartitionState.STARTING:
            return earliest(self._release_by, None if self.awaits_event else self.not_before)
        return self._active_due()

    @property
    def rests(self) -> bool:
        """Whether nothing of it may be delivered: it is paused, or has to be moved first."""
        return self.halted or self._delivery_gate.pauses.rests(self.partition)

    @property
    def is_urgent(self) -> bool:
        """Whether somebody waits for it to rest or to end: by a short turn, a commit at once."""
        to_rest = self.state is not PartitionState.PAUSED
        return self._ending is not EndReason.NONE or (to_rest and self.rests)

    def _urgent(self) -> bool:
        if self._ending.value >= EndReason.LOST.value:
            return True
        if self.state is PartitionState.SUSPENDED:
            return self.may_act()
        if self.state not in ENDING and not self.may_act():
            return True
        return self._is_to_end() or bool(self.events) or self._answered()

    def _is_to_end(self) -> bool:
        """Whether an ending has still to begin; before the start it waits for an open commit."""
        if self._ending is not EndReason.RELEASE or self.state in ENDING:
            return False
        return self.state is not PartitionState.STARTING or not self.has_pending_commit

    def _active_due(self) -> float | None:
        paused = self.state is PartitionState.PAUSED
        asks_at = None if self.doubt is None else self._asks_at
        if self.rests:
            still_busy = paused or self.outstanding or self.has_pending_commit
            return earliest(self._timeout_due(), asks_at) if still_busy else 0.0
        if paused:
            return 0.0
        return earliest(self._delivery_due(), self._timeout_due(), self.idle_at, asks_at)

    def _delivery_due(self) -> float | None:
        if self.doubt is not None:
            return None
        out = self.outstanding
        if len(out) >= self._settings.now.max_in_flight or (out and self._stands_alone(out[-1])):
            return None
        at = 0.0 if self.pending else self.buffer.due(self.next_batch.waits_for())
        if at and out:  # neither full nor a second delivery
            at = max(at, self._delivery_gate.next_batch_at())
        return None if at is None else max(at, self.not_before)

    def _stands_alone(self, last: Outstanding) -> bool:
        """Whether nothing may be out together with ``last``, or with what comes next.

        What comes after a batch that passes is for a sink that has moved past it as well; and
        of suspects each is to be answered before the next.
        """
        comes_next = self.pending[0].failures if self.pending else 0
        return last.passes or last.cut.failures > 0 or comes_next > 0

    def _timeout_due(self) -> float | None:
        return self.outstanding[0].deadline if self.outstanding else None

    def _answered(self) -> bool:
        return bool(self.outstanding) and self.outstanding[0].answer.done()

    def take_batch(self, now: float) -> BatchSlice | None:
        """Take the next batch to deliver, None if none is due yet; ``deliver`` follows."""
        due = self._delivery_due()
        if due is None or due > now:
            return None
        limits = self.next_batch.cut()
        if not self.pending:
            self.handing_out = self.buffer.cut(limits)
        else:
            # noted before it leaves ``pending``: other threads ask at any moment which batch it is
            self.handing_out, rest = split(self.pending[0], limits)
            self.pending.popleft()
            if rest is not None:
                self.pending.appendleft(rest)
        return self.handing_out

    def deliver(self, item: Outstanding) -> None:
        """Note that the batch taken last is out."""
        self.outstanding.append(item)
        self.handing_out = None

    def begin_idle(self, now: float) -> None:
        """Note since when nothing is out, if nothing is."""
        if not self.outstanding:
            self._idle_since = now

    def end_idle(self) -> None:
        """Be idle no more, because the processor is told."""
        self._idle_since = None

    @contextmanager
    def settles(self) -> Iterator[Outstanding]:
        """Take the oldest batch that is out; what follows from its answer is done in the block."""
        self._settling = self.outstanding[0].cut
        try:
            yield self.outstanding.popleft()
        finally:
            self._settling = None

    def process_to(self, offset: int, batch: Batch | None) -> None:
        """Take what lies before ``offset`` as done; ``batch`` is the one that was answered so."""
        self.processed_offset = offset
        if batch is None:
            return
        count = len(batch)
        if offset < batch.next_offset:
            count = bisect_left(batch.records, offset, key=offset_of)
        if count:
            self.newest = made_at(batch.records[count - 1])

    def withdraw(self) -> list[BatchSlice]:
        """Take back all outstanding batches and cancel their futures; return their records."""
        cuts = [item.cut for item in self.outstanding]
        for item in self.outstanding:
            item.answer.cancel()
            item.batch.span.end(outcome="withdrawn")
        self.outstanding.clear()
        return cuts

    def discard(self, *, leader_is_known: bool = True) -> None:
        """Drop all records that are not handed out; the position stays where it is.

        ``leader_is_known``: whether the log leads there as under the leader epoch known so far.
        """
        epoch = self.buffer.leader_epoch if leader_is_known else None
        self._drop_to(self.position, epoch)

    def discard_read_ahead(self) -> None:
        """Drop what is not cut into a batch yet; batches that wait for a retry are kept."""
        self._gap_end = None
        self.buffer.restart(self.buffer.position)

    def restart_at(
        self, offset: int, *, leader_epoch: int | None = None, reverts: bool = False
    ) -> None:
        """Move the position to ``offset``, whatever is at hand: the one way to do so.

        Reset is what speaks of the former position:

        * ``outstanding``, whose answers would advance from there: withdrawn;
        * ``pending``, the buffer and the gap after it: dropped. The buffer begins a generation,
          so that what the fetcher has on the way for the former one is refused;
        * ``leader_epoch`` of the buffer: the one given, under which the log leads to ``offset``;
        * ``attempts``: the next batch is another one than the one that failed.

        A start, a seek and a reset of the range have compared ``offset`` with the log, and take
        all that lies before it as done. So these are reset as well:

        * ``processed_offset``, which follows, and which the caller has committed;
        * ``doubt`` and ``halted``: what was heard of the log concerned the former position;
        * ``not_before``: the batch that was held back is gone.

        With ``reverts``, as a processor's answer moves it, they stay: what is done is said by the
        answer's commit, the wait by the answer, and nobody asked whether the log has ``offset``.
        The fetcher has to be told of the new position in either case.
        """
        self.withdraw()
        self._drop_to(offset, leader_epoch)
        self.attempts = 0
        if not reverts:
            self.processed_offset = offset
            self.doubt, self.halted = None, False
            self.not_before = 0.0

    def _drop_to(self, position: int, leader_epoch: int | None) -> None:
        self._gap_end = None
        self.pending.clear()
        self.buffer.restart(position, leader_epoch)

    def rewind(self, target: int, retained: Iterable[BatchSlice]) -> bool:
        """Move the position to ``target`` as a processor answers, without a fetch where possible.

        ``retained`` are records just taken back, which the pending ones and the buffer continue.

        Returns:
            whether the records at hand cover it; if not, it is a ``restart_at``, and the fetcher
            has to seek.
        """
        cuts = [*retained, *self.pending]
        covered = cuts[0].start if cuts else self.buffer.position
        if not covered <= target <= self.buffer.position:
            self.restart_at(target, reverts=True)
            return False
        if target != covered:
            self.clear_failures()
        self.pending.clear()
        self.pending.extend(part for cut in cuts if (part := _from(cut, target)) is not None)
        return True


def _from(cut: BatchSlice, target: int) -> BatchSlice | None:
    """Return what of ``cut`` lies at ``target`` or after, None if nothing does."""
    if cut.next_offset <= target:
        return None
    if cut.start >= target:
        return cut
    count = bisect_left(cut.records, target, key=offset_of)
    if count == len(cut.records):
        return None
    if count == 0:
        return replace(cut, start=target)
    return replace(divide(cut, count)[1], start=target)


def earliest(*times: float | None) -> float | None:
    """Return the first of the times that are given, None if none is."""
    return min((at for at in times if at is not None), default=None)
