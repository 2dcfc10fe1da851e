"""Kernels over columns against the row-by-row reference that Kafka Streams agrees with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.extensions.streams import aggregates as agg
from headrace.extensions.streams.kernels.joins import JoinBuffer, JoinKernel, JoinKind
from headrace.extensions.streams.kernels.rows import Emit
from headrace.extensions.streams.kernels.sessions import SessionKernel
from headrace.extensions.streams.kernels.sliding import SlidingKernel
from headrace.extensions.streams.kernels.stores import MemoryKeyedWindows, MemoryStore
from headrace.extensions.streams.kernels.time_windows import TimeWindowKernel
from headrace.extensions.streams.windows import (
    JoinWindows,
    SessionWindows,
    SlidingWindows,
    TimeWindows,
)
from tests.streams.reference import Output, Reference, Row
from tests.streams.scenario import AGGREGATES, scenario
from tests.unit.extensions.streams.columns import (
    VALUE,
    cut,
    list_joined,
    list_rows,
    make_layout,
    make_records,
)
from tests.unit.extensions.streams.row_by_row import Record
from tests.unit.extensions.streams.test_joins import process

if TYPE_CHECKING:
    from headrace.extensions.streams.kernels.layout import Layout

_SEEDS = st.integers(0, 10**9)

_EMITS = frozenset({Emit.EACH, Emit.FINAL})

_DECLARED = {
    "count": agg.count(),
    "total": agg.total(VALUE),
    "top": agg.top(3, by=VALUE, of=VALUE),
}


def _kernel(
    window: dict[str, Any], layout: Layout
) -> TimeWindowKernel | SlidingKernel | SessionKernel:
    if window["kind"] == "sliding":
        sliding = SlidingWindows(window["size"], window["grace"])
        return SlidingKernel(sliding, layout, MemoryKeyedWindows(layout), _EMITS)
    if window["kind"] == "session":
        sessions = SessionWindows(window["gap"], window["grace"])
        return SessionKernel(sessions, layout, MemoryKeyedWindows(layout), _EMITS)
    every = window.get("every", window["size"])
    windows = TimeWindows(window["size"], every, window["grace"])
    return TimeWindowKernel(windows, layout, MemoryStore(layout), _EMITS)


def _value(output: Output, what: str) -> Any:
    """Return an aggregate as a kernel has it."""
    if output.value is None:
        return None
    return [int(n) for n in output.value.s.split(",")] if what == "top" else output.value.n


@pytest.mark.parametrize("kind", ["tumbling", "hopping", "sliding", "session"])
@settings(max_examples=50)
@given(seed=_SEEDS, what=st.sampled_from(AGGREGATES), data=st.data())
def test_windows_in_columns_are_those_of_the_reference(
    kind: str, seed: int, what: str, data: st.DataObject
) -> None:
    """Each result and the final ones are, record by record, wherever batches are cut."""
    found = scenario(seed, f"{kind}_each")
    source = next(node for node in found["nodes"] if node["op"] == "stream")
    window = next(
        node["window"]
        for node in found["nodes"]
        if node["op"] == "aggregate" and (node["window"] or {}).get("kind") == kind
    )
    nodes = [source, {"name": "w", "op": "aggregate", "of": "p", "what": what, "window": window}]
    for how in ("each", "final"):
        nodes.append({"name": how, "op": how, "of": "w"})
        nodes.append({"name": f"to-{how}", "op": "to", "of": how, "topic": how})
    records = [r for r in found["records"] if r[0] == source["topic"] and r[2] is not None]
    expected = Reference({"nodes": nodes}).run(records)
    layout = make_layout([_DECLARED[what]], pa.int64())
    kernel, before = _kernel(window, layout), 0
    rows: dict[Emit, list[Any]] = {each: [] for each in _EMITS}
    for batch in cut(data, [Record(key, time, row["n"]) for _, key, row, time in records]):
        result = kernel.process(make_records(layout, batch, pa.int64()))
        for emit, columns in result.rows.items():
            rows[emit] += [
                (row.at, f"{row.key}@{row.start}-{row.end}", row.values and row.values[0], row.time)
                for row in list_rows(columns, before)
            ]
        before += len(batch)
    for emit in _EMITS:
        assert rows[emit] == [
            (output.index, output.key, _value(output, what), output.time)
            for output in expected
            if output.topic == emit.value
        ]


@pytest.mark.parametrize("kind", JoinKind)
@settings(max_examples=50)
@given(seed=_SEEDS, data=st.data())
def test_joins_in_columns_are_those_of_the_reference(
    kind: JoinKind, seed: int, data: st.DataObject
) -> None:
    """Pairs and records alone are, record by record, wherever batches are cut."""
    how = kind.name.lower()
    found = scenario(seed, f"join_{how}")
    sources = [node for node in found["nodes"] if node["op"] == "stream"][:2]
    join = next(node for node in found["nodes"] if node["op"] == "join" and node["how"] == how)
    join = {**join, "left": sources[0]["name"], "right": sources[1]["name"]}
    nodes = [*sources, join, {"name": "to", "op": "to", "of": join["name"], "topic": "out"}]
    topics = [source["topic"] for source in sources]
    read = [record for record in found["records"] if record[0] in topics]
    records = [
        (topics.index(topic), Record(key, time, None if row is None else number))
        for number, (topic, key, row, time) in enumerate(read)
    ]
    named = [
        [topic, key, row and {"n": 0, "s": str(number)}, time]
        for number, (topic, key, row, time) in enumerate(read)
    ]
    windows = JoinWindows(join["before"], join["after"], join["grace"])
    kernel = JoinKernel(windows, kind, JoinBuffer(pa.int64(), pa.int64()))
    rows, before = [], 0
    for size in [len(batch) for batch in cut(data, [record for _, record in records])]:
        rows += list_joined(process(kernel, records[before : before + size]), before)
        before += size
    assert [
        (row.at, row.key, Row(0, f"{_name(row.left)}+{_name(row.right)}"), row.time) for row in rows
    ] == [
        (output.index, output.key, output.value, output.time)
        for output in Reference({"nodes": nodes}).run(named)
    ]


def _name(value: int | None) -> str:
    return "-" if value is None else str(value)
