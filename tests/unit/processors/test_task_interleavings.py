"""Tasks of two topics, in any order of the steps of channel, lane and sink, with any failures."""

from __future__ import annotations

from collections import deque
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import (
    BatchCancelledError,
    FencedError,
    PoisonRecordError,
    RowsRefusedError,
    SinkConflictError,
)
from headrace.core.records import TopicPartition
from headrace.core.supervision import PeriodicThread
from headrace.core.tables import table_of
from headrace.processors.contract import ChannelContext
from headrace.processors.micro_batch_processor import MicroBatchProcessor
from headrace.processors.pending import MergeLimits
from headrace.processors.task_merge import HOLD, SETTLE, MergeRules
from headrace.sinks.errors import CommitConflictError
from headrace.telemetry.metrics import Metrics
from headrace.testing.channel import FakeClock
from headrace.testing.records import FakeAssignment, FakeRecord, make_batch
from tests.unit.processors.spark_bench import Engine, GroupingSink, MemorySink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from headrace.core.records import Batch
    from headrace.processors.contract import BatchResponse
    from headrace.processors.sink_commits import CommitQueue
    from headrace.sinks.channel_sink import ChannelSink, Staged
    from headrace.sinks.contract import PartitionCommit
    from headrace.sinks.micro_batch import MicroBatch

TOPICS = ("b", "a")
TASKS = 2
IN_FLIGHT = 3
MAX_IDLE = 1.0


class Place(NamedTuple):
    """One record."""

    topic: str
    partition: int
    offset: int


@dataclass
class MergingEngine(Engine):
    """A double that has the rows of its jobs, and fails for records that are poison."""

    rows: dict[str, list[Place]] = field(default_factory=dict)
    poison: set[Place] = field(default_factory=set)

    def prepare(self, batch: Batch) -> pa.Table:
        """Return the records as the engines of tasks do."""
        return table_of(batch)

    def execute(
        self,
        micro_batch: MicroBatch,
        prepared: Sequence[pa.Table],
        seconds: float | None,
        sink: ChannelSink,
    ) -> Staged:
        """Note the rows in their order, or fail for the first that is poison."""
        table = pa.concat_tables(prepared)
        columns = (table.column(name).to_pylist() for name in Place._fields)
        rows = [Place(*row) for row in zip(*columns, strict=True)]
        for each in rows:
            if each in self.poison:
                raise PoisonRecordError(TopicPartition(*each[:2]), each.offset, "poison")
        self.rows[micro_batch.id] = rows
        return super().execute(micro_batch, prepared, seconds, sink)


@dataclass
class TaskSink(MemorySink):
    """A double that keeps offsets, and refuses what does not follow them; all of a task together.

    ``order`` has all records as they were stored, by task.
    """

    offsets: dict[TopicPartition, int] = field(default_factory=dict)
    order: dict[int, list[Place]] = field(default_factory=dict)
    rows: Mapping[str, list[Place]] = field(default_factory=dict)
    conflicts: int = 0

    def store(self, staged: Sequence[str], offsets: Sequence[PartitionCommit]) -> None:
        """Store what follows upon what is stored."""
        self._require(offsets)
        super().store(staged, offsets)
        self.offsets.update({o.partition: o.next_offset for o in offsets})
        for name in staged:
            for place in self.rows[name]:
                self.order.setdefault(place.partition, []).append(place)

    def move(self, staged: str, offsets: Sequence[PartitionCommit]) -> None:
        """Move one partition without data, as a batch is passed over."""
        self._require(offsets, whole=False)
        super().move(staged, offsets)
        self.offsets.update({o.partition: o.next_offset for o in offsets})

    def _require(self, offsets: Sequence[PartitionCommit], *, whole: bool = True) -> None:
        wrong = [
            SinkConflictError(o.partition, o.start, self.offsets.get(o.partition, 0))
            for o in offsets
            if self.offsets.get(o.partition, 0) != o.start
        ]
        if wrong:
            self.conflicts += 1
            raise CommitConflictError(wrong)
        if whole:
            there = {o.partition for o in offsets}
            numbers = {each.partition for each in there}
            assert there == {TopicPartition(t, n) for t in TOPICS for n in numbers}


