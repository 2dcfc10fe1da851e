"""``headrace collector demo``: set-up, run, stop, check."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any

from rich.console import Console

from headrace.apps.collector import running
from headrace.apps.collector.commands import outcome_in
from headrace.apps.collector.flights import Verdict, compare, schedule
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import HeadraceError, KafkaUnavailableError
from headrace.core.records import TopicPartition
from headrace.devstack import Blueprint, LocalStack, detached
from headrace.devstack.jars import kafka_jars
from headrace.devstack.jvm import require_java
from headrace.kafka import KafkaRecordSource
from headrace.kafka.topic_producer import TopicProducer
from headrace.tools.demo.daemons import Daemon, DaemonReading, Endpoints
from headrace.tools.demo.demo import MEMBERS, Interruption, WorkDirectory, interruptible
from headrace.tools.demo.flights import DemoError, read_flights
from headrace.tools.demo.story import DemoProgress, Gate, MemberView, Pace, View, say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from headrace.apps.collector.flights import Schedule

EVENTS, OUTCOMES = "eventbus-collector", "eventbus-collector-outcomes"

PARTITIONS = 8

#: Seconds between two turns: produce what is due, read outcomes, decide, show.
_POLL_INTERVAL = 0.2

#: Seconds between two looks at the daemons' metrics, which cost them some work.
_READ_EVERY = 1.0

#: Seconds that the brokers have to take events, or to show outcomes.
_KAFKA_TIMEOUT = 60.0

#: Seconds that the daemons have to stop in order; they have half of it by their configuration.
_STOP_TIMEOUT = 60.0

#: Bytes of outcomes that the reader may prefetch.
_PREFETCH = 4 << 20

#: The kill happens as soon as so large a share of the groups has an outcome.
KILL_FROM = 0.25


class Phase(Enum):
    """Where the demo is."""

    STARTING = "the collectors start and share the partitions"
    """Nothing is produced yet."""

    FLOWING = "both collectors work"
    """Until enough groups have outcomes."""

    TAKING_OVER = "one collector was killed, the other takes over"
    """Until the other one has all partitions, with their state, and has worked on them."""

    RETURNING = "the killed collector was started again"
    """Until it holds partitions again."""

    FINISHING = "both collectors work again, on the rest"
    """Until every group has an outcome."""

    DONE = "every group has an outcome"
    """Nothing is left to wait for."""


#: How many of the events may be produced in each phase.
GATES = {
    Phase.STARTING: Gate.CLOSED,
    Phase.FLOWING: Gate.BEFORE_KILL,
    Phase.TAKING_OVER: Gate.BEFORE_RETURN,
    Phase.RETURNING: Gate.BEFORE_RETURN,
    Phase.FINISHING: Gate.OPEN,
    Phase.DONE: Gate.OPEN,
}

#: Seconds that a phase may take: several times what it takes on two busy cores.
PATIENCE = {
    Phase.STARTING: 240.0,
    Phase.FLOWING: 300.0,
    Phase.TAKING_OVER: 120.0,
    Phase.RETURNING: 240.0,
    Phase.FINISHING: 300.0,
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known at one moment: the groups with outcomes, and what the daemons say.

    ``worked`` are the commits of the other daemon since the kill.
    """

    done: int
    groups: int
    held: Sequence[frozenset[int]]
    worked: int = 0

    @property
    def is_shared(self) -> bool:
        """Whether every partition is held, and every daemon holds one."""
        return all(self.held) and len(frozenset().union(*self.held)) == PARTITIONS


def next_phase(phase: Phase, facts: Facts) -> Phase:
    """Return the phase that the facts lead to: the same one, or the one after it."""
    match phase:
        case Phase.STARTING if facts.is_shared:
            return Phase.FLOWING
        case Phase.FLOWING if facts.done >= KILL_FROM * facts.groups and facts.is_shared:
            return Phase.TAKING_OVER
        case Phase.TAKING_OVER if facts.worked and any(len(h) == PARTITIONS for h in facts.held):
            return Phase.RETURNING
        case Phase.RETURNING if facts.is_shared:
            return Phase.FINISHING
        case Phase.FINISHING if facts.done >= facts.groups:
            return Phase.DONE
        case _:
            return phase


