"""The demo of elements: set-up, run with a kill in the middle, check."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from examples.harness.daemons import Daemons
from examples.harness.flights import read_flights
from examples.harness.progress import DemoProgress, Pace, View, say
from examples.harness.run import (
    KAFKA_TIMEOUT,
    PhasedRun,
    ResultReader,
    WorkDirectory,
    concluded,
    require_servers,
    servers,
    verified_in,
)
from headrace.core.clock import Deadline
from headrace.kafka.topic_producer import TopicProducer, create_topic

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import pandas as pd
    from rich.console import Console

    from headrace.kafka.topic_producer import KeyValue

EVENTS, REPORTS = "topic-seen", "topic-reports"
PARTITIONS = 4

#: After how many events of a topic, and how often, it is reported.
EVERY, INTERVAL = 1_000, "5s"

#: The kill happens once so large a share of the events was counted in reports.
KILL_FROM = 0.25


def events(flights: pd.DataFrame) -> Iterator[KeyValue]:
    """Yield an event for each flight, without a key: the channel finds it."""
    columns = (flights[name].tolist() for name in ("dest", "carrier", "flight", "distance"))
    for dest, carrier, number, miles in zip(*columns, strict=True):
        event = {"topic": dest, "flight": f"{carrier}{number}", "miles": miles}
        yield None, json.dumps(event, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Total:
    """What is known of a topic: its events, and the miles in them."""

    count: int = 0
    miles: int = 0


def totals_of(flights: pd.DataFrame) -> dict[str, Total]:
    """Return what the last report of each destination has to say, as pandas sums it up."""
    grouped = flights.groupby("dest")["distance"].agg(["size", "sum"])
    return {
        str(dest): Total(int(size), int(miles))
        for dest, size, miles in zip(grouped.index, grouped["size"], grouped["sum"], strict=True)
    }


@dataclass
class Reports:
    """What was reported so far."""

    latest: dict[str, Total] = field(default_factory=dict)
    triggered: Counter[tuple[str, int]] = field(default_factory=Counter)
    timed: int = 0
    backward: int = 0

    @property
    def events(self) -> int:
        """How many events the latest reports have counted."""
        return sum(each.count for each in self.latest.values())

    def take(self, report: Mapping[str, Any]) -> None:
        """Add a report. Those of a topic come in their order."""
        topic, total = report["topic"], Total(report["count"], report["miles"])
        if report["by"] == "count":
            self.triggered[topic, total.count] += 1
        else:
            self.timed += 1
        self.backward += total.count < self.latest.get(topic, Total()).count
        self.latest[topic] = total


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the comparison found.

    ``lost`` and ``twice`` are events that the last reports lack, or have too many of; ``differing``
    topics have other miles. ``missing`` and ``repeated`` are reports by the trigger. ``backward``
    reports count less than one before them, and ``unknown`` topics have no flights.
    """

    topics: int
    events: int
    triggered: int
    lost: int
    twice: int
    differing: int
    missing: int
    repeated: int
    backward: int
    unknown: int

    @property
    def holds(self) -> bool:
        """Whether all is as it has to be."""
        wrong = (self.lost, self.twice, self.differing, self.missing, self.repeated)
        return not any((*wrong, self.backward, self.unknown))

    def __str__(self) -> str:
        text = (
            f"{self.topics} destinations, {self.events} events, {self.lost} lost, {self.twice} "
            f"counted twice, {self.triggered} reports each {EVERY} events, {self.missing} missing, "
            f"{self.repeated} twice"
        )
        if self.holds:
            return f"verified: {text}"
        return (
            f"NOT verified: {text}, {self.differing} with other miles, {self.backward} reports "
            f"that go back, {self.unknown} unknown destinations"
        )


def compare(reports: Reports, totals: Mapping[str, Total]) -> Verdict:
    """Compare reports with what there is to be reported."""
    wanted = Counter(
        (topic, count)
        for topic, total in totals.items()
        for count in range(EVERY, total.count + 1, EVERY)
    )
    latest = {topic: reports.latest.get(topic, Total()) for topic in totals}
    differences = [latest[topic].count - total.count for topic, total in totals.items()]
    return Verdict(
        topics=len(totals),
        events=sum(total.count for total in totals.values()),
        triggered=wanted.total(),
        lost=-sum(each for each in differences if each < 0),
        twice=sum(each for each in differences if each > 0),
        differing=sum(latest[topic].miles != total.miles for topic, total in totals.items()),
        missing=(wanted - reports.triggered).total(),
        repeated=(reports.triggered - wanted).total(),
        backward=reports.backward,
        unknown=len(reports.latest.keys() - totals.keys()),
    )


class ElementsDemoPhase(Enum):
    """Where the demo is."""

    STARTING = "the daemon starts"
    """Nothing is produced yet."""

    FLOWING = "the elements count and report"
    """Until enough of the events were reported."""

    RETURNING = "the daemon was killed, and started again"
    """Until it holds the partitions again."""

    FINISHING = "the elements go on with their state"
    """Until the latest reports have all events."""

    DONE = "every event is in a report"
    """Nothing is left to wait for."""


