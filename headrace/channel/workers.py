"""The worker threads: each takes the partition that is due and runs its loop once."""

from __future__ import annotations

from functools import partial
from itertools import count
from threading import Lock, Thread, current_thread
from typing import TYPE_CHECKING, assert_never

import structlog

from headrace.channel.callbacks import WorkerAbandoned
from headrace.channel.events import (
    EpochRaised,
    GapSkipped,
    LogChecked,
    LogReplaced,
    LogTruncated,
    OffsetCommitted,
    OffsetOutOfRange,
    PartitionErrorEvent,
    RecordSkipped,
    SeekRequested,
)
from headrace.channel.states import ENDING, EndReason, PartitionState
from headrace.core.errors import CoordinationSuspendedError, FatalError
from headrace.core.user_text import describe_error
from headrace.telemetry.logs import Bound
from headrace.telemetry.thread_time import ThreadActivity, ThreadRole

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.callbacks import Callbacks
    from headrace.channel.commits import Committer
    from headrace.channel.control import SeekControl
    from headrace.channel.delivery import Delivery
    from headrace.channel.environment import ChannelEnvironment
    from headrace.channel.events import PartitionEvent
    from headrace.channel.offset_reset import OffsetReset
    from headrace.channel.partition import OwnedPartition
    from headrace.channel.partition_manager import PartitionManager
    from headrace.channel.pauses import DeliveryGate
    from headrace.channel.release import Releases
    from headrace.channel.scheduler import Scheduler
    from headrace.channel.skips import Skips
    from headrace.channel.start import PartitionStart
    from headrace.channel.topics import KnownTopics
    from headrace.coordinators.coordinator import Coordinator
    from headrace.core.clock import Deadline
    from headrace.core.errors import PartitionError
    from headrace.telemetry.metrics import Metrics
    from headrace.telemetry.thread_time import ThreadTime


