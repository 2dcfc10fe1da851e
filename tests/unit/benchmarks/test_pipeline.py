"""What the benchmark ``pipeline`` says of its figures."""

from __future__ import annotations

from benchmarks.pipeline import missed

_MET = {
    "value_ratio_100k": 1.5,
    "reference_ratio_100k": 1.3,
    "batch_ratio_1k": 1.7,
    "latency_p50_ratio": 0.5,
    "latency_p99_ratio": 0.8,
    "delta_commit_growth": 2.0,
}


def test_figures_that_are_as_they_have_to_be_are_not_missed() -> None:
    """A figure at its target has reached it."""
    assert missed(_MET) == []


def test_rates_below_and_times_above_their_targets_are_missed() -> None:
    """Ratios of rates have to be large, those of times small."""
    worse = {"value_ratio_100k": 1.49, "latency_p99_ratio": 0.81, "delta_commit_growth": 2.1}
    assert missed({**_MET, **worse}) == list(worse)
