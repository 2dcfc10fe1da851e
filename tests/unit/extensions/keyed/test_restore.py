"""Restoring: how far it is, as others see it."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from queue import Empty, SimpleQueue
from threading import Event
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.extensions.keyed import restore
from headrace.extensions.keyed.api import Timer, TimerClock
from headrace.extensions.keyed.changed_rows import ChangedRows
from headrace.extensions.keyed.changelog import EXTRA_HEADER
from headrace.extensions.keyed.errors import StateStoreError
from headrace.extensions.keyed.restore import RestoreProgress, Restorer
from headrace.extensions.keyed.row import KeyRow, PartitionKey, RowChange
from headrace.extensions.keyed.store import Position, RocksStore, StoreSize
from headrace.extensions.keyed.topics import Changelog
from headrace.kafka.errors import KafkaUnavailableError
from headrace.kafka.ports import Fetched, TopicInfo
from headrace.testing.records import FakeAssignment, FakeRecord, in_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from headrace.core.records import Assignment, Record

LOG = TopicPartition("g.in.state", 0)
ROWS = 100


class StillClock:
    """A clock that stands where the test puts it."""

    now = 0.0

    def monotonic(self) -> float:
        """Return the test's time."""
        return self.now

    def time(self) -> float:
        """Return the same."""
        return self.now


class Log:
    """A changelog of so many rows, which come when the test sends them. Source and catalog."""

    def __init__(self) -> None:
        self.sent: SimpleQueue[Fetched] = SimpleQueue()

    def send(self, start: int, end: int) -> None:
        """Send the rows of these offsets."""
        self.sent.put(Fetched(chunks=[(LOG, self.rows(start, end))]))

    def rows(self, start: int, end: int) -> list[Record]:
        """Return the rows of these offsets."""
        return [FakeRecord(value_=b"1", key_=b"%d" % at, offset_=at) for at in range(start, end)]

    def fetch(self, timeout: float) -> Fetched:
        """Return what was sent next."""
        try:
            return self.sent.get(timeout=timeout)
        except Empty:
            return Fetched()

    def watermarks(self, partition: TopicPartition, deadline: Deadline) -> tuple[int, int]:
        """Return what there is."""
        del partition, deadline
        return 0, ROWS

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Begin to read."""

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        """End it."""

    def close(self) -> None:
        """Release nothing."""


class Answering(Log):
    """One that sends by itself what is asked for, 50 rows of each partition a fetch.

    ``leaderless`` are partitions of which no broker knows the ends; ``lost`` is a position that
    it says to be out of range, once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.positions: dict[TopicPartition, int] = {}
        self.leaderless: set[int] = set()
        self.lost: int | None = None

    def watermarks(self, partition: TopicPartition, deadline: Deadline) -> tuple[int, int]:
        """Return what there is, or fail."""
        if partition.partition in self.leaderless:
            raise KafkaUnavailableError(f"{partition} has no leader")
        return super().watermarks(partition, deadline)

    def describe(self, topics: Collection[str], deadline: Deadline) -> dict[str, TopicInfo]:
        """Say how many partitions there are."""
        del deadline
        return {topic: TopicInfo(topic, "id", 2) for topic in topics}

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Begin to read what is not read yet, as the client demands it."""
        assert self.positions.keys().isdisjoint(offsets)
        self.positions.update(offsets)

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        """End it for what is read."""
        for each in partitions:
            del self.positions[each]

    def fetch(self, timeout: float) -> Fetched:
        """Return the next rows of each partition."""
        del timeout
        found = Fetched()
        for partition, start in self.positions.items():
            if start == self.lost:
                self.lost, self.positions[partition] = None, ROWS
                found.out_of_range.append(partition)
            elif start < ROWS:
                self.positions[partition] = start + 50
                found.chunks.append((partition, self.rows(start, start + 50)))
        return found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RocksStore]:
    """Return an empty store."""
    store = RocksStore(tmp_path / "db")
    store.open()
    yield store
    store.close()


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until something is so."""
    assert wait_for(condition, Deadline.after(10.0))


