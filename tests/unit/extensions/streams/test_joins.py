"""Stream-stream joins in columns, compared with row by row."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.extensions.streams.kernels.joins import JoinBuffer, JoinKernel, JoinKind
from headrace.extensions.streams.kernels.joins import Joined as Columns
from headrace.extensions.streams.kernels.records import Records
from headrace.extensions.streams.windows import JoinWindows
from tests.unit.extensions.streams.columns import list_joined, record_lists
from tests.unit.extensions.streams.row_by_row import Joined, JoinRows, Record

WINDOWS = st.builds(
    JoinWindows,
    st.sampled_from([0, 1, 5, 10]),
    st.sampled_from([0, 2, 5, 10]),
    st.sampled_from([0, 1, 5, 20]),
)


def process(kernel: JoinKernel, batch: list[tuple[int, Record]]) -> Columns:
    """Return what comes of records of both sides."""
    sides = np.array([side for side, _ in batch], np.bool_)
    values = [
        pa.array([record.value for side, record in batch if side == number], pa.int64())
        for number in (0, 1)
    ]
    records = Records.of(
        [record.key.encode() for _, record in batch], [record.time for _, record in batch]
    )
    return kernel.process(records, sides, *values)


def hand_over(buffer: JoinBuffer) -> JoinBuffer:
    """Return a new buffer with the records of another one, written as JSON in between."""
    text = json.dumps([(side, key.decode(), *row) for side, key, *row in buffer.dump()])
    other = JoinBuffer(pa.int64(), pa.int64())
    other.load([(side, key.encode(), *row) for side, key, *row in json.loads(text)])
    return other


@pytest.mark.parametrize("kind", JoinKind)
@settings(max_examples=100)
@given(data=st.data())
def test_pairs_are_those_of_one_record_at_a_time(kind: JoinKind, data: st.DataObject) -> None:
    """Pairs and what is alone come with the same records, in order, over cuts and restarts."""
    windows = data.draw(WINDOWS)
    records = [
        record._replace(value=None if record.value is None else at)
        for at, record in enumerate(data.draw(record_lists(st.sampled_from([None, 1, 1, 1]))))
    ]
    far = data.draw(st.sampled_from([0, 2**61]))  # then a time and a key do not fit one number
    records = [record._replace(time=record.time + far * (record.time > 60)) for record in records]
    sides = data.draw(st.lists(st.integers(0, 1), min_size=len(records), max_size=len(records)))
    slow = JoinRows(windows, kind.value)
    for at, (side, record) in enumerate(zip(sides, records, strict=True)):
        slow.process(at, side, record)
    ends = data.draw(st.lists(st.integers(0, len(records)), max_size=4))
    edges = [0, *sorted(ends), len(records)]
    restarts = data.draw(st.booleans())
    kernel = JoinKernel(windows, kind, JoinBuffer(pa.int64(), pa.int64()))
    found: list[Joined] = []
    alone = late = 0
    for start, stop in pairwise(edges):
        if restarts:
            kernel = JoinKernel(windows, kind, hand_over(kernel.buffer), kernel.time)
        batch = list(zip(sides, records, strict=True))[start:stop]
        joined = process(kernel, batch)
        found += list_joined(joined, start)
        alone, late = alone + joined.alone, late + joined.late
    assert found == slow.rows
    assert alone == sum(row.left is None or row.right is None for row in slow.rows)
    assert late == _count_late(windows, sides, records)


def _count_late(windows: JoinWindows, sides: list[int], records: list[Record]) -> int:
    """Return how many records had their own time and the grace over when they were read."""
    late, time = 0, -1
    for side, record in zip(sides, records, strict=True):
        time = max(time, record.time)
        reach = windows.before if side else windows.after
        late += record.value is not None and record.time + reach + windows.grace < time
    return late


def test_a_loaded_buffer_has_one_number_for_the_records_of_a_key() -> None:
    """Two records that wait under one key both join the next one of the other side."""
    rows = [(0, b"a", 0, at, True, at) for at in range(2)]
    buffer = JoinBuffer(pa.int64(), pa.int64())
    buffer.load(rows)
    assert (buffer.numbered, buffer.dump()) == (1, rows)
    kernel = JoinKernel(JoinWindows(0, 0, 0), JoinKind.INNER, buffer, 0)
    found = list_joined(process(kernel, [(1, Record("a", 0, 7))]), 0)
    assert [(each.left, each.right) for each in found] == [(0, 7), (1, 7)]


def test_a_buffer_forgets_records_values_and_keys() -> None:
    """A record that can join nothing any more has no row, no value and no number."""
    kernel = JoinKernel(JoinWindows(5, 5, 0), JoinKind.OUTER, JoinBuffer(pa.int64(), pa.int64()))
    for number in range(60):
        batch = [(n % 2, Record(f"{number}-{n}", number * 100 + n, n)) for n in range(200)]
        process(kernel, batch)
    for side in kernel.buffer.sides:
        assert len(side) < 20
        assert len(side.values) < 50
    assert kernel.buffer.numbered < 6000