class OutcomeReader:
    """Reads a topic of outcomes from its beginning, as any consumer of committed records."""

    def __init__(self, client: Mapping[str, Any]) -> None:
        self._source = KafkaRecordSource(client, "headrace-collector-demo", _PREFETCH)
        self._before_end = {TopicPartition(OUTCOMES, number) for number in range(PARTITIONS)}
        self._source.assign(dict.fromkeys(self._before_end, 0))
        self.outcomes: list[dict[str, Any]] = []

    def read(self, timeout: float = 0.0) -> bool:
        """Take what has come, or wait for it; False where there is nothing now."""
        fetched = self._source.fetch(timeout)
        for _, records in fetched.chunks:
            found = (outcome_in(record.value()) for record in records)
            self.outcomes += [each for each in found if each is not None]
        self._before_end.difference_update(partition for partition, _ in fetched.ends)
        return bool(fetched.chunks)

    def read_to_end(self, deadline: Deadline) -> list[dict[str, Any]]:
        """Return all outcomes that there are. Blocks.

        Raises:
            KafkaUnavailableError: the end of a partition was not reached by the deadline.
        """
        while self._before_end:
            if deadline.expired:
                names = ", ".join(sorted(map(str, self._before_end)))
                raise KafkaUnavailableError(f"the end of {names} was not reached in time")
            self.read(deadline.at_most(_POLL_INTERVAL))
        return self.outcomes

    def close(self) -> None:
        """Release the client."""
        self._source.close()


class _View(View):
    """What is shown, in the demo's words."""

    __slots__ = ()

    @property
    def summary(self) -> str:
        """Events and groups in one line."""
        return (
            f"{self.produced} of {self.total} events produced, {self.stored} groups have outcomes"
        )


