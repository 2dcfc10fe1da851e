from __future__ import annotations

import gc
import weakref
from threading import Event, Thread, get_ident
from typing import TYPE_CHECKING

import pytest

from headrace.core.errors import BatchCancelledError, SinkConflictError
from headrace.core.records import TopicPartition
from headrace.core.tables import table_of
from headrace.processors.pending import MergeLimits
from headrace.sinks.contract import PartitionCommit
from headrace.sinks.errors import CommitConflictError
from tests.unit.processors.spark_bench import ADVANCE, Bench, Engine, error_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import pyarrow as pa

    from headrace.core.records import Batch
    from headrace.sinks.channel_sink import ChannelSink, Staged
    from headrace.sinks.micro_batch import MicroBatch


def test_batches_of_several_partitions_become_one_commit(bench: Bench) -> None:
    """Waiting batches are merged into one job and one commit, and each future is answered."""
    futures = [bench.send(0), bench.send(1), bench.send(0, 10), bench.send(2, 40)]

    bench.run_once()

    assert [future.result(0) for future in futures] == [ADVANCE] * 4
    assert bench.sink.stored_ranges == [[(0, 0, 20), (1, 0, 10), (2, 40, 50)]]
    assert [job.records for job in bench.engine.jobs] == [40]
    assert bench.sink.discarded == []


def test_an_answered_batch_is_freed_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prepared table does not wait for the cyclic collector, which runs seldom."""

    class Table:
        """Stands for the columns of a batch."""

    tables: list[weakref.ref[Table]] = []

    def prepare(_batch: Batch) -> Table:
        table = Table()
        tables.append(weakref.ref(table))
        return table

    monkeypatch.setattr(bench.engine, "prepare", prepare)
    gc.disable()
    try:
        bench.send(0)
        bench.send(1)
        bench.run_once()
        bench.run_once()  # lets go of what the last turn had in hand
        assert [table() for table in tables] == [None, None]
    finally:
        gc.enable()


class PreparingEngine(Engine):
    """A double that prepares real tables, and notes on which thread, and what each job gets."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []
        self.tables: list[list[pa.Table]] = []

    def prepare(self, batch: Batch) -> pa.Table:
        """Return the records in columns."""
        self.threads.append(get_ident())
        return table_of(batch)

    def execute(
        self,
        micro_batch: MicroBatch,
        prepared: Sequence[Any],
        seconds: float | None,
        sink: ChannelSink,
    ) -> Staged:
        """Keep the tables."""
        self.tables.append([*prepared])
        return super().execute(micro_batch, prepared, seconds, sink)


def test_the_next_batches_are_prepared_while_a_job_runs() -> None:
    """On the threads that bring them; their ranges and tables wait, and the next job gets both."""
    engine, begun, over = PreparingEngine(), Event(), Event()
    bench = Bench(engine=engine)

    def busy(_: MicroBatch) -> None:
        begun.set()
        assert over.wait(30.0)

    engine.script = [busy]
    first = bench.send(0)
    lane = Thread(target=bench.runner.run_once)
    lane.start()
    try:
        assert begun.wait(30.0)
        behind = [bench.send(0, 10), bench.send(1)]
        waiting = list(bench.processor._open._waiting)
        assert engine.threads == [get_ident()] * 3
        assert [batch.start for each in waiting for batch in each.batches] == [10, 0]
        assert [batch.next_offset for each in waiting for batch in each.batches] == [20, 10]
        assert [each.prepared.column("offset").to_pylist() for each in waiting] == [
            [*range(10, 20)],
            [*range(10)],
        ]
        assert len(engine.jobs) == 1
        assert not any(answer.done() for answer in [first, *behind])
    finally:
        over.set()
        lane.join(30.0)

    bench.run_once()

    assert [answer.result(0) for answer in [first, *behind]] == [ADVANCE] * 3
    assert bench.sink.stored_ranges == [[(0, 0, 10)], [(0, 10, 20), (1, 0, 10)]]
    assert len(engine.threads) == 3
    assert all(
        table is each.prepared for table, each in zip(engine.tables[1], waiting, strict=True)
    )


def test_the_sinks_identity_goes_with_each_offset(bench: Bench) -> None:
    """A commit names partitions by the assignment's identity, as stored_offset does."""
    bench.send(3)

    bench.run_once()

    identity = bench.assignments[3].identity
    assert bench.sink.stored[0][0] == PartitionCommit(identity, TopicPartition("t", 3), 0, 10)
    assert bench.processor.stored_offset(bench.assignments[3]) == len(identity)


