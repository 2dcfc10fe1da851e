"""The demo of topologies: what it produces, when it goes on, and what it finds wrong."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from examples.harness.daemons import Daemon, Daemons, Endpoints
from examples.streams.demo import (
    READING,
    DemoRun,
    Facts,
    StreamsDemoPhase,
    channels,
    next_phase,
    topologies,
)
from examples.streams.hours import (
    FLIGHTS,
    OBSERVED,
    OBSERVED_COLUMNS,
    PLANES,
    SCHEMA,
    WEATHER,
    hours,
)
from examples.streams.topics import PARTITIONS
from examples.streams.verdict import (
    Comparison,
    Results,
    Verdict,
    compare,
    expected_results,
    row_of,
)
from examples.streams.year import HOUR, UNKNOWN, Headway, Year, plane_records
from headrace import config
from headrace.extensions.keyed.codecs import partition_of
from headrace.kafka.errors import OffsetStoreError
from headrace.kafka.ports import StoredOffset
from headrace.streams import StreamsTest

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.core.clock import Deadline
    from headrace.core.records import TopicPartition

#: Some hour of 2013.
BEGIN = 1_362_132_000_000

#: Minutes after the beginning, airport, tail number, minutes of delay.
_FLOWN = (
    (0, "EWR", "N1", 5),
    (59, "EWR", "N2", -2),
    (60, "EWR", None, None),
    (61, "JFK", "N3", 7),
    (240, "EWR", "N1", 1),
)

FLIGHTS_FOUND = pd.DataFrame(
    {
        "at": [BEGIN + minutes * 60_000 for minutes, *_ in _FLOWN],
        "origin": [origin for _, origin, *_ in _FLOWN],
        "tailnum": [tail for _, _, tail, _ in _FLOWN],
        "dep_delay": [delay for *_, delay in _FLOWN],
    }
)

KNOWN_PLANES = pd.DataFrame(
    {"tailnum": ["N1", "N2"], "seats": [100, 55], "year": [1999.0, float("nan")]}
)

OBSERVATIONS = pd.DataFrame(
    {
        "at": [BEGIN, BEGIN + HOUR, BEGIN + HOUR],
        "origin": ["EWR", "EWR", "JFK"],
        "temp": [40.5, float("nan"), 39.0],
        "wind_speed": [9.5, 8.0, 0.0],
        "visib": [10.0, 10.0, 2.5],
    }
)

YEAR = Year(FLIGHTS_FOUND, KNOWN_PLANES, OBSERVATIONS)

#: What the flights are by hand.
HOURS = [
    ("EWR", BEGIN, 2, 155, 3, 1999),
    ("EWR", BEGIN + HOUR, 1, None, None, None),
    ("EWR", BEGIN + 4 * HOUR, 1, 100, 1, 1999),
    ("JFK", BEGIN + HOUR, 1, None, 7, None),
]
OBSERVED_HOURS = [
    (*HOURS[0], 40.5, 9.5, 10.0),
    (*HOURS[1], None, 8.0, 10.0),
    (*HOURS[2], None, None, None),
    (*HOURS[3], 39.0, 0.0, 2.5),
]

RIGHT = Results(HOURS, OBSERVED_HOURS)


def test_pandas_makes_hours_with_planes_and_weather_of_flights() -> None:
    """Nulls are left out of sums, and hours without weather stay."""
    found = expected_results(YEAR)
    assert compare(found, RIGHT).holds
    assert found.joined == 3


def test_records_are_in_the_order_of_their_times_and_end_with_closing_ones() -> None:
    """Weather comes before flights of the same time, and after all others at the end."""
    records = YEAR.records
    assert [each.time for each in records] == sorted(each.time for each in records)
    assert [each.topic for each in records[:3]] == [WEATHER, FLIGHTS, FLIGHTS]
    assert [each.topic for each in records[-4:]] == [FLIGHTS, FLIGHTS, WEATHER, WEATHER]
    assert {each.key for each in records[-2:]} == {b"EWR", b"JFK"}
    (unknown,) = [each for each in records[:-4] if each.key == UNKNOWN.encode()]
    assert json.loads(unknown.value) == {"at": unknown.time, "origin": "EWR", "delay": None}


def test_the_topology_gives_what_pandas_gives() -> None:
    """The operators, on the records that are produced, without servers."""
    test = StreamsTest(hours(f"{YEAR.slack}ms", f"{3 * YEAR.slack}ms"), batch=3)
    for key, value in plane_records(KNOWN_PLANES):
        assert key is not None
        test.pipe(PLANES, value, key=key.decode(), time=BEGIN - HOUR)
    for each in YEAR.records:
        test.pipe(each.topic, each.value, key=each.key.decode(), time=BEGIN)
    rows = [row_of(each.value, OBSERVED_COLUMNS) for each in test.read(OBSERVED)]
    assert sorted(rows) == sorted(OBSERVED_HOURS)


def test_production_waits_for_the_partition_that_is_furthest_behind() -> None:
    """It is ahead by the slack at most, and goes on to the end once all flights are processed."""
    year = replace(YEAR, flights=FLIGHTS_FOUND.assign(origin="EWR"))
    headway = Headway(year, PARTITIONS)
    times = [each.time for each in year.records]
    assert year.slack == 2 * HOUR
    assert headway.most({}) == sum(time <= BEGIN + year.slack for time in times)
    flights = [each for each in year.records if each.topic == FLIGHTS]
    counts = Counter(_partition(each.key) for each in flights)
    assert headway.most(counts) == len(times)
    own = [each.time for each in flights if _partition(each.key) == _partition(b"N1")]
    most = headway.most({**counts, _partition(b"N1"): 1})
    assert most == sum(time <= own[1] + year.slack for time in times) < len(times)


def _partition(key: bytes) -> int:
    return partition_of(key, PARTITIONS)


class RefusingOffsets:
    """Offsets of all flights, and every other time a broker that does not have them."""

    def __init__(self, done: dict[int, int]) -> None:
        self._done, self._asked = done, count()

    def read_many(
        self, wanted: list[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, StoredOffset]:
        """Return where partitions are."""
        del deadline
        if next(self._asked) % 2 == 0:
            raise OffsetStoreError("Broker: Not coordinator")
        return {each: StoredOffset(self._done.get(each.partition, 0), 1) for each in wanted}


def test_production_goes_on_from_what_was_known_where_a_broker_has_no_offsets(
    tmp_path: Path,
) -> None:
    """A coordinator that has just moved does not end the demo; the next look has the offsets."""
    endpoints = Endpoints("127.0.0.1:9092", "127.0.0.1:2181")
    daemons = Daemons.of(tmp_path, endpoints, 1, channels(tmp_path))
    flights = Counter(_partition(each.key) for each in YEAR.records if each.topic == FLIGHTS)
    others: Any = {"offsets": RefusingOffsets(flights), "engine": "arrow"}
    nothing: Any = None
    run = DemoRun(YEAR, daemons, nothing, tmp_path, expected=4, seconds=1, **others)
    headway = Headway(YEAR, PARTITIONS)
    assert [run.most for _ in range(3)] == [headway.most({}), *2 * [len(YEAR.records)]]


@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_the_daemons_have_a_configuration_that_headrace_takes(tmp_path: Path, engine: str) -> None:
    """The parts of the topology are channels, and what they write is stored in two tables."""
    endpoints = Endpoints("127.0.0.1:9092", "127.0.0.1:2181")
    folder = tmp_path / "daemon"
    sections: Any = {"topologies": topologies(tmp_path, YEAR.slack, engine), "shown": READING}
    daemon = Daemon("daemon-1", folder, endpoints, channels(tmp_path), **sections)
    loaded = config.load(daemon.config_file)
    assert loaded.channels.keys() == {OBSERVED, READING, "year.weather", "year.hours.table"}
    on_spark = {name for name, each in loaded.channels.items() if each.on_spark}
    assert on_spark == ({READING, "year.weather"} if engine == "spark" else set())
    assert SCHEMA.count(",") + 1 == len(OBSERVED_COLUMNS)


ALL = frozenset(range(PARTITIONS))
HALF = frozenset({0, 1})


@pytest.mark.parametrize(
    ("phase", "facts", "following"),
    [
        ("STARTING", Facts({"one": ALL, "two": frozenset()}), "STARTING"),
        ("STARTING", Facts({"one": ALL - HALF, "two": HALF}), "FLOWING"),
        ("FLOWING", Facts({"one": HALF, "two": HALF}, 39, 39, 100), "FLOWING"),
        ("FLOWING", Facts({"one": HALF, "two": HALF}, 40, 0, 100), "TAKING_OVER"),
        ("TAKING_OVER", Facts({"one": HALF, "two": HALF}, 50, 0, 100, 40), "TAKING_OVER"),
        ("TAKING_OVER", Facts({"one": ALL, "two": HALF}, 40, 0, 100, 40), "TAKING_OVER"),
        ("TAKING_OVER", Facts({"one": ALL, "two": HALF}, 41, 0, 100, 40), "RETURNING"),
        ("RETURNING", Facts({"one": ALL, "two": frozenset()}), "RETURNING"),
        ("RETURNING", Facts({"one": ALL - HALF, "two": HALF}), "FINISHING"),
        ("FINISHING", Facts({"one": ALL}, 100, 100, 100), "FINISHING"),
        ("FINISHING", Facts({"one": ALL}, 100, 99, 100, at_rest=True), "FINISHING"),
        ("FINISHING", Facts({"one": ALL}, 100, 100, 100, at_rest=True), "DONE"),
        ("FINISHING", Facts({"one": ALL}, 99, 99, 100, at_rest=True, quiet=61), "DONE"),
    ],
)
def test_the_next_phase_begins_with_its_fact(phase: str, facts: Facts, following: str) -> None:
    """The facts are held partitions and rows; the end comes without all rows if none come."""
    assert next_phase(StreamsDemoPhase[phase], facts).name == following


def test_results_that_are_right_hold() -> None:
    """The line has the counts, and nothing of Kafka Streams."""
    verdict = Verdict(4, 3, compare(RIGHT, RIGHT), compare(RIGHT, RIGHT))
    assert verdict.holds
    assert str(verdict) == "verified: 4 windows, 3 joined, 0 lost, 0 twice"


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        (Results(HOURS[1:], OBSERVED_HOURS), Comparison(lost=1)),
        (Results(HOURS, OBSERVED_HOURS[1:]), Comparison(lost=1)),
        (Results([*HOURS, HOURS[0]], OBSERVED_HOURS), Comparison(twice=1)),
        (
            Results(HOURS, [*OBSERVED_HOURS, (*HOURS[0], None, None, None)]),
            Comparison(twice=1, altered=1),
        ),
        (Results([(*HOURS[0][:-1], 1998), *HOURS[1:]], OBSERVED_HOURS), Comparison(altered=1)),
        (Results([*HOURS, ("LGA", *HOURS[0][1:])], OBSERVED_HOURS), Comparison(unknown=1)),
    ],
)
def test_each_way_to_be_wrong_is_found(found: Results, wrong: Comparison) -> None:
    """Each fault counts under its own name in either table, and the line says NOT verified."""
    assert compare(found, RIGHT) == wrong
    verdict = Verdict(len(found.hours), found.joined, compare(found, RIGHT))
    assert str(verdict).startswith("NOT verified: ")
    assert not replace(verdict, tables=Comparison(), kafka_streams=wrong).holds
