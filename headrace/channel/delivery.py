"""Handing batches to the processor and doing what it answers."""

from __future__ import annotations

from bisect import bisect_left
from concurrent.futures import CancelledError, Future
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from headrace.channel.callbacks import WorkerAbandoned
from headrace.channel.progress import Outstanding
from headrace.channel.responses import ResponseContext, ResponseEffect, effect_of
from headrace.channel.states import EndReason
from headrace.core.clock import Deadline
from headrace.core.errors import (
    BatchCancelledError,
    BatchTimeoutError,
    FencedError,
    HeadraceError,
    InvalidResponseError,
    SinkConflictError,
)
from headrace.core.record_runs import OffsetRun
from headrace.core.records import Batch, offset_of
from headrace.core.spans import NO_SPAN, BatchSource
from headrace.core.user_text import plain_error
from headrace.processors.contract import BatchResponse
from headrace.telemetry.logs import Bound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.channel.buffer import BatchSlice
    from headrace.channel.callbacks import Callbacks
    from headrace.channel.commits import Committer
    from headrace.channel.environment import ChannelEnvironment
    from headrace.channel.failures import ErrorPolicy
    from headrace.channel.fetcher import Fetcher
    from headrace.channel.lasting_failures import LastingFailures
    from headrace.channel.partition import OwnedPartition
    from headrace.channel.scheduler import Scheduler
    from headrace.channel.skips import Skips
    from headrace.channel.taps import Taps
    from headrace.coordinators.coordinator import Coordinator
    from headrace.core.records import Record
    from headrace.core.spans import Tracer
    from headrace.kafka.ports import TopicCatalog


log = structlog.get_logger(__name__)

#: Seconds to wait for a partition's leader to say what it has.
ANSWER_TIMEOUT = 5.0


_NOT_FAILURES = (BatchCancelledError, CancelledError)