@contextmanager
def restoring(
    store: RocksStore,
    log: Log,
    told: Callable[[Assignment, int], None] | None = None,
    troubled: Callable[[Assignment, int, str | None], None] = lambda *_: None,
) -> Iterator[tuple[Restorer, list[int]]]:
    """Run a restorer of a changelog; yield it, and the partitions that are ready."""
    ready: list[int] = []
    restorer = Restorer(
        "main",
        Changelog(LOG.topic, "id", 3600.0),
        store,
        source=lambda: log,  # type: ignore[arg-type,return-value]  # as much of one as is asked for
        catalog=log,  # type: ignore[arg-type]  # as above
        clock=SYSTEM_CLOCK,
        is_busy=lambda _: False,
        ready=told or (lambda assignment, _: ready.append(assignment.partition.partition)),
        corrupt=lambda error: pytest.fail(str(error)),
        troubled=troubled,
    )
    restorer.start()
    try:
        yield restorer, ready
    finally:
        assert restorer.stop(Deadline.after(10.0))


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry after a failure at once."""
    monkeypatch.setattr(restore, "_BACKOFF", 0.01)


class Failing(RocksStore):
    """One of which a method fails the first time, once it is armed."""

    def __init__(self, folder: Path, method: str, error: Exception) -> None:
        super().__init__(folder / "db")
        self.open()
        self.fails: Exception | None = None
        self.failed = 0
        called = getattr(self, method)

        def fail(*given: object, **named: object) -> object:
            raised, self.fails = self.fails, None
            if raised is not None:
                self.failed += 1
                raise raised
            return called(*given, **named)

        self.fails = error
        setattr(self, method, fail)


@pytest.mark.usefixtures("no_backoff")
@pytest.mark.parametrize("error", [StateStoreError("no space left"), OSError("input/output error")])
@pytest.mark.parametrize("method", ["load", "flush", "note", "drop", "position"])
def test_no_row_is_lost_where_the_store_fails_once(
    tmp_path: Path, method: str, error: Exception
) -> None:
    """A partition begins again from where the store is, and what came with it goes on as well."""
    store, log = Failing(tmp_path, method, error), Answering()
    with restoring(store, log) as (restorer, ready):
        for number in range(2):
            restorer.begin(FakeAssignment(TopicPartition("in", number)), 1)
        eventually(lambda: sorted(ready) == [0, 1])
    assert store.failed == 1
    for number in range(2):
        assert len(list(store.rows(number))) == ROWS
        position = store.position(number)
        assert position is not None
        assert position.offset == ROWS
    store.close()


@pytest.mark.usefixtures("no_backoff")
@pytest.mark.parametrize(("number", "words"), [(0, "no leader"), (2, "has 2 partitions and none")])
def test_a_partition_without_ends_holds_up_no_other(
    store: RocksStore, number: int, words: str
) -> None:
    """One has no leader, or the changelog lacks it, as after the input was given more of them."""
    log = Answering()
    log.leaderless.add(number)
    with restoring(store, log) as (restorer, ready), capture_logs() as logs:
        for each in (number, 1):
            restorer.begin(FakeAssignment(TopicPartition("in", each)), 1)
        eventually(lambda: ready == [1])
        errors = [each for each in logs if each["event"] == "restore_failed"]
        assert words in errors[0]["error"]
        assert errors[0]["partition"] == number
        log.leaderless.clear()
        eventually(lambda: ready == [1, number])


def test_a_restore_that_waits_gives_its_reason(store: RocksStore) -> None:
    """A missing right to read the changelog is logged once, and shown until it is granted."""
    log, told = Log(), list[str | None]()
    with (
        capture_logs() as logs,
        restoring(store, log, troubled=lambda *given: told.append(given[2])) as (restorer, ready),
    ):
        restorer.begin(FakeAssignment(TopicPartition("in", 0)), 1)
        for _ in range(3):
            log.sent.put(Fetched(errors=["Topic authorization failed"]))
        log.send(0, 50)
        log.send(50, ROWS)
        eventually(lambda: ready == [0])
    assert told == ["Topic authorization failed", None]
    errors = [each["error"] for each in logs if each["event"] == "restore_failed"]
    assert errors == ["Topic authorization failed"]


@pytest.mark.usefixtures("no_backoff")
def test_a_partition_is_told_again_where_telling_failed(store: RocksStore) -> None:
    """A callback that fails is called again, or the partition would rest for ever."""
    log, told = Answering(), list[int]()

    def ready(assignment: Assignment, attempt: int) -> None:
        """Fail the first time."""
        del assignment
        told.append(attempt)
        if len(told) == 1:
            raise StateStoreError("input/output error")

    with restoring(store, log, ready) as (restorer, _):
        restorer.begin(FakeAssignment(TopicPartition("in", 0)), 1)
        eventually(lambda: told == [1, 1])
        eventually(lambda: not restorer.progress())


@pytest.mark.usefixtures("no_backoff")
def test_a_changelog_that_lost_read_rows_is_read_from_its_start(tmp_path: Path) -> None:
    """The same holds when the store fails to drop its rows the first time."""
    store, log = Failing(tmp_path, "drop", StateStoreError("no space left")), Answering()
    store.note({0: Position("id", 0, SYSTEM_CLOCK.time())})
    log.lost = 50
    with restoring(store, log) as (restorer, ready):
        restorer.begin(FakeAssignment(TopicPartition("in", 0)), 1)
        eventually(lambda: ready == [0])
    assert store.failed == 1
    assert len(list(store.rows(0))) == ROWS
    store.close()


@pytest.mark.usefixtures("no_backoff")
def test_timers_that_cannot_be_read_are_named_and_nothing_is_ready(
    store: RocksStore,
) -> None:
    """The error names the key of a changelog record that another writer made."""
    log = Log()
    with restoring(store, log) as (restorer, ready), capture_logs() as logs:
        restorer.begin(FakeAssignment(TopicPartition("in", 0)), 1)
        strange = FakeRecord(key_=b"odd", value_=b"1", headers_=[(EXTRA_HEADER, b"{")], offset_=7)
        log.sent.put(Fetched(chunks=[(LOG, [strange])]))
        eventually(lambda: any(each["event"] == "restore_failed" for each in logs))
    (error, *_) = [each["error"] for each in logs if each["event"] == "restore_failed"]
    assert "headrace-timers of key b'odd' cannot be read" in error
    assert ready == []


@pytest.mark.parametrize(("least", "left"), [(ROWS, 0), (ROWS + 1, 34)])
def test_a_long_restore_is_written_in_bulk_and_a_short_one_is_logged(
    store: RocksStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, least: int, left: int
) -> None:
    """A kill in the middle takes what was written in bulk; nothing is missing at the end."""
    monkeypatch.setattr(restore, "_BULK", least)
    log = Log()
    with restoring(store, log) as (restorer, ready):
        restorer.begin(FakeAssignment(TopicPartition("in", 0)), 1)
        log.send(0, 34)
        eventually(lambda: len(list(store.rows(0))) == 34)
        assert rows_after_a_kill(tmp_path, "middle") == left
        log.send(34, ROWS)
        eventually(lambda: ready == [0])
    assert rows_after_a_kill(tmp_path, "end") == ROWS


def test_a_restore_that_is_left_in_the_middle_is_no_longer_in_bulk(
    store: RocksStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows so far are on the disk, so that nothing of the store stays put off for them."""
    monkeypatch.setattr(restore, "_BULK", ROWS)
    log, assignment = Log(), FakeAssignment(TopicPartition("in", 0))
    with restoring(store, log) as (restorer, ready):
        restorer.begin(assignment, 1)
        log.send(0, 34)
        eventually(lambda: len(list(store.rows(0))) == 34)
        assert rows_after_a_kill(tmp_path, "middle") == 0
        restorer.end(assignment)
        tries = count()
        eventually(lambda: rows_after_a_kill(tmp_path, f"left-{next(tries)}") == 34)
    assert ready == []


