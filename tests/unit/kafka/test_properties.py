from __future__ import annotations

from headrace.kafka.properties import REPEAT_INTERVAL, Repeats
from headrace.testing.clock import FakeClock


def test_repeats_are_counted_and_not_told() -> None:
    """One line of a kind passes in each interval, and the next says how many did not."""
    clock = FakeClock()
    repeats = Repeats(clock)
    assert repeats.admit("refused") == 0
    assert [repeats.admit("refused") for _ in range(3)] == [None] * 3
    assert repeats.admit("timed out") == 0
    clock.advance(REPEAT_INTERVAL)
    assert repeats.admit("refused") == 3
    assert repeats.admit("refused") is None
