"""The reducer of ours in front of the engines: records in, folded keys out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.keyed.fold import RESULT
from headrace.keyed.rows import chunks, grouped, poison_rows
from headrace.keyed.sink import with_former, with_times

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.core.clock import Clock
    from headrace.keyed.rows import RowSettings
    from headrace.keyed.state import LayeredState
    from headrace.sinks.micro_batch import MicroBatch


class KeyedFunction:
    """Makes of a micro-batch's records the table that :class:`headrace.keyed.sink.KeyedSink` takes.

    ``fold`` takes a table of ``fold.ROWS`` and returns one of ``fold.RESULT``: in this process, or
    in Spark's workers.
    """

    def __init__(
        self,
        fold: Callable[[pa.Table], pa.Table],
        state: LayeredState,
        settings: RowSettings,
        clock: Clock,
    ) -> None:
        self._fold = fold
        self._state = state
        self._settings = settings
        self._clock = clock

    def __call__(self, table: pa.Table, batch: MicroBatch) -> pa.Table:
        """Reduce in this thread; see :meth:`reduce`."""
        return self.reduce(table, batch, lambda parts: list(map(self._fold, parts)), 1)

    def reduce(
        self,
        table: pa.Table,
        batch: MicroBatch,
        run: Callable[[Sequence[pa.Table]], Sequence[pa.Table]],
        tasks: int,
    ) -> pa.Table:
        """Return the touched keys as they are after the micro-batch. Blocks for the state.

        ``run`` folds parts of the rows, up to ``tasks`` of them.

        Raises:
            PoisonRecordError: a record cannot be reduced, and ``on_poison`` is ``fail``.
            StateStoreError: the state cannot be read.
        """
        now = int(self._clock.time() * 1000)
        found = grouped(table, batch, self._state, self._settings, now)
        parts = chunks(found.rows, tasks)
        results = [RESULT.empty_table(), *(run(parts) if parts else ())]
        if found.poison:
            results.append(poison_rows(found.poison))
        return with_times(with_former(pa.concat_tables(results), found.rows), found.times)
