"""The reducer of ours in front of the engines: records in, folded keys out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.extensions.keyed.rows import chunks, grouped, rejected_rows
from headrace.extensions.keyed.sink import with_former, with_times
from headrace.extensions.keyed.tables import RESULT, in_this_thread

if TYPE_CHECKING:
    from headrace.core.clock import Clock
    from headrace.extensions.keyed.rows import RowSettings
    from headrace.extensions.keyed.state import LayeredState
    from headrace.extensions.keyed.tables import PartsRunner, TableFunction
    from headrace.sinks.micro_batch import MicroBatch


class KeyedFunction:
    """Makes of a micro-batch's records the table for a ``KeyedSink``.

    ``fold`` takes a table of ``fold.ROWS`` and returns one of ``fold.RESULT``: in this process, or
    in Spark's workers. Another one may follow it between two micro-batches, from any thread.
    """

    def __init__(
        self, fold: TableFunction, settings: RowSettings, state: LayeredState, clock: Clock
    ) -> None:
        self._current = (fold, settings)
        self._state = state
        self._clock = clock

    def follow(self, fold: TableFunction, settings: RowSettings) -> None:
        """Set the fold of the next micro-batch, and the ``settings`` of its grouping."""
        self._current = (fold, settings)

    def __call__(self, table: pa.Table, batch: MicroBatch) -> pa.Table:
        """Reduce in this thread; see :meth:`reduce`."""
        return self.reduce(table, batch, in_this_thread, 1)

    def reduce(self, table: pa.Table, batch: MicroBatch, run: PartsRunner, tasks: int) -> pa.Table:
        """Return the touched keys as they are after the micro-batch. Blocks for the state.

        ``run`` folds parts of the rows, up to ``tasks`` of them.

        Raises:
            PoisonRecordError: a record cannot be reduced, and the settings say ``fail``.
            StateStoreError: the state cannot be read.
        """
        fold, settings = self._current
        now = int(self._clock.time() * 1000)
        found = grouped(table, batch, self._state, settings, now)
        parts = chunks(found.rows, tasks)
        results = [RESULT.empty_table(), *(run(fold, parts) if parts else ())]
        if found.undecodable:
            results.append(rejected_rows(found.undecodable))
        return with_times(with_former(pa.concat_tables(results), found.rows), found.times)
