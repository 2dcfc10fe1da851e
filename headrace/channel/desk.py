"""What operators ask of single partitions of a running channel: to move them, and to skip."""

from __future__ import annotations

from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING

import structlog

from headrace.channel.news import RecordSkipped, SeekAsked, Sought
from headrace.channel.seeking import not_paused
from headrace.channel.skips import Skip, Skips
from headrace.channel.states import PartitionState
from headrace.config.kinds.targets import At, Earliest, Latest, Replay, ShiftBy, Target, To
from headrace.errors import (
    CommittedAlreadyError,
    NoSuchOffsetError,
    NotHeldError,
    NotInBatchError,
    UnfinishedError,
)

if TYPE_CHECKING:
    from headrace.channel.gates import Gates
    from headrace.channel.holdings import Holdings
    from headrace.channel.partition import OwnedPartition
    from headrace.channel.scheduler import Scheduler
    from headrace.clock import Deadline
    from headrace.kafka.ports import TopicCatalog
    from headrace.records import TopicPartition

log = structlog.get_logger(__name__)


class OperatorDesk:
    """Safe on any thread. What blocks says so; nothing blocks for longer than its deadline."""

    def __init__(
        self,
        channel: str,
        *,
        holdings: Holdings,
        scheduler: Scheduler,
        gates: Gates,
        catalog: TopicCatalog,
        skips: Skips,
    ) -> None:
        self._channel = channel
        self._holdings = holdings
        self._scheduler = scheduler
        self._gates = gates
        self._catalog = catalog
        self._skips = skips

    # --- moving -----------------------------------------------------------------------------

    def seek(
        self,
        partition: TopicPartition,
        offset: int,
        *,
        by: str,
        deadline: Deadline,
        replay: Replay | None = None,
    ) -> Sought:
        """Have a paused partition go on at ``offset``, and wait until that is committed. Blocks.

        Raises:
            RefusedError: it is not held, not paused, the offset is not in the log, the sink's
                offset cannot be moved, or not back without saying what becomes of its output, or
                it was not done in time.
            KafkaUnavailableError: the partition's leader does not say what it has.
        """
        owned = self._resting(partition)
        outcome: Future[Sought] = Future()
        owned.tell(SeekAsked(offset, by, outcome, replay))
        self._scheduler.touch(owned)
        self._gates.pauses.wait(lambda: outcome.done() or owned.final, deadline)
        if outcome.cancel() or not outcome.done():
            raise _unfinished(partition, owned, offset)
        try:
            sought = outcome.result(0)
        except CancelledError:
            raise _unfinished(partition, owned, offset) from None
        stored = self._gates.pauses.wait(
            lambda: owned.staging.stored >= sought.sequence or owned.final, deadline
        )
        if not stored or owned.staging.stored < sought.sequence:
            raise UnfinishedError(
                f"{partition} was moved to {offset}, but that is not known to be committed",
                value=str(offset),
                next_step="look at its committed offset, and seek again if it is another",
            )
        return sought

    def find(self, target: Target, partition: TopicPartition, deadline: Deadline) -> int:
        """Return the offset that a target means for a paused partition, within its log. Blocks.

        Raises:
            RefusedError: the partition is not held or not paused.
            KafkaUnavailableError: the partition's leader does not say what it has.
        """
        owned = self._resting(partition)
        low, high = self._catalog.watermarks(partition, deadline)
        match target:
            case Earliest():
                wanted = low
            case Latest():
                wanted = high
            case To(offset):
                wanted = offset
            case ShiftBy(count):
                wanted = owned.position + count
            case At(timestamp):
                found = self._catalog.offset_at(partition, timestamp, deadline)
                wanted = high if found is None else found
        return max(low, min(wanted, high))

    # --- skipping ---------------------------------------------------------------------------

    def skip(
        self, partition: TopicPartition, offset: int, *, reason: str, by: str, force: bool = False
    ) -> Skip:
        """Leave one record out from the next delivery on, without a pause. Does not block.

        A batch that has failed with it comes again at once. Holds in this process until the
        offset behind the record is committed. With ``force`` also one that is in no such batch.

        Raises:
            RefusedError: the partition is not held, the record is done with, it is not there, or it
                is not in the batch that is out or fails.
        """
        owned = self._known(partition)
        if offset < max(owned.committed or 0, owned.advanced):
            raise CommittedAlreadyError(
                f"{partition}: the record at {offset} is done with, {owned.committed} is committed",
                value=str(offset),
                next_step="there is nothing left to skip; to read it again, pause and seek",
            )
        end = owned.high_watermark
        # the watermark is looked at now and then only, and may be behind what was fetched
        if end is not None and offset >= max(end, owned.buffer.expected):
            raise NoSuchOffsetError(
                f"{partition}: the log ends at {end}, there is no record {offset} yet",
                value=str(offset),
                next_step="the status has the first record of the batch that fails (batch_offset)",
            )
        if not force:
            _require_in_batch(owned, offset)
        skip = Skip(partition, offset, reason, by)
        self._skips.add(owned, skip)
        owned.tell(RecordSkipped())
        self._scheduler.touch(owned)
        log.warning(
            "skip_asked",
            channel=self._channel,
            topic=partition.topic,
            partition=partition.partition,
            offset=offset,
            reason=reason,
            by=by,
        )
        return skip

    def skips(self) -> list[Skip]:
        """Return the records that are to be left out and are not committed yet."""
        return self._skips.all()

    # --- parts ------------------------------------------------------------------------------

    def _held(self, partition: TopicPartition) -> OwnedPartition:
        owned = self._holdings.held(partition)
        if owned is None:
            raise NotHeldError(
                f"{partition} is not held by this process",
                value=str(partition),
                next_step="ask the member that owns it; headrace group says which",
            )
        return owned

    def _known(self, partition: TopicPartition) -> OwnedPartition:
        """Return a held partition of which it is known whose log it is: skips belong to that."""
        owned = self._held(partition)
        if owned.topic_id is None:
            raise NotHeldError(
                f"{partition} is only being taken over",
                value=str(partition),
                next_step="ask again in a moment, when it has started",
            )
        return owned

    def _resting(self, partition: TopicPartition) -> OwnedPartition:
        owned = self._held(partition)
        if not owned.rests or owned.state is not PartitionState.PAUSED:
            raise not_paused(self._channel, owned)
        return owned


def _require_in_batch(owned: OwnedPartition, offset: int) -> None:
    """See that an offset is one of the batch that is out, or that failed and comes again.

    Raises:
        NotInBatchError: it is not.
    """
    batch = owned.batch
    if batch is not None and batch[0] <= offset < batch[1]:
        return
    if batch is None:
        found = "no batch is out, and none has failed"
    else:
        found = f"the batch that is out or fails has the records {batch[0]} to {batch[1] - 1}"
    raise NotInBatchError(
        f"{owned.partition}: {found}; {offset} is none of them",
        value=str(offset),
        next_step="skip one of the batch that fails, or have this one skipped all the same by "
        "force: true (--force)",
    )


def _unfinished(
    partition: TopicPartition, owned: OwnedPartition, offset: int
) -> NotHeldError | UnfinishedError:
    if owned.final:
        return NotHeldError(
            f"{partition} ended while it was to be moved",
            value=str(partition),
            next_step="ask the member that owns it; headrace group says which",
        )
    return UnfinishedError(
        f"{partition} was not moved to {offset} in time",
        value=str(offset),
        next_step="see what the partition is doing with headrace status, and seek again",
    )
