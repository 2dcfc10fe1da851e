"""Whichever way a key takes through a fold, the same becomes of it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from headrace.core.tables import SCHEMA
from headrace.extensions.keyed.fold import Fold, fold_of
from headrace.extensions.keyed.rows import RowSettings, grouped
from headrace.extensions.keyed.settings import FoldSettings
from headrace.extensions.keyed.sink import staged_state
from headrace.extensions.keyed.state import LayeredState, Progress
from headrace.keyed import Event, Fired, Output, at_clock, at_event, batched, count
from headrace.sinks.micro_batch import MicroBatch, OffsetRange
from headrace.testing.keyed import MemoryStore

if TYPE_CHECKING:
    import numpy.typing as npt

    from headrace.extensions.keyed.evaluation import Begun
    from headrace.extensions.keyed.facts import FactColumns
    from headrace.extensions.keyed.results import Folded
    from headrace.extensions.keyed.tables import Touched


def sometimes(key: str, state: int | None, facts: list[Any], now: int) -> Any:
    """Sum values; fail for sevens, have timers from 30 on, and go above 60."""
    total = (state or 0) + sum(fact.value for fact in facts if isinstance(fact, Event))
    if any(fact.value == 7 for fact in facts if isinstance(fact, Event)):
        raise ValueError("a seven")
    outputs = [Output([key, total, len(facts)], headers=[("n", b"1")] if total % 2 else [])]
    if total > 60:
        return None, outputs, {}
    return total, outputs, {"later": at_clock(now + total)} if total > 30 else {}


class Closely(Fold):
    """A fold that looks closely at each key."""

    @override
    def _plain_keys(self, extra: pa.Array, facts: FactColumns) -> npt.NDArray[np.bool_]:
        return np.zeros(len(extra), np.bool_)


class Carefully(Closely):
    """A fold that takes care from the beginning, as where something has failed."""

    @override
    def _evaluated(self, touched: Touched, begun: Begun | None, *, has_failed: bool) -> Folded:
        return super()._evaluated(touched, begun, has_failed=True)


@settings(deadline=None)
@given(
    facts=st.lists(
        st.tuples(
            st.sampled_from("abcd"),
            st.sampled_from([b"1", b"2", b"7", b"20", b"nothing", None]),
            st.integers(0, 30),
        ),
        max_size=40,
    ),
    cut=st.integers(1, 20),
    each=st.booleans(),
)
def test_a_key_that_is_plain_comes_out_as_with_a_close_look(
    facts: list[tuple[str, bytes | None, int]], cut: int, each: bool
) -> None:
    """Keys with late, unreadable and refused facts, with timers and without, in the same table."""
    chosen = FoldSettings(outputs=("out",), failing="dead_letter")
    reducer = sometimes if each else batched(partial(sometimes))
    folds = [Fold(reducer, chosen), Closely(reducer, chosen)]
    state = LayeredState(MemoryStore())
    state.admit(0)
    for start in range(0, len(facts), cut):
        rows = [
            {
                "key": key.encode(),
                "value": value,
                "topic": "t" if at % 3 else "u",
                "partition": 0,
                "offset": start + at,
                "timestamp": ts * 1000,
                "headers": [{"key": "h", "value": b"%d" % at}] if at % 5 == 4 else None,
            }
            for at, (key, value, ts) in enumerate(facts[start : start + cut])
        ]
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        part = OffsetRange("t", 0, start, start + cut, len(rows), "i/0")
        micro_batch = MicroBatch(str(start), "c", (part,))
        now = start
        found = grouped(table, micro_batch, state, RowSettings(), now).rows
        one, other = (fold(found) for fold in folds)
        assert one.equals(other)
        layer = staged_state(micro_batch, one, state, str).layer
        state.apply([layer], {})


PARTITIONS = range(2)

#: Bytes that no row of these tests needs.
ROOM = 10_000


def orders(key: str, state: Any, facts: list[Any], now: int) -> Any:
    """Keep the facts of an order: it can be deleted, close itself, wait for the clock, and fail."""
    outputs = []
    state, timers = [] if state is None else state, {}
    for fact in facts:
        if isinstance(fact, Fired):
            outputs.append(Output([key, fact.name, fact.due]))
            state.append(fact.name)
            continue
        outputs.append(Output([key, fact.value, fact.late, fact.ts, len(fact.headers)]))
        state.append([fact.value, fact.late])
        match fact.value:
            case 0:
                state = []
            case 3:
                timers["wait"] = at_clock(now + 5)
            case 4:
                timers["close"] = at_event(fact.ts + 20)
            case 7:
                state.append("spoilt")
                raise ValueError("a seven")
    return state or None, outputs, timers


FACTS = st.lists(
    st.tuples(
        st.sampled_from(PARTITIONS),
        st.sampled_from("abc"),
        st.sampled_from([b"0", b"1", b"2", b"3", b"4", b"7", b"{", None]),
        st.integers(0, 40),
    ),
    max_size=15,
)
SETTINGS = st.builds(
    FoldSettings,
    outputs=st.just(("out",)),
    failing=st.sampled_from(["dead_letter", "quarantine", "skip", "fail"]),
    undecodable=st.sampled_from(["fail", "fail", "dead_letter", "quarantine", "skip"]),
    grace=st.sampled_from([None, 0, 5]),
    late=st.sampled_from(["skip", "dead_letter"]),
    ttl=st.sampled_from([None, None, None, 30]),
    max_row=st.sampled_from([ROOM, ROOM, 40]),
)


class Store:
    """Store the commits of a channel of two partitions."""

    def __init__(self) -> None:
        self.state = LayeredState(MemoryStore())
        self.ends = dict.fromkeys(PARTITIONS, 0)
        for number in PARTITIONS:
            self.state.admit(number)

    def rows(
        self, number: int, facts: list[tuple[int, str, bytes | None, int]]
    ) -> tuple[MicroBatch, Any]:
        """Return a micro-batch of facts, as it is to be folded; without facts it is a tick."""
        starts = dict(self.ends)
        records = []
        for at, (partition, key, value, ts) in enumerate(facts):
            record: dict[str, Any] = {"key": key.encode(), "value": value, "topic": "t"}
            record["partition"] = partition
            record |= {"offset": self.ends[partition], "timestamp": ts * 1000}
            record["headers"] = [{"key": "h", "value": b"1"}] if at % 4 == 3 else None
            records.append(record)
            self.ends[partition] += 1
        parts = tuple(
            OffsetRange("t", n, starts[n], self.ends[n], self.ends[n] - starts[n], f"i/{n}")
            for n in PARTITIONS
        )
        micro_batch = MicroBatch(str(number), "c", parts)
        table = pa.Table.from_pylist(records, schema=SCHEMA)
        return micro_batch, grouped(table, micro_batch, self.state, RowSettings(), 10 * number)

    def commit(self, number: int, micro_batch: MicroBatch, result: pa.Table, times: Any) -> None:
        """Commit the folded rows as the state of the next micro-batch."""
        layer = staged_state(micro_batch, result, self.state, str).layer
        progress = {
            n: Progress({f"id/{n}": self.ends[n]}, number, times.get(n)) for n in PARTITIONS
        }
        self.state.apply([layer], progress)


def outcome(fold: Fold, rows: pa.Table) -> Any:
    """Return what a fold makes of rows: a table, or what it fails with."""
    try:
        return fold(rows)
    except Exception as error:  # noqa: BLE001 - all have to fail alike
        return type(error), str(error)


@settings(deadline=None)
@given(batches=st.lists(FACTS, max_size=5), chosen=SETTINGS, together=st.booleans())
def test_all_ways_through_a_fold_have_the_same_result(
    batches: list[list[tuple[int, str, bytes | None, int]]], chosen: FoldSettings, together: bool
) -> None:
    """Late facts and those of one time, deletions, timers, poison, quarantine, ticks, no facts.

    Where care is taken, a reducer gets facts one by one, and a row may not be too large between two
    of them either. So ways differ by design for a reducer that gets facts together, and where rows
    have little room: then the plain way and the close look are compared.
    """
    reducer = batched(partial(orders_without_event_timers)) if together else orders
    with_care = chosen.max_row == ROOM and not together
    kinds = [Fold, Closely, Carefully] if with_care else [Fold, Closely]
    folds = [kind(reducer, chosen) for kind in kinds]
    store = Store()
    for number, facts in enumerate(batches, 1):
        micro_batch, found = store.rows(number, facts)
        first, *others = (outcome(fold, found.rows) for fold in folds)
        for other in others:
            same = first.equals(other) if isinstance(first, pa.Table) else first == other
            assert same, (first, other)
        if not isinstance(first, pa.Table):
            return
        store.commit(number, micro_batch, first, found.times)


def orders_without_event_timers(key: str, state: Any, facts: list[Any], now: int) -> Any:
    """Do as ``orders``, with facts that come together."""
    state, outputs, timers = orders(key, state, facts, now)
    return state, outputs, {name: timer for name, timer in timers.items() if name == "wait"}


@settings(deadline=None)
@given(batches=st.lists(FACTS, max_size=5), chosen=SETTINGS)
def test_plain_keys_in_columns_have_the_result_of_those_that_are_looked_at_closely(
    batches: list[list[tuple[int, str, bytes | None, int]]], chosen: FoldSettings
) -> None:
    """The built-in count, of late facts and refused ones, and where rows have little room."""
    folds = [fold_of(count, chosen), Closely(count, replace(chosen, value="bytes"))]
    store = Store()
    for number, facts in enumerate(batches, 1):
        micro_batch, found = store.rows(number, facts)
        one, other = (outcome(fold, found.rows) for fold in folds)
        assert one.equals(other) if isinstance(one, pa.Table) else one == other
        if not isinstance(one, pa.Table):
            return
        store.commit(number, micro_batch, one, found.times)
