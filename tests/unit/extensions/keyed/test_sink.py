"""The sink of channels with state: one transaction, then the store, and nothing half."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from typing_extensions import override

from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import HeadraceError, SinkConflictError
from headrace.core.records import ResultRecord, TopicPartition
from headrace.core.result_columns import each_of
from headrace.extensions.keyed import unwritten
from headrace.extensions.keyed.changelog import EXTRA_HEADER
from headrace.extensions.keyed.errors import StateStoreError
from headrace.extensions.keyed.row import KeyRow, PartitionKey
from headrace.extensions.keyed.sink import (
    KeyedCounts,
    KeyedSink,
    SinkTopics,
    with_counts,
    with_times,
)
from headrace.extensions.keyed.state import LayeredState, Progress
from headrace.extensions.keyed.store import StoredCommit
from headrace.extensions.keyed.tables import RESULT
from headrace.kafka.errors import KafkaUnavailableError
from headrace.kafka.ports import StoredOffset
from headrace.sinks.contract import OffsetMove, PartitionCommit
from headrace.sinks.errors import CommitConflictError
from headrace.sinks.micro_batch import MicroBatch, OffsetRange
from headrace.testing.keyed import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from headrace.core.result_columns import Results
    from headrace.kafka.result_transactions import CountedMove

P0 = TopicPartition("in", 0)
A = PartitionKey(0, b"a")


class Brokers:
    """Keeps what was committed; ``fails`` is raised in place of the next commit."""

    def __init__(self) -> None:
        self.stored: dict[str, StoredOffset] = {}
        self.records: list[ResultRecord] = []
        self.fails: Exception | None = None

    def require(self, topic: str) -> int | None:
        """Know every topic, and not how many partitions it has."""

    def stored_entry(self, identity: str) -> StoredOffset | None:
        """Return what was committed."""
        return self.stored.get(identity)

    def last_entries(
        self, identities: Collection[str], deadline: Deadline
    ) -> dict[str, StoredOffset]:
        """Return the same of several."""
        del deadline
        return {each: self.stored[each] for each in identities if each in self.stored}

    def commit(
        self, moves: Sequence[CountedMove], records: Results = ()
    ) -> list[SinkConflictError]:
        """Compare offsets and numbers, and keep all of it or nothing."""
        if self.fails is not None:
            raise self.fails
        conflicts = [
            SinkConflictError(move.partition, move.start, found.offset)
            for move in moves
            if (found := self.stored.get(move.identity)) is not None
            and (found.offset, found.commits) != (move.start, move.commits)
        ]
        if conflicts:
            return conflicts
        self.records += each_of(records)
        for move in moves:
            self.stored[move.identity] = StoredOffset(
                move.next_offset, 0, commits=move.next_commits, stream_time=move.stream_time
            )
        return []

    def close(self) -> None:
        """Hold nothing."""


class Ends:
    """Says where the changelog ends."""

    def leader_epoch(self, partition: TopicPartition, deadline: Deadline) -> int | None:
        """Return the first."""
        del partition, deadline
        return 0

    def watermarks(self, partition: TopicPartition, deadline: Deadline) -> tuple[int, int]:
        """Return one end for all."""
        del deadline
        return 0, 100 + partition.partition

    def truncated_at(
        self, partition: TopicPartition, position: int, epoch: int, deadline: Deadline
    ) -> tuple[bool, int | None]:
        """Return that nothing was lost."""
        del partition, position, epoch, deadline
        return False, None


class Bench:
    """A sink over a store in memory, and what is staged by hand."""

    def __init__(self) -> None:
        self.brokers = Brokers()
        self.store = MemoryStore()
        self.state = LayeredState(self.store)
        self.state.admit(0)
        topics = SinkTopics("log", {"out": "results"})
        self.sink = KeyedSink(self.brokers, self.state, topics, SYSTEM_CLOCK)
        assert self.sink.stored_offset("id/0") is None

    def stage(self, name: str, start: int, rows: list[dict[str, Any]], time: int = 5) -> Any:
        """Stage a folded micro-batch of ten records."""
        part = OffsetRange("in", 0, start, start + 10, 10, "id/0")
        base = dict.fromkeys(RESULT.names[6:-1], 0)
        made = [{**base, "partition": 0, "changed": True, "outputs": [], **row} for row in rows]
        table = pa.Table.from_pylist(made, schema=RESULT)
        return self.sink.stage(MicroBatch(name, "c", (part,)), with_times(table, {0: time}))

    def rows(self) -> dict[bytes, KeyRow]:
        """Return what the store has."""
        return dict(self.store.rows(0))


def share(start: int, next_offset: int) -> PartitionCommit:
    """Return a partition's share."""
    return PartitionCommit("id/0", P0, start, next_offset, is_tick=start == next_offset)


