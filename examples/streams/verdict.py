"""What has to come of the year, by pandas, and how it compares with what came."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from examples.streams.hours import COLUMNS, OBSERVED_COLUMNS
from examples.streams.year import HOUR

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from examples.streams.year import Year

#: A row of a table, by its columns in order.
Values = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Results:
    """The rows of both tables: hours by airport, and the same with their weather."""

    hours: Sequence[Values]
    observed: Sequence[Values]

    @property
    def joined(self) -> int:
        """How many hours have weather."""
        return sum(row[-1] is not None for row in self.observed)


def expected_results(year: Year) -> Results:
    """Return what pandas makes of the year."""
    planes = year.planes[["tailnum", "seats", "year"]].rename(columns={"year": "oldest"})
    flights = year.flights[["tailnum", "origin", "at", "dep_delay"]]
    flown = flights.merge(planes, how="left", on="tailnum")
    flown["begin"] = flown["at"] // HOUR * HOUR
    groups = flown.groupby(["origin", "begin"])
    hours = groups.agg(
        flights=("at", "size"),
        # of nothing known the sum is nothing, not 0
        seats=("seats", lambda seats: seats.sum(min_count=1)),
        delay=("dep_delay", lambda delays: delays.sum(min_count=1)),
        oldest=("oldest", "min"),
    ).reset_index()
    weather = year.weather.rename(columns={"at": "begin", "wind_speed": "wind"})
    known = weather[["origin", "begin", "temp", "wind", "visib"]]
    observed = hours.merge(known, how="left", on=["origin", "begin"])
    return Results(rows_of(hours, COLUMNS), rows_of(observed, OBSERVED_COLUMNS))


def rows_of(frame: pd.DataFrame, columns: Sequence[str]) -> list[Values]:
    """Return the rows of a frame, with None where there is nothing."""
    lists = [[None if pd.isna(each) else each for each in frame[name].tolist()] for name in columns]
    return list(zip(*lists, strict=True))


def row_of(document: Mapping[str, Any], columns: Sequence[str]) -> Values:
    """Return a row that was written as JSON."""
    return tuple(document.get(name) for name in columns)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How rows differ from those expected, over both tables.

    ``lost`` rows are not there, ``twice`` counts those beyond the first of an hour and airport,
    ``altered`` ones have another value in some column, and ``unknown`` ones are of no such hour.
    """

    lost: int = 0
    twice: int = 0
    altered: int = 0
    unknown: int = 0

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(
            self.lost + other.lost,
            self.twice + other.twice,
            self.altered + other.altered,
            self.unknown + other.unknown,
        )

    @property
    def holds(self) -> bool:
        """Whether all rows are there, once, and no others."""
        return self == Comparison()

    def __str__(self) -> str:
        counts = f"{self.lost} lost, {self.twice} twice"
        if self.altered or self.unknown:
            return f"{counts}, {self.altered} altered, {self.unknown} unknown"
        return counts


def compare(found: Results, expected: Results) -> Comparison:
    """Compare both tables with what is expected."""
    return _compared(found.hours, expected.hours) + _compared(found.observed, expected.observed)


def _compared(found: Iterable[Values], expected: Iterable[Values]) -> Comparison:
    """Compare rows, whose first two columns are their key."""
    wanted = {row[:2]: row for row in expected}
    counts: Counter[Values] = Counter()
    altered = set()
    for row in found:
        counts[row[:2]] += 1
        if wanted.get(row[:2], row) != row:
            altered.add(row[:2])
    return Comparison(
        lost=len(wanted.keys() - counts.keys()),
        twice=sum(number - 1 for number in counts.values()),
        altered=len(altered),
        unknown=len(counts.keys() - wanted.keys()),
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tables have, beside pandas and beside Kafka Streams, None where it did not run."""

    windows: int
    joined: int
    tables: Comparison
    kafka_streams: Comparison | None = None

    @property
    def holds(self) -> bool:
        """Whether all is as it has to be."""
        other = self.kafka_streams
        return self.tables.holds and (other is None or other.holds)

    def __str__(self) -> str:
        text = f"{self.windows} windows, {self.joined} joined, {self.tables}"
        if self.holds:
            return f"verified: {text}"
        other = "" if self.kafka_streams is None else f"; Kafka Streams: {self.kafka_streams}"
        return f"NOT verified: {text}{other}"
