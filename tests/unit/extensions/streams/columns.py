"""Records as kernels take them, rows as kernels return them, and strategies for both."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import strategies as st

from headrace.core.extras import Extra
from headrace.extensions.streams import aggregates as agg
from headrace.extensions.streams.kernels.errors import RowError
from headrace.extensions.streams.kernels.layout import Layout
from headrace.extensions.streams.kernels.partials import make_partial
from headrace.extensions.streams.kernels.records import Records
from headrace.extensions.streams.kernels.stores import MemoryKeyedWindows, MemoryStore
from headrace.extensions.streams.rows import Field
from headrace.extensions.streams.rows import Row as Fields
from tests.unit.extensions.streams.row_by_row import (
    Joined,
    Record,
    Row,
    Rows,
    add_up,
    by_time,
    find_distinct,
    find_mean,
    find_top,
    order_key,
    present,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.extensions.streams.aggregates import Agg
    from headrace.extensions.streams.expressions import Expr
    from headrace.extensions.streams.kernels.joins import Joined as Columns
    from headrace.extensions.streams.kernels.rows import WindowRows


class Value(Fields):
    """A row with a value."""

    value: Field[int]


#: The argument of all aggregates here; its type is that of the column.
VALUE: Expr[Any] = Value.value


#: Types of values, and values of them.
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int64(), st.integers(-100, 100)),
    "long": (pa.int64(), st.integers(-(2**61), 2**61)),
    "float": (pa.float64(), st.floats()),
    "bool": (pa.bool_(), st.booleans()),
    "text": (pa.string(), st.sampled_from(["", "a", "ab", "b", "ü", "\U0001f600"])),
    "bytes": (pa.binary(), st.binary(max_size=2)),
    "decimal": (
        pa.decimal128(9, 2),
        st.integers(-500, 500).map(lambda n: Decimal(n).scaleb(-2)),
    ),
    "timestamp": (
        pa.timestamp("ms"),
        st.integers(0, 10**12).map(lambda n: pa.scalar(n, pa.timestamp("ms")).as_py()),
    ),
}

#: Aggregates of values that sort, and what each comes to.
OF_SORTED: list[tuple[agg.Agg[Any], Callable[[Rows], Any]]] = [
    (agg.count(), len),
    (agg.least(VALUE), lambda rows: min(present(rows), key=order_key, default=None)),
    (agg.most(VALUE), lambda rows: max(present(rows), key=order_key, default=None)),
    (agg.first(VALUE), lambda rows: next(iter(by_time(rows)), None)),
    (agg.last(VALUE), lambda rows: next(reversed(by_time(rows)), None)),
    (agg.top(2, by=VALUE, of=VALUE), lambda rows: find_top(rows, 2)),
    (agg.collect(VALUE, limit=3), lambda rows: by_time(rows)[:3]),
    (agg.distinct(VALUE, limit=2), lambda rows: find_distinct(present(rows), 2)),
]

if Extra.DISTINCT.installed:
    # of so few it is the number itself
    OF_SORTED.append(
        (agg.approx_distinct(VALUE), lambda rows: len(find_distinct(present(rows), 99)))
    )

#: Aggregates of numbers.
OF_NUMBERS: list[tuple[agg.Agg[Any], Callable[[Rows], Any]]] = [
    (agg.total(VALUE), lambda rows: add_up(present(rows))),
    (agg.mean(VALUE), lambda rows: find_mean(present(rows))),
]


def plain(rows: Sequence[Row]) -> list[Any]:
    """Return rows that compare equal where NaN is NaN, and -0.0 is 0.0."""

    def same(value: Any) -> Any:
        if isinstance(value, float):
            return "NaN" if math.isnan(value) else value
        return [same(each) for each in value] if isinstance(value, (list, tuple)) else value

    return [(*row[:5], same(row.values)) for row in rows]


def make_layout(aggregates: Sequence[Agg[Any]], kind: pa.DataType) -> Layout:
    """Return the layout of aggregates that take values of one type."""
    return Layout(
        [
            make_partial(aggregate, [kind] * len(aggregate.arguments), kind)
            for aggregate in aggregates
        ]
    )


def make_records(layout: Layout, records: Sequence[Record], kind: pa.DataType) -> Records:
    """Return records as columns, the value once for each column that the layout takes."""
    values = pa.array([record.value for record in records], kind)
    width = sum(partial.width for partial in layout.partials)
    return Records.of(
        [record.key.encode() for record in records],
        [record.time for record in records],
        *[values] * width,
    )


def list_rows(rows: WindowRows, before: int) -> list[Row]:
    """Return rows one by one; ``before`` is the number of records of earlier micro-batches."""
    values = zip(*(column.to_pylist() for column in rows.values), strict=True)
    names = rows.names.to_pylist()
    columns = zip(
        rows.at.tolist(),
        rows.codes.tolist(),
        rows.starts.tolist(),
        rows.ends.tolist(),
        rows.times.tolist(),
        list(values) or [()] * len(rows),
        rows.present.tolist(),
        strict=True,
    )
    return [
        Row(at + before, names[code].decode(), start, end, time, value if present else None)
        for at, code, start, end, time, value, present in columns
    ]


def hand_over(layout: Layout, store: MemoryStore) -> MemoryStore:
    """Return a new store with the rows of another one, written as JSON in between."""
    text = [(pane, name, json.dumps(value, allow_nan=False)) for pane, name, value in store.dump()]
    other = MemoryStore(layout)
    other.load((pane, name, json.loads(value)) for pane, name, value in text)
    return other


#: How far a record's time is from the one before, and how far it is late.
_STEPS = st.sampled_from([0, 0, 1, 1, 2, 3, 7, 20])
_LATE = st.sampled_from([0, 0, 0, 1, 3, 5, 8, 14, 16, 40])


def record_lists(
    values: st.SearchStrategy[Any], *, most: int = 30, keys: str = "abcd"
) -> st.SearchStrategy[list[Record]]:
    """Return records of 1 to 4 keys, whose times rise, stand still, jump and go back."""
    drawn = st.lists(st.tuples(_STEPS, _LATE, st.sampled_from(keys), values), max_size=most)
    return st.builds(_make_times, st.integers(0, 40), drawn)


def _make_times(time: int, drawn: list[tuple[int, int, str, Any]]) -> list[Record]:
    records = []
    for step, late, key, value in drawn:
        time += step
        records.append(Record(key, max(time - late, 0), value))
    return records


def cut(data: st.DataObject, records: Sequence[Record]) -> list[list[Record]]:
    """Draw micro-batches that records come in, empty ones too."""
    ends = data.draw(st.lists(st.integers(0, len(records)), max_size=4))
    edges = [0, *sorted(ends), len(records)]
    return [list(records[a:b]) for a, b in pairwise(edges)]


def list_joined(rows: Columns, before: int) -> list[Joined]:
    """Return rows one by one; ``before`` is the number of records of earlier micro-batches."""
    names = rows.names.to_pylist()
    columns = zip(
        rows.at.tolist(),
        rows.codes.tolist(),
        rows.times.tolist(),
        rows.left.to_pylist(),
        rows.right.to_pylist(),
        strict=True,
    )
    return [
        Joined(at + before, names[code].decode(), time, left, right)
        for at, code, time, left, right in columns
    ]


def hand_over_keyed(layout: Layout, store: Any) -> MemoryKeyedWindows:
    """Return a new store with the windows of another one, written as JSON in between."""
    text = [
        (name, begin, end, json.dumps(value, allow_nan=False))
        for name, begin, end, value in store.dump()
    ]
    other = MemoryKeyedWindows(layout)
    other.load((name, begin, end, json.loads(value)) for name, begin, end, value in text)
    return other


def find_fault(kernel: Any, layout: Layout, batches: Sequence[Sequence[Record]]) -> list[int]:
    """Return the number of the first record that a kernel of integers fails for; none is empty."""
    before = 0
    for batch in batches:
        try:
            kernel.process(make_records(layout, batch, pa.int64()))
        except RowError as error:
            return [error.at + before]
        before += len(batch)
    return []
