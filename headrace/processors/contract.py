"""The contract between a channel and the processor that its batches go to."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from headrace.core.clock import SYSTEM_CLOCK, Clock
from headrace.core.errors import FatalError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from concurrent.futures import Future

    from headrace.config import ChannelConfig
    from headrace.core.clock import Deadline
    from headrace.core.errors import PartitionError
    from headrace.core.records import Assignment, Batch, TopicPartition
    from headrace.core.undecodable import UndecodableRecords
    from headrace.telemetry.metrics import Metrics, PoolSnapshot, StateSnapshot


class Request(Enum):
    """The three things a processor can ask for, each relative to the batch it answers."""

    CONTINUE = "continue"
    """The batch is answered; commit nothing."""

    ADVANCE = "advance"
    """The batch is answered; commit the offset after it."""

    REVERT = "revert"
    """Read again from the highest offset that was advanced to."""


@dataclass(frozen=True, slots=True)
class BatchResponse:
    """The answer to one batch.

    Build it with :meth:`continue_`, :meth:`advance` or :meth:`revert`. ``wait`` (seconds) holds
    the partition back and the two sizes bound the next batch only; both apply to batches cut
    after the answer. An ``offset`` moves the position, which withdraws every later outstanding
    batch of the partition. Offsets mean the next record to read.

    Raises:
        ValueError: an offset, a wait or a size is negative, or fields contradict each other.
    """

    request: Request
    offset: int | None = None
    commit_to: int | None = None
    wait: float = 0.0
    max_records: int | None = None
    max_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("offset", "commit_to", "wait"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} is {value}; it must be 0 or more")
        for name in ("max_records", "max_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more")
        if self.commit_to is not None and self.request is not Request.ADVANCE:
            raise ValueError(f"commit_to goes with advance, not with {self.request.value}")
        if self.commit_to is not None and self.offset is not None:
            raise ValueError("give offset (seek and commit) or commit_to (commit only), not both")

    @classmethod
    def continue_(
        cls,
        *,
        offset: int | None = None,
        wait: float = 0.0,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> BatchResponse:
        """Continue without a commit; with ``offset``, continue from there."""
        return cls(Request.CONTINUE, offset, None, wait, max_records, max_bytes)

    @classmethod
    def advance(
        cls,
        *,
        offset: int | None = None,
        commit_to: int | None = None,
        wait: float = 0.0,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> BatchResponse:
        """Commit the offset after the batch.

        With ``commit_to``, commit that offset instead and read on; it lies between the processed
        offset, where the last advance was, and the end of the batch. With ``offset``, seek
        there and commit that.
        """
        return cls(Request.ADVANCE, offset, commit_to, wait, max_records, max_bytes)

    @classmethod
    def revert(
        cls,
        *,
        offset: int | None = None,
        wait: float = 0.0,
        max_records: int | None = None,
        max_bytes: int | None = None,
    ) -> BatchResponse:
        """Read again from where the last advance was, or from ``offset``; commit nothing."""
        return cls(Request.REVERT, offset, None, wait, max_records, max_bytes)


class PauseControl(Protocol):
    """The control by which a processor pauses delivery, when what it writes to cannot take more.

    Any thread; does not block. The pause is the processor's own: it ends none of an operator, and
    no operator's resume ends it. Batches that are out go on.
    """

    def pause(
        self, note: str, *, seconds: float | None = None, partition: TopicPartition | None = None
    ) -> None:
        """Pause the channel, or one partition; after ``seconds`` it ends by itself."""
        ...

    def resume(self, *, partition: TopicPartition | None = None) -> None:
        """End what ``pause`` began for the same scope."""
        ...


class NoPauseControl:
    """Stands in where there is no channel: a processor that is tried out by itself.

    Raises:
        FatalError: anything was to be paused or resumed.
    """

    def pause(
        self, note: str, *, seconds: float | None = None, partition: TopicPartition | None = None
    ) -> None:
        """Refuse."""
        raise FatalError(f"there is no channel to pause ({note})")

    def resume(self, *, partition: TopicPartition | None = None) -> None:
        """Refuse."""
        raise FatalError("there is no channel to resume")


def _nobody() -> None:
    """Return at once: a processor that is tried out by itself has no channel."""


def _raise(error: BaseException) -> None:
    """Raise the error: a processor that is tried out by itself has no channel."""
    raise error


def _no_group(tasks: Collection[int]) -> None:
    """Return at once: a processor that is tried out by itself has no group to tell."""
    del tasks


def _no_letters(found: Sequence[tuple[Batch, UndecodableRecords]]) -> None:
    """Refuse, as there is no channel: a processor is tried out by itself."""
    raise FatalError(f"there is no dead-letter topic for records of {len(found)} batches")


@dataclass(frozen=True, slots=True)
class ChannelContext:
    """The channel that a processor serves: what it may know of that, and have it do.

    ``wake`` has the channel ask :meth:`BatchProcessor.next_batch_at` again. ``restoring`` has
    partitions rest whose state is not there yet, whatever ``pause.max_duration`` says, and
    ``stranded`` those, or all, whose state cannot be relied on before an operator acts: the process
    is not ready then. ``fail`` ends the channel with an error, and its process with it, where only
    a new one helps: nothing is committed of what is out. Any thread; none of them blocks.

    ``publish_warm`` tells the group for which tasks this member is ready, though others have them.

    ``send_undecodable`` alone does: it puts the undecodable records of batches into the
    dead-letter topic, and returns when they are there. It raises RetryableError where they are not
    known to be.
    """

    channel: str
    group: str
    metrics: Metrics
    clock: Clock = SYSTEM_CLOCK
    pause_control: PauseControl = field(default_factory=NoPauseControl)
    wake: Callable[[], None] = _nobody
    restoring: PauseControl = field(default_factory=NoPauseControl)
    fail: Callable[[BaseException], None] = _raise
    stranded: PauseControl = field(default_factory=NoPauseControl)
    send_undecodable: Callable[[Sequence[tuple[Batch, UndecodableRecords]]], None] = _no_letters
    publish_warm: Callable[[Collection[int]], None] = _no_group


@dataclass(frozen=True, slots=True)
class GroupTasks:
    """The tasks of a channel's group by number, as its member sees them.

    ``members`` may be given tasks; ``owners`` have them at present, and ``goal`` says who is to
    have which once all are ready for theirs.
    """

    member: str
    members: frozenset[str]
    owners: Mapping[int, str]
    goal: Mapping[int, str]


class StateView(Protocol):
    """The reader of the state that a processor keeps by key. Any thread."""

    def snapshot(self) -> StateSnapshot:
        """Return what metrics show of the state. Does not block."""
        ...


class BatchProcessor(ABC):
    """Turns batches into effects.

    One processor object serves all partitions of a channel. The callbacks of one partition never
    overlap and come in this order::

        on_assigned -> (on_next_batch | on_batch_processed | on_idle | on_exception
                        | on_pause | on_resume)* -> on_stream_termination or on_partition_lost

    with nothing after the last. Callbacks of different partitions run at the same time on the
    channel's worker threads, and those of one partition not always on the same thread. A callback
    may block up to the channel's ``batch_timeout``; a worker stuck for longer is abandoned, and
    what its processor answers then has no effect.

    Any exception from a callback goes to :meth:`on_exception` of that partition and to nothing
    else; the other partitions go on.
    """

    #: How often the records of an outstanding batch are held in memory: once by the channel, and
    #: once more for each copy that the processor makes. Counted in the channel's memory budget.
    copies: int = 1

    #: Whether records should be fetched in Arrow columns, without an object for each: for
    #: processors that make a table of each batch with ``headrace.table_of``. Where the part in C is
    #: missing they come as the client's objects all the same, and ``table_of`` takes longer.
    in_columns: bool = False

    def open(self, context: ChannelContext) -> None:
        """Get ready, before the channel joins its group. May block.

        Raises:
            StartError: the channel must not start; nothing has been claimed yet.
        """

    def stored_offset(self, assignment: Assignment) -> int | None:
        """Return the next offset as the processor's own sink has it, None if it keeps none.

        Called on a worker thread before ``on_assigned``, after the previous owner was fenced. It
        has precedence over the group's commit. May block; an exception is retried with back-off.
        """
        return None

    def stored_leader_epoch(self, assignment: Assignment) -> int | None:
        """Return the leader epoch that the sink stored with ``stored_offset``, None without one.

        Called like that, and right after it.
        """
        return None

    def on_assigned(self, assignment: Assignment) -> None:
        """Handle a new partition; its position is known and committed."""

    @abstractmethod
    def on_next_batch(self, batch: Batch) -> BatchResponse | Future[BatchResponse]:
        """Process a batch; answer now, or with a future to be completed on any thread.

        While the future is open, up to ``max_in_flight`` batches of the partition are handed out.
        The channel cancels futures that it no longer waits for; setting the result of a cancelled
        future has no effect. Commits keep the order of the batches, whatever order they are
        answered in.
        """

    def next_batch_at(self) -> float:
        """Return when another batch is of use to a partition that has some out, in monotonic time.

        Until then records gather in the channel; those that fill a batch are handed out at once
        all the same. Any thread; must not block. 0.0 is at once.
        """
        return 0.0

    def on_batch_processed(self, batch: Batch) -> None:
        """Handle a stored commit that ``batch``'s own answer advanced to its end."""

    def pass_over(self, batch: Batch) -> None:
        """Move the sink's own offset past a batch that the error policy skips. May block.

        Only for processors whose sink keeps offsets: it would be asked for the skipped records
        again otherwise. Called while nothing of the partition is outstanding; an exception has
        the batch delivered again instead, and a SinkConflictError has reading go on where the sink
        stands, as for a batch.
        """

    def move_offset(self, assignment: Assignment, offset: int, note: str) -> None:
        """Move the sink's own offset to where an operator sends a paused partition. May block.

        Only for processors whose ``stored_offset`` returns one; without this a seek is refused
        for them. ``note`` says who wants it, for the sink's own history. An exception says that
        nothing was moved. Called while nothing of the partition is outstanding.
        """

    def on_idle(self, assignment: Assignment) -> BatchResponse | None:
        """Handle that nothing was delivered for ``idle_time``: once, until something is.

        An answer is taken as if it were for a batch that ends at the position.
        """
        return None

    def on_exception(
        self,
        assignment: Assignment,
        error: PartitionError | BaseException,
        batch: Batch | None,
    ) -> BatchResponse | None:
        """Decide what follows an error; None leaves it to the channel's ``rejects.failing``.

        The answer counts for errors of ``on_next_batch`` and for those the channel reports itself;
        for an error of another callback it has no effect.
        ``batch`` is the one that failed, None where the error belongs to none. With an
        OffsetOutOfRangeError only the answer's ``offset``, ``wait`` and sizes count.
        """
        return None

    def on_pause(self, assignment: Assignment) -> None:
        """Handle a pause: delivery has stopped and what was advanced is committed."""

    def on_resume(self, assignment: Assignment) -> None:
        """Handle that delivery resumes."""

    def on_stream_termination(self, assignment: Assignment) -> BatchResponse | None:
        """Finish an orderly release: all batches are answered; the answer may still advance."""
        return None

    def may_still_store(self, assignment: Assignment) -> bool:
        """Return whether something withdrawn of the partition may still take effect in the sink.

        Asked after ``on_stream_termination``, where the next owner can shut this member out of the
        sink by a transactional id; then it does. Must not block.
        """
        return False

    def on_partition_lost(self, assignment: Assignment) -> None:
        """Drop all state of the partition: nothing done for it can take effect any more."""

    def on_rebalanced(self, tasks: GroupTasks) -> None:
        """Handle that the tasks of the group are shared otherwise, or are to be.

        Called on the coordinator's thread, beside other callbacks; must not block.
        """

    def state_reader(self) -> StateView | None:
        """Return what reads the state that is kept by key, None where none is kept.

        Called on any thread, beside other callbacks; must not block.
        """
        return None

    def pool_snapshot(self) -> PoolSnapshot | None:
        """Return what the processor's own threads are doing, None where it has none.

        Called on any thread, beside other callbacks; must not block.
        """
        return None

    def on_reconfigured(self, channel: ChannelConfig) -> None:
        """Apply the hot values of the processor's configuration; the channel goes on.

        Called on any thread, beside other callbacks; must not block.
        """

    def close(self, deadline: Deadline) -> None:
        """Release every resource, after the last callback. Blocks until ``deadline`` at most."""


def keeps_own_offsets(processor: BatchProcessor) -> bool:
    """Return whether a processor says where its sink's offsets are."""
    return type(processor).stored_offset is not BatchProcessor.stored_offset