def output(value: bytes) -> dict[str, Any]:
    """Return an output of the fold."""
    return {"to": "out", "key": b"a", "value": value, "ts": 7, "headers": None}


def test_a_group_has_each_changed_key_once_and_all_outputs_in_order() -> None:
    """The last row of a key in several micro-batches goes to the changelog, with its timers."""
    bench = Bench()
    one = bench.stage("1", 0, [{"key": b"a", "state": b"1", "outputs": [output(b"x")]}])
    two = bench.stage("2", 10, [{"key": b"a", "state": b"2", "extra": b'{"timers":{}}',
                                 "outputs": [output(b"y")]}], time=9)  # fmt: skip
    assert bench.state.get_many([A]) == [KeyRow(b"2", b'{"timers":{}}')]
    assert bench.rows() == {}
    bench.sink.commit_all([one, two], [share(0, 20)])
    row, *outputs = bench.brokers.records
    assert (row.topic, row.key, row.value, row.partition) == ("log", b"a", b"2", 0)
    assert row.headers == [(EXTRA_HEADER, b'{"timers":{}}')]
    assert [(each.topic, each.value, each.timestamp) for each in outputs] == [
        ("results", b"x", 7),
        ("results", b"y", 7),
    ]
    stored = bench.brokers.stored["id/0"]
    assert (stored.offset, stored.commits, stored.stream_time) == (20, 1, 9)
    assert bench.rows() == {b"a": KeyRow(b"2", b'{"timers":{}}')}


def test_copies_are_in_the_transaction_of_states_and_outputs() -> None:
    """With a micro-batch that has nothing else, too: then they and the offset are all of it."""
    bench = Bench()
    one = bench.stage("1", 0, [{"key": b"a", "state": b"1", "outputs": [output(b"x")]}])
    copy = ResultRecord("left", b"shed", b"k")
    bench.sink.commit_with([one], [share(0, 10)], [copy])
    assert [each.topic for each in bench.brokers.records] == ["log", "results", "left"]
    part = MicroBatch("2", "c", (OffsetRange("in", 0, 10, 20, 0, "id/0"),))
    bench.sink.commit_with([bench.sink.stage(part, None)], [share(10, 20)], [copy])
    assert bench.brokers.records[3:] == [copy]
    stored = bench.brokers.stored["id/0"]
    assert (stored.offset, stored.commits, stored.stream_time) == (20, 2, 5)


def test_a_deleted_key_is_a_tombstone_and_one_without_state_is_none() -> None:
    """No state and no timers: the record has no value; with timers it has an empty one."""
    bench = Bench()
    staged = bench.stage("1", 0, [{"key": b"a"}, {"key": b"b", "extra": b'{"state":false}'}])
    bench.sink.commit(staged, [share(0, 10)])
    assert [(each.key, each.value) for each in bench.brokers.records] == [(b"a", None), (b"b", b"")]


def test_a_failed_commit_is_not_in_the_store() -> None:
    """A commit that fails leaves the store as it was, and the discarded layer is gone."""
    bench = Bench()
    staged = bench.stage("1", 0, [{"key": b"a", "state": b"1"}])
    bench.brokers.fails = HeadraceError("away")
    with pytest.raises(HeadraceError, match="away"):
        bench.sink.commit(staged, [share(0, 10)])
    bench.sink.discard(staged)
    assert bench.state.get_many([A]) == [None]
    assert bench.state.progress(0).number == 0