def next_phase(
    phase: ElementsDemoPhase, reported: int, events: int, held: frozenset[int]
) -> ElementsDemoPhase:
    """Return the phase that the facts lead to: events in reports, and partitions that are held."""
    match phase:
        case ElementsDemoPhase.STARTING if len(held) == PARTITIONS:
            return ElementsDemoPhase.FLOWING
        case ElementsDemoPhase.FLOWING if reported >= KILL_FROM * events:
            return ElementsDemoPhase.RETURNING
        case ElementsDemoPhase.RETURNING if len(held) == PARTITIONS:
            return ElementsDemoPhase.FINISHING
        case ElementsDemoPhase.FINISHING if reported >= events:
            return ElementsDemoPhase.DONE
        case _:
            return phase


class _View(View):
    """What is shown, in the demo's words."""

    __slots__ = ()

    @property
    def summary(self) -> str:
        """The events in one line."""
        return (
            f"{self.produced} of {self.total} events produced, {self.stored} in reports "
            f"({self.stored / self.total:.0%})"
        )


class DemoRun(PhasedRun[ElementsDemoPhase]):
    """Drives the daemon through the phases, by the reports that can be read."""

    view = _View

    def __init__(
        self,
        flights: pd.DataFrame,
        daemons: Daemons,
        producer: TopicProducer,
        reader: ResultReader,
        seconds: float,
    ) -> None:
        pace = Pace(len(flights), seconds)
        super().__init__(ElementsDemoPhase.STARTING, daemons, producer, events(flights), pace)
        self._reader = reader
        self.reports = Reports()

    @property
    def stored(self) -> int:
        return self.reports.events

    def look(self) -> None:
        for record in self._reader.read():
            self.reports.take(json.loads(record.value() or b""))

    def next_phase(self) -> ElementsDemoPhase:
        held = self.readings[self.victim.name].partitions
        return next_phase(self.phase, self.stored, self.pace.total, held)

    def enter(self, phase: ElementsDemoPhase) -> None:
        if phase is ElementsDemoPhase.RETURNING:
            self.kill()
            self.look()
            self.lines.append(
                f"kill point: {self.victim.name}, by SIGKILL with {self.pace.produced} events "
                f"produced and {self.stored} in reports ({self.stored / self.pace.total:.1%})"
            )
            self.victim.start()


def channels(engine: str) -> dict[str, object]:
    """Return the channel of the demo's daemon."""
    element = "examples.elements.topics:TopicCountAndReport"
    return {
        "destinations": {
            "topics": [EVENTS],
            "group": "destinations",
            "processor": {
                "type": "keyed",
                "factory": "headrace.apps.elements:element_reducer",
                "options": {"element": element, "every": EVERY, "interval": INTERVAL},
                "key": "value.topic",
                "engine": engine,
            },
            "sink": {"type": "kafka", "topic": REPORTS},
        }
    }


def run(
    rows: int | None,
    engine: str,
    seconds: float,
    directory: Path | None,
    console: Console,
) -> Verdict:
    """Run the demo and check the reports. Blocks; on the main thread.

    ``rows`` is None for all flights; ``seconds`` is their pace.

    Raises:
        HeadraceError: it could not be run to its end.
    """
    require_servers()
    flights = read_flights(rows)
    totals = totals_of(flights)

    def play(work: WorkDirectory) -> Verdict:
        say(console, f"{len(flights)} flights to {len(totals)} destinations")
        return compare(_play(flights, work, engine, seconds, console), totals)

    return verified_in(directory, console, play)


def _play(
    flights: pd.DataFrame, work: WorkDirectory, engine: str, seconds: float, console: Console
) -> Reports:
    """Start everything, go through the phases, stop the daemon; return all reports."""
    with (
        servers(work) as endpoints,
        Daemons.of(work.path, endpoints, 1, channels(engine)) as daemons,
    ):
        client = endpoints.client
        for topic in (EVENTS, REPORTS):
            create_topic(client, topic, PARTITIONS, Deadline.after(KAFKA_TIMEOUT))
        with closing(ResultReader(endpoints, REPORTS, PARTITIONS)) as reader:
            played = DemoRun(flights, daemons, TopicProducer(client, EVENTS), reader, seconds)
            with daemons.stopped(), DemoProgress(console) as progress:
                played.play(progress)
            played.look()
    reports = played.reports
    say(console, *played.lines, f"{reports.timed} reports each {INTERVAL} besides")
    say(console, *daemons.complaints())
    return reports


def main(rows: int | None, engine: str, seconds: float, directory: Path | None) -> int:
    """Run, say how it went, and return the exit code. On the main thread."""
    return concluded(lambda console: run(rows, engine, seconds, directory, console))
