"""The bytes of a row: what earlier versions wrote is read, and written the same again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from rocksdict import Options, Rdict, ReadOptions

from headrace.core.records import ResultRecord
from headrace.extensions.keyed.api import TimerClock
from headrace.extensions.keyed.changed_rows import ChangedRows
from headrace.extensions.keyed.changelog import EXTRA_HEADER, record_of, row_of
from headrace.extensions.keyed.row import KeyRow, PartitionKey, RowChange
from headrace.extensions.keyed.store import Position, RocksStore, StoredCommit
from headrace.keyed import at_clock, at_event
from headrace.testing.keyed import KeyedTest
from headrace.testing.records import FakeRecord

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: All that a store of version 0.1 has after the rows, positions and commits below were written.
STORED = {
    b"c\x00\x00": b'{"offset": 17, "number": 4}',
    b"e\x00\x00": b"[42, 3]",
    b"m\x00\x00": b'{"topic_id": "topic-id", "offset": 42, "at": 1.5}',
    b"m\x02\x01": b'{"topic_id": "topic-id", "offset": 0, "at": 0.25}',
    b"r\x00\x00": b"\x00\x00\x00\x007",
    b"r\x00\x00empty": b"\x00\x00\x00\x00",
    b"r\x00\x00ends": b'\x00\x00\x00({"timers":{"headrace.ttl":["event",90]}}4',
    b"r\x00\x00held": (
        b'\x00\x00\x00@{"timers":{"t":["event",9]},"quarantined":"ValueError: a seven"}3'
    ),
    b"r\x00\x00plain": b'\x00\x00\x00\x00{"n":1}',
    b"r\x00\x00timed": b'\x00\x00\x007{"timers":{"close":["event",1000],"wake":["clock",-5]}}2',
    b"r\x00\x00waits": (
        b'\x00\x00\x007{"timers":{"\xc3\xa9":["event",1099511627776]},"state":false}'
    ),
    b"r\x02\x01\xff\x00": b"\x00\x00\x00\x00\x00\xff",
    b"t\x00\x00\x00\x80\x00\x00\x00\x00\x00\x00Z\x00\x00\x00\x04endsheadrace.ttl": b"",
    b"t\x00\x00\x00\x80\x00\x00\x00\x00\x00\x03\xe8\x00\x00\x00\x05timedclose": b"",
    b"t\x00\x00\x00\x80\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x05waits\xc3\xa9": b"",
    b"t\x00\x00\x01\x7f\xff\xff\xff\xff\xff\xff\xfb\x00\x00\x00\x05timedwake": b"",
}

ROWS = {
    PartitionKey(0, b""): KeyRow(b"7"),
    PartitionKey(0, b"empty"): KeyRow(b""),
    PartitionKey(0, b"ends"): KeyRow.of(b"4", {"headrace.ttl": at_event(90)}),
    PartitionKey(0, b"held"): KeyRow.of(b"3", {"t": at_event(9)}, "ValueError: a seven"),
    PartitionKey(0, b"plain"): KeyRow(b'{"n":1}'),
    PartitionKey(0, b"timed"): KeyRow.of(b"2", {"close": at_event(1_000), "wake": at_clock(-5)}),
    PartitionKey(0, b"waits"): KeyRow.of(None, {"é": at_event(1 << 40)}),
    PartitionKey(513, b"\xff\x00"): KeyRow(b"\x00\xff"),
}

POSITIONS = {0: Position("topic-id", 42, 1.5, 3), 513: Position("topic-id", 0, 0.25)}


def entries(folder: Path) -> Iterator[tuple[bytes, bytes]]:
    """Yield all that is in the files of a store."""
    database = Rdict(str(folder), Options(raw_mode=True))
    options = ReadOptions()
    options.set_total_order_seek(True)
    found = database.iter(options)
    found.seek_to_first()
    while found.valid():
        yield bytes(found.key()), bytes(found.value())
        found.next()
    del found
    database.close()


def test_a_store_has_the_bytes_of_earlier_versions(tmp_path: Path) -> None:
    """Rows with timers, quarantine and neither, without a state, and of bytes that are no text."""
    store = RocksStore(tmp_path / "db")
    store.open()
    changes = [(key, RowChange(None, row)) for key, row in ROWS.items()]
    store.put([ChangedRows.of(changes)], {0: StoredCommit(17, 4)})
    store.note(POSITIONS)
    store.close()
    assert dict(entries(tmp_path / "db")) == STORED


def test_a_store_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """Rows, due timers, positions and commits are those that were written."""
    database = Rdict(str(tmp_path / "db"), Options(raw_mode=True))
    for name, data in STORED.items():
        database[name] = data
    database.close()
    store = RocksStore(tmp_path / "db")
    store.open()
    assert store.get_many(list(ROWS)) == list(ROWS.values())
    for number in (0, 513):
        rows = {key.key: row for key, row in ROWS.items() if key.partition == number}
        assert dict(store.rows(number)) == rows
        assert store.position(number) == POSITIONS[number]
    assert (store.commit_of(0), store.commit_of(513)) == (StoredCommit(17, 4), None)
    due = [(timer.due, timer.key) for timer in store.due(0, TimerClock.EVENT, 1 << 50)]
    assert due == [(90, b"ends"), (1_000, b"timed"), (1 << 40, b"waits")]
    store.close()


@pytest.mark.parametrize(
    ("row", "value", "extra"),
    [
        (None, None, None),
        (KeyRow(b"1"), b"1", None),
        (KeyRow(b""), b"", None),
        (KeyRow.of(b"", {"t": at_event(5)}), b"", b'{"timers":{"t":["event",5]}}'),
        (
            KeyRow.of(None, {"t": at_clock(5)}),
            b"",
            b'{"timers":{"t":["clock",5]},"state":false}',
        ),
        (KeyRow.of(None, {}, "a seven"), b"", b'{"quarantined":"a seven","state":false}'),
    ],
)
def test_a_record_of_the_changelog_has_the_bytes_of_earlier_versions(
    row: KeyRow | None, value: bytes | None, extra: bytes | None
) -> None:
    """A tombstone has no value; a row without a state has one of no bytes, and says so."""
    headers: list[tuple[str, bytes | None]] | None
    headers = None if extra is None else [(EXTRA_HEADER, extra)]
    assert record_of("log", 3, b"k", row) == ResultRecord("log", value, b"k", headers, 3)
    assert row_of(FakeRecord(key_=b"k", value_=value, headers_=headers)) == row


def test_a_row_without_a_state_is_not_written_again_by_a_fact_that_is_dropped() -> None:
    """The reducer is not called, and the row that is read of the store is the one that was made."""

    def waits(*_: object) -> tuple[None, list[object], dict[str, object]]:
        return None, [], {"t": at_event(500)}

    test = KeyedTest(waits)  # type: ignore[arg-type]
    test.reconfigure(test.settings.__class__(outputs=("out",), grace=10, late="skip"))
    test.send(("a", 1, 100), ("b", 1, 200))
    test.send(("a", 1, 50))
    assert [(each.touched, each.changed, each.dropped) for each in test.counts] == [
        (2, 2, 0),
        (1, 0, 1),
    ]
