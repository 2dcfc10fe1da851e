"""When batches of a channel with a lane are handed out while a job runs."""

from __future__ import annotations

from threading import Condition, Semaphore, Thread
from typing import TYPE_CHECKING

import pytest

from headrace.processors.pending import (
    GATHER,
    LEAD,
    MOST_GATHER,
    BatchPacer,
    MergeLimits,
    OpenBatches,
    PendingBatch,
)
from headrace.testing.channel import FakeClock
from headrace.testing.records import make_batch

if TYPE_CHECKING:
    from headrace.processors.pending import PendingWork
    from headrace.sinks.micro_batch import MicroBatch
    from tests.unit.processors.spark_bench import Bench


class Woken:
    """A rhythm whose time the test turns, and how often it woke the channel."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.times = 0
        self.pacer = BatchPacer(self.clock, self._wake)

    def _wake(self) -> None:
        self.times += 1

    def job(self, seconds: float) -> float:
        """Run a job of that length. Return when batches were wanted, from its begin."""
        with self.pacer.job():
            wanted = self.pacer.next_batch_at() - self.clock.monotonic()
            self.clock.advance(seconds)
        return wanted


@pytest.fixture
def woken() -> Woken:
    """A rhythm that knows of no job yet."""
    return Woken()


def test_batches_are_wanted_shortly_before_a_job_s_usual_end(woken: Woken) -> None:
    """The first job has no estimate; each later one moves the usual time by a quarter."""
    assert woken.job(1.0) == 0.0
    assert woken.job(2.0) == pytest.approx(LEAD * 1.0)
    assert woken.job(1.25) == pytest.approx(LEAD * 1.25)
    assert woken.pacer.next_batch_at() == 0.0


def test_a_job_that_ends_early_wakes_the_channel(woken: Woken) -> None:
    """Batches are cut at once then, because the lane waits for them."""
    woken.job(1.0)
    woken.job(0.95)
    assert woken.times == 0
    woken.job(0.5)
    assert woken.times == 1


def test_a_job_that_fails_says_nothing_of_how_long_they_take(woken: Woken) -> None:
    """The usual time stays, and batches are wanted at once."""
    woken.job(1.0)
    with pytest.raises(ValueError, match="poison"), woken.pacer.job():
        raise ValueError("poison")
    assert woken.pacer.next_batch_at() == 0.0
    assert woken.times == 1
    assert woken.job(1.0) == pytest.approx(LEAD * 1.0)


def test_a_lane_without_work_waits_a_little_for_other_partitions(woken: Woken) -> None:
    """In proportion to its jobs, so that one of a millisecond is not held up."""
    woken.job(0.001)
    assert woken.pacer.gathering() == pytest.approx(GATHER * 0.001)
    woken = Woken()
    woken.job(10.0)
    assert woken.pacer.gathering() == MOST_GATHER


def test_the_processor_knows_the_pace_of_its_lane(bench: Bench) -> None:
    """While a job runs it says when the next batches are of use, and at once otherwise."""
    wanted: list[float] = []

    def look(_job: MicroBatch) -> None:
        wanted.append(bench.processor.next_batch_at())

    bench.engine.script = [look]
    bench.send(0)
    bench.run_once()
    assert wanted[0] > 0.0
    assert bench.processor.next_batch_at() == 0.0


def test_batches_that_come_together_are_taken_together() -> None:
    """An idle lane takes the other partitions' batches too, until it is full."""
    waiting = OpenBatches(MergeLimits(max_records=20))
    taken: list[PendingWork] = []
    lane = Thread(target=lambda: taken.extend(waiting.take(30.0, gathering=30.0)))
    lane.start()
    for partition in range(2):
        waiting.put(PendingBatch(make_batch([b"v"] * 10), partition))
    lane.join(30.0)
    assert [pending.prepared for pending in taken] == [0, 1]


class Announced(Condition):
    """Record that a wait begins, and for how many seconds at most."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = Semaphore(0)
        self.seconds: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Record the timeout, and wait."""
        self.seconds.append(timeout)
        self.begun.release()
        return super().wait(timeout)


def test_a_lane_with_one_batch_does_not_wait_for_silent_partitions() -> None:
    """It waits for a first batch, then for so many seconds, and takes what there is by then."""
    waiting, changed = OpenBatches(MergeLimits()), Announced()
    waiting._changed = changed
    taken: list[PendingWork] = []
    lane = Thread(target=lambda: taken.extend(waiting.take(600.0, gathering=0.02)), daemon=True)
    lane.start()
    assert changed.begun.acquire(timeout=30.0)
    waiting.put(PendingBatch(make_batch([b"v"]), "first"))
    lane.join(30.0)
    assert [pending.prepared for pending in taken] == ["first"]
    nothing, *gathering = changed.seconds
    assert nothing is not None
    assert nothing > 500.0
    assert gathering
    assert all(seconds is not None and seconds <= 0.02 for seconds in gathering)


def test_a_lane_whose_work_waits_does_not_gather() -> None:
    """Batches that came during a job are taken at once."""
    waiting, changed = OpenBatches(MergeLimits()), Announced()
    waiting._changed = changed
    waiting.put(PendingBatch(make_batch([b"v"]), "first"))
    assert [pending.prepared for pending in waiting.take(1.0, gathering=1.0)] == ["first"]
    assert changed.seconds == []
