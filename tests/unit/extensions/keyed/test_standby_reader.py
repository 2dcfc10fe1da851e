"""Following changelogs of others' partitions, beside restores and in spite of faults."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.core.records import TopicPartition
from headrace.extensions.keyed.errors import StateStoreError
from headrace.extensions.keyed.positions import StorePositions
from headrace.extensions.keyed.standby_reader import StandbyProgress, StandbyReader
from headrace.extensions.keyed.store import RocksStore
from headrace.extensions.keyed.topics import Changelog
from headrace.kafka.errors import KafkaUnavailableError
from headrace.kafka.ports import Fetched
from headrace.testing.channel import FakeClock
from headrace.testing.records import FakeRecord

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from headrace.core.clock import Deadline
    from headrace.core.records import Record

LOG = TopicPartition("g.in.state", 0)


class Log:
    """A changelog that sends what a test has it send. Source and catalog."""

    def __init__(self) -> None:
        self.end = 0
        self.sent: deque[Fetched] = deque()
        self.assigned: dict[TopicPartition, int] = {}
        self.fetches = 0
        self.is_away = False
        self.epoch: int | None = 7

    def append(self, *keys: bytes) -> None:
        """Send rows of keys, each with its offset."""
        rows: list[Record] = [
            FakeRecord(key_=key, value_=b"%d" % at, offset_=at)
            for at, key in enumerate(keys, self.end)
        ]
        self.end += len(rows)
        self.sent.append(Fetched(chunks=[(LOG, rows)], leader_epochs={LOG: 7}))

    def fetch(self, timeout: float) -> Fetched:
        """Return what was sent next."""
        del timeout
        self.fetches += 1
        return self.sent.popleft() if self.sent else Fetched()

    def watermarks(self, partition: TopicPartition, deadline: Deadline) -> tuple[int, int]:
        """Return what there is."""
        del partition, deadline
        if self.is_away:
            raise KafkaUnavailableError("no broker answers")
        return 0, self.end

    def describe(self, topics: Collection[str], deadline: Deadline) -> dict[str, object]:
        """Know no topic."""
        del topics, deadline
        return {}

    def leader_epoch(self, partition: TopicPartition, deadline: Deadline) -> int | None:
        """Return the leader's epoch."""
        del partition, deadline
        return self.epoch

    def high_watermark(self, partition: TopicPartition) -> int:
        """Return the end."""
        del partition
        return self.end

    def assign(
        self,
        starts: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Begin to read what is not read yet."""
        del epochs
        assert self.assigned.keys().isdisjoint(starts)
        self.assigned.update(starts)

    def unassign(self, partitions: Collection[TopicPartition]) -> None:
        """End it for what is read."""
        for each in partitions:
            del self.assigned[each]

    def close(self) -> None:
        """Release nothing."""


class Rig:
    """A reader with its store; a test says what is held, busy and blocked."""

    def __init__(self, folder: Path) -> None:
        self.store = RocksStore(folder / "db")
        self.store.open()
        self.log, self.clock = Log(), FakeClock()
        self.held: set[int] = set()
        self.busy: set[int] = set()
        self.is_blocked = False
        changelog = Changelog(LOG.topic, "id", 3600.0)
        self.positions = StorePositions(
            "main",
            changelog,
            self.store,
            self.log,  # type: ignore[arg-type]  # as much of one as is asked for
            self.clock,
        )
        self.reader = StandbyReader(
            "main",
            self.positions,
            self.store,
            source=lambda: self.log,  # type: ignore[arg-type,return-value]
            clock=self.clock,
            is_busy=self.busy.__contains__,
            is_held=self.held.__contains__,
            is_blocked=lambda: self.is_blocked,
            corrupt=lambda error: pytest.fail(str(error)),
        )

    def turn(self, *, throttled: bool = False) -> StandbyProgress | None:
        """Take a turn; return how far the copy of the partition is."""
        self.reader.run_once(0.0, throttled=throttled)
        return self.reader.progress().get(0)

    def keys(self) -> list[bytes]:
        """Return the keys that the copy has."""
        return [key for key, _ in self.store.rows(0)]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Return a reader with an empty store."""
    rig = Rig(tmp_path)
    yield rig
    rig.reader.close()
    rig.store.close()


def test_a_copy_is_read_with_the_position_that_its_rows_are_of(rig: Rig) -> None:
    """One that is not followed yet, that waits after an error, or that was left is refused."""

    def is_refused() -> bool:
        try:
            with rig.reader.reading(0):
                return False
        except StateStoreError as error:
            return "the copy of partition 0 is not followed" in str(error)

    rig.log.append(b"a", b"b")
    assert is_refused()
    rig.reader.follow([0])
    assert is_refused()
    rig.turn()
    with rig.reader.reading(0) as rows:
        assert rows.progress == StandbyProgress(2, 0)
        assert rows.get_many([b"a", b"x"]) == [b"0", None]
        assert [key for key, _ in rows.scan(b"")] == [b"a", b"b"]
    rig.log.sent.append(Fetched(out_of_range=[LOG]))
    rig.turn()
    assert is_refused()
    rig.turn()
    with rig.reader.reading(0) as rows:
        assert isinstance(rows.progress, StandbyProgress)
        assert rows.progress.position == 0
    rig.reader.follow([])
    assert is_refused()


def test_a_copy_goes_on_while_it_is_read(rig: Rig) -> None:
    """Rows stay as they were at first, and the copy is followed, left and deleted meanwhile."""
    rig.log.append(*(b"%03d" % at for at in range(250)))
    rig.reader.follow([0])
    rig.turn()
    with rig.reader.reading(0) as rows:
        scanned = rows.scan(b"")
        rig.log.append(b"new", b"000")
        assert rig.turn() == StandbyProgress(252, 0)
        assert rows.progress == StandbyProgress(250, 0)
        assert rows.get_many([b"000", b"new"]) == [b"0", None]
        rig.reader.follow([])
        rig.store.drop(0)
        assert [key for key, _ in scanned] == [b"%03d" % at for at in range(250)]
        assert rows.find(b"249") is not None
    assert rig.keys() == []


def test_a_copy_of_closed_files_is_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is not found there is not taken for one that does not exist."""
    monkeypatch.setattr("headrace.extensions.keyed.store._SCAN_TIMEOUT", 0.0)
    rig.log.append(b"a")
    rig.reader.follow([0])
    rig.turn()
    with rig.reader.reading(0) as rows:
        rig.store.close()
        with pytest.raises(StateStoreError, match="is not open"):
            rows.find(b"a")
    rig.store.open()


def test_a_copy_with_rows_of_a_former_owner_is_read_from_where_they_are_whole(rig: Rig) -> None:
    """Rows that were written after the noted position are read with no older position."""
    rig.log.append(b"a", b"b", b"c")
    rig.reader.follow([0])
    rig.turn()
    rig.reader.follow([])
    rig.store.note({0: rig.positions.at(1, None)})
    rig.reader.follow([0])
    assert rig.turn() == StandbyProgress(1, 2)
    assert rig.reader.readable() == []
    with pytest.raises(StateStoreError, match="is not followed"), rig.reader.reading(0):
        pass
    rig.log.append(b"d")
    assert rig.turn() == StandbyProgress(4, 0)
    assert rig.reader.readable() == [0]


def test_rows_come_with_their_position(rig: Rig) -> None:
    """Rows that were read count after a crash too: no note has to follow them."""
    rig.log.append(b"a", b"b")
    rig.reader.follow({0})
    assert rig.turn() == StandbyProgress(2, 0)
    rig.log.append(b"c")
    assert rig.turn() == StandbyProgress(3, 0)
    position = rig.store.position(0)
    assert position is not None
    assert (position.offset, position.leader_epoch, rig.keys()) == (3, 7, [b"a", b"b", b"c"])


def test_copies_are_read_seldom_while_something_is_restored(rig: Rig) -> None:
    """One fetch a second; without a restore each turn makes one."""
    rig.reader.follow({0})
    for _ in range(5):
        rig.turn(throttled=True)
    assert rig.log.fetches == 1
    rig.clock.advance(1.0)
    rig.turn(throttled=True)
    assert rig.log.fetches == 2
    for _ in range(3):
        rig.turn()
    assert rig.log.fetches == 5


def test_a_copy_that_is_left_is_noted_behind_marks(rig: Rig) -> None:
    """The restore begins behind marks of transactions that came after the last row."""
    rig.log.append(b"a")
    rig.reader.follow({0})
    rig.turn()
    rig.log.end = 3
    rig.log.sent.append(Fetched(ends=[(LOG, 3)]))
    rig.log.epoch = 8
    assert rig.turn() == StandbyProgress(3, 0)
    rig.reader.leave(0)
    position = rig.store.position(0)
    assert position is not None
    assert (position.offset, position.leader_epoch) == (3, 8)
    assert (rig.log.assigned, rig.reader.is_idle) == ({}, True)


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (Fetched(out_of_range=[LOG]), "lost what was being read"),
        (Fetched(truncated=[(LOG, 0)]), "lost its end"),
    ],
)
def test_a_copy_of_which_the_changelog_lost_something_is_read_again(
    rig: Rig, report: Fetched, reason: str
) -> None:
    """All rows go, and come again from the beginning."""
    rig.log.append(b"lost", b"a")
    rig.reader.follow({0})
    rig.turn()
    rig.log.sent.append(report)
    with capture_logs() as logs:
        rig.turn()
        rig.turn()
    (dropped,) = [each for each in logs if each["event"] == "local_state_dropped"]
    assert reason in dropped["reason"]
    assert (rig.keys(), rig.log.assigned) == ([], {LOG: 0})


def test_a_copy_that_cannot_be_read_waits_and_says_so_once(rig: Rig) -> None:
    """The copy has no lag meanwhile, and goes on when the brokers answer again."""
    rig.log.append(b"a")
    rig.log.is_away = True
    rig.reader.follow({0})
    with capture_logs() as logs:
        assert rig.turn() == StandbyProgress(0, None, "no broker answers")
        rig.turn()
        rig.clock.advance(6.0)
        rig.turn()
        rig.log.is_away = False
        rig.clock.advance(6.0)
        assert rig.turn() == StandbyProgress(1, 0)
    assert [each["event"] for each in logs].count("standby_failed") == 1


def test_rows_that_cannot_be_written_come_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a write that failed the copy is read again from where the store is."""
    rig.log.append(b"a")
    rig.reader.follow({0})

    def full(*_: object, **__: object) -> None:
        raise StateStoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(rig.store, "load", full)
        assert rig.turn() == StandbyProgress(0, None, "the disk is full")
    rig.clock.advance(6.0)
    rig.turn()
    assert rig.log.assigned == {LOG: 0}


def test_nothing_is_followed_or_dropped_that_is_held_or_busy(rig: Rig) -> None:
    """A partition of ours is left alone, and one of which something is still to be written."""
    rig.log.append(b"a")
    rig.reader.follow({0})
    rig.turn()
    rig.held.add(0)
    rig.reader.follow(())
    rig.reader.follow({0})
    rig.reader.drop(0)
    assert (rig.reader.is_idle, rig.keys()) == (True, [b"a"])
    rig.held.clear()
    rig.busy.add(0)
    rig.reader.follow({0})
    rig.turn()
    rig.reader.drop(0)
    assert (rig.log.assigned, rig.keys()) == ({}, [b"a"])
    rig.busy.clear()
    rig.reader.follow(())
    rig.reader.drop(0)
    assert (rig.store.has_any(0), rig.keys()) == (False, [])


def test_copies_rest_while_the_changelog_is_not_what_it_was(rig: Rig) -> None:
    """Rows of another topic of the same name are not added to them."""
    rig.log.append(b"a")
    rig.reader.follow({0})
    rig.turn()
    rig.is_blocked = True
    rig.log.append(b"b")
    assert rig.turn() == StandbyProgress()
    assert (rig.keys(), rig.log.assigned) == ([b"a"], {})
    rig.is_blocked = False
    rig.turn()
    assert rig.keys() == [b"a", b"b"]


def test_a_copy_at_a_quiet_end_is_noted_to_be_as_new(rig: Rig) -> None:
    """So it is not taken for older than deletions are kept, though nothing comes for long."""
    rig.log.append(b"a")
    rig.reader.follow({0})
    rig.turn()
    before = rig.store.position(0)
    rig.clock.advance(61.0)
    rig.turn()
    after = rig.store.position(0)
    assert before is not None
    assert after is not None
    assert after.at == before.at + 61.0
    assert after.offset == before.offset
