"""A processor that notes every callback and answers as a test tells it to."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import Future
from threading import Condition
from typing import TYPE_CHECKING

from headrace.processors import BatchProcessor, BatchResponse

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.core.clock import Deadline
    from headrace.core.records import Assignment, Batch

#: Seconds after which a test gives up waiting.
PATIENCE = 10.0


class Recorder(BatchProcessor):
    """Notes (callback, facts) by partition; ``answer`` decides about each batch.

    ``raising`` names callbacks that fail with the exception given, once.
    """

    def __init__(
        self,
        answer: Callable[[Batch], object] = lambda _: BatchResponse.advance(),
        on_error: Callable[[BaseException], BatchResponse | None] = lambda _: None,
    ) -> None:
        self.answer = answer
        self.on_error = on_error
        self.raising: dict[str, BaseException] = {}
        self.stored: dict[int, int] = {}
        self.leader_epochs: dict[int, int] = {}
        self.calls: dict[int, list[tuple[object, ...]]] = defaultdict(list)
        self.batches: list[Batch] = []
        self.futures: list[Future[BatchResponse]] = []
        self.overlaps = 0
        self._inside: set[int] = set()
        self._changed = Condition()

    # --- what tests ask -------------------------------------------------------------------------

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so that a callback makes so."""
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE), f"in vain; saw {dict(self.calls)}"

    def names(self, partition: int = 0) -> list[object]:
        """Return the names of a partition's callbacks in order."""
        return [call[0] for call in self.calls[partition]]

    def delivered(self, partition: int = 0) -> list[tuple[object, ...]]:
        """Return (first offset, next offset, attempt) of each batch of a partition."""
        return [call[1:] for call in self.calls[partition] if call[0] == "batch"]

    def errors(self, partition: int = 0) -> list[object]:
        """Return the types of the errors a partition was told of."""
        return [call[1] for call in self.calls[partition] if call[0] == "exception"]

    def later(self, batch: Batch) -> Future[BatchResponse]:
        """Answer with a future that a test completes: for use as ``answer``."""
        del batch
        future: Future[BatchResponse] = Future()
        self.futures.append(future)
        return future

    # --- callbacks ------------------------------------------------------------------------------

    def _note(self, partition: int, *call: object) -> None:
        with self._changed:
            if partition in self._inside:
                self.overlaps += 1
            self._inside.add(partition)
            self.calls[partition].append(call)
            self._changed.notify_all()
        try:
            error = self.raising.pop(str(call[0]), None)
            if error is not None:
                raise error
        finally:
            with self._changed:
                self._inside.discard(partition)

    def stored_offset(self, assignment: Assignment) -> int | None:
        """Return what the test put into ``stored``."""
        return self.stored.get(assignment.partition.partition)

    def stored_leader_epoch(self, assignment: Assignment) -> int | None:
        """Return what the test put into ``leader_epochs``."""
        return self.leader_epochs.get(assignment.partition.partition)

    def on_assigned(self, assignment: Assignment) -> None:
        """Note it."""
        self._note(assignment.partition.partition, "assigned", assignment.position)

    def on_next_batch(self, batch: Batch) -> BatchResponse | Future[BatchResponse]:
        """Note the batch and answer as told."""
        number = batch.partition.partition
        self.batches.append(batch)
        self._note(number, "batch", batch.first_offset, batch.next_offset, batch.attempt)
        answer = self.answer(batch)
        with self._changed:
            self._changed.notify_all()
        return answer  # type: ignore[return-value]  # tests return wrong things on purpose

    def on_batch_processed(self, batch: Batch) -> None:
        """Note it."""
        self._note(batch.partition.partition, "processed", batch.next_offset)

    def pass_over(self, batch: Batch) -> None:
        """Note it."""
        self._note(batch.partition.partition, "passed over", batch.start, batch.next_offset)

    def on_idle(self, assignment: Assignment) -> BatchResponse | None:
        """Note it."""
        self._note(assignment.partition.partition, "idle")
        return None

    def on_exception(
        self, assignment: Assignment, error: BaseException, batch: Batch | None
    ) -> BatchResponse | None:
        """Note the error's type and answer as told."""
        start = None if batch is None else batch.start
        self._note(assignment.partition.partition, "exception", type(error), start)
        return self.on_error(error)

    def on_pause(self, assignment: Assignment) -> None:
        """Note it with what is committed."""
        self._note(assignment.partition.partition, "pause", assignment.committed)

    def on_resume(self, assignment: Assignment) -> None:
        """Note it."""
        self._note(assignment.partition.partition, "resume")

    def on_stream_termination(self, assignment: Assignment) -> BatchResponse | None:
        """Note it."""
        self._note(assignment.partition.partition, "terminated")
        return None

    def on_partition_lost(self, assignment: Assignment) -> None:
        """Note it."""
        self._note(assignment.partition.partition, "lost")

    def close(self, deadline: Deadline) -> None:
        """Note it."""
        del deadline
        with self._changed:
            self.calls[-1].append(("closed",))
            self._changed.notify_all()
