"""Built-in reducers, and their fold in columns: all touched keys at once, without a call for each.

A fold in columns gives what the fold of the same function gives, row by row; what it cannot take,
a key with timers for instance, it leaves to that one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.extensions.keyed.aggregates import count, count_silently
from headrace.extensions.keyed.fold import OUTPUT, RESULT, Fold

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from headrace.core.call_watch import CallWatch
    from headrace.extensions.keyed.api import KeyedReducer
    from headrace.extensions.keyed.fold import FoldSettings

#: Bytes of the longest count.
_LONGEST = 20


def fold_of(
    reducer: KeyedReducer[Any, Any, Any],
    settings: FoldSettings,
    calls: CallWatch | None = None,
) -> Callable[[pa.Table], pa.Table]:
    """Return what makes of a table of ``fold.ROWS`` one of ``fold.RESULT``.

    In columns for a built-in reducer, else by calling the reducer for each key, which ``calls``
    watches.
    """
    return CountInColumns(settings) if reducer is count else Fold(reducer, settings, calls)


class CountInColumns:
    """Counts the facts of all keys of a table together. Any thread; sent to workers whole.

    Values are not read. Where a channel has no output, the count is in the state alone.
    """

    def __init__(self, settings: FoldSettings) -> None:
        self._settings = settings = replace(settings, value="bytes", decoder=None)
        self._each = Fold(count if settings.outputs else count_silently, settings)

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return a table of ``fold.RESULT`` with a row for each of ``rows``, in their order.

        Raises:
            PoisonRecordError, KeyedTimerError: as :class:`headrace.extensions.keyed.fold.Fold`.
        """
        rows = rows.combine_chunks()
        settings = self._settings
        if (
            rows.num_rows == 0
            or settings.ttl is not None
            or settings.state != "json"
            or len(settings.outputs) > 1
            or settings.max_row < _LONGEST
        ):
            return self._each(rows)
        plain = self._plain(rows)
        if plain.all():
            counted = self._counted(rows)
            return self._each(rows) if counted is None else counted
        there, others = np.flatnonzero(plain), np.flatnonzero(~plain)
        some = rows.take(pa.array(there)).combine_chunks()
        counted = self._counted(some) if len(there) else None
        if counted is None:
            return self._each(rows)
        folded = pa.concat_tables([counted, self._each(rows.take(pa.array(others)))])
        order = np.argsort(np.concatenate([there, others]))
        return folded.combine_chunks().take(pa.array(order))

    def _plain(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Return which rows have facts and nothing else: no timer, and none that is too late."""
        facts = rows.column("facts").chunk(0)
        found: npt.NDArray[np.bool_] = pc.and_(
            pc.is_null(rows.column("extra").chunk(0)), pc.greater(pc.list_value_length(facts), 0)
        ).to_numpy(zero_copy_only=False)
        if self._settings.grace is not None:
            late_by = facts.values.field("late_by").to_numpy()
            found &= _each_sum(facts, late_by > self._settings.grace) == 0
        return found

    def _counted(self, rows: pa.Table) -> pa.Table | None:
        """Return what becomes of rows with facts only, None where one of them needs a closer look.

        That is a key that is no text, or a state that is no count.
        """
        keys, facts = rows.column("key").chunk(0), rows.column("facts").chunk(0)
        longest = pc.max(pc.binary_length(keys)).as_py() + _LONGEST
        if longest > min(self._settings.max_output, self._settings.max_row):
            return None
        try:
            if self._settings.keys == "string":
                keys.cast(pa.string())
            before = rows.column("state").chunk(0).cast(pa.string())
            known = before.cast(pa.int64())
            if not pc.all(pc.equal(known.cast(pa.string()), before), min_count=0).as_py():
                return None
            added = pc.list_value_length(facts).cast(pa.int64())
            totals = pc.add_checked(pc.fill_null(known, 0), added).cast(pa.string())
        except pa.ArrowInvalid:
            return None
        states, size = totals.cast(pa.binary()), rows.num_rows
        nothing = pa.array(np.zeros(size, np.int32))
        late = _each_sum(facts, facts.values.field("late_by").to_numpy() > 0)
        columns = {
            "key": keys,
            "partition": rows.column("partition").chunk(0),
            "changed": pa.array(np.ones(size, np.bool_)),
            "state": states,
            "extra": pa.nulls(size, pa.binary()),
            "outputs": self._outputs(keys, states, facts),
            "late": pa.array(late.astype(np.int32)),
        }
        return pa.Table.from_arrays(
            [columns.get(name, nothing) for name in RESULT.names], schema=RESULT
        )

    def _outputs(self, keys: pa.Array, values: pa.Array, facts: pa.ListArray) -> pa.ListArray:
        """Return an output for each key, at the time of its last fact."""
        size = len(keys)
        if not self._settings.outputs:
            return pa.array([[]] * size, pa.list_(OUTPUT))
        columns = {
            "to": pa.array([self._settings.outputs[0]] * size, pa.string()),
            "key": keys,
            "value": values,
            "ts": facts.values.field("ts").take(pc.subtract(facts.offsets[1:], 1)),
            "headers": pa.nulls(size, OUTPUT.field("headers").type),
        }
        outputs = pa.StructArray.from_arrays(
            [columns[field.name] for field in OUTPUT], fields=list(OUTPUT)
        )
        return pa.ListArray.from_arrays(pa.array(np.arange(size + 1, dtype=np.int32)), outputs)


def _each_sum(lists: pa.ListArray, values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the sum of each list's part of ``values``."""
    ends = lists.offsets.to_numpy()
    sums = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
    found: npt.NDArray[np.int64] = sums[ends[1:]] - sums[ends[:-1]]
    return found
