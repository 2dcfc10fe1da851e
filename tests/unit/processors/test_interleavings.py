"""Lane and sink in any order of their steps, with failures anywhere: each batch counts once."""

from __future__ import annotations

from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.core.errors import EngineDiedError, FencedError, RowsRefusedError, SinkConflictError
from headrace.processors.pending import MergeLimits
from headrace.sinks.errors import CommitConflictError
from tests.unit.processors.spark_bench import Bench, GroupingSink, MemorySink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from headrace.processors.contract import BatchResponse
    from headrace.sinks.contract import PartitionCommit
    from headrace.sinks.micro_batch import MicroBatch

PARTITIONS = 3
IN_FLIGHT = 3
RECORDS = 10


@dataclass
class KeepingSink(MemorySink):
    """A double that keeps offsets, and refuses what does not follow them."""

    offsets: dict[int, int] = field(default_factory=dict)
    conflicts: int = 0
    broken: int = 0

    def store(self, staged: Sequence[str], offsets: Sequence[PartitionCommit]) -> None:
        """Store what follows upon what is stored."""
        wrong = [
            SinkConflictError(o.partition, o.start, self.offsets.get(o.partition.partition, 0))
            for o in offsets
            if self.offsets.get(o.partition.partition, 0) != o.start
        ]
        if wrong:
            self.conflicts += 1
            raise CommitConflictError(wrong)
        super().store(staged, offsets)
        self.offsets.update({o.partition.partition: o.next_offset for o in offsets})

    def move(self, staged: str, offsets: Sequence[PartitionCommit]) -> None:
        """Move without data, as a commit does."""
        super().move(staged, offsets)
        for offset in offsets:
            assert self.offsets.get(offset.partition.partition, 0) == offset.start
            self.offsets[offset.partition.partition] = offset.next_offset

    def discard(self, staged: str) -> None:
        """Break the promise that this never raises, as often as the test wants."""
        super().discard(staged)
        if self.broken:
            self.broken -= 1
            raise OSError("cannot be deleted")


@dataclass
class KeepingGroupingSink(KeepingSink, GroupingSink):
    """One that takes several results at once."""


class Partition:
    """Stands for the channel: cuts batches, and takes them again from where one failed."""

    def __init__(self, bench: Bench, number: int, *, skips: bool) -> None:
        self._bench = bench
        self._number = number
        self._skips = skips
        self.position = 0
        self.skipped: list[int] = []
        self.out: list[tuple[int, Future[BatchResponse]]] = []

    def send(self) -> None:
        """Hand out the next batch, unless as many are out as may be."""
        self.settle()
        if len(self.out) < IN_FLIGHT:
            self.out.append((self.position, self._bench.send(self._number, self.position)))
            self.position += RECORDS

    def settle(self) -> None:
        """Take the answers in their order."""
        while self.out and self.out[0][1].done():
            start, answer = self.out.pop(0)
            try:
                answer.result(0)
            except (CancelledError, Exception) as error:  # noqa: BLE001 - any failure of a double
                self.withdraw()
                self.position = start
                self._decide(start, error)
            else:
                assert self._stored >= start + RECORDS, "answered before its commit"

    def _decide(self, start: int, error: BaseException) -> None:
        """Skip a batch that is bad, as the policy may."""
        processor, batch = self._bench.processor, self._bench.batch(self._number, start)
        if isinstance(error, ValueError) and self._skips:
            processor.pass_over(batch)
            self.skipped.append(start)
            self.position = start + RECORDS
        processor.on_exception(batch.assignment, error, batch)

    def withdraw(self) -> None:
        """Take back all that is out and read on from what the sink has."""
        for _, answer in self.out:
            answer.cancel()
        self.out.clear()
        self.position = self._stored

    def withdraw_and_fail(self) -> None:
        """Take back all, in a commit that fails."""
        self.withdraw()
        raise OSError("away")

    @property
    def _stored(self) -> int:
        assert isinstance(self._bench.sink, KeepingSink)
        return self._bench.sink.offsets.get(self._number, 0)


numbers = st.integers(0, PARTITIONS - 1)
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["send", "stage", "stage", "withdraw"]), numbers),
        st.tuples(st.sampled_from(["stage all", "lane", "sink", "sink, and lane meanwhile"])),
        st.tuples(st.just("sink fails"), st.integers(1, PARTITIONS)),
        st.tuples(st.just("withdraw in a commit that fails"), numbers),
        st.tuples(st.sampled_from(["job fails", "JVM dies", "sink meanwhile", "job is withdrawn"])),
        st.tuples(st.sampled_from(["next commit fails", "member is fenced", "discard fails"])),
    ),
    min_size=8,
    max_size=60,
)


