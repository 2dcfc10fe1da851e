"""Contract tests for sinks, wherever their results go: classes to derive from, for pytest.

docs/sinks/custom.md shows how a custom sink is put to them. They call for the fixture ``place`` and
nothing else with :class:`TablesOfArrow`; without it results are DataFrames, and the fixture
:func:`spark_runtime` is to be imported into a ``conftest.py``.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pytest

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.sinks.contract import (
    BatchCommitSink,
    Guarantee,
    OffsetMove,
    PartitionCommit,
    TransactionalOffsets,
)
from headrace.sinks.errors import CommitConflictError
from headrace.sinks.micro_batch import MicroBatch, OffsetRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    from headrace.extensions.spark.runtime import SparkRuntime
    from headrace.extensions.spark.settings import SparkSettings
    from headrace.sinks.contract import Result, Sink

    #: Makes a result of rows with the columns ``id`` and ``name``.
    Frames: TypeAlias = Callable[[list["Row"]], Result]

Row = dict[str, Any]
ROWS: list[Row] = [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
MORE: list[Row] = [{"id": 3, "name": "ü\n"}]
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@contextmanager
def started_spark(settings: SparkSettings | None = None) -> Iterator[SparkRuntime]:
    """Start Spark, on two cores where nothing else is said, and stop it at the end."""
    from headrace.extensions.spark.runtime import SparkRuntime  # noqa: PLC0415 - tables need no Spark
    from headrace.extensions.spark.settings import short_lived  # noqa: PLC0415 - tables need no Spark

    # two tasks, so that chunks and shuffles are real
    runtime = SparkRuntime(settings or short_lived("local[2]"))
    runtime.start()
    try:
        yield runtime
    finally:
        runtime.stop(Deadline.after(30))


@pytest.fixture(scope="session")
def spark_runtime() -> Iterator[SparkRuntime]:
    """Start Spark for the test run; import it into a ``conftest.py``."""
    with started_spark() as runtime:
        yield runtime


class SinkPlace(Protocol):
    """The place a sink writes to: several sinks can be opened on it, and its content be read."""

    def sink(self) -> Sink[Any]:
        """Return a new sink, not opened yet."""
        ...

    def rows(self) -> list[Row]:
        """Return what a reader sees, in any order."""
        ...


def identity(number: int) -> str:
    """Return what a partition's offset is stored under."""
    return f"cluster/group/id/{number}"


def share(number: int, start: int, next_offset: int) -> PartitionCommit:
    """Return one partition's share of a commit."""
    partition = TopicPartition("events", number)
    return PartitionCommit(identity(number), partition, start, next_offset)


def micro_batch(name: str, shares: Sequence[PartitionCommit] = ()) -> MicroBatch:
    """Return a micro-batch with a name of its own, of these ranges."""
    ranges = [
        OffsetRange(*each.partition, each.start, each.next_offset, 1, each.identity)
        for each in shares
    ]
    return MicroBatch(name, "channel", tuple(ranges))


@dataclass(frozen=True, slots=True)
class SinkBench:
    """An open sink at a place, and what a test does with it."""

    sink: Sink[Any]
    place: SinkPlace
    frames: Frames

    def other(self) -> SinkBench:
        """Open another sink at the same place."""
        sink = self.place.sink()
        sink.open()
        return replace(self, sink=sink)

    def stage(
        self, name: str, rows: list[Row] | None, shares: Sequence[PartitionCommit] = ()
    ) -> Any:
        """Stage rows, or no result, as a micro-batch with a name of its own, of these ranges."""
        result = None if rows is None else self.frames(rows)
        return self.sink.stage(micro_batch(name, shares), result)

    def store(self, name: str, rows: list[Row] | None, *shares: PartitionCommit) -> None:
        """Stage and commit."""
        self.sink.commit(self.stage(name, rows, shares), shares)

    @property
    def rows(self) -> list[Row]:
        """Return what a reader sees, by id."""
        return sorted(self.place.rows(), key=lambda row: int(row["id"]))