class Run:
    """Drives the daemons through the story on one thread, by the outcomes that can be read.

    The second daemon is the one that is killed.
    """

    def __init__(
        self,
        planned: Schedule,
        daemons: Sequence[Daemon],
        producer: TopicProducer,
        reader: OutcomeReader,
        *,
        engine: str,
        seconds: float,
    ) -> None:
        self._engine = "Spark" if engine == "spark" else engine
        self.lines: list[str] = []
        self._groups = len(planned.groups)
        self._daemons = list(daemons)
        self._victim = self._daemons[1]
        self._records = planned.records()
        self._pace = Pace(len(planned.events), seconds)
        self._producer = producer
        self._reader = reader
        self._counted = 0
        self._done: set[str] = set()
        self._phase = Phase.STARTING
        self._readings = {daemon.name: DaemonReading() for daemon in daemons}
        self._at_kill = dict(self._readings)
        self._killed_at = 0.0
        self._began = self._turned = self._read_at = SYSTEM_CLOCK.monotonic()

    def play(self, progress: DemoProgress) -> None:
        """Start the daemons and go on until every group has an outcome. Blocks.

        Raises:
            DemoError: a daemon ended by itself, or a phase took too long.
            ProduceError: the broker refused events.
        """
        for daemon in self._daemons:
            daemon.start()
        pause = threading.Event()
        patience = Deadline.after(PATIENCE[self._phase])
        while True:
            phase = self._run_once()
            progress.show(self._view(phase))
            if phase is Phase.DONE:
                break
            if phase is not self._phase:
                self._enter(phase)
                patience = Deadline.after(PATIENCE[phase])
            if patience.expired:
                raise DemoError(f"nothing came of this in {PATIENCE[phase]:.0f} s: {phase.value}")
            pause.wait(_POLL_INTERVAL)
        self._producer.flush(Deadline.after(_KAFKA_TIMEOUT))
        commits = {each.name: (each.read() or DaemonReading()).commits for each in self._daemons}
        self.lines.append(
            "commits of the processes that run at the end: "
            f"{', '.join(f'{name} {count}' for name, count in commits.items())}"
        )
        if not commits[self._victim.name]:
            raise DemoError(f"{self._victim.name} committed nothing after it was started again")

    def stop(self) -> dict[str, int]:
        """Stop the daemons in order and return their exit codes. Blocks."""
        deadline = Deadline.after(_STOP_TIMEOUT)
        with ThreadPoolExecutor(len(self._daemons), "demo-stop") as pool:
            codes = pool.map(lambda daemon: daemon.stop(deadline), self._daemons)
            return dict(zip((daemon.name for daemon in self._daemons), codes, strict=True))

    def _run_once(self) -> Phase:
        """Do what is due and return the phase that the facts lead to."""
        for daemon in self._daemons:
            daemon.require_running()
        self._produce()
        while self._reader.read():
            pass
        outcomes = self._reader.outcomes
        self._done.update(str(each.get("id")) for each in outcomes[self._counted :])
        self._counted = len(outcomes)
        if SYSTEM_CLOCK.monotonic() >= self._read_at:
            self._read_at = SYSTEM_CLOCK.monotonic() + _READ_EVERY
            self._readings = {each.name: each.read() or DaemonReading() for each in self._daemons}
        held = [self._readings[daemon.name].partitions for daemon in self._daemons]
        survivor = self._daemons[0].name
        worked = self._readings[survivor].commits - self._at_kill[survivor].commits
        return next_phase(self._phase, Facts(len(self._done), self._groups, held, worked))

    def _produce(self) -> None:
        now = SYSTEM_CLOCK.monotonic()
        count = self._pace.due(now - self._turned, GATES[self._phase])
        self._turned = now
        self._producer.send(islice(self._records, count), Deadline.after(_KAFKA_TIMEOUT))
        if self._producer.failed:
            self._producer.flush(Deadline.after(0))

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        if phase is Phase.TAKING_OVER:
            self._kill()
        elif phase is Phase.RETURNING:
            seconds = SYSTEM_CLOCK.monotonic() - self._killed_at
            self.lines.append(
                f"take-over: {seconds:.1f} s from the kill until {self._daemons[0].name} had all "
                "partitions with their state"
            )
            self._victim.start()

    def _kill(self) -> None:
        name = self._victim.name
        found = self._victim.read() or self._readings[name]
        self._killed_at = SYSTEM_CLOCK.monotonic()
        self._victim.kill()
        self._at_kill = {**self._readings, name: found}
        self._readings[name] = DaemonReading()
        partitions = " ".join(map(str, sorted(found.partitions)))
        self.lines.append(
            f"kill point: {name}, holding partitions {partitions}, by SIGKILL with outcomes of "
            f"{len(self._done)} groups ({len(self._done) / self._groups:.1%})"
        )

    def _view(self, phase: Phase) -> View:
        return _View(
            phase=phase,
            seconds=SYSTEM_CLOCK.monotonic() - self._began,
            total=self._pace.total,
            produced=self._pace.produced,
            stored=len(self._done),
            members=[self._member_view(daemon) for daemon in self._daemons],
            engine=self._engine,
        )

    def _member_view(self, daemon: Daemon) -> MemberView:
        now = self._readings[daemon.name]
        was_killed = daemon is self._victim and self._killed_at
        past = self._at_kill[daemon.name] if was_killed else DaemonReading()
        return MemberView(
            name=daemon.name,
            state=daemon.state,
            partitions=now.partitions,
            lag=now.lag,
            batches=past.batches + now.batches,
            spark_seconds=past.spark_seconds + now.spark_seconds,
            commits=past.commits + now.commits,
        )


def channels(engine: str) -> dict[str, Any]:
    """Return the channel of the demo's daemons: that of ``run``, which waits for a restart.

    The times to live are far longer than the demo, whose events wait while a daemon is down.
    """
    wanted = running.Wanted("", EVENTS, OUTCOMES, engine=engine)
    found: dict[str, Any] = running.configuration(wanted)["channels"]
    found[running.CHANNEL]["processor"]["options"] |= {"orphan_ttl": "1h", "late_ttl": "1h"}
    return found


