"""Commits that run in parallel with the next job, on real threads."""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.extensions.arrow.engine import ArrowEngine
from headrace.processors import BatchResponse, ChannelContext
from headrace.processors.micro_batch_processor import MicroBatchProcessor
from headrace.sinks.console import NoopSink
from headrace.telemetry.metrics import Metrics
from headrace.testing import FakeAssignment, make_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from headrace.sinks.contract import PartitionCommit, Result
    from headrace.spark import MicroBatch

#: Seconds after which a test gives up.
PATIENCE = 10.0
ADVANCE = BatchResponse.advance()


class GatedSink(NoopSink):
    """Commits when it is let; notes what it was given."""

    def __init__(self) -> None:
        self.gate = Event()
        self.staged = 0
        self.committing = Event()
        self.committed: list[int] = []

    def stage(self, micro_batch: MicroBatch, result: Result | None) -> None:
        """Count."""
        super().stage(micro_batch, result)
        self.staged += 1

    def has_staged(self, number: int) -> bool:
        """Wait until so many results are staged."""
        return bool(wait_for(lambda: self.staged == number, Deadline.after(PATIENCE)))

    def commit(self, staged: None, offsets: Sequence[PartitionCommit]) -> None:
        """Wait for the gate."""
        del staged
        self.committing.set()
        assert self.gate.wait(PATIENCE)
        self.committed += [offset.start for offset in offsets]


class GroupingSink(GatedSink):
    """Takes several results at once; notes how many."""

    def __init__(self) -> None:
        super().__init__()
        self.together: list[int] = []

    def commit_all(self, staged: Sequence[None], offsets: Sequence[PartitionCommit]) -> None:
        """Wait for the gate."""
        self.commit(None, offsets)
        self.together.append(len(staged))


@pytest.fixture
def sink() -> Iterator[GatedSink]:
    """A sink whose gate is closed, and open after the test."""
    sink = GatedSink()
    yield sink
    sink.gate.set()


@pytest.fixture
def opened(sink: GatedSink) -> Iterator[Callable[..., MicroBatchProcessor]]:
    """Open a processor on the sink, or on another; close it at the end."""
    made: list[MicroBatchProcessor] = []

    def open_one(seconds: float | None = None, into: GatedSink = sink) -> MicroBatchProcessor:
        engine = ArrowEngine(lambda table, _: table)
        processor = MicroBatchProcessor(engine, into, job_timeout=seconds)
        processor.open(ChannelContext("main", "group", Metrics()))
        made.append(processor)
        return processor

    yield open_one
    sink.gate.set()
    for processor in made:
        processor.close(Deadline.after(PATIENCE))


def staged_behind(processor: MicroBatchProcessor, sink: GatedSink) -> list[Future[BatchResponse]]:
    """Stage two micro-batches: the first waits in its commit, the second waits for the first."""
    assignment = FakeAssignment(TopicPartition("t", 0))
    first = processor.on_next_batch(make_batch([b"a"], assignment=assignment))
    assert sink.committing.wait(PATIENCE)
    second = processor.on_next_batch(make_batch([b"b"], assignment=assignment, start=1))
    assert sink.has_staged(2)
    return [first, second]


def test_the_next_job_runs_while_the_sink_commits(
    opened: Callable[..., MicroBatchProcessor], sink: GatedSink
) -> None:
    """The second result is staged before the first is stored, and none is answered before that."""
    answers = staged_behind(opened(), sink)
    assert not any(answer.done() for answer in answers)
    assert sink.committed == []

    sink.gate.set()
    assert [answer.result(PATIENCE) for answer in answers] == [ADVANCE] * 2
    assert sink.committed == [0, 1]


def test_a_stop_commits_staged_results(
    opened: Callable[..., MicroBatchProcessor], sink: GatedSink
) -> None:
    """A stop commits computed results until its deadline."""
    processor = opened()
    answers = staged_behind(processor, sink)
    stop = Thread(target=processor.close, args=[Deadline.after(PATIENCE)])
    stop.start()
    sink.gate.set()
    stop.join(PATIENCE)

    assert [answer.result(0) for answer in answers] == [ADVANCE] * 2
    assert sink.committed == [0, 1]


def test_results_staged_during_a_commit_are_committed_together(
    opened: Callable[..., MicroBatchProcessor],
) -> None:
    """Results that wait for a commit are stored in one, and answered in their order."""
    sink = GroupingSink()
    processor = opened(into=sink)
    answers = staged_behind(processor, sink)
    for number in (3, 4):  # whose job ends when those before are in line
        other = FakeAssignment(TopicPartition("t", number))
        answers.append(processor.on_next_batch(make_batch([b"c"], assignment=other)))
        assert sink.has_staged(number)

    sink.gate.set()
    assert [answer.result(PATIENCE) for answer in answers] == [ADVANCE] * 4
    assert sink.together[0] >= 2


def test_a_commit_that_hangs_is_told_of_and_left_behind(
    opened: Callable[..., MicroBatchProcessor], sink: GatedSink
) -> None:
    """The log says where it is, with its micro-batch, and a stop does not wait for it."""
    with capture_logs() as logs:
        processor = opened(0.02)
        answers = staged_behind(processor, sink)

        def told() -> list[str]:
            return [each["lane"] for each in list(logs) if each["event"] == "lane_stuck"]

        assert wait_for(lambda: "sink-main" in told(), Deadline.after(PATIENCE))
        processor.close(Deadline.after(0.01))
        assert all(answer.exception(0) is not None for answer in answers)

    stuck = next(each for each in logs if each.get("lane") == "sink-main")
    assert any(call.endswith(" commit") for call in stuck["calls"])
    assert stuck["channel"] == "main"
    assert [each["event"] for each in logs].count("lane_not_stopped") == 1