class SinkContract:
    """The contract of all sinks. Subclasses provide the fixture ``place`` and say the guarantee."""

    guarantee: Guarantee

    def identity(self, number: int) -> str:
        """Return what a partition's offset is stored under; override it where it has to be real."""
        return identity(number)

    def share(self, number: int, start: int, next_offset: int) -> PartitionCommit:
        """Return one partition's share of a commit; override it with :meth:`identity`."""
        return share(number, start, next_offset)

    def stored(self, bench: SinkBench, count: int = 2) -> list[int | None]:
        """Return the stored offsets of the first partitions."""
        return [bench.sink.stored_offset(self.identity(number)) for number in range(count)]

    @pytest.fixture
    def place(self) -> SinkPlace:
        """Return an empty place."""
        raise NotImplementedError

    @pytest.fixture
    def frames(self, spark_runtime: SparkRuntime) -> Frames:
        """Return what makes results of rows; :class:`TablesOfArrow` needs no Spark for it."""
        return data_frames(spark_runtime)

    @pytest.fixture
    def sink(self, place: SinkPlace) -> Sink[Any]:
        """Return an open sink."""
        sink = place.sink()
        sink.open()
        return sink

    @pytest.fixture
    def bench(self, sink: Sink[Any], place: SinkPlace, frames: Frames) -> SinkBench:
        """Return the sink with its place."""
        return SinkBench(sink, place, frames)

    def test_the_guarantee_is_said(self, bench: SinkBench) -> None:
        """The sink says what it promises."""
        assert bench.sink.guarantee is self.guarantee

    def test_an_unknown_partition_has_no_offset(self, bench: SinkBench) -> None:
        """A sink that never saw a partition leaves its position to the group's commit."""
        assert self.stored(bench, 1) == [None]

    def test_rows_are_there_once_they_are_committed(self, bench: SinkBench) -> None:
        """A staged result is not visible, and a committed one is, every row once."""
        staged = bench.stage("one", ROWS)
        assert bench.rows == []

        bench.sink.commit(staged, [self.share(0, 0, 10)])
        bench.store("two", MORE, self.share(0, 10, 20))

        assert bench.rows == ROWS + MORE

    def test_discarded_rows_never_show(self, bench: SinkBench) -> None:
        """A result that is discarded leaves nothing behind, and the same range can follow."""
        bench.sink.discard(bench.stage("one", ROWS))

        bench.store("two", MORE, self.share(0, 0, 10))

        assert bench.rows == MORE

    def test_no_rows_are_a_result_too(self, bench: SinkBench) -> None:
        """A result without rows, and no result at all, are committed without a row."""
        bench.store("one", None, self.share(0, 0, 10))
        bench.store("two", [], self.share(1, 0, 10))

        assert bench.rows == []

    def test_what_a_closed_sink_wrote_is_kept(self, bench: SinkBench) -> None:
        """Another sink goes on where one was closed."""
        bench.store("one", ROWS, self.share(0, 0, 10))
        bench.sink.close()

        other = bench.other()
        other.store("two", MORE, self.share(0, 10, 20))
        other.sink.close()

        assert bench.rows == ROWS + MORE


class ExactlyOnceContract(SinkContract):
    """The contract of a sink that keeps offsets, beyond that of every sink."""

    guarantee = Guarantee.EXACTLY_ONCE

    def test_offsets_come_back(self, bench: SinkBench) -> None:
        """Each partition's next offset is read back, also by another sink."""
        other = bench.other()
        bench.store("one", ROWS, self.share(0, 0, 10), self.share(1, 7, 9))

        assert self.stored(bench, 3) == [10, 9, None]
        assert self.stored(other, 3) == [10, 9, None]

    def test_offsets_move_without_rows(self, bench: SinkBench) -> None:
        """An empty result and no result move the offsets as any other does."""
        bench.store("one", [], self.share(0, 0, 10))
        bench.store("two", None, self.share(0, 10, 30))

        assert self.stored(bench, 1) == [30]
        assert bench.rows == []

    @pytest.mark.parametrize("start", [0, 5, 20])
    def test_a_range_that_does_not_follow_is_refused(self, start: int, bench: SinkBench) -> None:
        """A replay, an overlap and a gap are conflicts that name stored and expected offset."""
        bench.store("one", ROWS, self.share(0, 0, 10))
        staged = bench.stage("two", MORE)

        with pytest.raises(CommitConflictError) as caught:
            bench.sink.commit(staged, [self.share(0, start, start + 10)])
        bench.sink.discard(staged)

        (conflict,) = caught.value.conflicts
        assert (conflict.expected, conflict.stored) == (start, 10)
        assert bench.rows == ROWS

    def test_a_conflict_names_the_moved_partitions_only(self, bench: SinkBench) -> None:
        """Of a merged micro-batch nothing is stored, and the partitions at fault are named."""
        bench.other().store("other", ROWS, self.share(1, 0, 10))
        staged = bench.stage("one", MORE)

        with pytest.raises(CommitConflictError) as caught:
            bench.sink.commit(staged, [self.share(0, 0, 10), self.share(1, 0, 10)])
        bench.sink.discard(staged)

        assert [conflict.partition.partition for conflict in caught.value.conflicts] == [1]
        assert self.stored(bench, 1) == [None]
        assert bench.rows == ROWS

    def test_two_sinks_share_a_place(self, bench: SinkBench) -> None:
        """Sinks of different owners commit in turn, each its own partitions, without a conflict."""
        other = bench.other()
        for round_ in range(3):
            for number, each in enumerate((bench, other)):
                rows = [{"id": 2 * round_ + number, "name": "x"}]
                moved = self.share(number, round_ * 10, round_ * 10 + 10)
                each.store(f"{number}-{round_}", rows, moved)

        assert [row["id"] for row in bench.rows] == list(range(6))

    def test_a_sink_that_groups_is_put_to_that_contract_as_well(self, bench: SinkBench) -> None:
        """The tests of a sink that has ``commit_all`` derive from :class:`BatchCommitContract`."""
        assert isinstance(bench.sink, BatchCommitSink) == isinstance(self, BatchCommitContract)


