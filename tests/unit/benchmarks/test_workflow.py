"""Counts of the benchmark ``workflow``, and the figures made of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.peer_sides.workflow_work import Order, Tally, outcome_of, percentile
from benchmarks.peers.process import PeerError
from benchmarks.rounds import Rounds
from benchmarks.workflow.run import Plan, by_round, figures_of, run
from benchmarks.workflow.sides import SIDES, Runner, effects_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.rounds import Measured


def test_effects_are_counted_by_call_and_by_key() -> None:
    """A repeated call under its key counts twice; a store with keys has it once."""
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
    rates = Rounds({"arrow": [{"rate": 300.0}], "celery": [{"rate": 200.0}]})
    paced = Rounds(
        {
            "arrow": [{"p50_ms": 50.0, "p99_ms": 90.0}],
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


class Counted(Runner):
    """A side that counts what a test says."""

    def __init__(self, name: str, **counts: int) -> None:
        self.side = next(side for side in SIDES if side.name == name)
        self.name = name
        self._counts = counts

    def _measured(self, work: str, instances: int, settings: Mapping[str, Any]) -> Measured:
        del work, settings
        names = ("lost", "wrong", "outcomes_twice", "calls_again", "applied_twice", "not_applied")
        taken = {"rate": 10.0, "seconds": 3.0, "p50_ms": 1.0, "p99_ms": 2.0, "cpu_seconds": 1.0}
        return {
            "instances": instances,
            "memory_mib": 1.0,
            **taken,
            **dict.fromkeys(names, 0),
            **self._counts,
        }


def test_a_repeated_call_is_our_fault_and_others_figure() -> None:
    """No side may lose a call without a kill; only sides that promise it may repeat none."""
    found = Counted("asyncio", calls_again=3).round("rate", 5)
    assert found["calls_again"] == 3
    with pytest.raises(PeerError, match=r"arrow: of 5 instances .*, 3 calls_again"):
        Counted("arrow", calls_again=3).round("rate", 5)
    for fault in ("lost", "wrong", "not_applied", "applied_twice"):
        with pytest.raises(PeerError, match=f"celery: of 5 instances .*1 {fault}"):
            Counted("celery", **{fault: 1}).round("rate", 5)


def test_figures_have_all_that_was_repeated() -> None:
    """Figures add up all rounds of a side, and its killed worker's count."""
    sides = {name: Counted(name, calls_again=n) for name, n in (("arrow", 0), ("asyncio", 2))}
    rounds = Rounds({name: [side.round("rate", 5)] * 2 for name, side in sides.items()})
    killed = {name: side.killed(5) for name, side in sides.items()}
    figures = figures_of(Plan(rounds=2), by_round(rounds, rounds), rounds, rounds, killed)
    assert figures["ratio_to_asyncio_rounds"] == [1.0, 1.0]
    assert figures["asyncio"]["calls_again"] == 8
    assert figures["arrow"]["calls_again"] == 0
    assert figures["asyncio_killed"]["calls_again"] == 2
