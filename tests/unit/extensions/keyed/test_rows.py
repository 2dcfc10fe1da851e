"""From records to touched keys: who is late, what has no key, and what is due without records."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import PoisonRecordError
from headrace.core.letter_headers import LetterHeaders
from headrace.core.records import FINISHED_KEY
from headrace.core.tables import SCHEMA
from headrace.extensions.keyed.changed_rows import ChangedRows
from headrace.extensions.keyed.row import KeyRow, PartitionKey, RowChange
from headrace.extensions.keyed.rows import (
    RowSettings,
    _stable_order,
    chunks,
    grouped,
    rejected_rows,
    time_of_field,
)
from headrace.extensions.keyed.state import Layer, LayeredState, Progress
from headrace.keyed import at_event
from headrace.sinks.micro_batch import MicroBatch, OffsetRange
from headrace.testing.keyed import MemoryStore


def table(*records: tuple[int, str | None, int | None]) -> pa.Table:
    """Return records of partition, key and time in ms, with offsets of their own partition."""
    offsets = [
        sum(other[0] == each[0] for other in records[:at]) for at, each in enumerate(records)
    ]
    times = [None if time is None else time * 1000 for _, _, time in records]
    columns = [
        pa.array([None if key is None else key.encode() for _, key, _ in records], pa.binary()),
        pa.array([b"v"] * len(records), pa.binary()),
        pa.array(["t"] * len(records)),
        pa.array([partition for partition, _, _ in records], pa.int32()),
        pa.array(offsets, pa.int64()),
        pa.array(times, pa.timestamp("us", tz="UTC")),
        pa.nulls(len(records), SCHEMA.field("headers").type),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def state(*partitions: int) -> LayeredState:
    """Return the state of partitions that are all there."""
    found = LayeredState(MemoryStore())
    for number in partitions:
        found.admit(number)
    return found


@pytest.mark.parametrize("value", [None, b"v"])
def test_a_record_that_finishes_a_transaction_is_no_fact(value: bytes | None) -> None:
    """An empty one with the key that it has; with a value it is a record like any other."""
    key = (FINISHED_KEY + b"headrace.g.m.1").decode()
    records = table((0, "a", 1), (0, key, 1), (0, "b", 1))
    at = records.schema.get_field_index("value")
    records = records.set_column(at, "value", pa.array([b"v", value, None], pa.binary()))
    found = grouped(records, batch(3), state(0), RowSettings(), 0)
    keys = sorted(found.rows.column("key").to_pylist())
    assert keys == sorted([b"a", b"b"] + ([] if value is None else [key.encode()]))
    assert not any(found.undecodable.values())


def test_a_time_is_found_in_the_value() -> None:
    """The time is taken by a path of members; other documents are poison."""
    values = [
        b'{"a": {"at": 7}}',
        b'{"a": {"at": "x"}}',
        b'{"a": 5}',
        b"{",
        None,
        b'{"a":{"at":1e30}}',
    ]
    records = table(*[(0, "k", 1)] * len(values))
    at = records.schema.get_field_index("value")
    records = records.set_column(at, "value", pa.array(values, pa.binary()))
    chosen = RowSettings(time=time_of_field("value.a.at"), undecodable="dead_letter")
    found = grouped(records, batch(len(values)), state(0), chosen, 0)
    (row,) = found.rows.to_pylist()
    assert [fact["ts"] for fact in row["facts"]] == [7]
    assert len(found.undecodable[0]) == len(values) - 1


def batch(*records: int) -> MicroBatch:
    """Return a micro-batch with so many records of each partition."""
    parts = [OffsetRange("t", n, 0, count, count, f"id/{n}") for n, count in enumerate(records)]
    return MicroBatch("m", "c", tuple(parts))


def test_keys_of_two_partitions_are_apart_and_facts_in_order() -> None:
    """The same key in two partitions is two rows; facts come by offset."""
    records = table((0, "a", 1), (1, "a", 2), (0, "b", 3), (0, "a", 4))
    rows = grouped(records, batch(3, 1), state(0, 1), RowSettings(), 0).rows.to_pylist()
    found = {(r["partition"], r["key"]): [f["offset"] for f in r["facts"]] for r in rows}
    assert found == {(0, b"a"): [0, 2], (0, b"b"): [1], (1, b"a"): [0]}


def test_lateness_counts_from_the_stored_stream_time_of_each_partition() -> None:
    """A record is late by what the partition's time was before it, which goes on from the store."""
    known = state(0, 1)
    known.begin(0, Progress({"id/0": 0}, 0, 10))
    found = grouped(table((0, "a", 4), (0, "a", 12), (0, "b", 11), (1, "a", 1)), batch(3, 1), known,
                    RowSettings(), 0)  # fmt: skip
    late = {
        (row["partition"], fact["offset"]): fact["late_by"]
        for row in found.rows.to_pylist()
        for fact in row["facts"]
    }
    assert late == {(0, 0): 6, (0, 1): 0, (0, 2): 1, (1, 0): 0}
    assert found.times == {0: 12, 1: 1}


