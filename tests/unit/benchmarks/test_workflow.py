"""What the benchmark ``workflow`` counts, and the figures that it makes of it."""

from __future__ import annotations

import pytest

from benchmarks.peer_sides.workflow_work import Order, Tally, outcome_of, percentile
from benchmarks.peers.process import PeerError
from benchmarks.rounds import Rounds
from benchmarks.workflow.run import by_round, run
from benchmarks.workflow.sides import effects_of


def test_effects_are_counted_by_call_and_by_key() -> None:
    """A call that comes again under its key is there twice; a store that knows keys has it once."""
    lines = [
        "a-1-0 reserve k1",
        "a-1-0 charge k2",
        "a-1-0 charge k2",  # made again
        "a-1-0 ship k3",
        "a-1-0 ship k4",  # made again under another key
        "a-11-0 reserve k5",  # of another round
        "first-0 reserve k6",
        "a-1-1 reserve k7",
    ]
    found = effects_of(lines, "a-1", 2)
    assert found == {"calls_again": 2, "applied_twice": 1, "not_applied": 2}


def test_outcomes_are_counted_once_each() -> None:
    """A second outcome, a wrong one and one that is missing are told; others are not counted."""
    tally = Tally({name: Order(name, n) for n, name in enumerate("abc")})
    tally.started = dict.fromkeys("abc", 0.0)
    assert tally.take([("a", outcome_of(0)), ("x", 1), ("b", -1), ("a", outcome_of(0))]) == 3
    assert not tally.is_complete
    found = tally.figures()
    assert (found["instances"], found["lost"]) == (3, 1)
    assert (found["outcomes_twice"], found["wrong"]) == (1, 1)


@pytest.mark.parametrize(
    ("count", "share", "expected"), [(0, 0.5, 0), (1, 0.99, 1), (4, 0.5, 2), (100, 0.99, 99)]
)
def test_percentiles_are_values_that_were_measured(
    count: int, share: float, expected: float
) -> None:
    """So many of the values are at or below it."""
    assert percentile([float(n + 1) for n in range(count)], share) == expected


def test_ratios_are_of_rates_and_of_latencies() -> None:
    """Each round by itself; sides that are left out have none."""
    rates = Rounds({"inline": [{"rate": 300.0}], "celery": [{"rate": 200.0}]})
    paced = Rounds(
        {
            "inline": [{"p50_ms": 50.0, "p99_ms": 90.0}],
            "celery": [{"p50_ms": 25.0, "p99_ms": 30.0}],
        }
    )
    assert by_round(rates, paced) == {
        "ratio_to_celery": [1.5],
        "p50_ratio_to_celery": [2.0],
        "p99_ratio_to_celery": [3.0],
    }


def test_only_other_systems_can_be_left_out() -> None:
    """A side of ours, or one that there is not, is refused by name."""
    with pytest.raises(PeerError, match="spark is no other system; there are celery, "):
        run(without=("spark",))