class Delivery:
    """A worker's steps with an active partition. Called by the thread that holds it."""

    def __init__(
        self,
        environment: ChannelEnvironment,
        *,
        callbacks: Callbacks,
        catalog: TopicCatalog,
        committer: Committer,
        coordinator: Coordinator,
        fetcher: Fetcher,
        policy: ErrorPolicy,
        lasting: LastingFailures,
        scheduler: Scheduler,
        skips: Skips,
        taps: Taps,
        tracer: Tracer,
    ) -> None:
        self._environment = environment
        self._callbacks = callbacks
        self._catalog = catalog
        self._committer = committer
        self._coordinator = coordinator
        self._fetcher = fetcher
        self._policy = policy
        self._lasting = lasting
        self._scheduler = scheduler
        self._skips = skips
        self._taps = taps
        self._tracer = tracer

    def deliver(self, owned: OwnedPartition, cut: BatchSlice) -> None:
        """Deliver one batch, and settle it at once if its answer has arrived."""
        records = self._skips.without(owned, cut)
        attempt = 1 if owned.progress.outstanding else cut.failures + owned.retries.attempts + 1
        passes = not records
        span = NO_SPAN
        if not passes:
            source = BatchSource(
                self._environment.name,
                self._environment.config.group,
                owned.partition,
                owned.epoch,
                cut.start,
            )
            span = self._tracer.batch(source, records)
        batch = Batch(
            owned, cut.start, records or cut.records, cut.next_offset, cut.size, attempt, span
        )
        deadline = self._environment.clock.monotonic() + self._environment.config.batch_timeout
        owned.progress.end_idle()
        if self._taps and not passes:
            self._taps.offer(batch)
        answer = _passed() if passes else self._ask_processor(owned, batch)
        owned.progress.deliver(Outstanding(batch, cut, answer, deadline, passes))
        if answer.done():
            self.settle(owned)
        else:
            answer.add_done_callback(lambda _: self._scheduler.touch(owned))

    def _ask_processor(self, owned: OwnedPartition, batch: Batch) -> Future[BatchResponse]:
        """Call ``on_next_batch`` and return its answer as a future, whatever form it has."""
        processor = self._callbacks.processor
        ready: Future[BatchResponse] = Future()
        try:
            with (
                Bound(batch=batch.first_offset),
                self._environment.metrics.stage(self._environment.name, "on_next_batch"),
                batch.span.active(),
            ):
                answer = self._callbacks.call(owned, lambda: processor.on_next_batch(batch))
        except WorkerAbandoned:
            raise
        except BaseException as error:  # noqa: BLE001 - it fails this batch and nothing else
            ready.set_exception(plain_error(error))
            return ready
        if isinstance(answer, Future):
            return answer
        ready.set_result(answer)
        return ready

    def settle(self, owned: OwnedPartition) -> None:
        """Apply the answers that have arrived, in the order of their batches."""
        while owned.progress.outstanding and owned.progress.outstanding[0].answer.done():
            with owned.progress.settles() as item:
                if not self._apply_answer(owned, item):
                    return

    def _apply_answer(self, owned: OwnedPartition, item: Outstanding) -> bool:
        """Apply one answer; return False if the batch was not answered, or is passed over."""
        if item.passes:
            self._pass_batch(owned, item)
            return False
        try:
            response = item.answer.result()
            effect = effect_of(response, _response_context(owned, item.batch.next_offset))
        except BaseException as error:  # noqa: BLE001 - it fails this batch and nothing else
            self.fail(owned, item, plain_error(error))
            return False
        self._end_batch(item.batch, "answered")
        self._lasting.note_success()
        self._count_records(item.batch, effect)
        owned.retries.clear_failures()
        self._commit(owned, effect, item.batch)
        if effect.seek is not None:
            self._move_position(owned, effect.seek, [item.cut, *owned.progress.withdraw()])
        self._hold_back(owned, effect)
        owned.progress.begin_idle(self._environment.clock.monotonic())
        return True

    def _pass_batch(self, owned: OwnedPartition, item: Outstanding) -> None:
        """Move past a batch of which nothing is delivered; all before it is answered."""
        owned.progress.begin_idle(self._environment.clock.monotonic())
        try:
            if self._policy.passed_over(owned, item):
                owned.retries.clear_failures()
                self._commit(owned, ResponseEffect(commit=item.batch.next_offset), None)
                return
            owned.retries.count_failure(item.cut)
            effect = self._retry_batch(
                item, self._environment.backoff.seconds(owned.retries.attempts)
            )
        except SinkConflictError as conflict:
            owned.retries.count_failure(item.cut)
            effect = self._resynchronise(owned, item, conflict)
        except FencedError as error:
            effect = self._rejoin(owned, item, error)
        self._go_on(owned, effect, item, [item.cut])

    def expire(self, owned: OwnedPartition) -> None:
        """Fail the oldest batch if its answer is overdue."""
        if (
            owned.progress.outstanding
            and owned.progress.outstanding[0].deadline <= self._environment.clock.monotonic()
        ):
            with owned.progress.settles() as item:
                item.answer.cancel()
                limit = self._environment.config.batch_timeout
                error = BatchTimeoutError(
                    owned.partition,
                    f"{owned.partition}: batch at offset {item.batch.start} was not answered "
                    f"within batch_timeout ({limit:g} s); it is delivered again",
                )
                self.fail(owned, item, error)

    def fail(self, owned: OwnedPartition, item: Outstanding, error: BaseException) -> None:
        """Withdraw the later batches, ask ``on_exception``, and do as it or the policy says."""
        retained = [item.cut, *owned.progress.withdraw()]
        no_failure = isinstance(error, _NOT_FAILURES)
        gone = not no_failure and self._is_gone(owned, item.cut)
        if isinstance(error, FencedError):
            self._end_batch(item.batch, "withdrawn")
            effect = self._rejoin(owned, item, error)
        elif no_failure or gone:
            self._end_batch(item.batch, "withdrawn")
            effect = self._retry_batch(item, self._environment.backoff.seconds(1))
        else:
            self._end_batch(item.batch, "failed", error)
            owned.retries.count_failure(item.cut)
            self._lasting.note_failure(error)
            effect = self._decide(owned, item, error)
        if effect.parts:
            retained[:1] = effect.parts
        self._go_on(owned, effect, item, retained)
        if gone:
            self._plan_again(owned)
        if self._skips.has_late_skip(owned, item.cut):
            # the event came while the batch was out; it is delivered again as another one
            owned.retries.retry_at(self._environment.clock.monotonic())

    def _is_gone(self, owned: OwnedPartition, cut: BatchSlice) -> bool:
        """Return whether records of ``cut`` that are still to be read are gone from the broker.

        False also where its leader does not answer. Called by the thread that holds the partition;
        blocks for ``ANSWER_TIMEOUT`` at most, and not at all where the records were fetched.
        """
        if not isinstance(cut.records, OffsetRun):
            return False
        deadline = Deadline.after(ANSWER_TIMEOUT, self._environment.clock)
        try:
            low, _ = self._catalog.watermarks(owned.partition, deadline)
        except HeadraceError as silence:
            log.warning("watermarks_unknown", **owned.life.log_fields, error=str(silence))
            return False
        return cut.records.start < low

    def _plan_again(self, owned: OwnedPartition) -> None:
        """Drop what is planned. The source then finds the position out of range, and says so.

        What follows is what the channel's policy has for that, as for records that are fetched.
        """
        owned.progress.discard()
        self._fetcher.seek(owned)

    def _go_on(
        self,
        owned: OwnedPartition,
        effect: ResponseEffect,
        item: Outstanding,
        retained: list[BatchSlice],
    ) -> None:
        """Commit and move as follows from a batch that was not answered."""
        self._commit(owned, effect, None)
        target = effect.seek if effect.seek is not None else item.cut.next_offset
        self._move_position(owned, target, retained)
        self._hold_back(owned, effect)

    def _decide(
        self, owned: OwnedPartition, item: Outstanding, error: BaseException
    ) -> ResponseEffect:
        response = self._callbacks.exception(owned, error, item.batch)
        if response is not None:
            try:
                return effect_of(response, _response_context(owned, item.batch.next_offset))
            except InvalidResponseError as invalid:
                log.warning("invalid_response", channel=self._environment.name, error=str(invalid))
        if isinstance(error, SinkConflictError):
            return self._resynchronise(owned, item, error)
        try:
            return self._policy.decide(owned, item, error)
        except SinkConflictError as conflict:
            return self._resynchronise(owned, item, conflict)
        except FencedError as fenced:
            return self._rejoin(owned, item, fenced)

    def _rejoin(
        self, owned: OwnedPartition, item: Outstanding, error: FencedError
    ) -> ResponseEffect:
        """Lose the partition, and have the member join again: the sink refuses its membership."""
        log.warning("sink_fenced", **owned.life.log_fields, error=str(error))
        owned.life.end(EndReason.LOST)
        self._coordinator.rejoin(owned.life.claim)
        return self._retry_batch(item, 0.0)

    def _resynchronise(
        self, owned: OwnedPartition, item: Outstanding, conflict: SinkConflictError
    ) -> ResponseEffect:
        """Continue at the sink's stored offset, which is the authoritative one."""
        self._lasting.note_retry(owned, conflict, item.cut.start)
        wait = self._environment.backoff.seconds(owned.retries.attempts)
        try:
            stored = self._callbacks.require(
                owned, lambda: self._callbacks.processor.stored_offset(owned)
            )
        except Exception as error:  # noqa: BLE001 - tried again with the batch
            log.warning("sink_offset_unavailable", channel=self._environment.name, error=str(error))
            stored = None
        if stored is None:
            return self._retry_batch(item, wait)
        log.warning(
            "position_reset_to_sink",
            **owned.life.log_fields,
            position=item.batch.start,
            stored=stored,
        )
        return ResponseEffect(stored, stored, wait)

    @staticmethod
    def _retry_batch(item: Outstanding, wait: float) -> ResponseEffect:
        return ResponseEffect(seek=item.cut.start, wait=wait)

    def respond(self, owned: OwnedPartition, response: object | None) -> None:
        """Apply an answer that was given for no batch (idle, exceptions)."""
        if response is None:
            return
        try:
            effect = effect_of(response, _response_context(owned, owned.position))
        except InvalidResponseError as error:
            self._callbacks.exception(owned, error, None)
            return
        if effect.commit is not None and owned.progress.outstanding:
            # Commits keep the order of the batches, so one ahead of open answers has to wait.
            effect = replace(effect, commit=None)
        self._commit(owned, effect, None)
        if effect.seek is not None:
            self._move_position(owned, effect.seek, owned.progress.withdraw())
        self._hold_back(owned, effect)

    def conclude(self, owned: OwnedPartition, response: object | None) -> None:
        """Commit what the answer to ``on_stream_termination`` advances to."""
        if response is None:
            return
        try:
            effect = effect_of(response, _response_context(owned, owned.position))
        except InvalidResponseError as error:
            log.warning("invalid_response", channel=self._environment.name, error=str(error))
            return
        self._commit(owned, effect, None)

    def _commit(self, owned: OwnedPartition, effect: ResponseEffect, batch: Batch | None) -> None:
        if effect.commit is None:
            return
        if batch is None and effect.commit == owned.progress.processed_offset:
            # it is committed or on its way, and perhaps the end of a gap after it
            return
        if effect.commit < owned.progress.processed_offset:
            log.warning(
                "offset_moved_back",
                **owned.life.log_fields,
                before=owned.progress.processed_offset,
                offset=effect.commit,
            )
        owned.progress.process_to(effect.commit, batch)
        covered = batch is not None and effect.commit >= batch.next_offset
        kept = batch if covered and self._callbacks.wants_processed else None
        span = NO_SPAN if batch is None else batch.span
        self._committer.enqueue(owned, effect.commit, kept, span)
        # no other member can go on with a partition that only waits for the end of the interval
        if kept is not None and owned.held_bytes() >= owned.progress.next_batch.share:
            self._committer.flush()

    def _move_position(
        self, owned: OwnedPartition, target: int, retained: list[BatchSlice]
    ) -> None:
        if not owned.rewind(target, retained):
            self._fetcher.seek(owned)

    def _hold_back(self, owned: OwnedPartition, effect: ResponseEffect) -> None:
        owned.progress.next_batch.wish(effect.max_records, effect.max_bytes)
        if effect.wait > 0:
            owned.retries.hold_until(self._environment.clock.monotonic() + effect.wait)

    def _end_batch(self, batch: Batch, outcome: str, error: BaseException | None = None) -> None:
        """Count the batch by how it ended, and end its span."""
        batch.span.end(error, outcome)
        topic = batch.partition.topic
        self._environment.metrics.batches.labels(self._environment.name, topic, outcome).inc()

    def _count_records(self, batch: Batch, effect: ResponseEffect) -> None:
        """Count records that are done with: those before the position that reading goes on at."""
        records: Sequence[Record] = batch.records
        done = len(records)
        if effect.seek is not None and effect.seek < batch.next_offset:
            done = bisect_left(records, effect.seek, key=offset_of)
        topic = batch.partition.topic
        self._environment.metrics.records.labels(self._environment.name, topic).inc(done)


def _passed() -> Future[BatchResponse]:
    """Return the answer for a batch without records, which the processor does not get."""
    answer: Future[BatchResponse] = Future()
    answer.set_result(BatchResponse.advance())
    return answer


def _response_context(owned: OwnedPartition, next_offset: int) -> ResponseContext:
    return ResponseContext(owned.partition, owned.progress.processed_offset, next_offset)
