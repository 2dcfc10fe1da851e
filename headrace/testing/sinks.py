"""What every sink has to do, wherever its results go: test classes to derive from, for pytest.

docs/sinks.md shows how a custom sink is put to them. They call for the fixture ``place`` and
nothing else with :class:`TablesOfArrow`; without it results are DataFrames, and the fixture
:func:`spark_runtime` is to be imported into a ``conftest.py``.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
import pytest

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.sinks.contract import (
    BatchCommitSink,
    CommitConflictError,
    Guarantee,
    OffsetMove,
    PartitionCommit,
    TransactionalOffsets,
)
from headrace.sinks.micro_batch import MicroBatch, OffsetRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    from headrace.sinks.contract import Result, Sink
    from headrace.spark.runtime import SparkRuntime
    from headrace.spark.settings import SparkSettings

    #: Makes a result of rows with the columns ``id`` and ``name``.
    Frames: TypeAlias = Callable[[list["Row"]], Result]

Row = dict[str, Any]
ROWS: list[Row] = [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
MORE: list[Row] = [{"id": 3, "name": "ü\n"}]
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@contextmanager
def started_spark(settings: SparkSettings | None = None) -> Iterator[SparkRuntime]:
    """Start Spark, on two cores where nothing else is said, and stop it at the end."""
    from headrace.spark.runtime import SparkRuntime  # noqa: PLC0415 - tables need no Spark
    from headrace.spark.settings import short_lived  # noqa: PLC0415 - as above

    # two tasks, so that chunks and shuffles are real
    runtime = SparkRuntime(settings or short_lived("local[2]"))
    runtime.start()
    try:
        yield runtime
    finally:
        runtime.stop(Deadline.after(30))


@pytest.fixture(scope="session")
def spark_runtime() -> Iterator[SparkRuntime]:
    """Have Spark for the run; import it into a ``conftest.py``."""
    with started_spark() as runtime:
        yield runtime


class SinkPlace(Protocol):
    """Where a sink writes to: several sinks can be opened on it, and its content be read."""

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


def sorted_rows(place: SinkPlace) -> list[Row]:
    """Return a place's rows by id."""
    return sorted(place.rows(), key=lambda row: int(row["id"]))


class SinkContract:
    """What every sink does. Subclasses provide the fixture ``place`` and say the guarantee."""

    guarantee: Guarantee

    def identity(self, number: int) -> str:
        """Return what a partition's offset is stored under; override it where it has to be real."""
        return identity(number)

    def share(self, number: int, start: int, next_offset: int) -> PartitionCommit:
        """Return one partition's share of a commit; override it with :meth:`identity`."""
        return share(number, start, next_offset)

    @pytest.fixture
    def place(self) -> SinkPlace:
        """Return an empty place."""
        raise NotImplementedError

    @pytest.fixture
    def sink(self, place: SinkPlace) -> Sink[Any]:
        """Return an open sink."""
        sink = place.sink()
        sink.open()
        return sink

    @pytest.fixture
    def frames(self, spark_runtime: SparkRuntime) -> Frames:
        """Return what makes results of rows; :class:`TablesOfArrow` needs no Spark for it."""
        return data_frames(spark_runtime)

    def test_the_guarantee_is_said(self, sink: Sink[Any]) -> None:
        """The sink says what it promises."""
        assert sink.guarantee is self.guarantee

    def test_an_unknown_partition_has_no_offset(self, sink: Sink[Any]) -> None:
        """A sink that never saw a partition leaves its position to the group's commit."""
        assert sink.stored_offset(self.identity(0)) is None

    def test_rows_are_there_once_they_are_committed(
        self, sink: Sink[Any], place: SinkPlace, frames: Frames
    ) -> None:
        """What is staged is not visible, and what is committed is, every row once."""
        staged = sink.stage(micro_batch("one"), frames(ROWS))
        assert place.rows() == []

        sink.commit(staged, [self.share(0, 0, 10)])
        sink.commit(sink.stage(micro_batch("two"), frames(MORE)), [self.share(0, 10, 20)])

        assert sorted_rows(place) == ROWS + MORE

    def test_discarded_rows_never_show(
        self, sink: Sink[Any], place: SinkPlace, frames: Frames
    ) -> None:
        """A result that is discarded leaves nothing behind, and the same range can follow."""
        sink.discard(sink.stage(micro_batch("one"), frames(ROWS)))

        sink.commit(sink.stage(micro_batch("two"), frames(MORE)), [self.share(0, 0, 10)])

        assert place.rows() == MORE

    def test_no_rows_are_a_result_too(
        self, sink: Sink[Any], place: SinkPlace, frames: Frames
    ) -> None:
        """A result without rows, and no result at all, are committed without a row."""
        sink.commit(sink.stage(micro_batch("one"), None), [self.share(0, 0, 10)])
        sink.commit(sink.stage(micro_batch("two"), frames([])), [self.share(1, 0, 10)])

        assert place.rows() == []

    def test_what_a_closed_sink_wrote_is_kept(
        self, sink: Sink[Any], place: SinkPlace, frames: Frames
    ) -> None:
        """Another sink goes on where one was closed."""
        sink.commit(sink.stage(micro_batch("one"), frames(ROWS)), [self.share(0, 0, 10)])
        sink.close()

        other = place.sink()
        other.open()
        other.commit(other.stage(micro_batch("two"), frames(MORE)), [self.share(0, 10, 20)])
        other.close()

        assert sorted_rows(place) == ROWS + MORE