class PartitionLoop:
    """Decides what a partition needs and has it done. Called by the thread that holds it."""

    def __init__(
        self,
        environment: ChannelEnvironment,
        *,
        delivery: Delivery,
        starts: PartitionStart,
        releases: Releases,
        offset_reset: OffsetReset,
        seek_control: SeekControl,
        callbacks: Callbacks,
        committer: Committer,
        coordinator: Coordinator,
        delivery_gate: DeliveryGate,
        manager: PartitionManager,
        scheduler: Scheduler,
        skips: Skips,
        topics: KnownTopics,
    ) -> None:
        self._environment = environment
        self._callbacks = callbacks
        self._committer = committer
        self._coordinator = coordinator
        self._delivery_gate = delivery_gate
        self._manager = manager
        self._scheduler = scheduler
        self._skips = skips
        self._topics = topics
        self._delivery = delivery
        self._starts = starts
        self._releases = releases
        self._offset_reset = offset_reset
        self._seek_control = seek_control

    def run_once(self, owned: OwnedPartition) -> None:
        """Run once: events, answers and time-outs first, then at most one batch."""
        self._run_once(owned)
        if owned.life.final:
            self._manager.ended(owned)

    def _run_once(self, owned: OwnedPartition) -> None:
        if owned.life.is_lost:
            self._releases.lose(owned)
        elif not owned.may_act() and owned.life.state not in ENDING:
            self._suspend(owned)
        else:
            if owned.life.state is PartitionState.SUSPENDED:
                owned.life.unsuspend()
                # a caller may wait for a paused partition to be so again, or for the commit that
                # was held back
                self._delivery_gate.pauses.progress()
                self._committer.flush()
            self._go_on(owned)

    def _suspend(self, owned: OwnedPartition) -> None:
        if owned.life.state is PartitionState.SUSPENDED:
            if owned.life.is_overdue(self._environment.clock.monotonic()):
                # The lease may still hold, so the coordinator does not know that we gave up.
                owned.life.end(EndReason.LOST)
                self._coordinator.released(owned.life.claim, clean=False)
            return
        starting = owned.life.state is PartitionState.STARTING
        owned.life.suspend()
        if not starting:
            error = CoordinationSuspendedError(
                owned.partition,
                f"{owned.partition}: the ZooKeeper session is not confirmed; nothing is "
                "delivered or committed until it is",
            )
            self._callbacks.exception(owned, error, None)

    def _start(self, owned: OwnedPartition) -> None:
        """Handle the events; without any, and unless they begin the partition, take a step."""
        had_events = self._handle_events(owned)
        if owned.life.state is not PartitionState.STARTING:
            return
        if owned.life.ending is EndReason.RELEASE:
            self._releases.unstarted(owned)
        elif not had_events:
            self._starts.run_once(owned)

    def _go_on(self, owned: OwnedPartition) -> None:
        if owned.life.state is PartitionState.STARTING:
            self._start(owned)
            return
        self._catch_up(owned)
        if owned.life.ending is EndReason.RELEASE and owned.life.state not in ENDING:
            self._releases.begin(owned)
        if owned.life.state in ENDING:
            self._releases.run_once(owned)
        else:
            self._work(owned)

    def _catch_up(self, owned: OwnedPartition) -> None:
        """Handle the events and settle what was answered or is overdue."""
        self._handle_events(owned)
        self._delivery.settle(owned)
        self._delivery.expire(owned)
        if owned.life.ending is EndReason.NONE and owned.log_doubt.doubt is not None:
            self._offset_reset.settle(owned, owned.log_doubt.doubt)
        self._pass_gap(owned)

    def _work(self, owned: OwnedPartition) -> None:
        now = self._environment.clock.monotonic()
        if owned.rests:
            self._pause(owned)
            return
        if owned.life.state is PartitionState.PAUSED:
            owned.life.become(PartitionState.WAITING)
            processor = self._callbacks.processor
            self._callbacks.ask(owned, lambda: processor.on_resume(owned))
        owned.life.become(PartitionState.RUNNING)
        cut = owned.take_batch(now)
        if cut is not None:
            self._delivery.deliver(owned, cut)
        elif (idle_at := owned.progress.idle_at) is not None and idle_at <= now:
            self._idle(owned)
        owned.rest(self._environment.clock.monotonic())

    def _pause(self, owned: OwnedPartition) -> None:
        """Enter PAUSED once what was handed out is answered and committed."""
        if (
            owned.progress.outstanding
            or owned.pending_commits.has_pending_commit
            or owned.life.state is PartitionState.PAUSED
        ):
            return
        owned.life.become(PartitionState.RUNNING)
        processor = self._callbacks.processor
        self._callbacks.ask(owned, lambda: processor.on_pause(owned))
        # only now nothing of it is in the processor's hands, which is what a pause promises
        owned.life.become(PartitionState.PAUSED)
        self._delivery_gate.pauses.progress()

    def _idle(self, owned: OwnedPartition) -> None:
        owned.progress.end_idle()
        processor = self._callbacks.processor
        response = self._callbacks.ask(owned, lambda: processor.on_idle(owned))
        self._delivery.respond(owned, response)

    def _handle_events(self, owned: OwnedPartition) -> bool:
        """Handle what was posted; False if nothing was.

        The event that begins the partition is the last one of its turn: what follows comes next.
        """
        was_starting = owned.life.state is PartitionState.STARTING
        had_events = bool(owned.events)
        while owned.events:
            self._handle(owned, owned.events.popleft())
            if was_starting and owned.life.state is not PartitionState.STARTING:
                break
        return had_events

    def _handle(self, owned: OwnedPartition, event: PartitionEvent) -> None:
        """Handle one event. Valid in every state."""
        match event:
            case OffsetCommitted():
                self._committed(owned, event)
            case PartitionErrorEvent(error):
                self._handle_error(owned, error)
            case EpochRaised(claim):
                owned.raise_epoch(claim)
            case LogChecked():
                self._starts.checked(owned, event)
            case OffsetOutOfRange() | LogTruncated():
                self._offset_reset.hold(owned, event)
            case GapSkipped(generation, end):
                owned.progress.note_gap(end, generation)
            case LogReplaced():
                self._log_replaced(owned)
            case SeekRequested():
                self._seek_control.seek(owned, event)
            case RecordSkipped():
                self._retry_without(owned)
            case _:
                assert_never(event)

    def _retry_without(self, owned: OwnedPartition) -> None:
        """Deliver a batch that has failed again now: it is another one without the record."""
        if owned.retries.attempts and owned.life.state is not PartitionState.STARTING:
            owned.retries.retry_at(self._environment.clock.monotonic())

    def _log_replaced(self, owned: OwnedPartition) -> None:
        if owned.life.is_to_start:
            # what is not on the way yet begins with the topic as it is now
            owned.forget_look()
        elif (
            owned.life.state is not PartitionState.STARTING
            and owned.life.topic_id != self._topics.topic_id(owned.partition)
        ):
            self._offset_reset.restart_topic(owned)

    def _handle_error(self, owned: OwnedPartition, error: PartitionError) -> None:
        """Report to the processor, if it knows the partition and has not had its last callback."""
        if owned.life.state in (PartitionState.STARTING, PartitionState.TERMINATING):
            owned.retries.note_error(str(error))
            return
        response = self._callbacks.exception(owned, error, None)
        self._delivery.respond(owned, response)

    def _committed(self, owned: OwnedPartition, event: OffsetCommitted) -> None:
        processor = self._callbacks.processor
        batches = owned.pending_commits.confirm(event)
        if owned.life.state is PartitionState.STARTING:
            if owned.life.is_to_start:
                self._starts.begin(owned)
            return
        for batch in batches:
            self._callbacks.ask(owned, partial(processor.on_batch_processed, batch))
        self._skips.committed(owned)
        # a caller may wait for the commit of a partition that was moved, and that delivers again
        # already where nothing but a truncated log had halted it
        self._delivery_gate.pauses.progress()
        if self._offset_reset.has_restarted(owned):
            owned.life.end(EndReason.LOST)
            self._coordinator.released(owned.life.claim, clean=False)
            self._scheduler.touch(owned)

    def _pass_gap(self, owned: OwnedPartition) -> None:
        """Commit the end of a gap once everything before it is: or lag would never reach 0."""
        if owned.log_doubt.doubt is not None:
            return
        end = owned.progress.take_gap()
        if end is not None and (owned.committed or 0) < end:
            self._committer.enqueue(owned, end)


