"""A processor that takes a while for each batch and notes when partitions come and go."""

from __future__ import annotations

import time
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from threading import Condition, Thread
from typing import TYPE_CHECKING

from benchmarks.notes import NoteFile
from headrace.processors import BatchProcessor, BatchResponse

if TYPE_CHECKING:
    from headrace.core.clock import Deadline
    from headrace.core.records import Assignment, Batch

#: Seconds after which the timer looks around, all the same.
_TURN = 1.0


class ProbeProcessor(BatchProcessor):
    """Answers each batch ``seconds`` after it came, and asks for a pause of ``rest`` seconds.

    Notes go to ``file``, one JSON object a line, with the machine's monotonic time: when the
    processor was made, and for each assignment its beginning, its first batch and its end.
    """

    def __init__(self, file: str, seconds: float = 0.05, rest: float = 0.0) -> None:
        self._notes = NoteFile(Path(file))
        self._seconds = seconds
        self._answer = BatchResponse.advance(wait=rest)
        self._timer = _Timer()
        self._delivered: set[tuple[int, int]] = set()
        self._notes.write("ready")

    def on_assigned(self, assignment: Assignment) -> None:
        """Note the beginning."""
        self._notes.write("assigned", assignment)

    def on_next_batch(self, batch: Batch) -> Future[BatchResponse]:
        """Note the first batch, and promise an answer."""
        claim = (batch.partition.partition, batch.assignment.epoch)
        if claim not in self._delivered:
            self._delivered.add(claim)
            self._notes.write("delivered", batch.assignment)
        answer: Future[BatchResponse] = Future()
        self._timer.after(self._seconds, answer, self._answer)
        return answer

    def on_stream_termination(self, assignment: Assignment) -> None:
        """Note the end."""
        self._notes.write("terminated", assignment)

    def on_partition_lost(self, assignment: Assignment) -> None:
        """Note the end."""
        self._notes.write("lost", assignment)

    def close(self, deadline: Deadline) -> None:
        """End the timer."""
        self._timer.close(deadline)
        self._notes.close()


class _Timer:
    """Completes futures when they are due, on one thread."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Future[BatchResponse], BatchResponse]] = []
        self._numbers = count()
        self._changed = Condition()
        self._closed = False
        self._thread = Thread(target=self._run, name="probe-timer", daemon=True)
        self._thread.start()

    def after(self, seconds: float, answer: Future[BatchResponse], response: BatchResponse) -> None:
        """Complete ``answer`` that much later."""
        with self._changed:
            heappush(self._due, (time.monotonic() + seconds, next(self._numbers), answer, response))
            self._changed.notify()

    def close(self, deadline: Deadline) -> None:
        """End the thread; what is not due yet is never completed."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(deadline.remaining)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = time.monotonic()
                if not self._due or self._due[0][0] > now:
                    self._changed.wait(self._due[0][0] - now if self._due else _TURN)
                    continue
                _, _, answer, response = heappop(self._due)
            with suppress(InvalidStateError):  # the channel has withdrawn the batch
                answer.set_result(response)
