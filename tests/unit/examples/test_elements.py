"""The demo of elements: what it produces, when it goes on, and what it finds wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import pandas as pd
import pytest

from examples.elements.demo import (
    PARTITIONS,
    ElementsDemoPhase,
    Reports,
    Total,
    channels,
    compare,
    events,
    next_phase,
    totals_of,
)
from headrace import config
from headrace.apps.elements import element_reducer
from headrace.extensions.keyed.section import KeyedProcessorConfig
from headrace.testing.keyed import KeyedTest

FLIGHTS = pd.DataFrame(
    {
        "dest": ["LAX", "BOS", "LAX"],
        "carrier": ["UA", "B6", "AA"],
        "flight": [1, 2, 3],
        "distance": [2475, 187, 2475],
    }
)

ALL = frozenset(range(PARTITIONS))

TOTALS = {"LAX": Total(2_500, 90), "BOS": Total(10, 5)}


def reported(*found: tuple[str, str, int, int]) -> Reports:
    """Return reports: topic, by what, count and miles."""
    reports = Reports()
    for topic, by, count, miles in found:
        reports.take({"topic": topic, "by": by, "count": count, "miles": miles})
    return reports


RIGHT = (
    ("LAX", "count", 1_000, 40),
    ("LAX", "time", 1_500, 60),
    ("LAX", "count", 2_000, 80),
    ("BOS", "time", 10, 5),
    ("LAX", "time", 2_500, 90),
)


def test_flights_are_events_of_their_destination() -> None:
    """Without a key, which the channel finds; the totals are those of the same flights."""
    found = [(key, json.loads(value)) for key, value in events(FLIGHTS)]
    assert found[1] == (None, {"topic": "BOS", "flight": "B62", "miles": 187})
    assert totals_of(FLIGHTS) == {"BOS": Total(1, 187), "LAX": Total(2, 4_950)}


def test_the_channel_is_one_that_headrace_takes_and_its_element_counts() -> None:
    """The configuration is checked, and the reducer is made of its options."""
    (channel,) = channels("arrow").values()
    checked = config.ChannelConfig.model_validate(channel)
    assert isinstance(checked.processor, KeyedProcessorConfig)
    assert checked.processor.key == "value.topic"
    test = KeyedTest(element_reducer(**checked.processor.keyword_arguments()))
    sent = [json.loads(value) for _, value in events(FLIGHTS)]
    test.send(*((each["topic"], each, 0) for each in sent))
    assert test.outputs == []
    reports = test.tick(5_000)
    assert {each.key: (each.value["count"], each.value["by"]) for each in reports} == {
        "LAX": (2, "time"),
        "BOS": (1, "time"),
    }


@pytest.mark.parametrize(
    ("phase", "events_reported", "held", "following"),
    [
        (ElementsDemoPhase.STARTING, 0, frozenset({0}), ElementsDemoPhase.STARTING),
        (ElementsDemoPhase.STARTING, 0, ALL, ElementsDemoPhase.FLOWING),
        (ElementsDemoPhase.FLOWING, 24, ALL, ElementsDemoPhase.FLOWING),
        (ElementsDemoPhase.FLOWING, 25, ALL, ElementsDemoPhase.RETURNING),
        (ElementsDemoPhase.RETURNING, 50, frozenset(), ElementsDemoPhase.RETURNING),
        (ElementsDemoPhase.RETURNING, 50, ALL, ElementsDemoPhase.FINISHING),
        (ElementsDemoPhase.FINISHING, 99, ALL, ElementsDemoPhase.FINISHING),
        (ElementsDemoPhase.FINISHING, 100, ALL, ElementsDemoPhase.DONE),
    ],
)
def test_the_next_phase_begins_with_its_fact(
    phase: ElementsDemoPhase,
    events_reported: int,
    held: frozenset[int],
    following: ElementsDemoPhase,
) -> None:
    """The facts are held partitions, and events in reports."""
    assert next_phase(phase, events_reported, 100, held) is following


def test_reports_that_say_all_hold() -> None:
    """The line has the counts."""
    verdict = compare(reported(*RIGHT), TOTALS)
    assert verdict.holds
    assert str(verdict) == (
        "verified: 2 destinations, 2510 events, 0 lost, 0 counted twice, 2 reports each 1000 "
        "events, 0 missing, 0 twice"
    )


@pytest.mark.parametrize(
    ("reports", "wrong"),
    [
        (RIGHT[:-1], {"lost": 500, "differing": 1}),
        ((*RIGHT, ("BOS", "time", 12, 5)), {"twice": 2}),
        ((*RIGHT, ("BOS", "time", 10, 6)), {"differing": 1}),
        ((*RIGHT[:2], *RIGHT[3:]), {"missing": 1}),
        ((RIGHT[0], *RIGHT), {"repeated": 1}),
        ((*RIGHT[:3], ("LAX", "count", 2_001, 81), *RIGHT[3:]), {"repeated": 1}),
        ((*RIGHT, RIGHT[0], RIGHT[-1]), {"backward": 1, "repeated": 1}),
        ((*RIGHT, ("XXX", "time", 1, 1)), {"unknown": 1}),
    ],
)
def test_each_way_to_be_wrong_is_found(
    reports: tuple[tuple[str, str, int, int], ...], wrong: dict[str, int]
) -> None:
    """Each fault counts under its own name, and the line says NOT verified."""
    right = compare(reported(*RIGHT), TOTALS)
    verdict = compare(reported(*reports), TOTALS)
    assert verdict == replace(right, **wrong)
    assert str(verdict).startswith("NOT verified: ")
