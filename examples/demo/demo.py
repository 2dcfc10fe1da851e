"""The demo as a whole: set-up, run, stop, check; and the check alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from examples.demo.record import Kill, RunRecord, describe, read_record, rows_in
from examples.demo.reducer import COLUMNS, SCHEMA
from examples.demo.story import DemoPhase, next_phase
from examples.harness.daemons import Daemons
from examples.harness.flights import key_values, read_flights
from examples.harness.progress import DemoProgress, Pace, say
from examples.harness.run import (
    KAFKA_TIMEOUT,
    PhasedRun,
    WorkDirectory,
    concluded,
    leave_servers,
    require_servers,
    servers,
    verified_in,
)
from headrace.core.clock import Deadline
from headrace.extensions.delta.reader import DeltaLog, TableCommit, read_rows
from headrace.extensions.delta.table import LogFiles
from headrace.kafka.topic_producer import TopicProducer, create_topic

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pandas as pd
    from rich.console import Console

    from examples.harness.daemons import Daemon

TOPIC = "flights"
GROUP = "flights"
CHANNEL = "flights"

PARTITIONS = 8


def channels_into(table: Path) -> dict[str, object]:
    """Return the channels of the daemons: the flights go to a Delta table."""
    return {
        CHANNEL: {
            "topics": [TOPIC],
            "group": GROUP,
            "processor": {
                "type": "spark",
                "reducer": "examples.demo.reducer:reduce",
                "decode": "json",
                "schema": SCHEMA,
            },
            "sink": {"type": "delta", "path": str(table)},
        }
    }


class DemoRun(PhasedRun[DemoPhase]):
    """Drives the daemons through the story, by what the table's log says."""

    def __init__(
        self,
        flights: pd.DataFrame,
        daemons: Daemons,
        producer: TopicProducer,
        table: Path,
        *,
        seconds: float,
    ) -> None:
        pace = Pace(len(flights), seconds)
        super().__init__(DemoPhase.STARTING, daemons, producer, key_values(flights), pace)
        self.record = RunRecord(len(flights), tuple(daemon.name for daemon in daemons))
        self.commits: list[TableCommit] = []
        self._log = DeltaLog(table)

    @property
    def stored(self) -> int:
        return rows_in(self.commits)

    def look(self) -> None:
        self.commits += self._log.read_new()

    def next_phase(self) -> DemoPhase:
        holdings = {name: snapshot.partitions for name, snapshot in self.readings.items()}
        return next_phase(self.phase, self.commits, holdings, self.record, PARTITIONS)

    def enter(self, phase: DemoPhase) -> None:
        if phase is DemoPhase.TAKING_OVER:
            # what is in the table when the victim is gone is what it had committed
            partitions = tuple(sorted(self.kill().partitions))
            self.look()
            kill = Kill(self.victim.name, self.killed_at, self.commits[-1].version, partitions)
            self.record = replace(self.record, kill=kill)
        elif phase is DemoPhase.RETURNING:
            # whatever the victim commits from this version on is of its new life
            self.record = replace(self.record, restart_version=self.commits[-1].version)
            self.victim.start()

    def commits_of(self, daemon: Daemon) -> int:
        return sum(commit.member == daemon.name for commit in self.commits)


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
        SinkFailedError: there is no table, or it cannot be read.
    """
    return compare(read_rows(table, COLUMNS).to_pandas(), flights)


def compare(found: pd.DataFrame, flights: pd.DataFrame) -> Verdict:
    """Compare what was found with the source; both have the columns of the table."""
    expected = flights[list(COLUMNS)].set_index("row")
    known = found[found["row"].isin(expected.index)]
    distinct = known["row"].nunique()
    rows = known.set_index("row")
    theirs, ours = statistics(flights), statistics(found)
    aligned = theirs.align(ours, join="outer", axis=0)
    return Verdict(
        events=len(flights),
        lost=len(expected) - distinct,
        duplicated=len(known) - distinct,
        altered=rows.index[_differs(rows, expected.loc[rows.index])].nunique(),
        unknown=len(found) - len(known),
        groups=len(theirs),
        differing=int(_differs(*aligned).sum()),
    )


def statistics(flights: pd.DataFrame) -> pd.DataFrame:
    """Return rows, values, sum, mean, minimum and maximum of both delays by carrier and hour.

    Delays are whole minutes, so that sums do not depend on the order of the rows.
    """
    return flights.groupby(_GROUP, dropna=False)[_DELAYS].agg(_MEASURES)


def _differs(one: pd.DataFrame, other: pd.DataFrame) -> pd.Series[bool]:
    """Tell for each row whether some column differs, where nothing equals nothing."""
    one, other = one.reset_index(drop=True), other.reset_index(drop=True)
    same = (one == other) | (one.isna() & other.isna())
    differs: pd.Series[bool] = ~same.all(axis=1)
    return differs


def run(
    rows: int | None, seconds: float, directory: Path | None, console: Console, *, keep: bool
) -> Verdict:
    """Run the demo and check the table. Blocks; on the main thread.

    ``rows`` is None for all flights; ``seconds`` is their pace.

    Raises:
        HeadraceError: it could not be run to its end.
    """
    require_servers()
    flights = read_flights(rows)

    def play(work: WorkDirectory) -> Verdict:
        played = _play(flights, work, seconds, console)
        return _report(work.table, flights, played.record, played.commits, console)

    def leave(work: WorkDirectory) -> None:
        leave_servers(work, console, f"topic {TOPIC}", f"Delta table: {work.table}")

    return verified_in(directory, console, play, leave if keep else None)


def check(directory: Path, console: Console) -> Verdict:
    """Check the table of a work directory, or the table in a folder, against the source. Blocks.

    Raises:
        HeadraceError: there is no table, or the source is not installed.
    """
    is_table = LogFiles(directory).has_entries()
    table = directory if is_table else directory / "table"
    record = read_record(directory.absolute().parent if is_table else directory)
    flights = read_flights(None if record is None else record.rows)
    return _report(table, flights, record, DeltaLog(table).read_new(), console)


def _play(flights: pd.DataFrame, work: WorkDirectory, seconds: float, console: Console) -> DemoRun:
    """Start everything, go through the story, stop everything."""
    channels = channels_into(work.table)
    with servers(work) as endpoints, Daemons.of(work.path, endpoints, 2, channels) as daemons:
        create_topic(endpoints.client, TOPIC, PARTITIONS, Deadline.after(KAFKA_TIMEOUT))
        producer = TopicProducer(endpoints.client, TOPIC)
        played = DemoRun(flights, daemons, producer, work.table, seconds=seconds)
        try:
            with daemons.stopped(), DemoProgress(console) as progress:
                played.play(progress)
        finally:
            played.record.write(work.path)
    say(console, *daemons.complaints())
    return played


def _report(
    table: Path,
    flights: pd.DataFrame,
    record: RunRecord | None,
    commits: Sequence[TableCommit],
    console: Console,
) -> Verdict:
    verdict = verify(table, flights)
    lines = [] if record is None else describe(record, commits)
    wrong = f"{verdict.differing} differ" if verdict.differing else "all as in the source"
    lines.append(f"delay statistics: {verdict.groups} groups of carrier and hour, {wrong}")
    say(console, *lines)
    return verdict


def main(
    rows: int | None,
    seconds: float,
    directory: Path | None,
    verify_only: Path | None,
    *,
    keep: bool,
) -> int:
    """Run or check, say how it went, and return the exit code. On the main thread."""

    def run_or_check(console: Console) -> Verdict:
        if verify_only is not None:
            return check(verify_only, console)
        return run(rows, seconds, directory, console, keep=keep)

    return concluded(run_or_check)
