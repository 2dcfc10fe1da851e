"""Failed batches: tried again, bisected or given up, as the channel's policy says."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from headrace.channel.buffer import divide
from headrace.channel.error_scope import ErrorScope, causes, classify_error
from headrace.channel.pauses import PauseReason
from headrace.channel.responses import ResponseEffect
from headrace.config import LimitedRejects
from headrace.core.errors import (
    BatchTimeoutError,
    ChannelFailedError,
    FencedError,
    JobTimeoutError,
    PoisonRecordError,
    SinkConflictError,
)
from headrace.core.records import offset_of
from headrace.core.user_text import describe_error
from headrace.kafka.errors import ProduceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.channel.buffer import BatchSlice
    from headrace.channel.callbacks import Callbacks
    from headrace.channel.dead_letters import DeadLetters
    from headrace.channel.environment import ChannelEnvironment
    from headrace.channel.lasting_failures import LastingFailures
    from headrace.channel.partition import OwnedPartition
    from headrace.channel.pause_manager import PauseManager
    from headrace.channel.progress import Outstanding
    from headrace.core.records import Record


def halves(
    cut: BatchSlice, delivered: Sequence[Record], error: BaseException, failures: int
) -> tuple[BatchSlice, ...]:
    """Return the parts of a batch that is given up, in order; itself where it cannot be divided.

    ``delivered`` are the records of ``cut`` that were handed out: two or more of them make parts.
    A record that the error names becomes a part of its own, otherwise there are two halves. A part
    that fails is divided in its turn, so that the parts before it are answered and committed, and
    a record that fails alone is found after as many failures as the batch can be halved.
    """
    parts, rest = [], cut
    for border in _borders(delivered, error):
        count = bisect_left(rest.records, border, key=offset_of)
        if 0 < count < len(rest.records):
            front, rest = divide(rest, count)
            parts.append(front)
    return tuple(replace(part, failures=failures) for part in (*parts, rest))


def names_one_of(delivered: Sequence[Record], error: BaseException) -> bool:
    """Return whether the error names a record that was delivered."""
    if not isinstance(error, PoisonRecordError):
        return False
    index = bisect_left(delivered, error.offset, key=offset_of)
    return index < len(delivered) and offset_of(delivered[index]) == error.offset


def _borders(delivered: Sequence[Record], error: BaseException) -> tuple[int, ...]:
    if len(delivered) == 1:
        return ()
    if isinstance(error, PoisonRecordError) and names_one_of(delivered, error):
        return error.offset, error.offset + 1
    return (offset_of(delivered[len(delivered) // 2]),)


#: What is raised where code does not return in time.
_TIME_OUTS = (BatchTimeoutError, JobTimeoutError)

log = structlog.get_logger(__name__)


class ErrorPolicy:
    """The channel's ``retry`` and ``rejects.failing``. For the thread that holds the partition."""

    def __init__(
        self,
        environment: ChannelEnvironment,
        *,
        callbacks: Callbacks,
        dead_letters: DeadLetters,
        lasting: LastingFailures,
        pause_manager: PauseManager,
    ) -> None:
        self._environment = environment
        self._pause_manager = pause_manager
        self._callbacks = callbacks
        self._dead_letters = dead_letters
        self._lasting = lasting

    def decide(
        self, owned: OwnedPartition, item: Outstanding, error: BaseException
    ) -> ResponseEffect:
        """Return what follows: the same batch again, its parts, the batch after it, or a stop.

        Raises:
            SinkConflictError: the batch was to be given up, and the sink stands elsewhere.
            FencedError: the batch was to be given up, and the sink refuses this member.
        """
        policy = self._environment.config.failing_batches
        if policy == "fail" and self._tried_enough(owned):
            self._environment.fail(error)
        if policy == "fail" or classify_error(error) is ErrorScope.ENVIRONMENT:
            if policy == "dead_letter" and self._is_to_divide_for_time(owned, item, error):
                return self._bisect(owned, item, error)
            return self._retry_batch(owned, item, error)
        named = names_one_of(item.batch.records, error)
        if named and len(item.batch) > 1:
            return self._bisect(owned, item, error)
        given_up = named or self._tried_enough(owned)
        if policy == "skip" and given_up:
            return self._skip(owned, item, error)
        if policy == "dead_letter" and (
            given_up or self._is_suspect(owned, item) or self._is_one_of_many(owned, item)
        ):
            return self._isolate(owned, item, error)
        return self._retry_batch(owned, item, error)

    def _tried_enough(self, owned: OwnedPartition) -> bool:
        most = self._environment.config.attempts
        return most is not None and owned.retries.attempts >= most

    @staticmethod
    def _is_suspect(owned: OwnedPartition, item: Outstanding) -> bool:
        """Return whether it is a part of a batch that was tried often enough as a whole."""
        alone = len(item.batch) == 1
        return item.cut.failures > 0 and not (alone and owned.letters.in_doubt(item.cut))

    def _is_to_divide_for_time(
        self, owned: OwnedPartition, item: Outstanding, error: BaseException
    ) -> bool:
        """Return whether a batch that takes too long is to be divided.

        Parts take less time; and where one record is what the code hangs at, those before it are
        done, and it is named. It is not given up: what is slow may be slow for another reason.
        """
        return (
            len(item.batch) > 1
            and any(isinstance(each, _TIME_OUTS) for each in causes(error))
            and (self._tried_enough(owned) or item.cut.failures > 0)
        )

    def _is_one_of_many(self, owned: OwnedPartition, item: Outstanding) -> bool:
        """Return whether so many records fail that the limit is near, retried or not."""
        limits = self._environment.config.rejects
        return isinstance(limits, LimitedRejects) and owned.letters.heads_for(item.cut, limits)

    def _retry_batch(
        self, owned: OwnedPartition, item: Outstanding, error: BaseException
    ) -> ResponseEffect:
        self._lasting.note_retry(owned, error, item.cut.start)
        if self._lasting.is_to_rest(owned, error):
            self._pause_partition(owned, item, error)
        wait = self._environment.backoff.seconds(owned.retries.attempts)
        return ResponseEffect(seek=item.cut.start, wait=wait)

    def _pause_partition(
        self, owned: OwnedPartition, item: Outstanding, error: BaseException
    ) -> None:
        """Pause the partition until an operator acts; the batch is delivered again after that."""
        reason = describe_error(error)
        log.error(
            "partition_rests",
            **owned.life.log_fields,
            offset=item.cut.start,
            attempts=owned.retries.attempts,
            reason=reason,
        )
        self._pause_manager.begin(
            PauseReason.MISFIT,
            by="headrace",
            partition=owned.partition,
            note=f"no other attempt can cure it: {reason}",
        )

    def passed_over(self, owned: OwnedPartition, item: Outstanding) -> bool:
        """Move a sink with offsets of its own past the batch; return False if that failed.

        Raises:
            SinkConflictError: the sink does not stand where the batch begins.
            FencedError: the sink refuses this member.
        """
        processor = self._callbacks.processor
        try:
            self._callbacks.require(owned, lambda: processor.pass_over(item.batch))
        except (SinkConflictError, FencedError):
            raise
        except Exception as error:
            log.exception("batch_skip_failed", channel=self._environment.name, error=str(error))
            return False
        return True

    def _skip(
        self, owned: OwnedPartition, item: Outstanding, error: BaseException
    ) -> ResponseEffect:
        if not self.passed_over(owned, item):
            return self._retry_batch(owned, item, error)
        topic = owned.partition.topic
        self._environment.metrics.skipped.labels(self._environment.name, topic, "failing").inc(
            len(item.batch)
        )
        log.error(
            "batch_skipped",
            **owned.life.log_fields,
            first_offset=item.batch.first_offset,
            next_offset=item.batch.next_offset,
            records=len(item.batch),
            attempts=owned.retries.attempts,
            error=str(error),
        )
        return ResponseEffect(commit=item.batch.next_offset)

    def _isolate(
        self, owned: OwnedPartition, item: Outstanding, error: BaseException
    ) -> ResponseEffect:
        """Divide the batch, or part with the one record that it is."""
        if len(item.batch) > 1:
            return self._bisect(owned, item, error)
        try:
            self._dead_letters.send(owned, item, error)
        except ChannelFailedError as limit:
            self._environment.fail(limit)
            return self._retry_batch(owned, item, limit)
        except ProduceError as failure:
            owned.retries.note_error(str(failure))
            log.warning(
                "dead_letter_failed",
                **owned.life.log_fields,
                offset=item.batch.first_offset,
                error=str(failure),
            )
            return self._retry_batch(owned, item, failure)
        if not self.passed_over(owned, item):
            return self._retry_batch(owned, item, error)
        owned.letters.note(item.cut, item.batch.first_offset)
        return ResponseEffect(commit=item.batch.next_offset)

    def _bisect(
        self, owned: OwnedPartition, item: Outstanding, error: BaseException
    ) -> ResponseEffect:
        batch = item.batch
        parts = halves(item.cut, batch.records, error, batch.attempt)
        topic = owned.partition.topic
        self._environment.metrics.bisections.labels(self._environment.name, topic).inc()
        log.warning(
            "batch_bisected",
            **owned.life.log_fields,
            first_offset=batch.first_offset,
            next_offset=batch.next_offset,
            records=len(batch),
            parts=len(parts),
            error=describe_error(error),
        )
        owned.letters.divide(item.cut)
        owned.retries.clear_failures()
        return ResponseEffect(seek=item.cut.start, parts=parts)
