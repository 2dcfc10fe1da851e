"""A processor that goes back to the beginning at its first record, and sums from there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.notes import NoteFile
from headrace.processors import BatchProcessor, BatchResponse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.core.clock import Deadline
    from headrace.core.records import Assignment, Batch


class ScaleProcessor(BatchProcessor):
    """Waits behind the end of each partition for one more record, and then reads all of it.

    So nothing is fetched before all members have their share. ``ends`` has each partition's end
    before that record. What was counted is written beside ``file`` at the close.
    """

    def __init__(self, file: str, ends: Sequence[int]) -> None:
        self._notes = NoteFile(Path(file))
        self._counts_file = counts_of(Path(file))
        self._ends = list(ends)
        self._begun: set[int] = set()
        self._records = 0
        self._bytes = 0

    def on_assigned(self, assignment: Assignment) -> None:
        """Note the beginning."""
        self._notes.write("assigned", assignment)

    def on_next_batch(self, batch: Batch) -> BatchResponse:
        """Go to the beginning, or sum one batch."""
        number = batch.partition.partition
        if number not in self._begun:
            self._begun.add(number)
            return BatchResponse.advance(offset=0)
        self._bytes += sum(map(len, batch.records))
        self._records += len(batch)
        if batch.next_offset > self._ends[number]:
            self._notes.write("finished", batch.assignment)
        return BatchResponse.advance()

    def on_stream_termination(self, assignment: Assignment) -> None:
        """Note the end."""
        self._notes.write("terminated", assignment)

    def on_partition_lost(self, assignment: Assignment) -> None:
        """Note the end."""
        self._notes.write("lost", assignment)

    def close(self, deadline: Deadline) -> None:
        """Write what was counted."""
        del deadline
        facts = {"records": self._records, "bytes": self._bytes}
        self._counts_file.write_text(json.dumps(facts), encoding="utf-8")
        self._notes.close()


def counts_of(file: Path) -> Path:
    """Return where the processor with this file of notes writes what it counted."""
    return file.with_suffix(".counts")
