from __future__ import annotations

from typing import Any

import pytest

from benchmarks.peers.figures import by_round, figures
from benchmarks.peers.process import PeerError
from benchmarks.peers.run import Plan, run
from benchmarks.rounds import MARGIN, SHORTEST, Rounds, long_enough
from benchmarks.stack import Topic


def _measured(*rates: int) -> list[dict[str, Any]]:
    rest = {"records": 100, "seconds": 2.0, "cpu_seconds": 1.0, "memory_mib": 7.0, "threads": 3}
    return [{"rate": rate, "first_batch_s": 0.5, **rest} for rate in rates]


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
    assert found["json_ratios_to_raw"] == [0.9, 0.1, 0.8]
    assert found["json_arrow_ratio_to_raw"] == 0.5
    again = by_round({"json": rounds, "sum": rounds})
    assert again["json_ratio_to_raw"] == [0.9, 0.1, 0.8]
    assert again["arrow_ratio_to_fastest_peer"] == [1.25, 1.25, 1.25]
    assert len(again) == 8
    assert found["json_faust"]["first_batch_s"] == 0.5
    assert (found["json_fastest_peer"], found["json_ratio_to_fastest_peer"]) == ("aiokafka", 2.0)
    assert found["json_ratio_to_faust"] == 10.0
    assert found["json_faust"]["cores"] == 0.5
    assert found["json_faust"]["cpu_s_per_million"] == 10_000
    assert found["left_out"] == ["quix"]


def test_only_a_peer_can_be_left_out() -> None:
    """A name that is none is refused with those that there are."""
    with pytest.raises(PeerError, match="fuast is no peer; there are aiokafka, faststream"):
        run(without=["fuast"])


class _Topics:
    """Stands for topics of so many records, made at once."""

    def of(self, records: float) -> Topic:
        return Topic("topic", round(records), 0, {})


class _Runner:
    """Stands for a side whose first round does what a process does once, for so many seconds."""

    name = "side"

    def __init__(self, cold: float, rate: float) -> None:
        self.cold, self.rate = cold, rate
        self.rounds: list[float] = []

    def round(self, topic: Topic) -> dict[str, Any]:
        seconds = topic.records / self.rate + (0 if self.rounds else self.cold)
        self.rounds.append(seconds)
        rate = round(topic.records / seconds)
        return {"rate": rate, "records": topic.records, "seconds": seconds}


@pytest.mark.parametrize("cold", [0.0, 1.3, 60.0])
def test_a_topic_is_as_long_as_a_warm_process_needs(cold: float) -> None:
    """The last round before the counted ones lasts long enough, after any first round."""
    runner = _Runner(cold, rate=2_000_000)
    topic = long_enough(runner.name, runner.round, _Topics().of, Plan(), say=print)
    assert len(runner.rounds) > 1
    assert runner.rounds[-1] == topic.records / runner.rate
    assert runner.rounds[-1] >= SHORTEST * MARGIN
