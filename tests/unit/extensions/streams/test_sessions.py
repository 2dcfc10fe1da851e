"""Session windows in columns, compared with row by row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.extensions.streams import aggregates as agg
from headrace.extensions.streams.kernels.rows import Emit
from headrace.extensions.streams.kernels.sessions import SessionKernel
from headrace.extensions.streams.kernels.stores import MemoryKeyedWindows
from headrace.extensions.streams.windows import SessionWindows
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
from tests.unit.extensions.streams.row_by_row import SessionRows, present

if TYPE_CHECKING:
    from tests.unit.extensions.streams.row_by_row import Row

ALL = frozenset(Emit)

WINDOWS = st.builds(SessionWindows, st.integers(1, 12), st.sampled_from([0, 1, 5, 20]))


@pytest.mark.parametrize("name", ["int", "float", "text"])
@settings(max_examples=80)
@given(data=st.data())
def test_sessions_are_those_of_one_record_at_a_time(name: str, data: st.DataObject) -> None:
    """Merges, withdrawals, finals and late records are, over all cuts and restarts."""
    kind, values = KINDS[name]
    pairs = [*OF_SORTED, *([] if name == "text" else OF_NUMBERS)]
    windows = data.draw(WINDOWS)
    far = data.draw(st.sampled_from([0, 0, 2**61]))  # then a time and a key do not fit one number
    records = [
        record._replace(time=record.time + far * (record.time > 60))
        for record in data.draw(record_lists(st.none() | values))
    ]
    batches = cut(data, records)
    # without a value for each record, sessions of keys in time are found at once
    emits = data.draw(st.sampled_from([ALL, frozenset({Emit.UPDATES, Emit.FINAL})]))
    restarts = data.draw(st.booleans())
    layout = make_layout([aggregate for aggregate, _ in pairs], kind)
    slow = SessionRows(windows, lambda rows: tuple(of(rows) for _, of in pairs))
    store, time, before, closed = MemoryKeyedWindows(layout), -1, 0, 0
    found: dict[Emit, list[Row]] = {each: [] for each in ALL}
    late: list[int] = []
    kernel = SessionKernel(windows, layout, store, emits, time)
    for batch in batches:
        slow.process(batch)
        if restarts:
            store = hand_over_keyed(layout, store)
            kernel = SessionKernel(windows, layout, store, emits, kernel.time)
        result = kernel.process(make_records(layout, batch, kind))
        for way, rows in result.rows.items():
            found[way] += list_rows(rows, before)
        late += [at + before for at in result.late.tolist()]
        closed += result.closed
        before += len(batch)
    assert late == slow.late
    assert closed == len(slow.final)
    assert plain(found[Emit.EACH]) == (plain(slow.each) if Emit.EACH in emits else [])
    assert plain(found[Emit.FINAL]) == plain(slow.final)
    assert plain(sorted(found[Emit.UPDATES])) == plain(sorted(slow.updates))
    assert len({row[1:4] for row in slow.final}) == len(slow.final)


@settings(max_examples=40)
@given(data=st.data())
def test_a_sum_of_a_session_that_leaves_its_type_is_poison(data: st.DataObject) -> None:
    """It is the first record with which a session's total does, wherever batches are cut."""
    windows = data.draw(WINDOWS)
    values = st.sampled_from([2**62, -(2**62), 2**63 - 1, -(2**63), 1, 0])
    records = data.draw(record_lists(values, keys="ab"))
    emits: Any = data.draw(st.sampled_from([ALL, *(frozenset({each}) for each in Emit)]))
    slow = SessionRows(windows, lambda rows: (sum(present(rows)),))
    slow.process(records)
    poison = [row.at for row in slow.each if row.values and not -(2**63) <= row.values[0] < 2**63]
    layout = make_layout([agg.total(VALUE)], pa.int64())
    kernel = SessionKernel(windows, layout, MemoryKeyedWindows(layout), emits)
    assert find_fault(kernel, layout, cut(data, records)) == poison[:1]