def rows_after_a_kill(folder: Path, name: str) -> int:
    """Return how many rows of partition 0 a killed process leaves of a store."""
    shutil.copytree(folder / "db", folder / name)
    again = RocksStore(folder / name)
    again.open()
    found = len(list(again.rows(0)))
    again.close()
    return found


def test_progress_says_how_far_a_partition_is_and_how_long_the_rest_takes(
    store: RocksStore,
) -> None:
    """Progress follows the changelog's offsets; a restored partition has none, and is counted."""
    log, clock, ready = Log(), StillClock(), list[object]()
    restorer = Restorer(
        "main",
        Changelog(LOG.topic, "id", 3600.0),
        store,
        source=lambda: log,  # type: ignore[arg-type,return-value]  # as much of one as is asked for
        catalog=log,  # type: ignore[arg-type]  # as above
        clock=clock,
        is_busy=lambda _: False,
        ready=lambda assignment, _: ready.append(assignment),
        corrupt=lambda error: pytest.fail(str(error)),
    )
    restorer.start()
    try:
        assignment = FakeAssignment(TopicPartition("in", 0))
        restorer.begin(assignment, 1)
        eventually(lambda: restorer.progress() == {0: RestoreProgress(0, ROWS, None)})
        clock.now = 17.0
        log.send(0, 34)
        eventually(lambda: restorer.progress() == {0: RestoreProgress(34, ROWS, 33.0)})
        log.send(34, ROWS)
        eventually(lambda: ready == [assignment])
        assert restorer.progress() == {}
        eventually(lambda: store.size(0) is not None)
        stored = sum(len(b"%d" % at) + 4 + 1 for at in range(ROWS))
        assert store.size(0) == StoreSize(ROWS, stored)
    finally:
        assert restorer.stop(Deadline.after(10.0))