@pytest.mark.parametrize(
    ("record", "words"),
    [((0, None, 1), "has no key"), ((0, "a", None), "no time"), ((0, "a", -5), "no time")],
)
def test_a_record_without_key_or_time_is_poison(
    record: tuple[int, str | None, int | None], words: str
) -> None:
    """It fails the batch by its offset, or is set aside while the others go on."""
    records, parts = table((0, "a", 1), record), batch(2)
    with pytest.raises(PoisonRecordError, match=words) as raised:
        grouped(records, parts, state(0), RowSettings(), 0)
    assert raised.value.offset == 1
    found = grouped(records, parts, state(0), RowSettings(undecodable="dead_letter"), 0)
    assert found.rows.num_rows == 1
    assert len(found.undecodable[0]) == 1


def test_a_record_that_cannot_be_grouped_has_the_headers_that_are_asked_for() -> None:
    """A dead letter of one without a key says so under Kafka Connect's names."""
    chosen = RowSettings(undecodable="dead_letter", letters=LetterHeaders("connect", "group"))
    (found,) = grouped(table((0, None, 1)), batch(1), state(0), chosen, 0).undecodable[0]
    assert found.letter is not None
    headers = {each["key"]: each["value"] for each in found.letter[-1]}
    assert headers["__connect.errors.exception.message"] == b"the record has no key"
    assert headers["__connect.errors.connector.name"] == b"group"


def test_a_key_without_records_is_touched_when_its_timer_is_due() -> None:
    """The partition's time with the micro-batch decides; a key with records comes once."""
    known = state(0)
    extra = KeyRow.of(None, {"t": at_event(5)}).extra
    for key in (b"a", b"b"):
        change = {PartitionKey(0, key): RowChange(None, KeyRow(b"1", extra))}
        known.apply([Layer("x", ChangedRows.of(change))], {})
    rows = grouped(table((0, "a", 5)), batch(1), known, RowSettings(), 0).rows
    assert [(row["key"], len(row["facts"])) for row in rows.to_pylist()] == [(b"a", 1), (b"b", 0)]
    early = grouped(table((0, "a", 4)), batch(1), known, RowSettings(), 0).rows
    assert early.column("key").to_pylist() == [b"a"]


def test_a_tick_brings_the_time_of_a_quiet_partition_on() -> None:
    """A range without records takes the time that was asked for, and never goes back."""
    known = state(0)
    known.begin(0, Progress({"id/0": 3}, 1, 10))
    known.advance_time(0, 50)
    assert grouped(table(), batch(0), known, RowSettings(), 0).times == {0: 50}
    known.advance_time(0, 5)
    assert grouped(table(), batch(0), known, RowSettings(), 0).times == {0: 10}


def test_the_time_of_a_tick_that_records_came_with_is_not_kept() -> None:
    """They make the partition's time; a later tick, of one less quiet, does not take it."""
    known = state(0)
    known.begin(0, Progress({"id/0": 3}, 1, 10))
    known.advance_time(0, 50)
    assert grouped(table((0, "a", 11)), batch(1), known, RowSettings(), 0).times == {0: 11}
    assert grouped(table(), batch(0), known, RowSettings(), 0).times == {0: 10}


def test_chunks_have_every_row_once_and_about_as_many_facts() -> None:
    """A hot key is one row, so that it is alone in its chunk."""
    records = [(0, "hot", n) for n in range(20)] + [(0, f"k{n}", 20 + n) for n in range(20)]
    rows = grouped(table(*records), batch(40), state(0), RowSettings(), 0).rows
    parts = chunks(rows, 2)
    assert [part.num_rows for part in parts] == [1, 20] or len(parts) == 2
    assert pa.concat_tables(parts).column("key").to_pylist() == rows.column("key").to_pylist()
    assert chunks(rows.slice(0, 0), 2) == []


def test_dropped_records_are_counted_by_partition() -> None:
    """With undecodable: skip they are no dead letters, and the others are grouped."""
    records = table((0, None, 1), (1, "a", 2), (1, "b", None))
    settings = RowSettings(undecodable="skip")
    found = grouped(records, batch(1, 2), state(0, 1), settings, 0)
    counted = rejected_rows(found.undecodable).to_pylist()
    assert [(row["partition"], row["rejected"], row["outputs"]) for row in counted] == [
        (0, 1, []),
        (1, 1, []),
    ]
    assert [row["reason"] for row in counted] == [
        "the record has no key",
        "the record has no time, or one before 1970",
    ]
    assert [row["key"] for row in found.rows.to_pylist()] == [b"a"]


@given(st.lists(st.integers(0, 2**40) | st.integers(0, 3)))
def test_codes_are_sorted_by_digits_and_equal_ones_stay_in_order(codes: list[int]) -> None:
    """Codes are ordered as by a stable sort, also beyond the 16 bits of a digit."""
    found = _stable_order(np.array(codes, dtype=np.int64))
    assert found.tolist() == sorted(range(len(codes)), key=codes.__getitem__)
