"""Tumbling and hopping windows in columns, compared with row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.extensions.streams import aggregates as agg
from headrace.extensions.streams.kernels.errors import RowError
from headrace.extensions.streams.kernels.records import Records
from headrace.extensions.streams.kernels.rows import Emit
from headrace.extensions.streams.kernels.stores import MemoryStore
from headrace.extensions.streams.kernels.time_windows import TimeWindowKernel
from headrace.extensions.streams.windows import TimeWindows
from tests.unit.extensions.streams.columns import (
    KINDS,
    OF_NUMBERS,
    OF_SORTED,
    VALUE,
    cut,
    find_fault,
    hand_over,
    list_rows,
    make_layout,
    make_records,
    plain,
    record_lists,
)
from tests.unit.extensions.streams.row_by_row import (
    Record,
    Row,
    WindowedRows,
    present,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ALL = frozenset(Emit)

WINDOWS = st.builds(
    lambda every, times, rest, grace: TimeWindows(every * times + min(rest, every), every, grace),
    every=st.integers(1, 12),
    times=st.integers(1, 4),
    rest=st.integers(0, 6),
    grace=st.sampled_from([0, 1, 5, 20]),
)


def run(
    kernel: TimeWindowKernel,
    batches: Sequence[Sequence[Record]],
    make: Callable[[Sequence[Record]], Any],
) -> tuple[dict[Emit, list[Row]], list[int]]:
    """Return the rows of all micro-batches, and the late records."""
    found: dict[Emit, list[Row]] = {each: [] for each in ALL}
    late, before = [], 0
    for batch in batches:
        result = kernel.process(make(batch))
        for way, rows in result.rows.items():
            found[way] += list_rows(rows, before)
        late += [at + before for at in result.late.tolist()]
        before += len(batch)
    return found, late


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=20)
@given(data=st.data())
def test_rows_are_those_of_one_record_at_a_time(name: str, data: st.DataObject) -> None:
    """All aggregates, ways of emitting and late records are, wherever batches are cut."""
    kind, values = KINDS[name]
    numbers = name in {"int", "long", "float", "decimal"}
    pairs = [*OF_SORTED, *(OF_NUMBERS if numbers else [])]
    windows = data.draw(WINDOWS)
    records = data.draw(record_lists(st.none() | values))
    batches = cut(data, records)
    layout = make_layout([aggregate for aggregate, _ in pairs], kind)
    slow = WindowedRows(windows, lambda rows: tuple(of(rows) for _, of in pairs))
    for batch in batches:
        slow.process(batch)
    kernel = TimeWindowKernel(windows, layout, MemoryStore(layout), ALL)
    found, late = run(kernel, batches, lambda batch: make_records(layout, batch, kind))
    assert late == slow.late
    assert plain(found[Emit.EACH]) == plain(slow.each)
    assert plain(found[Emit.FINAL]) == plain(slow.final)
    by_pair = sorted(found[Emit.UPDATES], key=lambda row: (row.at, row.start, row.key))
    assert plain(by_pair) == plain(slow.updates)


@pytest.mark.parametrize("emits", [ALL, frozenset({Emit.UPDATES}), frozenset({Emit.EACH})])
@settings(max_examples=40)
@given(data=st.data())
def test_windows_that_are_over_are_counted_however_they_are_told(
    emits: frozenset[Emit], data: st.DataObject
) -> None:
    """The count is of those that final() tells, also where nothing is told when one is over."""
    kind, values = KINDS["int"]
    windows = data.draw(WINDOWS)
    batches = cut(data, data.draw(record_lists(values)))
    layout = make_layout([agg.count()], kind)
    slow = WindowedRows(windows, lambda rows: (len(rows),))
    kernel = TimeWindowKernel(windows, layout, MemoryStore(layout), emits)
    closed = 0
    for batch in batches:
        slow.process(batch)
        closed += kernel.process(make_records(layout, batch, kind)).closed
    assert closed == len(slow.final)


@settings(max_examples=20)
@given(data=st.data())
def test_no_window_is_final_twice_or_lost_over_restarts(data: st.DataObject) -> None:
    """A store and a time that are handed over as JSON go on as if nothing had been."""
    kind, values = data.draw(st.sampled_from(list(KINDS.values())))
    windows = data.draw(WINDOWS)
    all_records = data.draw(record_lists(st.none() | values))
    batches = cut(data, all_records)
    layout = make_layout([aggregate for aggregate, _ in OF_SORTED], kind)
    stays = TimeWindowKernel(windows, layout, MemoryStore(layout), ALL)
    store, time, before = MemoryStore(layout), -1, 0
    finals: list[Row] = []
    for batch in batches:
        kernel = TimeWindowKernel(windows, layout, hand_over(layout, store), ALL, time)
        records = make_records(layout, batch, kind)
        result, same = kernel.process(records), stays.process(records)
        for way in (Emit.EACH, Emit.FINAL):
            assert plain(list_rows(result.rows[way], 0)) == plain(list_rows(same.rows[way], 0))
        finals += list_rows(result.rows[Emit.FINAL], before)
        store, time = kernel.store, kernel.time  # type: ignore[assignment]
        before += len(batch)
    assert len({(row.key, row.start) for row in finals}) == len(finals)
    open_windows = {
        (row.key, row.start)
        for row in _each(windows, all_records)
        if row.end + windows.grace > time
    }
    assert {(row.key, row.start) for row in finals}.isdisjoint(open_windows)
    everything = {(row.key, row.start) for row in _each(windows, all_records)}
    assert {(row.key, row.start) for row in finals} | open_windows == everything


def _each(windows: TimeWindows, records: Sequence[Record]) -> list[Row]:
    slow = WindowedRows(windows, lambda rows: (len(rows),))
    slow.process(records)
    return slow.each


@settings(max_examples=20)
@given(data=st.data())
def test_windows_merged_from_panes_are_windows_counted_whole(data: st.DataObject) -> None:
    """A hopping window has what a tumbling one of the same bounds has of its records."""
    kind, values = data.draw(st.sampled_from([KINDS["int"], KINDS["float"], KINDS["text"]]))
    every, times = data.draw(st.integers(1, 5)), data.draw(st.integers(2, 4))
    size = every * times
    records = data.draw(record_lists(st.none() | values))
    pairs = [*OF_SORTED, *([] if kind == pa.string() else OF_NUMBERS)]
    layout = make_layout([aggregate for aggregate, _ in pairs], kind)
    long = 10_000
    hopping = TimeWindowKernel(
        TimeWindows(size, every, long), layout, MemoryStore(layout), frozenset({Emit.UPDATES})
    )
    rows = list_rows(hopping.process(make_records(layout, records, kind)).rows[Emit.UPDATES], 0)
    for shift in range(0, size, every):
        tumbling = TimeWindowKernel(
            TimeWindows(size, size, long), layout, MemoryStore(layout), frozenset({Emit.UPDATES})
        )
        moved = [record._replace(time=record.time + size - shift) for record in records]
        whole = tumbling.process(make_records(layout, moved, kind)).rows[Emit.UPDATES]
        expected = {
            (row.key, row.start - size + shift): plain([row])[0][-1]
            for row in list_rows(whole, 0)
            if row.start >= size - shift
        }
        assert {
            (row.key, row.start): plain([row])[0][-1] for row in rows if row.start % size == shift
        } == expected


def _count_value(found: dict[str, int], value: int) -> dict[str, int]:
    return {**found, str(value): found.get(str(value), 0) + 1}


def _add_counts(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}


@settings(max_examples=20)
@given(data=st.data())
def test_a_fold_takes_rows_as_they_arrive(data: st.DataObject) -> None:
    """A function that merges gives each window's values, whatever is cut; errors name a record."""
    windows = data.draw(WINDOWS)
    records = data.draw(record_lists(st.integers(0, 9)))
    batches = cut(data, records)
    start: dict[str, int] = {}
    aggregate = agg.fold(start, _count_value, _add_counts, rows=int)
    kind = pa.map_(pa.string(), pa.int64())
    layout = make_layout([aggregate], kind)
    slow = WindowedRows(
        windows,
        lambda rows: ({str(v): present(rows).count(v) for v in present(rows)},),
    )
    for batch in batches:
        slow.process(batch)
    kernel = TimeWindowKernel(windows, layout, MemoryStore(layout), ALL)

    def make(batch: Sequence[Record]) -> Any:
        values = [record.value for record in batch]
        return Records.of(
            [record.key.encode() for record in batch], [record.time for record in batch], values
        )

    found, _ = run(kernel, batches, make)
    for way, expected in ((Emit.EACH, slow.each), (Emit.FINAL, slow.final)):
        assert [row._replace(values=(dict(row.values[0]),)) for row in found[way]] == expected  # type: ignore[index]