def test_a_tick_moves_the_number_and_the_time_but_no_offset() -> None:
    """The brokers tell it from no commit by the number, so that another writer's is a conflict."""
    bench = Bench()
    bench.sink.commit(bench.stage("1", 0, []), [share(0, 10)])
    part = MicroBatch("2", "c", (OffsetRange("in", 0, 10, 10, 0, "id/0"),))
    result = with_times(RESULT.empty_table(), {0: 50})
    bench.sink.commit(bench.sink.stage(part, result), [share(10, 10)])
    stored = bench.brokers.stored["id/0"]
    assert (stored.offset, stored.commits, stored.stream_time) == (10, 2, 50)
    bench.brokers.stored["id/0"] = StoredOffset(10, 0, commits=3)
    with pytest.raises(CommitConflictError):
        bench.sink.commit(bench.stage("3", 10, []), [share(10, 20)])


def test_the_next_owner_goes_on_from_number_and_time() -> None:
    """The next owner continues from the number and time that were stored with the offset."""
    bench = Bench()
    bench.sink.commit(bench.stage("1", 0, []), [share(0, 10)])
    other = LayeredState(MemoryStore())
    sink = KeyedSink(bench.brokers, other, SinkTopics("log", {}), SYSTEM_CLOCK)
    assert sink.stored_offset("id/0") == 10
    assert other.progress(0) == Progress({"id/0": 10}, 1, 5)


def test_an_operator_may_not_move_the_offset() -> None:
    """The state is of exactly the records before it."""
    bench = Bench()
    with pytest.raises(HeadraceError, match="cannot be moved, because its state is of exactly"):
        bench.sink.move_offsets([OffsetMove("id/0", P0, 0, 5)], "ann")


def test_no_position_is_noted_while_the_outcome_of_a_commit_is_not_known() -> None:
    """One that failed may be stored, and the store has none of it: the changelog is read again."""
    bench = Bench()
    bench.sink.commit(bench.stage("1", 0, []), [share(0, 10)])
    bench.brokers.fails = HeadraceError("no answer")
    with pytest.raises(HeadraceError, match="no answer"):
        bench.sink.commit(bench.stage("2", 10, []), [share(10, 20)])
    bench.sink.checkpoint("topic-id", Ends(), Deadline.after(1), lambda _: True)
    assert bench.store.position(0) is None


def test_a_position_is_noted_for_what_was_committed_since() -> None:
    """The end of the changelog is where the store stands, once nothing is under way."""
    bench = Bench()
    bench.sink.checkpoint("topic-id", Ends(), Deadline.after(1), lambda _: True)
    assert bench.store.position(0) is None
    bench.sink.commit(bench.stage("1", 0, []), [share(0, 10)])
    bench.sink.checkpoint("topic-id", Ends(), Deadline.after(1), lambda _: True)
    position = bench.store.position(0)
    assert position is not None
    assert position[:2] == ("topic-id", 100)


def test_a_conflict_costs_the_others_no_position() -> None:
    """Partitions without a conflict keep their position; rows of another writer are not read."""
    bench = Bench()
    bench.state.admit(1)
    bench.sink.commit(bench.stage("1", 0, []), [share(0, 10)])
    other = PartitionCommit("id/1", TopicPartition("in", 1), 0, 10)
    bench.sink.commit(bench.sink.stage(MicroBatch("2", "c", ()), None), [other])
    bench.brokers.stored["id/0"] = StoredOffset(10, 0, commits=2, stream_time=5)
    tick = PartitionCommit("id/1", TopicPartition("in", 1), 10, 10, is_tick=True)
    with pytest.raises(CommitConflictError):
        bench.sink.commit_all([], [share(10, 10), tick])
    bench.sink.checkpoint("topic-id", Ends(), Deadline.after(1), lambda _: True)
    assert bench.store.position(1) is not None
    assert bench.store.position(0) is None