@pytest.mark.parametrize(
    "limits", [MergeLimits(max_records=25), MergeLimits(max_bytes=25), MergeLimits(max_records=1)]
)
def test_a_micro_batch_keeps_its_limits(limits: MergeLimits) -> None:
    """Records and bytes bound a micro-batch, and a single batch runs whatever its size."""
    bench = Bench(limits)
    futures = [bench.send(0), bench.send(1), bench.send(2)]

    for _ in range(3):
        bench.run_once()

    sizes = [job.records for job in bench.engine.jobs]
    assert sizes == ([10, 10, 10] if limits.max_records == 1 else [20, 10])
    assert all(future.result(0) == ADVANCE for future in futures)


def test_a_batch_that_failed_before_runs_alone(bench: Bench) -> None:
    """A second attempt takes no other batch with it, and those around it still merge."""
    bench.send(0)
    bench.send(1)
    bench.send(2, attempt=2)
    bench.send(3)

    for _ in range(3):
        bench.run_once()

    assert [len(job.ranges) for job in bench.engine.jobs] == [2, 1, 1]
    assert [job.attempt for job in bench.engine.jobs] == [1, 2, 1]


def test_only_the_batch_that_fails_alone_fails(bench: Bench) -> None:
    """A merged micro-batch that fails is run batch by batch; the innocent are committed."""

    def refuse_partition_1(job: MicroBatch) -> None:
        if any(part.partition == 1 for part in job.ranges):
            raise ValueError("poison")

    bench.engine.script = [refuse_partition_1] * 4
    good, bad, other = bench.send(0), bench.send(1), bench.send(2)

    bench.run_once()

    assert isinstance(error_of(bad), ValueError)
    assert (good.result(0), other.result(0)) == (ADVANCE, ADVANCE)
    assert bench.sink.stored_ranges == [[(0, 0, 10)], [(2, 0, 10)]]


def test_no_batch_is_committed_after_its_partition_failed(bench: Bench) -> None:
    """Later batches are withdrawn: in the same micro-batch, waiting, and not yet sent."""
    poison = ValueError("poison")
    bench.engine.script = [poison, poison]
    first, second = bench.send(0, 0), bench.send(0, 10)
    bench.run_once()
    third = bench.send(0, 10)

    assert error_of(first) is poison
    assert isinstance(error_of(second), BatchCancelledError)
    assert isinstance(error_of(third), BatchCancelledError)
    assert bench.sink.stored == []


def test_a_batch_that_follows_a_withdrawn_one_is_withdrawn(bench: Bench) -> None:
    """The channel cuts another while one fails: it must not come before those that come again."""
    bench.engine.script = [ValueError("poison")] * 2
    first, second = bench.send(0, 0), bench.send(0, 10)
    bench.run_once()
    third = bench.send(0, 20)

    assert isinstance(error_of(first), ValueError)
    assert isinstance(error_of(second), BatchCancelledError)
    assert isinstance(error_of(third), BatchCancelledError)


def test_a_waiting_batch_is_withdrawn_when_the_one_before_it_fails() -> None:
    """A batch that waits for the next job does not outlive the failure of its predecessor."""
    bench = Bench(MergeLimits(max_records=10))
    bench.engine.script = [ValueError("poison")]
    bench.send(0, 0)
    waiting, other = bench.send(0, 10), bench.send(1, 0)

    bench.run_once()
    bench.run_once()

    assert isinstance(error_of(waiting), BatchCancelledError)
    assert other.result(0) == ADVANCE


def test_a_redelivery_ends_the_withdrawal(bench: Bench) -> None:
    """The same start again is accepted, and so is what follows it."""
    bench.engine.script = [ValueError("poison")]
    bench.send(0, 0)
    bench.run_once()

    again, behind = bench.send(0, 0), bench.send(0, 10)
    bench.run_once()

    assert (again.result(0), behind.result(0)) == (ADVANCE, ADVANCE)


def test_a_decision_of_the_channel_ends_the_withdrawal(bench: Bench) -> None:
    """After on_exception the batch behind the failed one is accepted: the policy skipped it."""
    poison = ValueError("poison")
    bench.engine.script = [poison]
    failed = bench.batch(0, 0)
    bench.processor.on_next_batch(failed)
    bench.run_once()

    assert bench.processor.on_exception(bench.assignments[0], poison, failed) is None
    bench.processor.pass_over(failed)
    behind = bench.send(0, 10)
    bench.run_once()

    assert behind.result(0) == ADVANCE
    assert [(o.start, o.next_offset) for o in bench.sink.moved[0]] == [(0, 10)]


def test_a_sink_that_stands_elsewhere_says_so_of_the_partition(bench: Bench) -> None:
    """Passing a batch over raises the partition's own conflict, which the channel understands."""
    batch = bench.batch(0, 0)
    conflict = SinkConflictError(batch.partition, 0, 10)
    bench.sink.move_error = CommitConflictError([conflict])
    with pytest.raises(SinkConflictError) as caught:
        bench.processor.pass_over(batch)
    assert caught.value is conflict
    bench.sink.require_one_end_each()
    assert len(bench.sink.discarded) == 1
