"""``headrace elements demo``: set-up, run with a kill in the middle, check."""

from __future__ import annotations

import json
import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any

from rich.console import Console

from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import HeadraceError
from headrace.core.records import TopicPartition
from headrace.devstack import Blueprint, LocalStack
from headrace.devstack.jars import kafka_jars
from headrace.devstack.jvm import require_java
from headrace.kafka import KafkaRecordSource
from headrace.kafka.topic_producer import TopicProducer, create_topic
from headrace.tools.demo.daemons import Daemon, DaemonReading, Endpoints
from headrace.tools.demo.demo import Interruption, WorkDirectory, interruptible
from headrace.tools.demo.flights import DemoError, read_flights
from headrace.tools.demo.story import DemoProgress, Gate, MemberView, Pace, View, say

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import pandas as pd

    from headrace.kafka.topic_producer import KeyValue

EVENTS, REPORTS = "topic-seen", "topic-reports"
PARTITIONS = 4
MEMBER = "daemon-1"

#: After how many events of a topic, and how often, it is reported.
EVERY, INTERVAL = 1_000, "5s"

#: The kill happens once so large a share of the events was counted in reports.
KILL_FROM = 0.25

_POLL_INTERVAL = 0.2

#: Seconds between two looks at the daemon's metrics, which cost it some work.
_READ_EVERY = 1.0

#: Seconds that the brokers have to create topics, take events, or show reports.
_KAFKA_TIMEOUT = 60.0

_STOP_TIMEOUT = 60.0

#: Bytes of reports that the reader may prefetch.
_PREFETCH = 4 << 20


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
        """Take note of a report. Those of a topic come in their order."""
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


class Phase(Enum):
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


#: How many of the events may be produced in each phase.
GATES = {
    Phase.STARTING: Gate.CLOSED,
    Phase.FLOWING: Gate.BEFORE_KILL,
    Phase.RETURNING: Gate.BEFORE_RETURN,
    Phase.FINISHING: Gate.OPEN,
    Phase.DONE: Gate.OPEN,
}

#: Seconds that a phase may take: several times what it takes on two busy cores.
PATIENCE = {
    Phase.STARTING: 240.0,
    Phase.FLOWING: 300.0,
    Phase.RETURNING: 240.0,
    Phase.FINISHING: 300.0,
}


def next_phase(phase: Phase, reported: int, events: int, held: frozenset[int]) -> Phase:
    """Return the phase that the facts lead to: events in reports, and partitions that are held."""
    match phase:
        case Phase.STARTING if len(held) == PARTITIONS:
            return Phase.FLOWING
        case Phase.FLOWING if reported >= KILL_FROM * events:
            return Phase.RETURNING
        case Phase.RETURNING if len(held) == PARTITIONS:
            return Phase.FINISHING
        case Phase.FINISHING if reported >= events:
            return Phase.DONE
        case _:
            return phase


class ReportReader:
    """Reads the topic of reports from its beginning, as any consumer of committed records."""

    def __init__(self, client: Mapping[str, Any]) -> None:
        properties = {**client, "isolation.level": "read_committed"}
        self._source = KafkaRecordSource(properties, "headrace-elements-demo", _PREFETCH)
        partitions = [TopicPartition(REPORTS, number) for number in range(PARTITIONS)]
        self._source.assign(dict.fromkeys(partitions, 0))
        self.reports = Reports()

    def read(self) -> None:
        """Take all that has come."""
        while chunks := self._source.fetch(0.0).chunks:
            for _, records in chunks:
                for record in records:
                    self.reports.take(json.loads(record.value() or b""))

    def close(self) -> None:
        """Release the client."""
        self._source.close()


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