def test_a_commit_outlives_an_error_of_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are written later; after as many as may be unwritten no commit follows."""
    bench = Bench()
    most = 3
    monkeypatch.setattr(unwritten, "MOST_UNWRITTEN", most)
    with monkeypatch.context() as patch:

        def fail() -> None:
            raise ValueError("no such number")

        patch.setattr(bench.store, "flush", fail)
        for at in range(most):
            row = {"key": b"%d" % at, "state": b"1"}
            bench.sink.commit(bench.stage(str(at), 10 * at, [row]), [share(10 * at, 10 * at + 10)])
        assert bench.brokers.stored["id/0"].offset == 10 * most
        assert len(bench.rows()) == bench.state.unwritten.entries == most
        last = bench.stage("last", 10 * most, [])
        end = 10 * most + 10
        with pytest.raises(HeadraceError, match=r"3 rows and timers .* ValueError: no such"):
            bench.sink.commit(last, [share(end - 10, end)])
        assert bench.sink.checkpoint("id", Ends(), Deadline.after(1), lambda _: True) == {}
        assert bench.store.position(0) is None
        bench.sink.discard(last)
    assert bench.state.flush()
    assert (bench.state.unwritten.entries, bench.state.problem) == (0, None)


def test_unwritten_rows_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few large rows count as many small ones."""
    bench = Bench()
    monkeypatch.setattr(unwritten, "MOST_UNWRITTEN_BYTES", 1000)

    def fail() -> None:
        raise StateStoreError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(bench.store, "flush", fail)
        staged = bench.stage("1", 0, [{"key": b"a", "state": b"x" * 1000}])
        bench.sink.commit(staged, [share(0, 10)])
        with pytest.raises(HeadraceError, match=r"1 rows and timers .* no space left"):
            bench.sink.commit(bench.stage("2", 10, []), [share(10, 20)])
    bench.sink.commit(bench.stage("3", 10, []), [share(10, 20)])
    assert bench.state.unwritten.bytes == 0


def other_share(start: int, next_offset: int) -> PartitionCommit:
    """Return the share of another topic's partition with the same number."""
    return PartitionCommit(
        "other/0", TopicPartition("other", 0), start, next_offset, is_tick=start == next_offset
    )


def test_a_task_has_one_number_of_commits_and_an_offset_of_each_topic() -> None:
    """A commit moves all of them in one transaction, those without records, too."""
    bench = Bench()
    assert bench.sink.begin(["id/0", "other/0"]) == {}
    staged = bench.stage("1", 0, [{"key": b"a", "state": b"1"}])
    bench.sink.commit_all([staged], [share(0, 10), other_share(0, 0)])
    bench.sink.commit_all([bench.stage("2", 10, [], time=9)], [share(10, 10), other_share(0, 7)])
    stored = bench.brokers.stored
    assert {each: (found.offset, found.commits) for each, found in stored.items()} == {
        "id/0": (10, 2),
        "other/0": (7, 2),
    }
    offsets = {"id/0": 10, "other/0": 7}
    assert bench.state.progress(0) == Progress(offsets, 2, 9)
    assert bench.state.progress(0).offset == 17
    assert bench.store.commit_of(0) == StoredCommit(17, 2)
    other = LayeredState(MemoryStore())
    sink = KeyedSink(bench.brokers, other, SinkTopics("log", {}), SYSTEM_CLOCK)
    assert sink.begin(["id/0", "other/0"]) == offsets
    assert other.progress(0) == Progress(offsets, 2, 9)


def test_one_topic_of_a_task_that_another_moved_has_nothing_stored() -> None:
    """The other topic's offset, the state and the outputs stay where they are."""
    bench = Bench()
    bench.sink.begin(["id/0", "other/0"])
    bench.sink.commit_all([bench.stage("1", 0, [])], [share(0, 10), other_share(0, 5)])
    bench.brokers.stored["other/0"] = StoredOffset(6, 0, commits=2)
    staged = bench.stage("2", 10, [{"key": b"a", "state": b"1"}])
    with pytest.raises(CommitConflictError):
        bench.sink.commit_all([staged], [share(10, 20), other_share(5, 8)])
    bench.sink.discard(staged)
    assert bench.brokers.stored["id/0"].offset == 10
    assert (bench.rows(), bench.brokers.records) == ({}, [])
    assert bench.state.progress(0).offsets == {"id/0": 10, "other/0": 5}


