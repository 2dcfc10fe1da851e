"""The table against the source: each flight exactly once, and the same statistics of delays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.demo.reducer import COLUMNS
from headrace.spark.sinks.delta.reader import read_rows

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

_GROUP = ["carrier", "hour"]
_DELAYS = ["dep_delay", "arr_delay"]
_MEASURES = ["size", "count", "sum", "mean", "min", "max"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the comparison found.

    ``lost`` source rows are missing in the table; ``duplicated`` counts the occurrences beyond
    the first of each; ``altered`` rows differ from the source in another column; ``unknown`` table
    rows have a number that the source has not. Of ``groups`` of carrier and hour, in ``differing``
    some statistic of a delay is not the source's.
    """

    events: int
    lost: int
    duplicated: int
    altered: int
    unknown: int
    groups: int
    differing: int

    @property
    def holds(self) -> bool:
        """Whether table and source agree in everything."""
        return not (self.lost or self.duplicated or self.altered or self.unknown or self.differing)

    def __str__(self) -> str:
        counts = f"{self.events} events, {self.lost} lost, {self.duplicated} duplicated"
        if self.holds:
            return f"verified: {counts}"
        unknown = f", {self.unknown} unknown" if self.unknown else ""
        return f"NOT verified: {counts}, {self.altered} altered{unknown}"


def verify(table: Path, flights: pd.DataFrame) -> Verdict:
    """Compare the Delta table in a folder with the flights that were produced. Blocks.

    Raises:
        TableUnreadableError: there is no table, or it cannot be read.
    """
    return compare(read_rows(table, COLUMNS).to_pandas(), flights)


def compare(found: pd.DataFrame, flights: pd.DataFrame) -> Verdict:
    """Compare what was found with the source; both have the columns of the table."""
    expected = flights[list(COLUMNS)].set_index("row")
    known = found[found["row"].isin(expected.index)]
    distinct = known["row"].nunique()
    theirs, ours = statistics(flights), statistics(found)
    return Verdict(
        events=len(flights),
        lost=len(expected) - distinct,
        duplicated=len(known) - distinct,
        altered=_altered(known, expected),
        unknown=len(found) - len(known),
        groups=len(theirs),
        differing=_differing(theirs, ours),
    )


def statistics(flights: pd.DataFrame) -> pd.DataFrame:
    """Return rows, values, sum, mean, minimum and maximum of both delays by carrier and hour.

    Delays are whole minutes, so that sums do not depend on the order of the rows.
    """
    return flights.groupby(_GROUP, dropna=False)[_DELAYS].agg(_MEASURES)


def _altered(known: pd.DataFrame, expected: pd.DataFrame) -> int:
    found = known.set_index("row")
    wanted = expected.loc[found.index]
    return int(found.index[_differs(found, wanted)].nunique())


def _differing(theirs: pd.DataFrame, ours: pd.DataFrame) -> int:
    left, right = theirs.align(ours, join="outer", axis=0)
    return int(_differs(left, right).sum())


def _differs(one: pd.DataFrame, other: pd.DataFrame) -> pd.Series[bool]:
    """Tell for each row whether some column differs, where nothing equals nothing."""
    one, other = one.reset_index(drop=True), other.reset_index(drop=True)
    same = (one == other) | (one.isna() & other.isna())
    differs: pd.Series[bool] = ~same.all(axis=1)
    return differs