class Run:
    """Drives the daemon through the phases on one thread, by the reports that can be read."""

    def __init__(
        self,
        flights: pd.DataFrame,
        daemon: Daemon,
        producer: TopicProducer,
        reader: ReportReader,
        seconds: float,
    ) -> None:
        self.lines: list[str] = []
        self._daemon = daemon
        self._records = events(flights)
        self._pace = Pace(len(flights), seconds)
        self._producer = producer
        self._reader = reader
        self._phase = Phase.STARTING
        self._reading = self._before_kill = DaemonReading()
        self._began = self._turned = self._read_at = SYSTEM_CLOCK.monotonic()

    def play(self, progress: DemoProgress) -> None:
        """Start the daemon and go on until every event is in a report. Blocks.

        Raises:
            DemoError: the daemon ended by itself, or a phase took too long.
            ProduceError: the broker refused events.
        """
        self._daemon.start()
        pause, patience = threading.Event(), Deadline.after(PATIENCE[self._phase])
        while True:
            phase = self._run_once()
            progress.show(self._view(phase))
            if phase is Phase.DONE:
                break
            if phase is not self._phase:
                self._phase = phase
                patience = Deadline.after(PATIENCE[phase])
                if phase is Phase.RETURNING:
                    self._kill_and_restart()
            if patience.expired:
                raise DemoError(f"nothing came of this in {PATIENCE[phase]:.0f} s: {phase.value}")
            pause.wait(_POLL_INTERVAL)
        self._producer.flush(Deadline.after(_KAFKA_TIMEOUT))

    def _run_once(self) -> Phase:
        """Do what is due and return the phase that the facts lead to."""
        self._daemon.require_running()
        now = SYSTEM_CLOCK.monotonic()
        count = self._pace.due(now - self._turned, GATES[self._phase])
        self._turned = now
        self._producer.send(islice(self._records, count), Deadline.after(_KAFKA_TIMEOUT))
        if self._producer.failed:
            self._producer.flush(Deadline.after(0))
        self._reader.read()
        if now >= self._read_at:
            self._read_at = now + _READ_EVERY
            self._reading = self._daemon.read() or DaemonReading()
        held, reported = self._reading.partitions, self._reader.reports.events
        return next_phase(self._phase, reported, self._pace.total, held)

    def _kill_and_restart(self) -> None:
        self._before_kill = self._daemon.read() or self._reading
        self._daemon.kill()
        self._reader.read()
        self._reading = DaemonReading()
        reported, total = self._reader.reports.events, self._pace.total
        self.lines.append(
            f"kill point: {self._daemon.name}, by SIGKILL with {self._pace.produced} events "
            f"produced and {reported} in reports ({reported / total:.1%})"
        )
        self._daemon.start()

    def _view(self, phase: Phase) -> View:
        now, past = self._reading, self._before_kill
        member = MemberView(
            name=self._daemon.name,
            state=self._daemon.state,
            partitions=now.partitions,
            lag=now.lag,
            batches=past.batches + now.batches,
            spark_seconds=past.spark_seconds + now.spark_seconds,
            commits=past.commits + now.commits,
        )
        return _View(
            phase=phase,
            seconds=SYSTEM_CLOCK.monotonic() - self._began,
            total=self._pace.total,
            produced=self._pace.produced,
            stored=self._reader.reports.events,
            members=[member],
        )


def channels(engine: str) -> dict[str, object]:
    """Return the channel of the demo's daemon."""
    element = "headrace.apps.elements.topics:TopicCountAndReport"
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
    require_java()
    kafka_jars()
    flights = read_flights(rows)
    totals = totals_of(flights)
    with WorkDirectory(directory) as work:
        say(console, f"work directory: {work.path}")
        say(console, f"{len(flights)} flights to {len(totals)} destinations")
        try:
            reports = _play(flights, work, engine, seconds, console)
        except HeadraceError as error:
            raise DemoError(f"{error}\nall files are kept in {work.path}") from error
        verdict = compare(reports, totals)
        work.keep = work.keep or not verdict.holds
        return verdict


def _play(
    flights: pd.DataFrame, work: WorkDirectory, engine: str, seconds: float, console: Console
) -> Reports:
    """Start everything, go through the phases, stop the daemon; return all reports."""
    with ExitStack() as held:
        stack = held.enter_context(
            LocalStack.start(work.stack, blueprint=Blueprint(short_lived=True))
        )
        client = {"bootstrap.servers": stack.bootstrap_servers}
        for topic in (EVENTS, REPORTS):
            create_topic(client, topic, PARTITIONS, Deadline.after(_KAFKA_TIMEOUT))
        endpoints = Endpoints(stack.bootstrap_servers, stack.zookeeper_hosts)
        daemon = Daemon(MEMBER, work.path / MEMBER, endpoints, channels(engine))
        held.callback(daemon.kill)
        reader = ReportReader(client)
        held.callback(reader.close)
        played = Run(flights, daemon, TopicProducer(client, EVENTS), reader, seconds)
        try:
            with DemoProgress(console) as progress:
                played.play(progress)
            code = daemon.stop(Deadline.after(_STOP_TIMEOUT))
        except HeadraceError as error:
            raise DemoError(f"{daemon.end_of_log()}\n{error}") from error
        reader.read()
    reports = reader.reports
    say(console, *played.lines, f"{reports.timed} reports each {INTERVAL} besides")
    if code:
        say(console, f"{daemon.name} stopped with code {code}, not 0", daemon.end_of_log())
    return reports


_FAILED = 1


def main(rows: int | None, engine: str, seconds: float, directory: Path | None) -> int:
    """Run, say how it went, and return the exit code. On the main thread."""
    console, errors = Console(), Console(stderr=True)
    try:
        with interruptible():
            verdict = run(rows, engine, seconds, directory, console)
    except Interruption as interruption:
        say(errors, "interrupted; nothing is left running")
        return 128 + interruption.number
    except HeadraceError as error:
        say(errors, str(error))
        return _FAILED
    say(console, str(verdict))
    return 0 if verdict.holds else _FAILED