def apply(bench: Bench, channel: Sequence[Partition], step: tuple[str] | tuple[str, int]) -> None:
    """Do one step."""
    name, *number = step
    steps_of(bench, channel)[str(name)](*number)


def steps_of(bench: Bench, channel: Sequence[Partition]) -> dict[str, Callable[..., object]]:
    """Return what each step does."""
    script, sink = bench.engine.script, bench.sink
    assert isinstance(sink, KeepingSink)

    def stage(*partitions: Partition) -> None:
        for partition in partitions:
            partition.send()
            lane_turn(bench)

    def withdraw(number: int) -> None:
        channel[number].settle()
        channel[number].withdraw()

    def fail_withdrawn(number: int) -> None:
        channel[number].settle()  # before the commit, which would hold up what settling may move
        sink_turn(bench, channel[number].withdraw_and_fail)

    def withdraw_all(job: MicroBatch) -> None:
        for part in job.ranges:
            channel[part.partition].withdraw()

    return {
        "send": lambda number: channel[number].send(),
        "stage": lambda number: stage(channel[number]),
        "stage all": lambda: stage(*channel),
        "withdraw": withdraw,
        "lane": lambda: lane_turn(bench),
        "sink": lambda: sink_turn(bench),
        "sink, and lane meanwhile": lambda: sink_turn(bench, lambda: lane_turn(bench)),
        "sink fails": lambda times: sink_turn(bench, *[OSError("away")] * times),
        "withdraw in a commit that fails": fail_withdrawn,
        "job fails": lambda: script.append(ValueError("bad")),
        "JVM dies": lambda: script.append(EngineDiedError("gone")),
        "sink meanwhile": lambda: script.append(lambda _: sink_turn(bench)),
        "job is withdrawn": lambda: script.append(withdraw_all),
        "next commit fails": lambda: sink.script.append(RowsRefusedError("too long")),
        "member is fenced": lambda: sink_turn(bench, *[FencedError("out")] * 2),
        "discard fails": lambda: setattr(sink, "broken", sink.broken + 1),
    }


def sink_turn(bench: Bench, *script: BaseException | Callable[[], None]) -> None:
    """Let the sink commit what waits, with this script."""
    line, sink = bench.line, bench.sink
    if line._waiting and not line._in_hand:
        sink.script = [*script]
        bench.runner.commits.run_once()
        sink.script = []


def lane_turn(bench: Bench) -> None:
    """Let the lane do what it can do without waiting for others."""
    line, waiting = bench.line, bench.processor._open._waiting
    if line.has_returned:
        if not line._staged:
            bench.runner.run_once()
    elif waiting and line.wait_for_room(0):
        bench.runner.run_once()


def is_busy(bench: Bench) -> bool:
    """Whether anything is left to do."""
    line = bench.line
    return bool(bench.processor._open._waiting or line._staged or line.has_returned)


@given(
    steps=steps,
    skips=st.booleans(),
    groups=st.booleans(),
    most=st.sampled_from([RECORDS, 3 * RECORDS, 100]),
)
@example(  # what is sent again while what was withdrawn still waits
    steps=[
        *[("stage all",)] * 2,
        ("sink",),
        ("withdraw in a commit that fails", 0),
        *[("stage all",)] * 2,
        ("sink",),
        ("stage all",),
    ],
    skips=False,
    groups=False,
    most=3 * RECORDS,
)
@settings(max_examples=200, deadline=None)
def test_offsets_are_stored_once_and_in_order(
    steps: list[tuple[str] | tuple[str, int]], skips: bool, groups: bool, most: int
) -> None:
    """Each batch counts once and in order, for any failures and any order of threads.

    A sink that keeps offsets sees no conflict, with commits of one result and of all: no commit
    leaves a gap, and none has a withdrawn or skipped batch.
    """
    sink = KeepingGroupingSink() if groups else KeepingSink()
    bench = Bench(MergeLimits(max_records=most), sink=sink)
    channel = [Partition(bench, number, skips=skips) for number in range(PARTITIONS)]
    for step in steps:
        apply(bench, channel, step)
    while is_busy(bench):
        lane_turn(bench)
        bench.commit()
        for partition in channel:
            partition.settle()
    for partition in channel:
        partition.settle()

    assert sink.conflicts == 0
    stored = [each for commit in sink.stored_ranges for each in commit]
    for number, partition in enumerate(channel):
        offsets = [at for n, start, end in stored if n == number for at in range(start, end)]
        passed = [at for start in partition.skipped for at in range(start, start + RECORDS)]
        assert partition.out == []
        assert sorted(offsets + passed) == list(range(sink.offsets.get(number, 0)))
    sink.require_one_end_each()
    assert not any(bench.processor.may_still_store(each) for each in bench.assignments)
