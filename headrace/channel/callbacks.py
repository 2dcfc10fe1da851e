"""Calling the processor: one way in, so that a hung or failing callback is always noticed."""

from __future__ import annotations

from threading import get_ident
from typing import TYPE_CHECKING, TypeVar

import structlog

from headrace.channel.partition import RunningCallback
from headrace.core.errors import PartitionError, ReducerError
from headrace.core.user_text import describe_error, kind_of, plain_error
from headrace.processors import BatchProcessor
from headrace.telemetry.logs import Bound

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.partition import OwnedPartition
    from headrace.core.clock import Clock
    from headrace.core.records import Batch
    from headrace.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)

ReturnT = TypeVar("ReturnT")


class WorkerAbandoned(BaseException):
    """Raised in a worker whose partition was taken from it while its callback hung.

    Derives from BaseException, so that no handler on the way out takes it for a failure.
    """


class Callbacks:
    """The processor's callbacks, as a worker that holds the partition calls them."""

    def __init__(
        self, processor: BatchProcessor, channel: str, metrics: Metrics, clock: Clock
    ) -> None:
        self.processor = processor
        self._channel = channel
        self._metrics = metrics
        self._clock = clock
        #: Whether anybody wants to hear of stored batches: only then are they kept that long.
        self.wants_processed = (
            type(processor).on_batch_processed is not BatchProcessor.on_batch_processed
        )

    def call(self, owned: OwnedPartition, function: Callable[[], ReturnT]) -> ReturnT:
        """Run one callback.

        Raises:
            WorkerAbandoned: the callback took so long that the partition was taken away.
            BaseException: what the callback raised.
        """
        holder = owned.hold.holder
        owned.hold.begin_callback(RunningCallback(self._clock.monotonic(), get_ident()))
        try:
            return function()
        finally:
            if owned.hold.holder is not holder:
                raise WorkerAbandoned
            owned.hold.end_callback()

    def require(self, owned: OwnedPartition, function: Callable[[], ReturnT]) -> ReturnT:
        """Run a callback without whose answer a partition cannot go on.

        Raises:
            WorkerAbandoned: as :meth:`call` does.
            Exception: what the callback raised, as an error that can be shown and tried again.
        """
        try:
            return self.call(owned, function)
        except WorkerAbandoned:
            raise
        except BaseException as error:
            shown = plain_error(error)
            if shown is error and isinstance(error, Exception):
                raise
            if not isinstance(shown, Exception):  # it exits, which ends no worker either
                shown = ReducerError(describe_error(error))
            raise shown from None

    def ask(self, owned: OwnedPartition, function: Callable[[], ReturnT]) -> ReturnT | None:
        """Run a callback that concerns no batch; what it raises goes to ``on_exception``."""
        return self._call_guarded(owned, function, self.exception)

    def run_last(self, owned: OwnedPartition, function: Callable[[], ReturnT]) -> ReturnT | None:
        """Run a partition's last callback: nothing may follow it, so errors go to the log only."""
        return self._call_guarded(owned, function, self._report)

    def _call_guarded(
        self,
        owned: OwnedPartition,
        function: Callable[[], ReturnT],
        on_error: Callable[[OwnedPartition, BaseException, Batch | None], object],
        batch: Batch | None = None,
    ) -> ReturnT | None:
        try:
            return self.call(owned, function)
        except WorkerAbandoned:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a processor raises stays with its partition
            on_error(owned, plain_error(error), batch)
            return None

    def exception(
        self, owned: OwnedPartition, error: BaseException, batch: Batch | None
    ) -> object | None:
        """Report an error to the processor and return its answer; None if that failed as well."""
        self._report(owned, error, batch)

        def run_callback() -> object | None:
            with Bound(batch=batch.first_offset if batch else None):
                return self.processor.on_exception(owned, error, batch)

        return self._call_guarded(owned, run_callback, self._report, batch)

    def _report(self, owned: OwnedPartition, error: BaseException, batch: Batch | None) -> None:
        topic = owned.partition.topic
        owned.retries.note_error(describe_error(error))
        self._metrics.errors.labels(self._channel, topic, kind_of(error)).inc()
        expected = isinstance(error, PartitionError)
        log.warning(
            "processor_error",
            **owned.life.log_fields,
            first_offset=batch.first_offset if batch else None,
            attempt=batch.attempt if batch else None,
            error=owned.retries.last_error,
            exc_info=None if expected else error,
        )
