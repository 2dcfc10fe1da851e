"""One turn of a worker with a partition: what is due first, in the order that keeps promises."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headrace.channel.delivery import Delivery
from headrace.channel.ending import Endings
from headrace.channel.news import (
    Committed,
    EpochRaised,
    GapPassed,
    LogReplaced,
    OutOfRange,
    RecordSkipped,
    SeekAsked,
    Trouble,
    Truncated,
)
from headrace.channel.range_reset import RangeReset
from headrace.channel.seeking import Seeking
from headrace.channel.starting import Starting
from headrace.channel.states import Ending, PartitionState
from headrace.errors import CoordinationSuspendedError

if TYPE_CHECKING:
    from headrace.channel.news import News
    from headrace.channel.partition import OwnedPartition
    from headrace.channel.parts import Parts
    from headrace.errors import PartitionError

_GIVEN_BACK = (PartitionState.RELEASING, PartitionState.TERMINATING)


class Turns:
    """Decides what a partition needs and has it done. Called by the thread that holds it."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._callbacks = parts.callbacks
        self._delivery = Delivery(parts)
        self._starting = Starting(parts)
        self._endings = Endings(parts, self._delivery)
        self._range_reset = RangeReset(parts)
        self._seeking = Seeking(parts)

    def turn(self, owned: OwnedPartition) -> None:
        """Do one turn: news, answers and time-outs first, then at most one batch."""
        if owned.ending.value >= Ending.LOST.value:
            self._endings.lose(owned)
        elif not owned.may_act() and owned.state not in _GIVEN_BACK:
            self._suspend(owned)
        else:
            if owned.state is PartitionState.SUSPENDED:
                owned.unsuspend()
                # somebody may wait for a paused partition to be so again, or for the commit that
                # was held back
                self._parts.gates.pauses.progress()
                self._parts.committer.flush()
            self._go_on(owned)

    def _suspend(self, owned: OwnedPartition) -> None:
        if owned.state is PartitionState.SUSPENDED:
            if self._parts.overdue(owned):
                # The lease may still hold, so the coordinator does not know that we gave up.
                owned.end(Ending.LOST)
                self._parts.coordinator.released(owned.claim, clean=False)
            return
        starting = owned.state is PartitionState.STARTING
        owned.suspend()
        if not starting:
            error = CoordinationSuspendedError(
                owned.partition,
                f"{owned.partition}: the ZooKeeper session is not confirmed; nothing is "
                "delivered or committed until it is",
            )
            self._callbacks.exception(owned, error, None)

    def _go_on(self, owned: OwnedPartition) -> None:
        if owned.state is PartitionState.STARTING:
            if owned.ending is Ending.RELEASE:
                self._endings.unstarted(owned)
            else:
                self._starting.turn(owned)
            return
        self._catch_up(owned)
        if owned.ending is Ending.RELEASE and owned.state not in _GIVEN_BACK:
            self._endings.begin(owned)
        if owned.state in _GIVEN_BACK:
            self._endings.turn(owned)
        else:
            self._work(owned)

    def _catch_up(self, owned: OwnedPartition) -> None:
        """Hear the news and settle what was answered or is overdue."""
        while owned.news:
            self._hear(owned, owned.news.popleft())
        self._delivery.settle(owned)
        self._delivery.expire(owned)
        if owned.ending is Ending.NONE and owned.doubt is not None:
            self._range_reset.settle(owned, owned.doubt)
        self._pass_gap(owned)

    def _work(self, owned: OwnedPartition) -> None:
        now = self._parts.clock.monotonic()
        if owned.rests:
            self._pause(owned)
            return
        if owned.state is PartitionState.PAUSED:
            owned.become(PartitionState.WAITING)
            processor = self._callbacks.processor
            self._callbacks.ask(owned, lambda: processor.on_resume(owned))
        owned.become(PartitionState.RUNNING)
        cut = owned.take_batch(now)
        if cut is not None:
            self._delivery.deliver(owned, cut)
        elif (idle_at := owned.idle_at) is not None and idle_at <= now:
            self._idle(owned)
        owned.rest(self._parts.clock.monotonic())

    def _pause(self, owned: OwnedPartition) -> None:
        """Enter PAUSED once what was handed out is answered and committed."""
        if owned.outstanding or owned.owes_commit or owned.state is PartitionState.PAUSED:
            return
        owned.become(PartitionState.RUNNING)
        processor = self._callbacks.processor
        self._callbacks.ask(owned, lambda: processor.on_pause(owned))
        # only now nothing of it is in the processor's hands, which is what a pause promises
        owned.become(PartitionState.PAUSED)
        self._parts.gates.pauses.progress()

    def _idle(self, owned: OwnedPartition) -> None:
        owned.idle_since = None
        processor = self._callbacks.processor
        response = self._callbacks.ask(owned, lambda: processor.on_idle(owned))
        self._delivery.respond(owned, response)

    def _hear(self, owned: OwnedPartition, news: News) -> None:
        match news:
            case Committed():
                self._committed(owned, news)
            case Trouble(error):
                self._trouble(owned, error)
            case OutOfRange() | Truncated() if news.generation == owned.buffer.generation:
                self._range_reset.hold(owned, news)
            case GapPassed(generation, end) if generation == owned.buffer.generation:
                owned.gap_end = end
            case EpochRaised(claim):
                owned.claim = claim
            case LogReplaced():
                if owned.topic_id != self._parts.topics.topic_id(owned.partition):
                    self._range_reset.begin_anew(owned)
            case SeekAsked() | RecordSkipped():
                self._obey(owned, news)

    def _obey(self, owned: OwnedPartition, news: SeekAsked | RecordSkipped) -> None:
        """Do what an operator asks."""
        if isinstance(news, SeekAsked):
            self._seeking.seek(owned, news)
        else:
            self._try_at_once(owned)

    def _try_at_once(self, owned: OwnedPartition) -> None:
        """Deliver a batch that has failed again now: it is another one without the record."""
        if owned.attempts:
            owned.attempts = 0
            owned.not_before = self._parts.clock.monotonic()

    def _trouble(self, owned: OwnedPartition, error: PartitionError) -> None:
        """Tell the processor, unless it has had its last callback for the partition."""
        if owned.state is PartitionState.TERMINATING:
            owned.last_error = str(error)
            return
        response = self._callbacks.exception(owned, error, None)
        self._delivery.respond(owned, response)

    def _committed(self, owned: OwnedPartition, news: Committed) -> None:
        processor = self._callbacks.processor
        for batch in owned.staging.confirm(news):
            self._callbacks.ask(owned, partial(processor.on_batch_processed, batch))
        self._parts.skips.committed(owned)
        # somebody may wait for the commit of a partition that was moved
        if owned.state is PartitionState.PAUSED:
            self._parts.gates.pauses.progress()
        if self._range_reset.has_begun_anew(owned):
            owned.end(Ending.LOST)
            self._parts.coordinator.released(owned.claim, clean=False)
            self._parts.scheduler.touch(owned)

    def _pass_gap(self, owned: OwnedPartition) -> None:
        """Commit the end of a gap once everything before it is: or lag would never reach 0."""
        end = owned.gap_end
        if end is None or owned.outstanding or owned.pending or owned.doubt is not None:
            return
        owned.gap_end = None
        if owned.advanced == owned.buffer.position and (owned.committed or 0) < end:
            self._parts.committer.stage(owned, end, owned.staging.stage(None))
