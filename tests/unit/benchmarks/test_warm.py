"""Gaps of the benchmark ``warm``: the longest time in which a task delivers nothing."""

from __future__ import annotations

import pytest

from benchmarks.warm import Arrivals
from headrace.testing.channel import FakeClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """A clock in place of the benchmark's."""
    clock = FakeClock(100.0)
    monkeypatch.setattr("benchmarks.warm.SYSTEM_CLOCK", clock)
    return clock


def test_the_gap_is_that_of_the_task_which_rested_longest(clock: FakeClock) -> None:
    """From the moment that is asked for, between two outputs, and up to now."""
    arrivals = Arrivals()
    for task, seconds in ((0, 1), (1, 1), (0, 1), (0, 4), (1, 1)):
        clock.advance(seconds)
        arrivals.note(task)
    # task 0 came at 101, 103 and 107, task 1 at 102 and 108
    assert arrivals.gap(100.5) == 6
    assert arrivals.gap(103.5) == 4.5
    clock.advance(9)
    assert arrivals.gap(100.5) == 10


def test_all_tasks_have_to_come_to_be_calm(clock: FakeClock) -> None:
    """A task that is not there yet, or was away for a second just now, is none at rest."""
    arrivals = Arrivals()
    for _ in range(10):
        clock.advance(0.5)
        arrivals.note(0)
    assert not arrivals.are_calm(2)
    assert arrivals.are_calm(1)
    clock.advance(1.5)
    arrivals.note(0)
    assert not arrivals.are_calm(1)
