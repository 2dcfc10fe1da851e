from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.telemetry.thread_time import ThreadActivity, ThreadRole, ThreadTime

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def turn_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that a test moves on."""
    now = [100.0]
    monkeypatch.setattr("headrace.telemetry.thread_time.perf_counter", lambda: now[0])

    def move(seconds: float) -> None:
        now[0] += seconds

    return move


def test_each_moment_counts_for_one_activity(turn_clock: Callable[[float], None]) -> None:
    """The activities add up to the time that passed, the one under way included."""
    time = ThreadTime("main", ThreadRole.FETCHER, "fetcher")
    turn_clock(1)
    time.switch_to(ThreadActivity.FETCH)
    turn_clock(2)
    time.switch_to(ThreadActivity.FETCH)
    turn_clock(3)
    time.switch_to(ThreadActivity.BACK_PRESSURE)
    turn_clock(4)
    assert time.seconds() == {
        ThreadActivity.IDLE: 1,
        ThreadActivity.FETCH: 5,
        ThreadActivity.BACK_PRESSURE: 4,
    }


def test_a_block_goes_back_to_what_was_done_before(turn_clock: Callable[[float], None]) -> None:
    """Blocks may be nested, and end with an exception all the same."""
    time = ThreadTime("main", ThreadRole.LANE, "lane")
    with time.during(ThreadActivity.PROCESS):
        turn_clock(1)
        with pytest.raises(ZeroDivisionError):
            fail_after_two_seconds(time, turn_clock)
        turn_clock(3)
    turn_clock(4)
    assert time.seconds() == {
        ThreadActivity.PROCESS: 4,
        ThreadActivity.SPARK: 2,
        ThreadActivity.COMMIT: 0,
        ThreadActivity.WAIT: 0,
        ThreadActivity.IDLE: 4,
    }


def test_a_role_has_its_own_activities_only() -> None:
    """A committer that fetched would be a mistake in the code, and is found as such."""
    time = ThreadTime("main", ThreadRole.COMMITTER, "committer")
    time.switch_to(ThreadActivity.FETCH)
    with pytest.raises(KeyError):
        time.seconds()


def fail_after_two_seconds(time: ThreadTime, turn_clock: Callable[[float], None]) -> None:
    """Spend two seconds in a block that ends with an exception."""
    with time.during(ThreadActivity.SPARK):
        turn_clock(2)
        raise ZeroDivisionError
