"""``headrace workflow demo``: set-up, run with kills, stop, check."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console

from headrace.apps.workflow.executor import Executor
from headrace.apps.workflow.running import Node, Role
from headrace.apps.workflow.topics import TopicReader, Topics, create_topics, document_of
from headrace.apps.workflow.turnaround import (
    LEDGER,
    Ledger,
    Verdict,
    compare,
    flights_of,
    flows,
)
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import HeadraceError, KafkaUnavailableError
from headrace.devstack import Blueprint, LocalStack
from headrace.devstack.jars import kafka_jars
from headrace.devstack.jvm import require_java
from headrace.tools.demo.daemons import Daemon, Endpoints
from headrace.tools.demo.demo import Interruption, WorkDirectory, interruptible
from headrace.tools.demo.flights import DemoError, read_flights
from headrace.tools.demo.story import say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from headrace.apps.workflow.turnaround import Flight


PARTITIONS = 8

#: Threads of each of the two workers.
_THREADS = 4

#: Who is killed when such a share of the instances has an outcome.
KILLS = (
    (0.15, ("worker-1",)),
    (0.35, ("reducer",)),
    (0.55, ("worker-2",)),
    (0.75, ("reducer", "worker-1")),
)

#: So much beyond the next kill may be started, as a share: enough that there is work at the kill.
_AHEAD = 0.2

#: Instances that are started together at most.
_MOST_STARTS = 1_000

#: Seconds between two turns: start what may be, read outcomes, kill, show.
_POLL_INTERVAL = 0.2

#: Seconds between two lines on how far it is.
_SHOW_EVERY = 5.0

#: Seconds without another outcome after which the demo gives up: several sessions, and Spark's
#: start.
_PATIENCE = 240.0

#: Seconds that the processes have to stop in order, and the brokers to show all outcomes.
_STOP_TIMEOUT = 60.0


@dataclass(slots=True)
class Progress:
    """How far the demo is: instances that were started, and that have an outcome."""

    total: int
    started: int = 0
    done: int = 0
    kills: int = 0

    @property
    def may_start(self) -> int:
        """How many more instances may be started now."""
        left = KILLS[self.kills :]
        share = min(1.0, left[0][0] + _AHEAD) if left else 1.0
        return min(_MOST_STARTS, round(share * self.total) - self.started)

    @property
    def victims(self) -> tuple[str, ...]:
        """Who is to be killed now."""
        for share, victims in KILLS[self.kills :]:
            return victims if self.done >= share * self.total else ()
        return ()


class Run:
    """Starts instances, and kills processes on the way. For one thread."""

    def __init__(
        self,
        flights: Sequence[Flight],
        daemons: Mapping[str, Daemon],
        executor: Executor,
        outcomes: TopicReader,
        console: Console,
    ) -> None:
        self._flights = flights
        self._daemons = daemons
        self._executor = executor
        self._outcomes = outcomes
        self._console = console
        self._done: set[str] = set()
        self._began = SYSTEM_CLOCK.monotonic()
        self.progress = Progress(len(flights))

    def play(self) -> None:
        """Go on until every instance has an outcome. Blocks.

        Raises:
            DemoError: a process ended by itself, or nothing came of it for long.
            ProduceError: the brokers refused a start.
        """
        pause = threading.Event()
        self._await_all("the processes start, and share the partitions")
        self._say("instances are started")
        progress, show_at = self.progress, 0.0
        patience = Deadline.after(_PATIENCE)
        while progress.done < progress.total:
            before = progress.done
            self._require_running()
            self._start()
            self._read()
            if progress.victims:
                self._kill(progress.victims)
            if progress.done > before:
                patience = Deadline.after(_PATIENCE)
            if patience.expired:
                raise DemoError(f"no instance had an outcome for {_PATIENCE:.0f} s")
            if SYSTEM_CLOCK.monotonic() >= show_at:
                show_at = SYSTEM_CLOCK.monotonic() + _SHOW_EVERY
                self._say(f"{progress.started} of {progress.total} started, {progress.done} ended")
            pause.wait(_POLL_INTERVAL)
        self._say(f"all {progress.total} instances have an outcome")

    def _start(self) -> None:
        progress = self.progress
        count = progress.may_start
        if count > 0:
            flights = self._flights[progress.started : progress.started + count]
            self._executor.start_all("turnaround", [(each.instance, each.args) for each in flights])
            progress.started += len(flights)

    def _read(self) -> None:
        """Take note of outcomes."""
        before = -1
        while before < len(self._done):
            before = len(self._done)
            for record in self._outcomes.fetch(0.0):
                document = document_of(record)
                if document is not None:
                    self._done.add(document["instance"])
        self.progress.done = len(self._done)

    def _kill(self, victims: Sequence[str]) -> None:
        """Kill processes that have work, start them again, and wait until they hold partitions."""
        self.progress.kills += 1
        self._start()
        done = self.progress.done / self.progress.total
        for name in victims:
            self._daemons[name].kill()
        self._say(f"SIGKILL to {' and '.join(victims)}, with {done:.0%} of the instances ended")
        for name in victims:
            self._daemons[name].start()
        self._await_all(f"{' and '.join(victims)} started again")

    def _await_all(self, what: str) -> None:
        """Wait until each process holds partitions."""
        pause, deadline = threading.Event(), Deadline.after(_PATIENCE)
        self._say(what)
        while not all(self._holds_some(daemon) for daemon in self._daemons.values()):
            self._require_running()
            self._read()
            if deadline.expired:
                raise DemoError(f"nothing came of this in {_PATIENCE:.0f} s: {what}")
            pause.wait(_POLL_INTERVAL)

    def _holds_some(self, daemon: Daemon) -> bool:
        reading = daemon.read()
        return reading is not None and bool(reading.partitions)

    def _require_running(self) -> None:
        for daemon in self._daemons.values():
            daemon.require_running()

    def _say(self, text: str) -> None:
        say(self._console, f"{SYSTEM_CLOCK.monotonic() - self._began:4.0f} s  {text}")


def nodes(endpoints: Endpoints, work: Path, engine: str) -> dict[str, Daemon]:
    """Return the reducer and two workers, not started."""
    topics, found = Topics(), {}
    for name, role in (
        ("reducer", Role.REDUCER),
        ("worker-1", Role.WORKER),
        ("worker-2", Role.WORKER),
    ):
        node = Node(
            "headrace.apps.workflow.turnaround:flows",
            endpoints.bootstrap_servers,
            topics,
            work / name / "state",
            endpoints.zookeeper_hosts,
            role,
            _THREADS,
            engine,
        )
        found[name] = Daemon(name, work / name, endpoints, node.configuration()["channels"])
    return found


def run(instances: int, engine: str, directory: Path | None, console: Console) -> Verdict:
    """Run the demo and check outcomes and effects. Blocks; on the main thread.

    Raises:
        HeadraceError: it could not be run to its end.
    """
    require_java()
    kafka_jars()
    flights = flights_of(read_flights(instances))
    cancelled = sum(not flight.flown for flight in flights)
    with WorkDirectory(directory) as work:
        say(
            console,
            f"work directory: {work.path}",
            f"{len(flights)} flights, {cancelled} of them cancelled: inspect, then refuel and "
            "clean, then board",
        )
        try:
            verdict = _play(flights, work, engine, console)
        except HeadraceError as error:
            raise DemoError(f"{error}\nall files are kept in {work.path}") from error
        work.keep = work.keep or not verdict.holds
        return verdict


def _play(flights: Sequence[Flight], work: WorkDirectory, engine: str, console: Console) -> Verdict:
    """Start everything, run, stop the processes, and compare."""
    with ExitStack() as held:
        path = work.path / "ledger.db"
        ledger = Ledger.create(path)
        held.callback(ledger.close)
        os.environ[LEDGER] = str(path)
        stack = held.enter_context(
            LocalStack.start(work.stack, blueprint=Blueprint(short_lived=True))
        )
        client = {"bootstrap.servers": stack.bootstrap_servers}
        create_topics(client, Topics(), partitions=PARTITIONS, assignments=PARTITIONS)
        endpoints = Endpoints(stack.bootstrap_servers, stack.zookeeper_hosts)
        daemons = nodes(endpoints, work.path, engine)
        for daemon in daemons.values():
            held.callback(daemon.kill)
            daemon.start()
        executor = held.enter_context(Executor(flows, stack.bootstrap_servers))
        outcomes = TopicReader(client, Topics().outcomes, from_beginning=True)
        held.enter_context(outcomes)
        try:
            Run(flights, daemons, executor, outcomes, console).play()
            codes = _stop(daemons)
        except HeadraceError as error:
            logs = [daemon.end_of_log() for daemon in daemons.values()]
            raise DemoError("\n".join([*logs, str(error)])) from error
        for name, code in codes.items():
            if code:
                logged = daemons[name].end_of_log()
                say(console, f"{name} stopped with code {code}, not 0", logged)
        again = sum(count - 1 for count in ledger.calls().values())
        say(console, f"calls that were made again after a kill, under the same key: {again}")
        return compare(flights, _all_outcomes(client), ledger)


def _stop(daemons: Mapping[str, Daemon]) -> dict[str, int]:
    """Stop the processes in order and return their exit codes. Blocks."""
    deadline = Deadline.after(_STOP_TIMEOUT)
    with ThreadPoolExecutor(len(daemons), "demo-stop") as pool:
        codes = pool.map(lambda daemon: daemon.stop(deadline), daemons.values())
        return dict(zip(daemons, codes, strict=True))


def _all_outcomes(client: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all records of outcomes that readers of committed records see. Blocks."""
    found, deadline = [], Deadline.after(_STOP_TIMEOUT)
    with TopicReader(client, Topics().outcomes, from_beginning=True) as reader:
        while not reader.is_at_end:
            if deadline.expired:
                raise KafkaUnavailableError("the outcomes could not be read to their end in time")
            documents = map(document_of, reader.fetch(_POLL_INTERVAL))
            found += [each for each in documents if each is not None]
    return found


def main(instances: int, engine: str, directory: Path | None) -> int:
    """Run the demo, say how it went, and return the exit code. On the main thread."""
    console, errors = Console(), Console(stderr=True)
    try:
        with interruptible():
            verdict = run(instances, engine, directory, console)
    except Interruption as interruption:
        say(errors, "interrupted; nothing is left running")
        return 128 + interruption.number
    except HeadraceError as error:
        say(errors, str(error))
        return 1
    say(console, str(verdict))
    return 0 if verdict.holds else 1
