"""Figures of the benchmark ``streams``, and the counts it compares with."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.peer_sides.streams_work import topology
from benchmarks.rounds import Rounds
from benchmarks.streams.run import by_round, figures_of, missed
from benchmarks.streams.sides import SIDES
from benchmarks.streams.topics import counts_of, key_of
from headrace.streams import OutRecord, StreamsTest

_MET = {
    "tumbling_ratio_to_kafka_streams": 2.0,
    "hopping_ratio_to_kafka_streams": 5.0,
    "session_ratio_to_kafka_streams": 1.0,
    "wordcount_ratio_to_kafka_streams": 1.5,
    "join_ratio_to_kafka_streams": 3.0,
    "spark_ratio_to_kafka_streams": 0.8,
}

_AT_MOST = {
    "restart_first_output_s": 5.0,
    "restarted_memory_mib": 564,
    "many_keys_memory_mib": 564,
}

#: Milliseconds since the epoch, on five minutes.
_BEGIN = 1_764_000_000_000


def _number(record: OutRecord) -> int:
    assert isinstance(record.key, str)
    return int(record.key[-5:])


def _rounds(ours: float, other: float) -> Rounds:
    def measured(rate: float) -> dict[str, float]:
        return {"rate": rate, "records": 1_000, "seconds": 4.0, "cpu_us": 1.5}

    return Rounds({"headrace": [measured(ours)], "kafka_streams": [measured(other)]})


def test_figures_at_their_targets_are_not_missed() -> None:
    """A figure at its target has reached it; one that was not measured is not missed."""
    assert missed({**_MET, **_AT_MOST}) == missed({}) == []


def test_each_figure_below_its_target_is_missed() -> None:
    """A count without windows has no target, and is never missed."""
    lower = {name: value * 0.99 for name, value in _MET.items()}
    assert missed({**lower, "count_ratio_to_kafka_streams": 0.1}) == list(_MET)


def test_each_figure_above_what_it_may_be_is_missed() -> None:
    """Seconds and memory of the restart."""
    assert missed({name: value * 1.01 for name, value in _AT_MOST.items()}) == list(_AT_MOST)


def test_each_kind_of_topology_has_figures_by_its_name() -> None:
    """The ratio is that of the rates, and each side has its processor time a record."""
    found = {"tumbling": _rounds(300.0, 100.0)}
    assert by_round(found) == {"tumbling_ratio_to_kafka_streams": [3.0]}
    figures = figures_of(found)
    assert figures["tumbling_ratio_to_kafka_streams"] == 3.0
    assert figures["tumbling_cpu_us_per_record"] == 1.5
    assert figures["tumbling_kafka_streams_records_per_s"] == 100


def test_each_other_system_has_ratios_of_what_it_does() -> None:
    """Rates over those of a system that has no sessions are there for windows only."""
    (ours,) = _rounds(300.0, 100.0).results["headrace"]
    other = {**ours, "rate": 50.0}
    found = {
        "session": _rounds(300.0, 100.0),
        "tumbling": Rounds({"headrace": [ours], "kafka_streams": [other], "quix": [other]}),
    }
    assert by_round(found) == {
        "session_ratio_to_kafka_streams": [3.0],
        "tumbling_ratio_to_kafka_streams": [6.0],
        "tumbling_ratio_to_quix": [6.0],
    }


@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ("tumbling", {"kafka_streams", "quix", "structured_streaming"}),
        ("spark", {"kafka_streams", "structured_streaming"}),
        ("session", {"kafka_streams"}),
    ],
)
def test_a_kind_is_compared_with_who_does_the_same(kind: str, others: set[str]) -> None:
    """Quix Streams has no sessions, and Structured Streaming none that tells updates."""
    assert {side.name for side in SIDES if side.does(kind)} == {"headrace", *others}


@pytest.mark.parametrize("kind", ["tumbling", "hopping", "session", "count"])
def test_counts_of_visits_are_those_of_the_topology(kind: str) -> None:
    """The counts that are demanded of both sides are those of the same topology in a test."""
    random = np.random.default_rng(1)
    # a record each ms, and gaps longer than a session's by keys that come seldom
    drawn = np.where(random.random(150_000) < 0.001, random.integers(0, 9, 150_000), 9)
    test = StreamsTest(topology(kind, "visits", "counts"), batch=10_000)
    for at in np.flatnonzero(drawn < 9).tolist():
        test.pipe("visits", {}, key=key_of(drawn[at]).decode(), time=_BEGIN + at)
    found = {}
    for each in test.read("counts"):
        if each.value is not None:
            found[_number(each), each.value.get("begin", 0)] = each.value["n"]
    wanted = counts_of(drawn, kind, _BEGIN)
    assert found == {place: number for place, number in wanted.items() if place[0] < 9}


def test_pairs_of_visits_are_those_of_the_topology() -> None:
    """Each visit of one topic counts with those of the other within ten seconds."""
    drawn = np.random.default_rng(3).integers(0, 20, 30_000)
    drawn[::7] = 99  # most come seldom
    drawn = np.where(np.arange(len(drawn)) % 50 == 0, drawn, 50 + np.arange(len(drawn)))
    made = topology("join", "visits", "pairs", "others")
    test = StreamsTest(made, batch=10_000)
    for at, number in enumerate(drawn.tolist()):
        test.pipe(("visits", "others")[at % 2], {}, key=key_of(number).decode(), time=_BEGIN + at)
    found: dict[tuple[int, int], int] = {}
    for each in test.read("pairs"):
        place = (_number(each), 0)
        found[place] = found.get(place, 0) + each.value["n"]
    assert found == counts_of(drawn, "join", _BEGIN)
    assert found


def test_counts_of_words_are_those_of_the_topology() -> None:
    """Each word of each line counts."""
    drawn = np.random.default_rng(2).integers(0, 20, (50, 8))
    test = StreamsTest(topology("wordcount", "lines", "counts"), batch=10)
    for at, line in enumerate(drawn.tolist()):
        text = " ".join(key_of(word).decode() for word in line)
        test.pipe("lines", {"line": at, "text": text}, time=_BEGIN + at)
    found = {(_number(each), 0): each.value["n"] for each in test.read("counts")}
    assert found == counts_of(drawn, "wordcount", _BEGIN)