class ExactlyOnceContract(SinkContract):
    """What a sink that keeps offsets does beyond that."""

    guarantee = Guarantee.EXACTLY_ONCE

    def test_offsets_come_back(self, sink: Sink[Any], place: SinkPlace, frames: Frames) -> None:
        """Each partition's next offset is read back, also by another sink."""
        other = place.sink()
        other.open()
        sink.commit(
            sink.stage(micro_batch("one"), frames(ROWS)),
            [self.share(0, 0, 10), self.share(1, 7, 9)],
        )

        for reader in (sink, other):
            stored = [reader.stored_offset(self.identity(number)) for number in range(3)]
            assert stored == [10, 9, None]

    def test_offsets_move_without_rows(
        self, sink: Sink[Any], place: SinkPlace, frames: Frames
    ) -> None:
        """An empty result and no result move the offsets as any other does."""
        sink.commit(sink.stage(micro_batch("one"), frames([])), [self.share(0, 0, 10)])
        sink.commit(sink.stage(micro_batch("two"), None), [self.share(0, 10, 30)])

        assert sink.stored_offset(self.identity(0)) == 30
        assert place.rows() == []

    @pytest.mark.parametrize("start", [0, 5, 20])
    def test_a_range_that_does_not_follow_is_refused(
        self, start: int, sink: Sink[Any], place: SinkPlace, frames: Frames
    ) -> None:
        """A replay, an overlap and a gap are conflicts that name stored and expected offset."""
        sink.commit(sink.stage(micro_batch("one"), frames(ROWS)), [self.share(0, 0, 10)])
        staged = sink.stage(micro_batch("two"), frames(MORE))

        with pytest.raises(CommitConflictError) as caught:
            sink.commit(staged, [self.share(0, start, start + 10)])
        sink.discard(staged)

        (conflict,) = caught.value.conflicts
        assert (conflict.expected, conflict.stored) == (start, 10)
        assert sorted_rows(place) == ROWS

    def test_a_conflict_names_the_moved_partitions_only(
        self, sink: Sink[Any], place: SinkPlace, frames: Frames
    ) -> None:
        """Of a merged micro-batch nothing is stored, and the partitions at fault are named."""
        other = place.sink()
        other.open()
        other.commit(other.stage(micro_batch("other"), frames(ROWS)), [self.share(1, 0, 10)])
        staged = sink.stage(micro_batch("one"), frames(MORE))

        with pytest.raises(CommitConflictError) as caught:
            sink.commit(staged, [self.share(0, 0, 10), self.share(1, 0, 10)])
        sink.discard(staged)

        assert [conflict.partition.partition for conflict in caught.value.conflicts] == [1]
        assert sink.stored_offset(self.identity(0)) is None
        assert sorted_rows(place) == ROWS

    def test_two_sinks_share_a_place(
        self, sink: Sink[Any], place: SinkPlace, frames: Frames
    ) -> None:
        """Sinks of different owners commit in turn, each its own partitions, without a conflict."""
        other = place.sink()
        other.open()
        for round_ in range(3):
            for number, each in enumerate((sink, other)):
                rows = [{"id": 2 * round_ + number, "name": "x"}]
                staged = each.stage(micro_batch(f"{number}-{round_}"), frames(rows))
                each.commit(staged, [self.share(number, round_ * 10, round_ * 10 + 10)])

        assert [row["id"] for row in sorted_rows(place)] == list(range(6))

    def test_a_sink_that_groups_is_put_to_that_contract_as_well(self, sink: Sink[Any]) -> None:
        """Who has ``commit_all`` has it called: derive from :class:`BatchCommitContract`."""
        assert isinstance(sink, BatchCommitSink) == isinstance(self, BatchCommitContract)