class BatchCommitContract(ExactlyOnceContract):
    """The contract of an exactly-once sink that takes several results in one transaction."""

    def commit_all(self, sink: Sink[Any], staged: list[Any], shares: list[PartitionCommit]) -> None:
        """Commit them at once."""
        assert isinstance(sink, BatchCommitSink)
        sink.commit_all(staged, shares)

    def test_several_results_are_committed_at_once(self, bench: SinkBench) -> None:
        """All rows are there, each once, and each partition is where its last micro-batch ends."""
        staged = [bench.stage("one", ROWS), bench.stage("two", MORE)]
        self.commit_all(bench.sink, staged, [self.share(0, 0, 20), self.share(1, 5, 10)])

        assert bench.rows == ROWS + MORE
        assert self.stored(bench) == [20, 10]
        last = [{"id": 4, "name": "d"}]
        bench.store("three", last, self.share(0, 20, 30))
        assert bench.rows == ROWS + MORE + last

    def test_results_without_rows_are_among_them(self, bench: SinkBench) -> None:
        """An empty result and none at all, before and after one with rows."""
        staged = [bench.stage(f"m{n}", each) for n, each in enumerate([None, [], ROWS, None])]
        self.commit_all(bench.sink, staged, [self.share(0, 0, 40)])

        assert bench.rows == ROWS
        assert self.stored(bench, 1) == [40]

    def test_after_a_conflict_each_can_be_committed_by_itself(self, bench: SinkBench) -> None:
        """Nothing of them is stored, the partition that moved is named, the others can go on."""
        bench.other().store("other", [], self.share(1, 0, 10))
        staged = [bench.stage("one", ROWS), bench.stage("two", MORE)]

        with pytest.raises(CommitConflictError) as caught:
            self.commit_all(bench.sink, staged, [self.share(0, 0, 10), self.share(1, 0, 10)])

        assert [conflict.partition.partition for conflict in caught.value.conflicts] == [1]
        assert bench.rows == []
        bench.sink.commit(staged[0], [self.share(0, 0, 10)])
        with pytest.raises(CommitConflictError):
            bench.sink.commit(staged[1], [self.share(1, 0, 10)])
        bench.sink.discard(staged[1])
        assert bench.rows == ROWS

    def test_what_was_committed_at_once_is_not_taken_again(self, bench: SinkBench) -> None:
        """Neither together nor one by one, by this sink or by another on the same place."""
        staged = [bench.stage(name, ROWS) for name in ("one", "two")]
        self.commit_all(bench.sink, [staged[0]], [self.share(0, 0, 20)])
        other = bench.other()
        again = other.stage("again", ROWS)

        with pytest.raises(CommitConflictError):
            self.commit_all(other.sink, [again], [self.share(0, 0, 20)])
        other.sink.discard(again)
        with pytest.raises(CommitConflictError):
            bench.sink.commit(staged[1], [self.share(0, 0, 10)])
        bench.sink.discard(staged[1])

        assert bench.rows == ROWS


class TransactionalOffsetsContract(ExactlyOnceContract):
    """The contract of an exactly-once sink whose offsets an operator can move."""

    def move(self, number: int, start: int, target: int) -> OffsetMove:
        """Return the move of one partition's offset."""
        moved = self.share(number, 0, 1)
        return OffsetMove(moved.identity, moved.partition, start, target)

    def test_offsets_are_moved_forward_and_back(self, bench: SinkBench) -> None:
        """A sink that was not opened moves them without rows, and what follows begins there."""
        bench.store("first", ROWS, self.share(0, 0, 10), self.share(1, 0, 10))
        other = bench.place.sink()
        assert isinstance(other, TransactionalOffsets)
        other.move_offsets([self.move(0, 10, 20), self.move(1, 10, 4)], "by hand")

        assert self.stored(bench) == [20, 4]
        assert bench.rows == ROWS
        bench.store("next", MORE, self.share(1, 4, 10))
        assert bench.rows == ROWS + MORE

    def test_moves_are_made_all_or_none(self, bench: SinkBench) -> None:
        """One move that starts elsewhere is a conflict, and nothing is moved."""
        bench.store("first", ROWS, self.share(0, 0, 10), self.share(1, 0, 10))
        assert isinstance(bench.sink, TransactionalOffsets)
        with pytest.raises(CommitConflictError) as caught:
            bench.sink.move_offsets([self.move(0, 10, 20), self.move(1, 5, 20)], "by hand")

        (conflict,) = caught.value.conflicts
        assert (conflict.partition.partition, conflict.expected, conflict.stored) == (1, 5, 10)
        assert self.stored(bench) == [10, 10]


class TablesOfArrow:
    """Put before a contract, has it give the sink tables instead of DataFrames."""

    @pytest.fixture
    def frames(self) -> Frames:
        """Return what makes tables of rows."""
        return table


def table(rows: list[Row]) -> pa.Table:
    """Return the rows as a table."""
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def data_frames(runtime: SparkRuntime) -> Frames:
    """Return what makes DataFrames of rows."""
    return lambda rows: runtime.session.createDataFrame(table(rows))
