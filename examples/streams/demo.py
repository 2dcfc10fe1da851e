"""The demo of topologies: set-up, run with a kill in the middle, check."""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from examples.harness.daemons import Daemons
from examples.harness.progress import DemoProgress, Pace, View, say
from examples.harness.run import (
    KAFKA_TIMEOUT,
    PhasedRun,
    WorkDirectory,
    concluded,
    require_servers,
    servers,
    verified_in,
)
from examples.streams.hours import (
    COLUMNS,
    FLIGHTS,
    OBSERVED,
    OBSERVED_COLUMNS,
    SCHEMA,
)
from examples.streams.kafka_streams import NotRunError, run_kafka_streams
from examples.streams.topics import PARTITIONS, YearProducer, prepare_topics
from examples.streams.verdict import Results, Verdict, compare, expected_results, rows_of
from examples.streams.year import HOUR, Headway, read_year
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.records import TopicPartition
from headrace.extensions.delta.reader import DeltaLog, read_rows
from headrace.kafka.errors import OffsetStoreError
from headrace.kafka.offsets import KafkaOffsetStore

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rich.console import Console

    from examples.streams.year import Year

#: The topology, its group, and its part that reads the flights.
TOPOLOGY = GROUP = "year"
READING = f"{TOPOLOGY}.{FLIGHTS}"

#: The kill happens once so large a share of the windows is in the table.
KILL_FROM = 0.4

#: Seconds without any new row after which the rest is taken to be lost.
QUIET = 60.0


class StreamsDemoPhase(Enum):
    """Where the demo is."""

    STARTING = "the daemons start and share the partitions"
    """Only the planes are produced yet."""

    FLOWING = "both daemons work"
    """Until enough of the windows are in the table."""

    TAKING_OVER = "one daemon was killed, the other takes over"
    """Until the other one has all partitions, and has told windows."""

    RETURNING = "the killed daemon was started again"
    """Until it holds partitions again."""

    FINISHING = "both daemons work again, on the rest"
    """Until every window is in both tables."""

    DONE = "everything is in the tables"
    """Nothing is left to wait for."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known at one moment.

    ``held`` has the partitions of flights by daemon, of which the last one is the victim.
    ``windows`` and ``observed`` count rows in the tables, ``at_kill`` the windows at the kill.
    ``at_rest``: nothing is produced any more, and no daemon has a lag.
    """

    held: Mapping[str, frozenset[int]]
    windows: int = 0
    observed: int = 0
    expected: int = 0
    at_kill: int = 0
    at_rest: bool = False
    quiet: float = 0.0

    @property
    def is_shared(self) -> bool:
        """Whether every partition is held, and every daemon holds one."""
        held = list(self.held.values())
        return all(held) and frozenset().union(*held) == frozenset(range(PARTITIONS))


def next_phase(phase: StreamsDemoPhase, facts: Facts) -> StreamsDemoPhase:
    """Return the phase that the facts lead to: the same one, or the one after it."""
    (*_, victim) = facts.held
    match phase:
        case StreamsDemoPhase.STARTING if facts.is_shared:
            return StreamsDemoPhase.FLOWING
        case StreamsDemoPhase.FLOWING if facts.windows >= KILL_FROM * facts.expected:
            return StreamsDemoPhase.TAKING_OVER
        case StreamsDemoPhase.TAKING_OVER if facts.windows > facts.at_kill and all(
            len(held) == PARTITIONS for name, held in facts.held.items() if name != victim
        ):
            return StreamsDemoPhase.RETURNING
        case StreamsDemoPhase.RETURNING if facts.is_shared:
            return StreamsDemoPhase.FINISHING
        case StreamsDemoPhase.FINISHING if facts.at_rest and (
            min(facts.windows, facts.observed) >= facts.expected or facts.quiet > QUIET
        ):
            return StreamsDemoPhase.DONE
        case _:
            return phase


class _View(View):
    """What is shown, in the demo's words."""

    __slots__ = ()

    @property
    def summary(self) -> str:
        """The records and windows in one line."""
        return (
            f"{self.produced} of {self.total} flights and observations produced, {self.stored} "
            "windows in the table"
        )