class BatchCommitContract(ExactlyOnceContract):
    """What a sink does beyond that which takes several results in one transaction."""

    def commit_all(self, sink: Sink[Any], staged: list[Any], shares: list[PartitionCommit]) -> None:
        """Commit them at once."""
        assert isinstance(sink, BatchCommitSink)
        sink.commit_all(staged, shares)

    def test_several_results_are_committed_at_once(
        self, sink: Sink[Any], place: SinkPlace, frames: Frames
    ) -> None:
        """All rows are there, each once, and each partition is where its last micro-batch ends."""
        staged = [
            sink.stage(micro_batch("one"), frames(ROWS)),
            sink.stage(micro_batch("two"), frames(MORE)),
        ]
        self.commit_all(sink, staged, [self.share(0, 0, 20), self.share(1, 5, 10)])

        assert sorted_rows(place) == ROWS + MORE
        stored = [sink.stored_offset(self.identity(number)) for number in range(2)]
        assert stored == [20, 10]
        last = [{"id": 4, "name": "d"}]
        sink.commit(sink.stage(micro_batch("three"), frames(last)), [self.share(0, 20, 30)])
        assert sorted_rows(place) == ROWS + MORE + last

    def test_results_without_rows_are_among_them(
        self, sink: Sink[Any], place: SinkPlace, frames: Frames
    ) -> None:
        """An empty result and none at all, before and after one with rows."""
        results = [None, frames([]), frames(ROWS), None]
        staged = [sink.stage(micro_batch(f"m{n}"), each) for n, each in enumerate(results)]
        self.commit_all(sink, staged, [self.share(0, 0, 40)])

        assert sorted_rows(place) == ROWS
        assert sink.stored_offset(self.identity(0)) == 40

    def test_after_a_conflict_each_can_be_committed_by_itself(
        self, sink: Sink[Any], place: SinkPlace, frames: Frames
    ) -> None:
        """Nothing of them is stored, the partition that moved is named, the others can go on."""
        other = place.sink()
        other.open()
        other.commit(other.stage(micro_batch("other"), frames([])), [self.share(1, 0, 10)])
        staged = [
            sink.stage(micro_batch("one"), frames(ROWS)),
            sink.stage(micro_batch("two"), frames(MORE)),
        ]

        with pytest.raises(CommitConflictError) as caught:
            self.commit_all(sink, staged, [self.share(0, 0, 10), self.share(1, 0, 10)])

        assert [conflict.partition.partition for conflict in caught.value.conflicts] == [1]
        assert place.rows() == []
        sink.commit(staged[0], [self.share(0, 0, 10)])
        with pytest.raises(CommitConflictError):
            sink.commit(staged[1], [self.share(1, 0, 10)])
        sink.discard(staged[1])
        assert sorted_rows(place) == ROWS

    def test_what_was_committed_at_once_is_not_taken_again(
        self, sink: Sink[Any], place: SinkPlace, frames: Frames
    ) -> None:
        """Neither together nor one by one, by this sink or by another on the same place."""
        staged = [sink.stage(micro_batch(name), frames(ROWS)) for name in ("one", "two")]
        self.commit_all(sink, [staged[0]], [self.share(0, 0, 20)])
        other = place.sink()
        other.open()
        again = other.stage(micro_batch("again"), frames(ROWS))

        with pytest.raises(CommitConflictError):
            self.commit_all(other, [again], [self.share(0, 0, 20)])
        other.discard(again)
        with pytest.raises(CommitConflictError):
            sink.commit(staged[1], [self.share(0, 0, 10)])
        sink.discard(staged[1])

        assert sorted_rows(place) == ROWS


class TransactionalOffsetsContract(ExactlyOnceContract):
    """What a sink does beyond that whose offsets an operator can move."""

    def move(self, number: int, start: int, target: int) -> OffsetMove:
        """Return the move of one partition's offset."""
        moved = self.share(number, 0, 1)
        return OffsetMove(moved.identity, moved.partition, start, target)

    @pytest.fixture
    def keeper(self, sink: Sink[Any], frames: Frames) -> TransactionalOffsets:
        """Return a sink that has stored 10 for two partitions."""
        shares = [self.share(0, 0, 10), self.share(1, 0, 10)]
        sink.commit(sink.stage(micro_batch("first"), frames(ROWS)), shares)
        assert isinstance(sink, TransactionalOffsets)
        return sink

    def test_offsets_are_moved_forward_and_back(
        self, keeper: TransactionalOffsets, sink: Sink[Any], place: SinkPlace, frames: Frames
    ) -> None:
        """A sink that was not opened moves them without rows, and what follows begins there."""
        other = place.sink()
        assert isinstance(other, TransactionalOffsets)
        other.move_offsets([self.move(0, 10, 20), self.move(1, 10, 4)], "by hand")

        stored = [keeper.stored_offset(self.identity(number)) for number in range(2)]
        assert stored == [20, 4]
        assert sorted_rows(place) == ROWS
        sink.commit(sink.stage(micro_batch("next"), frames(MORE)), [self.share(1, 4, 10)])
        assert sorted_rows(place) == ROWS + MORE

    def test_moves_are_made_all_or_none(self, keeper: TransactionalOffsets) -> None:
        """One move that starts elsewhere is a conflict, and nothing is moved."""
        with pytest.raises(CommitConflictError) as caught:
            keeper.move_offsets([self.move(0, 10, 20), self.move(1, 5, 20)], "by hand")

        (conflict,) = caught.value.conflicts
        assert (conflict.partition.partition, conflict.expected, conflict.stored) == (1, 5, 10)
        stored = [keeper.stored_offset(self.identity(number)) for number in range(2)]
        assert stored == [10, 10]


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
