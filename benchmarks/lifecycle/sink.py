"""The processor of a daemon whose life is measured: it stores batches, and notes each of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.chaos.sinks import PlainSink
from benchmarks.notes import NoteFile

if TYPE_CHECKING:
    from headrace.core.clock import Deadline
    from headrace.core.records import Assignment, Batch
    from headrace.processors import BatchResponse


class NotedSink(PlainSink):
    """A sink without offsets: whatever is delivered twice is stored twice.

    Noted are each assignment's beginning and end, and when each batch ``began`` and was ``done``.
    """

    def __init__(self, directory: str, member: str, notes: str, work: float = 0.05) -> None:
        super().__init__(directory, member, work)
        self._notes = NoteFile(Path(notes))

    def on_assigned(self, assignment: Assignment) -> None:
        """Note the beginning."""
        self._notes.write("assigned", assignment)

    def on_next_batch(self, batch: Batch) -> BatchResponse:
        """Work for a while, and store the records."""
        self._notes.write("began", batch.assignment)
        answer = super().on_next_batch(batch)
        self._notes.write("done", batch.assignment)
        return answer

    def on_stream_termination(self, assignment: Assignment) -> None:
        """Note the end."""
        self._notes.write("terminated", assignment)

    def on_partition_lost(self, assignment: Assignment) -> None:
        """Note the end."""
        self._notes.write("lost", assignment)

    def close(self, deadline: Deadline) -> None:
        """Close all files."""
        super().close(deadline)
        self._notes.close()