class DemoRun(PhasedRun[StreamsDemoPhase]):
    """Drives the daemons through the phases, by the rows in the tables."""

    view = _View

    def __init__(
        self,
        year: Year,
        daemons: Daemons,
        producer: YearProducer,
        folder: Path,
        *,
        expected: int,
        offsets: KafkaOffsetStore,
        seconds: float,
        engine: str,
    ) -> None:
        pace = Pace(len(year.records), seconds)
        first = StreamsDemoPhase.STARTING
        super().__init__(first, daemons, producer, year.records, pace, engine=engine)
        self._expected = expected
        self._headway = Headway(year, PARTITIONS)
        self._offsets = offsets
        self._done: Mapping[int, int] = {}
        self._logs = {name: DeltaLog(folder / name) for name in (TABLE, OBSERVED)}
        self._rows = dict.fromkeys(self._logs, 0)
        self._windows_at_kill = 0
        self._changed_at = SYSTEM_CLOCK.monotonic()

    @property
    def stored(self) -> int:
        return self._rows[TABLE]

    @property
    def most(self) -> int:
        wanted = [TopicPartition(FLIGHTS, number) for number in range(PARTITIONS)]
        with suppress(OffsetStoreError):
            # a broker that just became the group's coordinator says that it is none: ask again
            found = self._offsets.read_many(wanted, Deadline.after(KAFKA_TIMEOUT))
            self._done = {each.partition: at.offset for each, at in found.items()}
        return self._headway.most(self._done)

    def look(self) -> None:
        for name, log in self._logs.items():
            if new := sum(commit.rows for commit in log.read_new()):
                self._rows[name] += new
                self._changed_at = SYSTEM_CLOCK.monotonic()

    def next_phase(self) -> StreamsDemoPhase:
        lag = sum(each.lag for each in self.readings.values())
        facts = Facts(
            {name: each.partitions for name, each in self.readings.items()},
            self._rows[TABLE],
            self._rows[OBSERVED],
            self._expected,
            self._windows_at_kill,
            self.pace.produced == self.pace.total and lag == 0,
            SYSTEM_CLOCK.monotonic() - self._changed_at,
        )
        return next_phase(self.phase, facts)

    def enter(self, phase: StreamsDemoPhase) -> None:
        if phase is StreamsDemoPhase.TAKING_OVER:
            partitions = sorted(self.kill().partitions)
            self.look()
            self._windows_at_kill = self.stored
            self.lines.append(
                f"kill point: {self.victim.name}, holding partitions "
                f"{' '.join(map(str, partitions))}, by SIGKILL with {self.stored} windows in the "
                f"table ({self.stored / self._expected:.1%})"
            )
        elif phase is StreamsDemoPhase.RETURNING:
            self.victim.start()


#: The table of hours, and the operator whose rows it has.
TABLE = "hours"


def channels(folder: Path) -> dict[str, object]:
    """Return the channel that stores what the topology writes of hours with their weather."""
    return {
        OBSERVED: {
            "topics": [OBSERVED],
            "group": OBSERVED,
            "processor": {
                "type": "arrow",
                "reducer": "examples.streams.hours:stored",
                "decode": "json",
                "schema": SCHEMA,
            },
            "sink": {"type": "delta", "path": str(folder / OBSERVED)},
        }
    }


def topologies(folder: Path, slack: int, engine: str) -> dict[str, object]:
    """Return the topology, whose hours go to a table of their own.

    ``engine`` runs its operators without state.

    An hour is told ``slack`` ms after its end, when weather of as much later may have been read.
    """
    return {
        TOPOLOGY: {
            "code": "examples.streams.hours:hours",
            "group": GROUP,
            "engine": engine,
            "options": {"grace": f"{slack}ms", "join_grace": f"{3 * slack + 3 * HOUR}ms"},
            "tables": {TABLE: {"type": "delta", "path": str(folder / TABLE)}},
        }
    }


def read_results(folder: Path) -> Results:
    """Return the rows of both tables below a folder. Blocks.

    Raises:
        SinkFailedError: one of them is not there.
    """
    hours = read_rows(folder / TABLE, COLUMNS).to_pandas()
    observed = read_rows(folder / OBSERVED, OBSERVED_COLUMNS).to_pandas()
    return Results(rows_of(hours, COLUMNS), rows_of(observed, OBSERVED_COLUMNS))


def run(
    rows: int | None, engine: str, seconds: float, directory: Path | None, console: Console
) -> Verdict:
    """Run the demo and check the tables. Blocks; on the main thread.

    ``rows`` is None for all flights; ``seconds`` is their pace.

    Raises:
        HeadraceError: it could not be run to its end.
    """
    require_servers()
    year = read_year(rows)
    expected = expected_results(year)

    def play(work: WorkDirectory) -> Verdict:
        say(
            console,
            f"{len(year.flights)} flights, {len(year.planes)} planes, {len(year.weather)} "
            "observations of the weather",
        )
        return _play(year, expected, work, engine, seconds, console)

    return verified_in(directory, console, play)


def _play(  # noqa: PLR0917 - what the demo is run with
    year: Year,
    expected: Results,
    work: WorkDirectory,
    engine: str,
    seconds: float,
    console: Console,
) -> Verdict:
    """Start everything, go through the phases, stop the daemons; compare."""
    with servers(work) as endpoints:
        prepare_topics(endpoints, year)
        stored = Daemons.of(
            work.path,
            endpoints,
            2,
            channels(work.path),
            topologies=topologies(work.path, year.slack, engine),
            shown=READING,
        )
        offsets = KafkaOffsetStore(endpoints.client, f"{GROUP}.{FLIGHTS}")
        with stored as daemons, closing(offsets):
            played = DemoRun(
                year,
                daemons,
                YearProducer(endpoints),
                work.path,
                expected=len(expected.hours),
                offsets=offsets,
                seconds=seconds,
                engine=engine,
            )
            with daemons.stopped(), DemoProgress(console) as progress:
                played.play(progress)
        say(console, *played.lines, *daemons.complaints())
        found = read_results(work.path)
        verdict = Verdict(len(found.hours), found.joined, compare(found, expected))
        try:
            other = run_kafka_streams(endpoints, work.path, year, len(expected.hours))
        except NotRunError as error:
            say(console, f"not compared with Kafka Streams: {error}")
            return verdict
        beside = compare(found, other)
        say(
            console,
            f"Kafka Streams: {len(other.hours)} windows, {other.joined} joined; of these the "
            f"tables have {beside}",
        )
        return replace(verdict, kafka_streams=beside)


def main(rows: int | None, engine: str, seconds: float, directory: Path | None) -> int:
    """Run, say how it went, and return the exit code. On the main thread."""
    return concluded(lambda console: run(rows, engine, seconds, directory, console))