@dataclass
class TaskGroupingSink(TaskSink, GroupingSink):
    """One that takes several results at once."""


class TaskBench:
    """A processor of tasks over the doubles, whose threads are the test."""

    def __init__(self, streams: Mapping[TopicPartition, list[int]], sink: TaskSink) -> None:
        self.streams = streams
        self.clock = FakeClock()
        self.engine = MergingEngine()
        self.sink = sink
        sink.rows = self.engine.rows
        self.metrics = Metrics()
        self.processor = MicroBatchProcessor(
            self.engine,
            sink,
            limits=MergeLimits(max_records=12),
            job_timeout=5.0,
            tasks=MergeRules(TOPICS, MAX_IDLE),
        )
        with patch.object(PeriodicThread, "start"):
            context = ChannelContext("channel", "group", self.metrics, clock=self.clock)
            self.processor.open(context)
        self.partitions = [Partition(self, each) for each in sorted(streams)]

    @property
    def line(self) -> CommitQueue:
        """Return the line between the lane and the sink."""
        runner = self.processor._runner
        assert runner is not None
        return runner._line

    def lane(self) -> None:
        """Let the lane do what it can do without waiting for others."""
        runner, waiting = self.processor._runner, self.processor._open._waiting
        assert runner is not None
        if self.line.has_returned:
            if not self.line._staged:
                runner.run_once()
        elif waiting and self.line.wait_for_room(0):
            runner.run_once()

    def store(self, *script: BaseException | Callable[[], None]) -> None:
        """Let the sink commit what waits, with this script."""
        if self.line._waiting and not self.line._in_hand:
            self.sink.script = [*script]
            assert self.processor._runner is not None
            self.processor._runner.commits.run_once()
            self.sink.script = []

    def look(self, after: float = 0.0) -> None:
        """Let time pass, and waiting tasks be looked at."""
        assert self.processor.tasks is not None
        for each in self.partitions:
            each.hand_out_late()
        self.clock.advance(after)
        self.processor.tasks.look()
        self.clock.advance(MAX_IDLE)
        self.processor.tasks.look()

    @property
    def is_done(self) -> bool:
        """Return whether all is stored or skipped."""
        return all(each.is_done for each in self.partitions)