@pytest.mark.parametrize("earlier", [None, 1])
def test_a_topic_that_joins_a_task_counts_its_commits_from_then_on(earlier: int | None) -> None:
    """Also one that was read before, and not for a while; a process that comes later agrees."""
    bench = Bench()
    bench.brokers.stored["id/0"] = StoredOffset(10, 0, commits=5, stream_time=3)
    if earlier is not None:
        bench.brokers.stored["other/0"] = StoredOffset(0, 0, commits=earlier, stream_time=99)
    bench.sink.begin(["id/0", "other/0"])
    assert (bench.state.progress(0).number, bench.state.progress(0).time) == (5, 3)
    for number, (start, end) in enumerate([(0, 4), (4, 8)], 1):
        staged = bench.stage(str(number), 10, [])
        bench.sink.commit_all([staged], [share(10, 10), other_share(start, end)])
        assert {each.commits for each in bench.brokers.stored.values()} == {5 + number}
    assert bench.state.progress(0) == Progress({"id/0": 10, "other/0": 8}, 7, 5)


def test_a_look_at_the_offset_waits_for_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier offset would take the partition back, and the next commit would conflict."""
    bench = Bench()
    looks: list[Thread] = []
    commit = bench.brokers.commit

    def looked_at(*given: Any) -> list[SinkConflictError]:
        looks.append(Thread(target=bench.sink.stored_offset, args=("id/0",)))
        looks[0].start()
        looks[0].join(0.2)
        return commit(*given)

    monkeypatch.setattr(bench.brokers, "commit", looked_at)
    bench.sink.commit(bench.stage("1", 0, []), [share(0, 10)])
    looks[0].join(10)
    assert bench.state.progress(0)[:2] == ({"id/0": 10}, 1)


def test_positions_are_noted_although_one_partition_has_no_leader() -> None:
    """It is asked for again with the next ones."""
    bench = Bench()
    bench.state.admit(1)
    bench.sink.commit(bench.stage("1", 0, []), [share(0, 10)])
    other = PartitionCommit("id/1", TopicPartition("in", 1), 0, 10)
    bench.sink.commit(bench.sink.stage(MicroBatch("2", "c", ()), None), [other])

    class Leaderless(Ends):
        """Does not know of the first one."""

        def watermarks(self, partition: TopicPartition, deadline: Deadline) -> tuple[int, int]:
            """Return an end, or fail."""
            if partition.partition == 0:
                raise KafkaUnavailableError(f"{partition} has no leader")
            return super().watermarks(partition, deadline)

    with pytest.raises(KafkaUnavailableError, match="no leader"):
        bench.sink.checkpoint("topic-id", Leaderless(), Deadline.after(1), lambda _: True)
    noted = bench.store.position(1)
    assert noted is not None
    assert (noted.offset, bench.store.position(0)) == (101, None)
    bench.sink.checkpoint("topic-id", Ends(), Deadline.after(1), lambda _: True)
    assert bench.store.position(0) is not None


def test_counts_are_added_once_their_commit_succeeds() -> None:
    """A commit that fails counts nothing; several micro-batches count as their sum."""
    bench = Bench()
    one = bench.stage("1", 0, [{"key": b"a", "state": b"1", "late": 2, "fired": 1}])
    two = bench.stage("2", 10, [{"key": b"b", "rejected": 3}, {"key": b"c", "late": 1}])
    bench.brokers.fails = HeadraceError("the brokers are away")
    with pytest.raises(HeadraceError, match="away"):
        bench.sink.commit_all([one, two], [share(0, 20)])
    assert bench.sink.totals == KeyedCounts()
    bench.brokers.fails = None
    bench.sink.commit_all([one, two], [share(0, 20)])
    done = bench.sink.totals
    assert (done.touched, done.late, done.fired, done.rejected) == (3, 3, 1, 3)


def test_named_counts_are_added_once_their_commit_succeeds() -> None:
    """Those of a micro-batch that is dropped are not, and names are counted by themselves."""
    bench = Bench()

    def staged(name: str, start: int, counts: dict[str, dict[str, int]]) -> Any:
        part = OffsetRange("in", 0, start, start + 10, 10, "id/0")
        result = with_counts(with_times(RESULT.empty_table(), {0: 5}), counts)
        return bench.sink.stage(MicroBatch(name, "c", (part,)), result)

    bench.sink.discard(staged("0", 0, {"a": {"late": 9}}))
    one = staged("1", 0, {"a": {"late": 2}, "b": {"late": 1}})
    two = staged("2", 10, {"a": {"late": 1, "closed": 4}})
    bench.brokers.fails = HeadraceError("the brokers are away")
    with pytest.raises(HeadraceError, match="away"):
        bench.sink.commit_all([one, two], [share(0, 20)])
    assert bench.sink.named_totals == {}
    bench.brokers.fails = None
    bench.sink.commit_all([one, two], [share(0, 20)])
    assert bench.sink.named_totals == {"a": {"late": 3, "closed": 4}, "b": {"late": 1}}
    assert bench.state.time(0) == 5


def test_each_partition_of_a_topic_gets_each_output_where_that_is_said() -> None:
    """The number of partitions is asked for once, as the sink is opened; other topics have one."""

    class Three(Brokers):
        @override
        def require(self, topic: str) -> int:
            del topic
            return 3

    brokers, state = Three(), LayeredState(MemoryStore())
    state.admit(0)
    topics = SinkTopics("log", {"out": "results", "all": "prices"}, frozenset({"prices"}))
    sink = KeyedSink(brokers, state, topics, SYSTEM_CLOCK)
    sink.open()
    assert sink.stored_offset("id/0") is None
    bench = Bench()
    bench.sink, bench.state = sink, state
    made = [
        {"to": to, "key": None, "value": to.encode(), "ts": 7, "headers": None}
        for to in ("all", "out")
    ]
    staged = bench.stage("1", 0, [{"key": b"a", "state": b"1", "outputs": made}])
    assert [(each.topic, each.partition) for each in staged.outputs] == [
        ("prices", 0),
        ("prices", 1),
        ("prices", 2),
        ("results", None),
    ]
    sink.commit_all([staged], [share(0, 10)])
    found = sorted((each.topic, each.partition) for each in brokers.records[1:])
    assert found == [("prices", 0), ("prices", 1), ("prices", 2), ("results", None)]


def test_outputs_to_a_topic_are_in_their_order_and_rows_the_last_of_each_key() -> None:
    """Two outputs of one topic among those of another; timers are in the header of a row."""
    bench = Bench()
    bench.sink._topics = SinkTopics("log", {"out": "results", "more": "results", "else": "others"})

    def said(to: str, value: bytes) -> dict[str, Any]:
        return {"to": to, "key": b"a", "value": value, "ts": 7, "headers": None}

    one = bench.stage(
        "1",
        0,
        [
            {
                "key": b"a",
                "state": b"1",
                "outputs": [said("out", b"1"), said("else", b"2"), said("more", b"3")],
            },
            {"key": b"b", "state": b"1", "outputs": [said("out", b"4")]},
        ],
    )
    two = bench.stage(
        "2",
        10,
        [
            {"key": b"a", "state": b"2", "extra": b"{}"},
            {"key": b"c", "extra": b"{}"},
            {"key": b"d"},
        ],
    )
    bench.sink.commit_all([one, two], [share(0, 20)])
    assert [(each.topic, each.value) for each in bench.brokers.records[-4:]] == [
        ("results", b"1"),
        ("results", b"3"),
        ("results", b"4"),
        ("others", b"2"),
    ]
    headers: list[tuple[str, bytes | None]] = [(EXTRA_HEADER, b"{}")]
    assert bench.brokers.records[:-4] == [
        ResultRecord("log", b"1", b"b", None, 0),
        ResultRecord("log", b"2", b"a", headers, 0),
        ResultRecord("log", b"", b"c", headers, 0),
        ResultRecord("log", None, b"d", None, 0),
    ]
    assert [each.value for each in one.outputs] == [b"1", b"2", b"3", b"4"]
