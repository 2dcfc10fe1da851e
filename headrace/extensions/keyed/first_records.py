"""Code with state that has never worked: its records all go where ``rejects`` say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc
import structlog

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.sinks.micro_batch import MicroBatch

log = structlog.get_logger(__name__)

#: Micro-batches with records of which none was processed, after which it is said; so many records
#: are enough by themselves.
MOST_BATCHES, MOST_RECORDS = 3, 100


class FirstRecords:
    """Says in the log, once, that no record was processed since the start. For the lane.

    A batch fails by what a reducer or a topology raises only where ``failing`` is ``fail``: with
    the other policies it is committed, and nothing else would tell that none of it was counted.
    ``code`` is the import path of the reducer or the topology.
    """

    def __init__(self, code: str) -> None:
        self._code = code
        self._batches = 0
        self._records = 0
        self._is_over = False

    def note(self, micro_batch: MicroBatch, result: pa.Table) -> None:
        """Check the result of a micro-batch; ``result`` is a table of ``fold.RESULT``."""
        if self._is_over or not micro_batch.records:
            return
        rejected, dropped = (pc.sum(result.column(name)).as_py() or 0 for name in _GIVEN_UP)
        if rejected + dropped < micro_batch.records:
            self._is_over = True
            return
        self._batches += 1
        self._records += rejected
        if not rejected or (self._batches < MOST_BATCHES and self._records < MOST_RECORDS):
            return
        self._is_over = True
        log.error(
            "processor_never_worked",
            channel=micro_batch.channel,
            code=self._code,
            failures=self._records,
            error=_last_reason(result),
            reason=(
                f"no record has been processed since the start: the first {self._records} were all "
                "rejected or too late, as rejects say, and their offsets are committed; once "
                "the code is right, headrace dead-letters replay has them processed"
            ),
        )


#: The columns that count records which no reducer got, or took.
_GIVEN_UP = ("rejected", "dropped")


def _last_reason(result: pa.Table) -> str | None:
    """Return why the last key's record was rejected that was."""
    return next(filter(None, reversed(result.column("reason").to_pylist())), None)
