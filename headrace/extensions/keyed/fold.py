"""The fold: what a reducer makes of a table of touched keys.

The daemon and Spark's workers run the same: a table of ``tables.ROWS`` in, one of ``tables.RESULT``
out.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.extensions.keyed.aggregates import count, count_silently
from headrace.extensions.keyed.columns import CountInColumns
from headrace.extensions.keyed.errors import PoisonError
from headrace.extensions.keyed.evaluation import Begun, KeyEvaluation, reduce_plain
from headrace.extensions.keyed.facts import FactColumns, listed, plain_keys
from headrace.extensions.keyed.reduction import Reduction
from headrace.extensions.keyed.results import FoldResults
from headrace.extensions.keyed.row import KeyRow
from headrace.extensions.keyed.tables import Touched

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from headrace.core.call_watch import CallWatch
    from headrace.extensions.keyed.api import KeyedReducer
    from headrace.extensions.keyed.results import Folded
    from headrace.extensions.keyed.settings import FoldSettings


def fold_of(
    reducer: KeyedReducer[Any, Any, Any],
    settings: FoldSettings,
    calls: CallWatch | None = None,
) -> Fold:
    """Return the fold of a reducer: a built-in one is called for no key that is plain.

    ``calls`` watches the calls of the user's own.
    """
    if reducer is not count:
        return Fold(reducer, settings, calls)
    # a count reads no values
    settings = replace(settings, value="bytes", decoder=None, framed=None)
    counted = CountInColumns(settings) if CountInColumns.can_count(settings) else None
    return Fold(count if settings.outputs else count_silently, settings, in_columns=counted)


class Fold:
    """Applies a reducer to touched keys. Any thread, one at a time; sent to Spark's workers whole.

    With ``calls`` each key is noted there before the reducer gets it, and a call that takes too
    long is interrupted; that is for folds in this process. ``in_columns`` reduces all plain keys of
    a table together, as the reducer would one after the other.

    Raises:
        PoisonRecordError: a fact cannot be reduced, and ``failing`` is ``fail``.
        RetryableError: the same of a timer.
        JobTimeoutError: the reducer did not return from a call in time.
    """

    def __init__(
        self,
        reducer: KeyedReducer[Any, Any, Any],
        settings: FoldSettings,
        calls: CallWatch | None = None,
        in_columns: CountInColumns | None = None,
    ) -> None:
        self._reduction = Reduction(reducer, settings)
        self._calls = calls
        self._in_columns = in_columns

    @property
    def reducer(self) -> KeyedReducer[Any, Any, Any]:
        """Return the function that is called."""
        return self._reduction.reducer

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return a table of ``RESULT`` with a row for each of ``rows``, in their order."""
        if self._in_columns is None or not rows.num_rows:
            return self._reduced(rows)
        return self._reduced_in_columns(rows.combine_chunks(), self._in_columns)

    def _reduced_in_columns(self, rows: pa.Table, in_columns: CountInColumns) -> pa.Table:
        """Reduce plain keys together, and the others one by one."""
        facts = FactColumns(rows.column("facts").chunk(0), self._reduction.settings)
        plain = self._plain_keys(rows.column("extra").chunk(0), facts)
        if plain.all():
            reduced = in_columns(rows, facts)
            return self._reduced(rows) if reduced is None else reduced
        there, others = np.flatnonzero(plain), np.flatnonzero(~plain)
        if not len(there):
            return self._reduced(rows)
        some = rows.take(pa.array(there)).combine_chunks()
        chosen = FactColumns(some.column("facts").chunk(0), self._reduction.settings)
        reduced = in_columns(some, chosen)
        if reduced is None:
            return self._reduced(rows)
        found = pa.concat_tables([reduced, self._reduced(rows.take(pa.array(others)))])
        order = np.argsort(np.concatenate([there, others]))
        return found.combine_chunks().take(pa.array(order))

    def _reduced(self, rows: pa.Table) -> pa.Table:
        """Reduce key by key."""
        results = FoldResults()
        with nullcontext() if self._calls is None else self._calls.job():
            for batch in rows.to_batches():
                self._reduce_batch(batch, results)
        return results.table()

    def _reduce_batch(self, batch: pa.RecordBatch, results: FoldResults) -> None:
        """Reduce the keys of a batch, the plain ones in few steps."""
        reduction, calls = self._reduction, self._calls
        facts = FactColumns(batch.column("facts"), reduction.settings)
        names = ("key", "partition", "state", "extra", "until", "now")
        columns = [listed(batch.column(name)) for name in names]
        keys: Iterable[tuple[Any, ...]] = zip(*columns, strict=True)
        if calls is not None:
            keys = calls.each(keys)
        plain = self._plain_keys(batch.column("extra"), facts).tolist()
        late = facts.late.tolist()
        each_events = facts.events(columns[1], reduction.read_value)
        for index, (key, partition, state, extra, until, now) in enumerate(keys):
            # what hung may be what reads the values
            has_failed = facts.is_left_unread = calls is not None and calls.is_known(partition, key)
            events = next(each_events)
            begun = None
            if has_failed:
                events = None
            elif plain[index] and events is not None:
                try:
                    found = reduce_plain(reduction, key, state, events, now)
                except (Exception, SystemExit):  # noqa: BLE001 - what it is, and of what, is found out below
                    has_failed = True
                else:
                    if not isinstance(found, Begun):
                        results.add_plain(key, partition, state, *found, late[index])
                        continue
                    begun = found
            row = KeyRow(state, extra)
            several = facts.of(index)
            touched = Touched(key, partition, row, several, until, now, events, late[index])
            results.add(touched, self._evaluated(touched, begun, has_failed=has_failed))

    def _plain_keys(self, extra: pa.Array, facts: FactColumns) -> npt.NDArray[np.bool_]:
        """Return which keys are plain; tests have none be so."""
        return plain_keys(extra, facts, self._reduction.settings)

    def _evaluated(self, touched: Touched, begun: Begun | None, *, has_failed: bool) -> Folded:
        """Return what becomes of one key: with care where something fails, or has failed."""
        if not has_failed:
            with suppress(PoisonError):
                evaluation = KeyEvaluation(self._reduction, touched, is_careful=False)
                return evaluation.run() if begun is None else evaluation.go_on(begun)
        return KeyEvaluation(self._reduction, touched, is_careful=True, calls=self._calls).run()
