"""The year of the demo: what is produced in the order of its times, and how far ahead."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pandas as pd

from examples.harness.flights import read_flights, read_table
from examples.streams.hours import FLIGHTS, WEATHER
from headrace.extensions.keyed.codecs import partition_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.kafka.topic_producer import KeyValue

HOUR = 3_600_000

#: The key of flights of which no tail number is known.
UNKNOWN = "unknown"

#: How many times the span of the flights the records that end it come later: all windows are over
#: then, and all pairs told. Weather comes last. No record may be of the future for brokers,
#: which limits how long a grace the comparison with Kafka Streams can have.
_CLOSING_FLIGHTS, _CLOSING_WEATHER = 2, 4

#: What share of the span the partitions may be apart.
_SLACK = 20


@dataclass(frozen=True, slots=True)
class Timed:
    """A record for a topic, with its time."""

    time: int
    topic: str
    key: bytes
    value: bytes


@dataclass(frozen=True)
class Year:
    """Flights in the order of their times, planes, and the weather until the last flight.

    ``at`` of flights and weather is in milliseconds.
    """

    flights: pd.DataFrame
    planes: pd.DataFrame
    weather: pd.DataFrame

    @property
    def begin(self) -> int:
        """The time of the first flight."""
        return int(self.flights["at"].iloc[0])

    @property
    def span(self) -> int:
        """How long it is from the first flight to the last one."""
        return max(int(self.flights["at"].iloc[-1]) - self.begin, HOUR)

    @property
    def slack(self) -> int:
        """How far partitions may be apart, which is the grace of the windows."""
        return max(self.span // _SLACK, 2 * HOUR)

    @cached_property
    def records(self) -> list[Timed]:
        """All flights and weather by their times, of equal ones weather first.

        At the end of each airport come a flight and weather of long after, as only records move
        time. They are in no result.
        """
        return [*_merged(_weather(self.weather), _flights(self.flights)), *self._closing()]

    def _closing(self) -> Iterator[Timed]:
        yield from self.last_flights(_CLOSING_FLIGHTS)
        yield from self.last_weather(_CLOSING_WEATHER)

    def last_flights(self, spans: int) -> Iterator[Timed]:
        """Yield flights of no plane, so many times the span after the last flight."""
        at = self.begin + (1 + spans) * self.span
        for origin in sorted(self.flights["origin"].unique()):
            yield _timed(at, FLIGHTS, UNKNOWN, {"at": at, "origin": origin})

    def last_weather(self, spans: int) -> Iterator[Timed]:
        """Yield observations of nothing, so many times the span after the last flight."""
        at = self.begin + (1 + spans) * self.span
        for origin in sorted(self.flights["origin"].unique()):
            yield _timed(at, WEATHER, origin, {"at": at})


def read_year(rows: int | None) -> Year:
    """Return the year; ``rows``: of the flights only so many, the earliest.

    Raises:
        DemoError: the data is not installed.
    """
    flights = read_flights()
    flights["at"] = _milliseconds(flights["time_hour"]) + flights["minute"] * 60_000
    flights = flights.sort_values("at", kind="stable")
    flights = flights if rows is None else flights.head(rows)
    weather = read_table("weather.csv")
    weather["at"] = _milliseconds(weather["time_hour"])
    weather = weather[weather["at"] <= flights["at"].iloc[-1]].sort_values("at", kind="stable")
    return Year(flights, read_table("planes.csv"), weather)


def plane_records(planes: pd.DataFrame) -> Iterator[KeyValue]:
    """Yield each plane by its tail number."""
    columns = (planes["tailnum"].tolist(), planes["seats"].tolist(), _whole(planes["year"]))
    for tail, seats, year in zip(*columns, strict=True):
        yield str(tail).encode(), _json({"seats": seats, "year": year})


def _flights(flights: pd.DataFrame) -> Iterator[Timed]:
    tails = flights["tailnum"].fillna(UNKNOWN).tolist()
    columns = (flights["at"].tolist(), flights["origin"].tolist(), _whole(flights["dep_delay"]))
    for tail, at, origin, delay in zip(tails, *columns, strict=True):
        yield _timed(at, FLIGHTS, tail, {"at": at, "origin": origin, "delay": delay})


def _weather(weather: pd.DataFrame) -> Iterator[Timed]:
    columns = (_numbers(weather[name]) for name in ("temp", "wind_speed", "visib"))
    rows = zip(weather["at"].tolist(), weather["origin"].tolist(), *columns, strict=True)
    for at, origin, temp, wind, visib in rows:
        value = {"at": at, "temp": temp, "wind": wind, "visib": visib}
        yield _timed(at, WEATHER, origin, value)


def _merged(weather: Iterator[Timed], flights: Iterator[Timed]) -> list[Timed]:
    """Return both in the order of their times, which each is in; sorts are stable."""
    return sorted([*weather, *flights], key=lambda each: each.time)


def _timed(at: int, topic: str, key: str, value: Mapping[str, Any]) -> Timed:
    return Timed(at, topic, key.encode(), _json(value))


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _milliseconds(times: pd.Series[str]) -> pd.Series[int]:
    moments = pd.to_datetime(times, utc=True)
    return (moments - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(milliseconds=1)


def _whole(values: pd.Series[float]) -> list[int | None]:
    return [None if each is None else int(each) for each in _numbers(values)]


def _numbers(values: pd.Series[float]) -> list[float | None]:
    found: list[Any] = values.tolist()
    return [None if pd.isna(each) else each for each in found]


class Headway:
    """Bounds how far production is ahead of the partition of flights that is furthest behind.

    In a year that takes a year, a partition that rests for 10 s while another member takes over is
    10 s behind. In one that takes a minute it would be two months behind, and its flights too late
    for any grace. So the source waits, as long as some partition is behind by the slack.
    """

    def __init__(self, year: Year, partitions: int) -> None:
        self._slack = year.slack
        self._times = [each.time for each in year.records]
        self._by_partition: list[list[int]] = [[] for _ in range(partitions)]
        for each in year.records:
            if each.topic == FLIGHTS:
                self._by_partition[partition_of(each.key, partitions)].append(each.time)

    def most(self, done: Mapping[int, int]) -> int:
        """Return how many records may be produced, by how many of each partition are done."""
        waiting = (
            times[done.get(number, 0)]
            for number, times in enumerate(self._by_partition)
            if done.get(number, 0) < len(times)
        )
        behind = min(waiting, default=None)
        if behind is None:
            return len(self._times)
        return bisect_right(self._times, behind + self._slack)
