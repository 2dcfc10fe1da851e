from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.harness.progress import Gate, Pace

_OPEN_GATES = [Gate.BEFORE_KILL, Gate.BEFORE_RETURN, Gate.OPEN]


def test_no_record_is_due_before_the_daemons_are_ready() -> None:
    """A closed gate lets no record through, after any time."""
    pace = Pace(1_000, 40)
    assert sum(pace.due(0.5, Gate.CLOSED) for _ in range(1_000)) == 0


def test_the_flights_take_the_time_they_are_given() -> None:
    """An open gate lets everything through in the seconds asked for, and not before."""
    pace = Pace(336_776, 40)
    for _ in range(199):
        pace.due(0.2, Gate.OPEN)
    assert pace.produced < 336_776
    for _ in range(2):
        pace.due(0.2, Gate.OPEN)
    assert pace.produced == 336_776


def test_time_at_a_gate_is_not_made_up_for() -> None:
    """Once a gate opens, production goes on at its pace and not with a burst."""
    pace = Pace(1_000, 10)
    for _ in range(100):
        pace.due(1.0, Gate.BEFORE_KILL)
    assert pace.produced == 600
    assert pace.due(0.5, Gate.OPEN) == pytest.approx(50, abs=1)


def test_a_long_turn_is_not_made_up_for() -> None:
    """A turn of a minute is worth a second."""
    assert Pace(1_000, 10).due(60.0, Gate.OPEN) == 100


@given(
    total=st.integers(1, 10_000),
    turns=st.lists(st.tuples(st.floats(0, 5), st.sampled_from(_OPEN_GATES))),
)
def test_no_gate_is_passed(total: int, turns: list[tuple[float, Gate]]) -> None:
    """A gate's share is never exceeded while it is the one that counts."""
    pace = Pace(total, 7)
    for elapsed, gate in turns:
        before = pace.produced
        count = pace.due(elapsed, gate)
        assert count >= 0
        assert pace.produced == before + count
        assert pace.produced <= max(before, round(total * gate.value))