def test_a_fold_that_fails_names_its_record_and_counts_nothing() -> None:
    """The place is that in the micro-batch, late records counted in."""
    aggregate = agg.fold(0, lambda n, value: n + 1 // value, lambda a, b: a + b, rows=int)
    layout = make_layout([aggregate], pa.int64())
    windows = TimeWindows(10, 5, 0)
    for emits in (ALL, frozenset({Emit.UPDATES}), frozenset({Emit.FINAL})):
        store = MemoryStore(layout)
        kernel = TimeWindowKernel(windows, layout, store, emits)
        with pytest.raises(RowError, match="ZeroDivisionError") as caught:
            kernel.process(Records.of([b"a"] * 4, [50, 0, 51, 52], [1, 1, 0, 1]))
        assert caught.value.at == 2
        assert (list(store.dump()), kernel.time) == ([], -1)


@settings(max_examples=20)
@given(data=st.data())
def test_a_sum_that_leaves_its_type_is_poison_wherever_batches_are_cut(
    data: st.DataObject,
) -> None:
    """The record is the first with which a window's total does, even if a later one undoes it."""
    windows = data.draw(WINDOWS)
    values = st.sampled_from([2**62, -(2**62), 2**63 - 1, -(2**63), 1, -1, 0])
    records = data.draw(record_lists(values, keys="ab"))
    emits = data.draw(st.sampled_from([ALL, *(frozenset({each}) for each in Emit)]))
    slow = WindowedRows(windows, lambda rows: (sum(present(rows)),))
    slow.process(records)
    poison = [
        row.at
        for row in slow.each
        if not -(2**63) <= row.values[0] < 2**63  # type: ignore[index]
    ]
    layout = make_layout([agg.total(VALUE)], pa.int64())
    kernel = TimeWindowKernel(windows, layout, MemoryStore(layout), emits)
    assert find_fault(kernel, layout, cut(data, records)) == poison[:1]


def test_a_store_forgets_keys_without_rows() -> None:
    """Numbers of keys are used again once most keys have no open window."""
    layout = make_layout([agg.count()], pa.int64())
    store = MemoryStore(layout)
    kernel = TimeWindowKernel(TimeWindows(10, 10, 0), layout, store, ALL)
    for batch in range(100):
        records = [Record(f"{batch}-{n}", batch * 10) for n in range(200)]
        kernel.process(make_records(layout, [*records, Record("all", batch * 10)], pa.int64()))
    assert store.numbered < 5000
    (rows,) = [row for row in store.dump() if row[1] == b"all"]
    assert rows[2][1] == 1
