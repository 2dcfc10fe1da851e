"""Figures of the benchmark ``keyed``, and the counts it compares with."""

from __future__ import annotations

import json
from itertools import islice

import pytest

from benchmarks.keyed.run import by_round, missed, run
from benchmarks.keyed.state import rows
from benchmarks.peers.process import PeerError
from benchmarks.rounds import Rounds

_MET = {
    "ratio_to_kafka_streams": 0.8,
    "spark_ratio_to_kafka_streams": 0.8,
    "columnar_ratio_to_kafka_streams": 2.0,
    "ratio_to_quix": 3.0,
    "restore_mb_s_150b": 40.0,
    "restore_mb_s_1024b": 180.0,
    "touched_key_growth": 1.6,
    "eos_overhead": 1.5,
    "restart_first_delivery_s": 5.0,
}


def test_figures_that_are_as_they_have_to_be_are_not_missed() -> None:
    """A figure at its target has reached it; one that was not measured is not missed."""
    assert missed(_MET) == missed({}) == []


def test_each_figure_on_the_wrong_side_of_its_target_is_missed() -> None:
    """Ratios of rates and restored bytes have to be large, costs and times small."""
    costs = {"touched_key_growth", "eos_overhead", "restart_first_delivery_s"}
    worse = {name: value * (1.01 if name in costs else 0.99) for name, value in _MET.items()}
    assert sorted(missed(worse)) == sorted(_MET)


def test_the_cost_of_exactly_once_is_a_ratio_of_rates() -> None:
    """The overhead is the rate without over the rate with; sides that are left out have none."""
    found = by_round(Rounds({"arrow": [{"rate": 100.0}], "plain": [{"rate": 130.0}]}))
    assert found == {"eos_overhead": [1.3]}


@pytest.mark.parametrize("size", [150, 1024])
def test_rows_have_the_length_that_is_measured(size: int) -> None:
    """Key and state have so many bytes together, and the state is what the reducer counts on."""
    for key, state in islice(rows(1_000_000, size), 50):
        assert len(key) + len(state) == size
        assert json.loads(state)["n"] == 7


def test_only_other_systems_can_be_left_out() -> None:
    """A side of ours, or one that there is not, is refused by name."""
    with pytest.raises(PeerError, match="arrow is no other system; there are kafka_streams, "):
        run(without=("arrow",))
