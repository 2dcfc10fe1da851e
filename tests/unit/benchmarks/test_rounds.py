"""Rounds that say something, and results that are worth keeping."""

from __future__ import annotations

import pytest

from benchmarks.report import Report, not_repeated
from benchmarks.rounds import Measured, ShortRoundError, alternate


def _takes(seconds: float) -> Measured:
    return {"seconds": seconds, "rate": 10}


def test_a_short_round_is_refused_by_the_name_of_its_side() -> None:
    """Three seconds, unless the plan says otherwise; one that does not count may be shorter."""
    sides = {"raw": lambda: _takes(3.0), "channel": lambda: _takes(2.9)}
    with pytest.raises(ShortRoundError, match=r"a round of channel took 2\.9 s, which"):
        alternate(sides, 1, say=lambda _: None)
    warm = alternate(sides, 1, say=lambda _: None, shortest=0.0)
    assert warm.values("channel", "seconds") == [2.9]


def test_a_result_is_repeated_within_the_spread_of_its_rounds() -> None:
    """The middle of the second run counts, for each ratio that is there round by round."""
    first = Report("some", {"ratios": [0.9, 1.1, 1.0], "json_ratios_to_raw": [2.0, 2.2], "rate": 9})
    same = Report("some", {"ratios": [1.05, 5.0, 0.1], "json_ratios_to_raw": [2.1], "rate": 1})
    assert not_repeated(first, same) == []
    other = Report("some", {"ratios": [0.18, 0.19, 1.0], "json_ratios_to_raw": [2.1], "rate": 9})
    (said,) = not_repeated(first, other)
    assert said.startswith("ratios were [0.9, 1.1, 1.0], and 0.19 in the middle")