def test_a_stop_does_not_wait_for_the_next_look(
    store: RocksStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that has nothing to restore ends when it is told to, however seldom it looks."""
    waits = Event()

    class Watched(SimpleQueue[object]):
        """Tells when its reader waits."""

        def get(self, block: bool = True, timeout: float | None = None) -> object:
            """Wait for the next, as ever."""
            if block:
                waits.set()
            return super().get(block, timeout)

    monkeypatch.setattr(restore, "SimpleQueue", Watched)
    monkeypatch.setattr(restore, "_IDLE_INTERVAL", 60.0)
    log = Log()
    restorer = Restorer(
        "main",
        Changelog(LOG.topic, "id", 3600.0),
        store,
        source=lambda: log,  # type: ignore[arg-type,return-value]  # as much of one as is asked for
        catalog=log,  # type: ignore[arg-type]  # as above
        clock=StillClock(),
        is_busy=lambda _: False,
        ready=lambda *_: pytest.fail("there is nothing to restore"),
        corrupt=lambda error: pytest.fail(str(error)),
    )
    restorer.start()
    assert waits.wait(10.0)
    assert restorer.stop(Deadline.after(10.0))


def test_a_restore_that_comes_no_nearer_to_its_end_is_told_once(store: RocksStore) -> None:
    """After half a minute, with who holds it up; once it goes on, that is told as well."""
    log, clock = Log(), StillClock()
    told, asked, ready = list[str | None](), list[TopicPartition](), list[object]()

    def hold(partition: TopicPartition) -> str:
        asked.append(partition)
        return "held back by tx.1"

    restorer = Restorer(
        "main",
        Changelog(LOG.topic, "id", 3600.0),
        store,
        source=lambda: log,  # type: ignore[arg-type,return-value]  # as much of one as is asked for
        catalog=log,  # type: ignore[arg-type]  # as above
        clock=clock,
        is_busy=lambda _: False,
        ready=lambda assignment, _: ready.append(assignment),
        corrupt=lambda error: pytest.fail(str(error)),
        stalled=lambda _, __, reason: told.append(reason),
        holder=hold,
    )
    with capture_logs() as logs:
        restorer.start()
        try:
            restorer.begin(FakeAssignment(TopicPartition("in", 0)), 1)
            log.send(0, 40)
            eventually(lambda: 0 in restorer.progress() and restorer.progress()[0].done == 40)
            clock.now = 29.0
            log.send(40, 41)
            eventually(lambda: restorer._under_way[0].seen == 41)
            assert told == []
            clock.now = 59.0
            eventually(lambda: len(told) == 1)
            assert restorer.progress()[0].left is None
            clock.now = 600.0
            log.send(41, ROWS)
            eventually(lambda: len(ready) == 1)
        finally:
            assert restorer.stop(Deadline.after(10.0))
    assert asked == [LOG]
    reason, cleared = told
    assert reason is not None
    assert "g.in.state-0 has come no further than 41 of 100: held back by tx.1" in reason
    assert "headrace transactions settle" in reason
    assert cleared is None
    (stalled,) = [each for each in logs if each["event"] == "restore_stalled"]
    assert (stalled["position"], stalled["end"], stalled["held_by"]) == (
        41,
        ROWS,
        "held back by tx.1",
    )


@pytest.mark.parametrize("pieces", [0, 2, 6])
def test_the_last_row_of_each_key_is_restored(store: RocksStore, pieces: int) -> None:
    """States, timers and deletions, in columns or not; rows of before, unwritten too, are not."""
    timed = KeyRow.of(b"3", {"t": Timer(50)})
    late = FakeRecord(key_=b"timed", value_=b"3", offset_=2)
    rows: list[Record] = [
        FakeRecord(key_=b"gone", value_=b"1", offset_=0),
        FakeRecord(key_=b"kept", value_=b"2", offset_=1),
        replace(late, headers_=[(EXTRA_HEADER, timed.extra), ("other", None)]),
        FakeRecord(key_=b"gone", value_=None, offset_=3),
        FakeRecord(key_=None, value_=b"no key", offset_=4),
        FakeRecord(key_=b"cached", value_=b"5", offset_=ROWS - 1),
    ]
    names = [PartitionKey(0, each) for each in (b"gone", b"kept", b"timed", b"cached")]
    store.put([ChangedRows.of([(names[3], RowChange(None, KeyRow(b"old")))])])
    log, ready = Log(), list[object]()
    restorer = Restorer(
        "main",
        Changelog(LOG.topic, "id", 3600.0),
        store,
        source=lambda: log,  # type: ignore[arg-type,return-value]  # as much of one as is asked for
        catalog=log,  # type: ignore[arg-type]  # as above
        clock=StillClock(),
        is_busy=lambda _: False,
        ready=lambda assignment, _: ready.append(assignment),
        corrupt=lambda error: pytest.fail(str(error)),
    )
    store.note({0: Position("id", 0, 0.0)})
    store.put([ChangedRows.of([(names[1], RowChange(None, KeyRow(b"unwritten")))])])
    restorer.start()
    try:
        restorer.begin(FakeAssignment(TopicPartition("in", 0)), 1)
        chunk = in_columns(rows, LOG, pieces=pieces) if pieces else rows
        log.sent.put(Fetched(chunks=[(LOG, chunk)]))
        eventually(lambda: bool(ready))
    finally:
        assert restorer.stop(Deadline.after(10.0))
    assert store.get_many(names) == [
        None,
        KeyRow(b"2"),
        KeyRow(b"3", timed.extra),
        KeyRow(b"5"),
    ]
    assert [(each.key, each.name) for each in store.due(0, TimerClock.EVENT, 99)] == [
        (b"timed", "t")
    ]
    assert store.position(0) == Position("id", ROWS, 0.0)


class Marked(Log):
    """One that ends with the mark of a transaction, which a later leader wrote than the rows.

    No broker knows the leader where there is no ``epoch``.
    """

    def __init__(self, epoch: int | None) -> None:
        super().__init__()
        self._epoch = epoch

    def leader_epoch(self, partition: TopicPartition, deadline: Deadline) -> int | None:
        """Return the present leader's epoch, or fail."""
        del deadline
        if self._epoch is None:
            raise KafkaUnavailableError(f"{partition} has no leader")
        return self._epoch


@pytest.mark.parametrize("epoch", [2, None])
def test_a_store_behind_a_mark_has_the_epoch_of_the_end(
    store: RocksStore, epoch: int | None
) -> None:
    """The epoch of the last row ended before the mark: a log would look truncated by it."""
    log = Marked(epoch)
    with restoring(store, log) as (restorer, ready):
        restorer.begin(FakeAssignment(TopicPartition("in", 0)), 1)
        rows = log.rows(0, ROWS - 1)
        log.sent.put(Fetched(chunks=[(LOG, rows)], leader_epochs={LOG: 0}))
        log.sent.put(Fetched(ends=[(LOG, ROWS)]))
        eventually(lambda: ready == [0])
    position = store.position(0)
    assert position is not None
    assert (position.offset, position.leader_epoch) == (ROWS, epoch)
