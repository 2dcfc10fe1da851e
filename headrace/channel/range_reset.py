"""What follows when the broker does not have the position: ask, then the channel's policy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from headrace.clock import Deadline
from headrace.errors import HeadraceError, OffsetOutOfRangeError
from headrace.processors import BatchResponse

if TYPE_CHECKING:
    from headrace.channel.partition import OwnedPartition
    from headrace.channel.parts import Parts

log = structlog.get_logger(__name__)

#: Seconds to wait for a partition's leader to say what it has.
WATERMARK_TIMEOUT = 5.0


class RangeReset:
    """Finds a position that the broker has. Called by the thread that holds the partition."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._replaced: set[OwnedPartition] = set()

    def begin_anew(self, owned: OwnedPartition) -> None:
        """Go to the beginning of a log that took the place of the one that was read.

        Where it does not begin at 0 any more, what follows is what follows a deleted position.
        The claim ends once that is committed: a sink knows the new log by another name.
        """
        self._parts.fetcher.unassign(owned)
        self._go_back(owned, 0)
        self._parts.committer.flush()
        self._replaced.add(owned)

    def has_begun_anew(self, owned: OwnedPartition) -> bool:
        """Whether a partition was sent to the beginning of another log, and that is committed."""
        if owned not in self._replaced or owned.owes_commit:
            return False
        self._replaced.remove(owned)
        return True

    def reset(self, owned: OwnedPartition) -> None:
        """Move the position into range, and say which offsets are passed over."""
        deadline = Deadline.after(WATERMARK_TIMEOUT, self._parts.clock)
        try:
            low, high = self._parts.catalog.watermarks(owned.partition, deadline)
        except HeadraceError as silence:
            log.warning(
                "watermarks_unknown",
                channel=self._parts.name,
                topic=owned.partition.topic,
                partition=owned.partition.partition,
                error=str(silence),
            )
            owned.last_error = str(silence)
            self._parts.fetcher.seek(owned)
            return
        asked = owned.buffer.expected
        if asked > high and low <= owned.position <= high:
            # the log was cut short below what was read ahead
            owned.discard()
            asked = owned.position
        if low <= asked <= high:
            self._parts.fetcher.seek(owned)
            return
        error = OffsetOutOfRangeError(owned.partition, asked, low, high)
        response = self._parts.callbacks.exception(owned, error, None)
        target = self._target(response, low, high)
        if target is None:
            self._parts.fail(error)
            return
        self._move(owned, target, asked)
        if isinstance(response, BatchResponse):
            owned.next_batch.wish(response.max_records, response.max_bytes)
            owned.not_before = self._parts.clock.monotonic() + response.wait

    def _target(self, response: object | None, low: int, high: int) -> int | None:
        """Return where to go on: the processor's offset if the broker has it, else the policy's."""
        if (
            isinstance(response, BatchResponse)
            and response.offset is not None
            and low <= response.offset <= high
        ):
            return response.offset
        policy = self._parts.config.offset_out_of_range
        if policy == "stop":
            return None
        return low if policy == "earliest" else high

    def _move(self, owned: OwnedPartition, target: int, asked: int) -> None:
        lost = max(0, target - asked)
        topic, number = owned.partition
        self._parts.metrics.skipped.labels(self._parts.name, topic, "out_of_range").inc(lost)
        log.error(
            "offset_out_of_range",
            channel=self._parts.name,
            topic=topic,
            partition=number,
            position=asked,
            target=target,
            lost_records=lost,
        )
        if target > asked:
            self._skip(owned, target)
        else:
            self._go_back(owned, target)
        self._parts.fetcher.seek(owned)

    @staticmethod
    def _skip(owned: OwnedPartition, target: int) -> None:
        """Fetch behind a gap; what was fetched before it is delivered first."""
        gap = owned.buffer.pass_gap(owned.buffer.generation, target)
        if gap is not None:
            owned.gap_end = gap

    def _go_back(self, owned: OwnedPartition, target: int) -> None:
        owned.withdraw()
        owned.discard()
        owned.buffer.restart(target)
        owned.advanced = target
        self._parts.committer.stage(owned, target, owned.staging.stage(None))
