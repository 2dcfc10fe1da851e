"""Joins with tables in columns, compared with row by row."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.extensions.streams.kernels.joins import JoinKind
from headrace.extensions.streams.kernels.records import Records
from headrace.extensions.streams.kernels.tables import (
    MemoryTable,
    StreamTableKernel,
    TableTableKernel,
)
from tests.unit.extensions.streams.columns import list_joined, record_lists
from tests.unit.extensions.streams.row_by_row import Joined, Record, TableRows

NEEDED = {
    JoinKind.INNER: (True, True),
    JoinKind.LEFT: (True, False),
    JoinKind.OUTER: (False, False),
}


def draw_changes(data: st.DataObject) -> tuple[list[tuple[int, Record]], list[int]]:
    """Draw records of two sides, a third of them deletions, and where they are cut."""
    records = data.draw(record_lists(st.sampled_from([None, 1, 2, 3])))
    sides = data.draw(st.lists(st.integers(0, 1), min_size=len(records), max_size=len(records)))
    ends = data.draw(st.lists(st.integers(0, len(records)), max_size=4))
    return list(zip(sides, records, strict=True)), [0, *sorted(ends), len(records)]


def run(
    kernel: StreamTableKernel | TableTableKernel,
    changes: list[tuple[int, Record]],
    edges: list[int],
) -> list[Joined]:
    """Return all rows of changes that come in micro-batches."""
    found = []
    for start, stop in pairwise(edges):
        batch = changes[start:stop]
        values = [
            pa.array([record.value for side, record in batch if side == number], pa.int64())
            for number in (0, 1)
        ]
        records = Records.of(
            [record.key.encode() for _, record in batch], [record.time for _, record in batch]
        )
        right = np.array([side for side, _ in batch], np.bool_)
        found += list_joined(kernel.process(records, right, *values), start)
    return found


@pytest.mark.parametrize("kind", [JoinKind.INNER, JoinKind.LEFT])
@settings(max_examples=60)
@given(data=st.data())
def test_a_record_meets_the_row_of_its_moment(kind: JoinKind, data: st.DataObject) -> None:
    """A stream's rows are those of one record at a time, wherever batches are cut."""
    changes, edges = draw_changes(data)
    slow = TableRows(NEEDED[kind])
    for at, (side, record) in enumerate(changes):
        slow.look_up(at, side, record)
    table = MemoryTable(pa.int64())
    assert run(StreamTableKernel(kind, table), changes, edges) == slow.rows
    assert list(table.dump()) == [
        (key.encode(), value, time) for key, (value, time) in sorted(slow.tables[1].items())
    ]


@pytest.mark.parametrize("kind", JoinKind)
@settings(max_examples=60)
@given(data=st.data())
def test_changes_of_two_tables_are_those_of_one_at_a_time(
    kind: JoinKind, data: st.DataObject
) -> None:
    """Rows, deletions and what is not emitted are, wherever batches are cut."""
    changes, edges = draw_changes(data)
    slow = TableRows(NEEDED[kind])
    for at, (side, record) in enumerate(changes):
        slow.join(at, side, record)
    tables = (MemoryTable(pa.int64()), MemoryTable(pa.int64()))
    assert run(TableTableKernel(kind, *tables), changes, edges) == slow.rows
    for table, rows in zip(tables, slow.tables, strict=True):
        assert list(table.dump()) == [
            (key.encode(), value, time) for key, (value, time) in sorted(rows.items())
        ]


def test_a_stream_has_no_outer_join_with_a_table() -> None:
    """It is refused, as a table's rows without a record are no event."""
    with pytest.raises(ValueError, match="inner or a left join"):
        StreamTableKernel(JoinKind.OUTER, MemoryTable(pa.int64()))