def run(
    days: int, engine: str, seconds: float, directory: Path | None, console: Console, *, keep: bool
) -> Verdict:
    """Run the demo and check the outcomes. Blocks; on the main thread.

    ``days`` are those of 2013 from the first on; ``seconds`` is the pace of the events.

    Raises:
        HeadraceError: it could not be run to its end.
    """
    require_java()
    kafka_jars()
    flights = read_flights()
    dates = flights["month"] * 100 + flights["day"]
    flights = flights[dates.isin(sorted(dates.unique())[:days])]
    planned = schedule(flights)
    with WorkDirectory(directory) as work:
        say(console, f"work directory: {work.path}", planned.describe())
        try:
            outcomes = _play(planned, work, engine, seconds, console)
        except HeadraceError as error:
            raise DemoError(f"{error}\nall files are kept in {work.path}") from error
        (work.path / "outcomes.json").write_text(json.dumps(outcomes), encoding="utf-8")
        verdict = compare(outcomes, planned.groups, flights)
        work.keep = work.keep or keep or not verdict.holds
        if keep:
            _keep_up(work, console)
        return verdict


def _play(
    planned: Schedule, work: WorkDirectory, engine: str, seconds: float, console: Console
) -> list[dict[str, Any]]:
    """Start everything, go through the story, stop the daemons; return the outcomes."""
    with ExitStack() as held:
        stack = held.enter_context(
            LocalStack.start(work.stack, blueprint=Blueprint(short_lived=True))
        )
        client = {"bootstrap.servers": stack.bootstrap_servers}
        wanted = running.Wanted(stack.bootstrap_servers, EVENTS, OUTCOMES, create=PARTITIONS)
        running.prepare_topics(wanted, client)
        endpoints = Endpoints(stack.bootstrap_servers, stack.zookeeper_hosts)
        daemons = [Daemon(name, work.path / name, endpoints, channels(engine)) for name in MEMBERS]
        for daemon in daemons:
            held.callback(daemon.kill)
        reader = OutcomeReader(client)
        held.callback(reader.close)
        producer = TopicProducer(client, EVENTS)
        played = Run(planned, daemons, producer, reader, engine=engine, seconds=seconds)
        try:
            with DemoProgress(console) as progress:
                played.play(progress)
            codes = played.stop()
        except HeadraceError as error:
            logs = [daemon.end_of_log() for daemon in daemons]
            raise DemoError("\n".join([*logs, str(error)])) from error
        last = OutcomeReader(client)
        held.callback(last.close)
        outcomes = last.read_to_end(Deadline.after(_KAFKA_TIMEOUT))
    say(console, *played.lines)
    for daemon in daemons:
        if code := codes[daemon.name]:
            say(console, f"{daemon.name} stopped with code {code}, not 0", daemon.end_of_log())
    return outcomes


def _keep_up(work: WorkDirectory, console: Console) -> None:
    """Start the stack again in a process of its own, on the same addresses and data."""
    try:
        state = detached.up(work.stack)
    except HeadraceError as error:
        say(console, f"the servers could not be left running: {error}")
        return
    say(
        console,
        f"Kafka: {state.bootstrap_servers}, topics {EVENTS} and {OUTCOMES}",
        f"ZooKeeper: {state.zookeeper_hosts}",
        f"stop the servers with: headrace local down --dir {work.stack}",
    )


def main(days: int, engine: str, seconds: float, directory: Path | None, *, keep: bool) -> int:
    """Run the demo, say how it went, and return the exit code. On the main thread."""
    console, errors = Console(), Console(stderr=True)
    try:
        with interruptible():
            verdict = run(days, engine, seconds, directory, console, keep=keep)
    except Interruption as interruption:
        say(errors, "interrupted; nothing is left running")
        return 128 + interruption.number
    except HeadraceError as error:
        say(errors, str(error))
        return 1
    say(console, str(verdict))
    return 0 if verdict.holds else 1
