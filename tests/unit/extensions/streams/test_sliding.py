"""Sliding windows in columns, compared with row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.extensions.streams import aggregates as agg
from headrace.extensions.streams.kernels.rows import Emit
from headrace.extensions.streams.kernels.sliding import SlidingKernel
from headrace.extensions.streams.kernels.stores import MemoryKeyedWindows
from headrace.extensions.streams.windows import SlidingWindows
from tests.unit.extensions.streams.columns import (
    KINDS,
    OF_NUMBERS,
    OF_SORTED,
    VALUE,
    cut,
    find_fault,
    hand_over_keyed,
    list_rows,
    make_layout,
    make_records,
    plain,
    record_lists,
)
from tests.unit.extensions.streams.row_by_row import Record, SlidingRows, present

if TYPE_CHECKING:
    from tests.unit.extensions.streams.row_by_row import Row

ALL = frozenset(Emit)

WINDOWS = st.builds(SlidingWindows, st.integers(0, 12), st.sampled_from([0, 1, 5, 20]))


@pytest.mark.parametrize("name", ["int", "text"])
@settings(max_examples=60)
@given(data=st.data())
def test_windows_are_those_of_one_record_at_a_time(name: str, data: st.DataObject) -> None:
    """Each change, update, final and late record is, over all cuts and restarts."""
    kind, values = KINDS[name]
    pairs = [*OF_SORTED, *([] if name == "text" else OF_NUMBERS)]
    windows = data.draw(WINDOWS)
    batches = cut(data, data.draw(record_lists(st.none() | values, keys="ab")))
    restarts = data.draw(st.booleans())
    layout = make_layout([aggregate for aggregate, _ in pairs], kind)
    slow = SlidingRows(windows, lambda rows: tuple(of(rows) for _, of in pairs))
    kernel = SlidingKernel(windows, layout, MemoryKeyedWindows(layout), ALL)
    found: dict[Emit, list[Row]] = {each: [] for each in ALL}
    late: list[int] = []
    before = closed = 0
    for batch in batches:
        slow.process(batch)
        if restarts:
            store = hand_over_keyed(layout, kernel.store)
            kernel = SlidingKernel(windows, layout, store, ALL, kernel.time)
        result = kernel.process(make_records(layout, batch, kind))
        for way, rows in result.rows.items():
            found[way] += list_rows(rows, before)
        late += [at + before for at in result.late.tolist()]
        closed += result.closed
        before += len(batch)
    assert late == slow.late
    assert closed == len(slow.final)
    assert plain(found[Emit.EACH]) == plain(slow.each)
    assert plain(found[Emit.FINAL]) == plain(slow.final)
    assert plain(sorted(found[Emit.UPDATES])) == plain(sorted(slow.updates))


@settings(max_examples=40)
@given(data=st.data())
def test_a_sum_of_a_sliding_window_that_leaves_its_type_is_poison(data: st.DataObject) -> None:
    """It is the first record with which a window's total does, wherever batches are cut."""
    windows = data.draw(WINDOWS)
    values = st.sampled_from([2**62, -(2**62), 2**63 - 1, -(2**63), 1, 0])
    records = data.draw(record_lists(values, keys="ab"))
    emits: Any = data.draw(st.sampled_from([ALL, *(frozenset({each}) for each in Emit)]))
    slow = SlidingRows(windows, lambda rows: (sum(present(rows)),))
    slow.process(records)
    poison = [row.at for row in slow.each if row.values and not -(2**63) <= row.values[0] < 2**63]
    layout = make_layout([agg.total(VALUE)], pa.int64())
    kernel = SlidingKernel(windows, layout, MemoryKeyedWindows(layout), emits)
    assert find_fault(kernel, layout, cut(data, records)) == poison[:1]


def test_a_store_forgets_windows_that_no_record_can_need() -> None:
    """Windows stay for three sizes and the grace, and then have no row."""
    layout = make_layout([agg.count()], pa.int64())
    kernel = SlidingKernel(SlidingWindows(10, 5), layout, MemoryKeyedWindows(layout), ALL)
    for time in range(0, 2000, 7):
        kernel.process(make_records(layout, [Record("a", time)], pa.int64()))
    assert len(kernel.store.read([b"a"])) < 20


def test_a_window_that_two_rules_make_is_emitted_twice() -> None:
    """The right window of a record may be the left one of the next, as Kafka Streams has it."""
    windows = SlidingWindows(10, 5)
    records = [Record("a", time) for time in (20, 23, 34)]
    slow = SlidingRows(windows, lambda rows: (len(rows),))
    slow.process(records)
    layout = make_layout([agg.count()], pa.int64())
    kernel = SlidingKernel(windows, layout, MemoryKeyedWindows(layout), ALL)
    rows = kernel.process(make_records(layout, records, pa.int64())).rows[Emit.EACH]
    assert list_rows(rows, 0) == slow.each
    assert [row.start for row in slow.each if row.at == 2] == [24, 24]
