from __future__ import annotations

from typing import Any

import pytest

from benchmarks.peers.figures import figures
from benchmarks.peers.process import PeerError
from benchmarks.peers.run import Plan, run
from benchmarks.rounds import Rounds


def _measured(*rates: int) -> list[dict[str, Any]]:
    rest = {"records": 100, "seconds": 2.0, "cpu_seconds": 1.0, "memory_mib": 7.0, "threads": 3}
    return [{"rate": rate, **rest} for rate in rates]


def test_each_ratio_is_the_median_of_the_rounds() -> None:
    """A round in which the machine was slow for one side decides nothing."""
    rounds = Rounds(
        {
            "raw": _measured(100, 100, 100),
            "headrace": _measured(90, 10, 80),
            "headrace_arrow": _measured(50, 50, 50),
            "aiokafka": _measured(40, 40, 40),
            "faust": _measured(1, 1, 90),
        }
    )
    found = figures(Plan(), {"json": rounds}, without=("quix",))
    assert found["json_ratio_to_raw"] == 0.8
    assert found["json_arrow_ratio_to_raw"] == 0.5
    assert (found["json_fastest_peer"], found["json_ratio_to_fastest_peer"]) == ("aiokafka", 2.0)
    assert found["json_ratio_to_faust"] == 10.0
    assert found["json_faust"]["cores"] == 0.5
    assert found["json_faust"]["cpu_s_per_million"] == 10_000
    assert found["left_out"] == ["quix"]


def test_only_a_peer_can_be_left_out() -> None:
    """A name that is none is refused with those that there are."""
    with pytest.raises(PeerError, match="fuast is no peer; there are aiokafka, faststream"):
        run(without=["fuast"])