log = structlog.get_logger(__name__)

#: Seconds a worker waits for a partition before it looks whether there is one, all the same.
TAKE_TIMEOUT = 5.0


class Workers:
    """A pool of worker threads that take partitions in turn.

    ``busy`` says whether a batch is out whose answer is still open.
    """

    def __init__(
        self,
        *,
        count: int,
        scheduler: Scheduler,
        run_once: Callable[[OwnedPartition], None],
        busy: Callable[[], bool],
        fail: Callable[[BaseException], None],
        metrics: Metrics,
        channel: str,
    ) -> None:
        self._wanted = count
        self._active = 0
        self._scheduler = scheduler
        self._run_once = run_once
        self._busy = busy
        self._fail = fail
        self._metrics = metrics
        self._channel = channel
        self._lock = Lock()
        self._threads: list[Thread] = []
        self._numbers: set[int] = set()
        self._closed = False

    def start(self) -> None:
        """Start the threads."""
        self.resize(self._wanted)

    def resize(self, count: int) -> None:
        """Set the number of threads. Surplus ones end after their current run or in seconds."""
        with self._lock:
            self._wanted = count
            missing = count - self._active
            self._active = max(self._active, count)
        for _ in range(missing):
            self.replace()

    def replace(self) -> None:
        """Start one more thread, in place of one that hangs."""
        with self._lock:
            # the lowest that is free: names are labels of a metric, which have to stay few
            number = next(n for n in count(1) if n not in self._numbers)
            self._numbers.add(number)
            name = f"{self._channel}-worker-{number}"
            thread = Thread(target=self._run, args=[number], name=name, daemon=True)
            self._threads.append(thread)
        thread.start()

    def stop(self, deadline: Deadline) -> list[str]:
        """End the threads; return the names of those that were still busy at the deadline."""
        self._closed = True
        self._scheduler.close()
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join(deadline.remaining)
        return [thread.name for thread in threads if thread.is_alive()]

    def _is_surplus(self) -> bool:
        """Return whether the calling thread is to end, because there are more than wanted."""
        with self._lock:
            if self._active <= self._wanted:
                return False
            self._active -= 1
            self._threads.remove(current_thread())
            return True

    def _run(self, number: int) -> None:
        time = self._metrics.thread_time(self._channel, ThreadRole.WORKER, f"worker-{number}")
        try:
            self._run_partitions(time)
        finally:
            self._metrics.forget_thread(time)
            with self._lock:
                self._numbers.discard(number)

    def _run_partitions(self, time: ThreadTime) -> None:
        while not self._closed and not self._is_surplus():
            owned = self._scheduler.take(TAKE_TIMEOUT)
            if owned is None:
                time.switch_to(ThreadActivity.WAIT if self._busy() else ThreadActivity.IDLE)
                continue
            time.switch_to(ThreadActivity.PROCESS)
            holder = owned.hold.holder
            try:
                with Bound(**owned.life.log_fields):
                    self._run_once(owned)
            except WorkerAbandoned:
                log.warning("abandoned_worker_returned", channel=self._channel)
                return
            except BaseException as error:
                log.exception(
                    "worker_failed", channel=self._channel, partition=str(owned.partition)
                )
                self._fail(
                    FatalError(
                        f"{owned.partition}: a worker failed with {describe_error(error)}; "
                        "the process has to be restarted, and the log reported"
                    )
                )
                if owned.life.ending is EndReason.ABANDONED:
                    continue  # it cannot even be ended, so no worker gets it any more
                owned.life.end(EndReason.ABANDONED)
            time.switch_to(
                ThreadActivity.WAIT if owned.progress.outstanding else ThreadActivity.IDLE
            )
            self._scheduler.give_back(owned, holder)
