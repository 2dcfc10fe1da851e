"""Built-in reducers in columns: row by row what the same reducer in Python gives."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import PoisonRecordError
from headrace.extensions.keyed.api import TimerClock
from headrace.extensions.keyed.fold import Fold, fold_of
from headrace.extensions.keyed.row import KeyRow
from headrace.extensions.keyed.settings import FoldSettings
from headrace.extensions.keyed.tables import ROWS
from headrace.keyed import Fired, Output, Timer, batched, count
from headrace.testing.keyed import KeyedTest, check_reducer


@batched
def counted(key: Any, state: Any, facts: list[Any], now: int) -> Any:
    """Count as the built-in reducer does, in Python."""
    del key, now
    if isinstance(facts[0], Fired):
        return state, [], {}
    total = (state or 0) + len(facts)
    return total, [Output(total)], {}


@batched
def counted_silently(key: Any, state: Any, facts: list[Any], now: int) -> Any:
    """Do the same without outputs."""
    return counted(key, state, facts, now)[0], [], {}


FACT = st.fixed_dictionaries(
    {
        "source": st.just("facts"),
        "offset": st.integers(0, 1000),
        "ts": st.integers(0, 100),
        "time": st.integers(0, 100),
        "late_by": st.integers(0, 3),
        "value": st.sampled_from([None, b"", b"1", b"\xff"]),
        "headers": st.just(None),
    }
)
TIMERS = KeyRow.of(b"", {"t": Timer(50), "c": Timer(60, TimerClock.CLOCK)}).extra
ROW = st.fixed_dictionaries(
    {
        "key": st.sampled_from([b"a", b"", "ä".encode()]) | st.sampled_from([b"\xff", b"a" * 90]),
        "partition": st.integers(0, 2),
        "state": st.none()
        | st.integers(-3, 10**6).map(lambda n: str(n).encode())
        | st.sampled_from([b"null", b"007", b" 5", b"1.0", b"true", b'"x"', b"x", b"-0"])
        | st.sampled_from([b"9223372036854775807", b"9223372036854775808", b"\xff", b""]),
        "extra": st.sampled_from([None, None, None, TIMERS, KeyRow.of(b"", {}, "set aside").extra]),
        "facts": st.lists(FACT, max_size=4),
        "until": st.just(100),
        "now": st.just(100),
    }
)
SIMPLE = st.fixed_dictionaries(
    {
        "key": st.sampled_from([b"a", b"b"]),
        "partition": st.integers(0, 2),
        "state": st.none() | st.integers(0, 10**18).map(lambda n: str(n).encode()),
        "extra": st.sampled_from([None, None, TIMERS]),
        "facts": st.lists(FACT, max_size=4),
        "until": st.just(100),
        "now": st.just(100),
    }
)
SETTINGS = st.builds(
    FoldSettings,
    outputs=st.sampled_from([("out",), (), ("one", "two")]),
    keys=st.sampled_from(["string", "bytes"]),
    value=st.just("bytes"),
    state=st.sampled_from(["json", "json", "string", "bytes"]),
    failing=st.sampled_from(["dead_letter", "quarantine", "fail"]),
    grace=st.sampled_from([None, 0, 1]),
    late=st.sampled_from(["skip", "dead_letter"]),
    ttl=st.sampled_from([None, None, 40]),
    max_row=st.sampled_from([512, 512, 3]),
    max_output=st.sampled_from([1000, 1000, 85]),
)


def outcome(fold: Any, rows: pa.Table) -> Any:
    """Return what a fold makes of rows: its rows, or what it fails with."""
    try:
        return fold(rows).to_pylist()
    except Exception as error:  # noqa: BLE001 - both have to fail alike
        return type(error), str(error)


@settings(deadline=None, max_examples=300)
@given(rows=st.lists(ROW, max_size=8) | st.lists(SIMPLE, max_size=12), chosen=SETTINGS)
def test_the_count_in_columns_is_that_of_python_row_by_row(
    rows: list[dict[str, Any]], chosen: FoldSettings
) -> None:
    """Counts, outputs, late facts, poison and errors, whatever keys and states there are."""
    table = pa.Table.from_pylist(rows, schema=ROWS)
    reducer = counted if chosen.outputs else counted_silently
    assert outcome(fold_of(count, chosen), table) == outcome(Fold(reducer, chosen), table)


@settings(deadline=None, max_examples=50)
@given(rows=st.lists(SIMPLE, min_size=1, max_size=12), start=st.integers(0, 11))
def test_a_part_of_a_table_is_folded_as_the_rows_it_has(
    rows: list[dict[str, Any]], start: int
) -> None:
    """A slice has the facts of its own keys, as a chunk for a worker has."""
    chosen = FoldSettings(outputs=("out",), value="bytes")
    part = pa.Table.from_pylist(rows, schema=ROWS).slice(start)
    assert outcome(fold_of(count, chosen), part) == outcome(Fold(counted, chosen), part)


def test_a_plain_table_is_counted_without_a_call_for_each_key(monkeypatch: Any) -> None:
    """Keys with nothing but facts never reach the fold that calls the reducer."""
    fold = fold_of(count, FoldSettings(outputs=("out",)))
    monkeypatch.setattr(Fold, "_reduced", None)
    fact = {"source": "facts", "offset": 1, "ts": 5, "time": 5, "late_by": 0, "value": b"{"}
    rows = [
        {"key": key, "partition": 0, "state": state, "facts": [fact] * 2, "until": 5, "now": 9}
        for key, state in ((b"a", None), (b"b", b"40"))
    ]
    found = fold(pa.Table.from_pylist(rows, schema=ROWS)).to_pylist()
    assert [(row["key"], row["state"]) for row in found] == [(b"a", b"2"), (b"b", b"42")]
    assert [out["value"] for row in found for out in row["outputs"]] == [b"2", b"42"]
    assert [out["ts"] for row in found for out in row["outputs"]] == [5, 5]


def test_the_count_is_said_once_for_each_key_and_micro_batch() -> None:
    """State and output are the count; values are not read; without a sink there is the state."""
    test = KeyedTest(count)
    assert [
        (out.key, out.value) for out in test.send(("a", b"{", 1), ("b", 2, 2), ("a", 3, 3))
    ] == [
        ("a", 2),
        ("b", 1),
    ]
    assert [(out.key, out.value) for out in test.send(("a", 4, 4))] == [("a", 3)]
    assert (test.state("a"), test.state("b")) == (3, 1)
    silent = KeyedTest(count, FoldSettings())
    assert silent.send(("a", 1, 1), ("a", 1, 2)) == []
    assert silent.state("a") == 2


def test_the_state_does_not_depend_on_where_batches_are_cut() -> None:
    """Any cuts count each fact once; outputs are one a micro-batch, so there are none here."""
    facts = [(key, None, ts) for ts, key in enumerate("abcabcaabb")]
    check_reducer(count, facts, settings=FoldSettings())


def test_a_state_of_another_reducer_is_poison_that_names_the_record() -> None:
    """A count cannot go on from an object; the error is that of the fold in Python."""
    row = {"key": b"a", "partition": 1, "state": json.dumps({"n": 1}).encode(), "now": 1}
    fact = {"source": "facts", "offset": 7, "ts": 5, "time": 5, "late_by": 0, "value": b""}
    table = pa.Table.from_pylist([{**row, "facts": [fact]}], schema=ROWS)
    kind, told = outcome(fold_of(count, FoldSettings(outputs=("out",))), table)
    assert kind is PoisonRecordError
    assert "offset 7" in told


def test_a_count_reads_no_value() -> None:
    """A count needs no value, in columns or key by key, so the decoder is not called."""

    def refuses(data: bytes) -> Any:
        raise ValueError(f"not {data!r}")

    for ttl in (None, 1_000):
        test = KeyedTest(count, FoldSettings(outputs=("out",), decoder=refuses, ttl=ttl))
        assert [each.value for each in test.send(("a", b"x", 1), ("a", b"y", 2))] == [2]