class Partition:
    """Stands for the channel: cuts batches, and takes them again from where one failed."""

    def __init__(self, bench: TaskBench, partition: TopicPartition) -> None:
        self._bench = bench
        self.partition = partition
        self._times = bench.streams[partition]
        self._failures: dict[int, int] = {}
        self.skipped: list[Place] = []
        self.out: deque[tuple[Batch, Future[BatchResponse]]] = deque()
        self._cut: Batch | None = None
        self._take()

    def _take(self) -> None:
        self.held = FakeAssignment(self.partition, high_watermark=len(self._times))
        self.held.position = self._stored
        self._bench.processor.on_assigned(self.held)

    @property
    def is_done(self) -> bool:
        """Return whether all of it is stored or skipped."""
        return self._stored == len(self._times)

    @property
    def _stored(self) -> int:
        return self._bench.sink.offsets.get(self.partition, 0)

    def send(self, most: int) -> None:
        """Hand out the next batch, unless as many are out as may be; one that failed alone."""
        self.cut(most)
        self._hand_out()

    def cut(self, most: int) -> None:
        """Cut that batch; it is handed out with the next step of the partition."""
        self.settle()
        start = self.held.position
        attempt = 1 + self._failures.get(start, 0)
        stands_alone = attempt > 1 or any(batch.attempt > 1 for batch, _ in self.out)
        if len(self.out) >= IN_FLIGHT or (self.out and stands_alone) or start >= len(self._times):
            return
        # a batch that failed is divided
        size = max(1, most // 2 ** (attempt - 1))
        times = self._times[start : start + size]
        records = [FakeRecord(timestamp_=time, value_=b"v") for time in times]
        batch = make_batch(records, assignment=self.held, start=start, attempt=attempt)
        self.held.position = batch.next_offset
        self._cut = batch
        self._late_at = self._bench.clock.monotonic() + SETTLE / 2

    def hand_out_late(self) -> None:
        """Hand out what was cut so long ago that no worker takes longer."""
        if self._cut is not None and self._bench.clock.monotonic() > self._late_at:
            self._hand_out()

    def _hand_out(self) -> None:
        batch, self._cut = self._cut, None
        if batch is not None:
            self.out.append((batch, self._bench.processor.on_next_batch(batch)))

    def settle(self) -> None:
        """Take the answers in their order."""
        self._hand_out()
        while self.out and self.out[0][1].done():
            batch, answer = self.out.popleft()
            try:
                response = answer.result(0)
            except (CancelledError, Exception) as error:  # noqa: BLE001 - any failure of a double
                self.withdraw()
                self.held.position = batch.start
                self._decide(batch, error)
            else:
                end = batch.next_offset if response.offset is None else response.offset
                assert self._stored >= end, "answered before its commit"
                if response.offset is not None:
                    self.withdraw()
                    self.held.position = end

    def _decide(self, batch: Batch, error: BaseException) -> None:
        """Do as the policy for batches that fail: divide, and skip what fails alone."""
        if isinstance(error, BatchCancelledError | CancelledError):
            return
        if isinstance(error, SinkConflictError):
            self.held.position = self._stored
        elif isinstance(error, PoisonRecordError | ValueError):
            self._failures[batch.start] = self._failures.get(batch.start, 0) + 1
            if len(batch) == 1 and self._failures[batch.start] > 2:
                self._bench.processor.pass_over(batch)
                self.skipped.append(Place(*self.partition, batch.start))
                self.held.position = batch.next_offset
        self._bench.processor.on_exception(self.held, error, batch)

    def withdraw(self) -> None:
        """Take back all that is out and read on from what the sink has."""
        self._hand_out()
        for _, answer in self.out:
            answer.cancel()
        self.out.clear()
        self.held.position = self._stored

    def lose(self) -> None:
        """Lose the partition, and get it again."""
        self._hand_out()
        self.held.current = False
        self.withdraw()
        self._bench.processor.on_partition_lost(self.held)
        self._take()

    def release(self) -> None:
        """Release the partition once nothing is out, and get it again."""
        self.settle()
        if not self.out:
            self._bench.processor.on_stream_termination(self.held)
            self._take()


def merged(streams: Mapping[TopicPartition, list[int]], number: int) -> list[Place]:
    """Return a task's records one by one: the lowest time among the first ones of its topics."""
    heads = dict.fromkeys(TOPICS, 0)
    found: list[Place] = []
    while True:
        waiting = [
            (streams[TopicPartition(topic, number)][at], order, topic)
            for order, (topic, at) in enumerate(heads.items())
            if at < len(streams[TopicPartition(topic, number)])
        ]
        if not waiting:
            return found
        _, _, topic = min(waiting)
        found.append(Place(topic, number, heads[topic]))
        heads[topic] += 1


every = [TopicPartition(topic, number) for topic in TOPICS for number in range(TASKS)]
times = st.lists(st.integers(0, 12), max_size=14)
streams = st.fixed_dictionaries(dict.fromkeys(every, times))
which = st.integers(0, len(every) - 1)
Step = tuple[Any, ...]
sends = st.tuples(st.sampled_from(["send", "send", "cut"]), which, st.integers(1, 6))
turns = st.tuples(st.sampled_from(["lane", "lane", "sink", "sink, and lane meanwhile", "look"]))
calm = st.one_of(sends, sends, turns)
rough = st.one_of(
    sends,
    sends,
    turns,
    st.tuples(st.just("sink fails"), st.integers(1, 3)),
    st.tuples(st.sampled_from(["withdraw", "lose", "release"]), which),
    st.tuples(st.just("lose in a commit"), which),
    st.tuples(st.sampled_from(["job fails", "sink meanwhile", "long wait"])),
    st.tuples(st.sampled_from(["next commit fails", "member is fenced"])),
)


def apply(bench: TaskBench, step: Step) -> None:
    """Do one step."""
    name, *more = step
    script = bench.engine.script
    steps: dict[str, Callable[..., object]] = {
        "send": lambda number, most: bench.partitions[number].send(most),
        "cut": lambda number, most: bench.partitions[number].cut(most),
        "lane": bench.lane,
        "sink": bench.store,
        "sink, and lane meanwhile": lambda: bench.store(bench.lane),
        "look": bench.look,
        "long wait": lambda: bench.look(after=HOLD),
        "sink fails": lambda times: bench.store(*[OSError("away")] * times),
        "withdraw": lambda number: bench.partitions[number].withdraw(),
        "lose": lambda number: bench.partitions[number].lose(),
        "release": lambda number: bench.partitions[number].release(),
        "lose in a commit": lambda number: bench.store(bench.partitions[number].lose),
        "job fails": lambda: script.append(ValueError("bad")),
        "sink meanwhile": lambda: script.append(lambda _: bench.store()),
        "next commit fails": lambda: bench.sink.script.append(RowsRefusedError("too long")),
        "member is fenced": lambda: bench.store(*[FencedError("out")] * 2),
    }
    steps[name](*more)


def finish(bench: TaskBench) -> None:
    """Let all go on until everything is stored or skipped."""
    bench.engine.script.clear()
    for _ in range(1_000):
        if bench.is_done:
            break
        for partition in bench.partitions:
            partition.send(4)
        bench.look()
        bench.lane()
        bench.store()
        for partition in bench.partitions:
            partition.settle()
    assert bench.is_done, "it does not come to an end"
    for partition in bench.partitions:
        partition.settle()
        assert not partition.out


@given(streams=streams, steps=st.lists(calm, max_size=60), groups=st.booleans())
@settings(max_examples=200, deadline=None)
def test_a_task_is_one_merge_by_time_whatever_is_fetched_when(
    streams: dict[TopicPartition, list[int]], steps: list[Step], groups: bool
) -> None:
    """The records of each task are stored in the order of one merge, for any cuts and turns."""
    bench = TaskBench(streams, TaskGroupingSink() if groups else TaskSink())
    for step in steps:
        apply(bench, step)
    finish(bench)
    assert bench.sink.conflicts == 0
    for number in range(TASKS):
        assert bench.sink.order.get(number, []) == merged(streams, number)


@given(
    streams=streams,
    steps=st.lists(rough, max_size=60),
    poison=st.sets(st.tuples(which, st.integers(0, 13)), max_size=2),
    groups=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_a_task_is_stored_once_and_in_order_whatever_fails(
    streams: dict[TopicPartition, list[int]],
    steps: list[Step],
    poison: set[tuple[int, int]],
    groups: bool,
) -> None:
    """Each record counts once, in the order of the merge, but for those that are skipped.

    Nothing is skipped that is not poison, unless a job failed for no record.
    """
    bench = TaskBench(streams, TaskGroupingSink() if groups else TaskSink())
    bench.engine.poison = {Place(*sorted(every)[at], offset) for at, offset in poison}
    for step in steps:
        apply(bench, step)
    finish(bench)
    skipped = {place for each in bench.partitions for place in each.skipped}
    if not any(step[0] in {"job fails", "next commit fails"} for step in steps):
        assert skipped <= bench.engine.poison
    for number in range(TASKS):
        expected = [place for place in merged(streams, number) if place not in skipped]
        assert bench.sink.order.get(number, []) == expected
    bench.sink.require_one_end_each()
