"""The demo of workflows: set-up, run with kills, stop, check."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from examples.harness.daemons import Daemon, Daemons
from examples.harness.flights import DemoError, read_flights
from examples.harness.progress import say
from examples.harness.run import (
    POLL_INTERVAL,
    ResultReader,
    WorkDirectory,
    concluded,
    require_servers,
    servers,
    verified_in,
)
from examples.workflow.turnaround import LEDGER, Ledger, Verdict, compare, flights_of, flows
from headrace.apps.workflow.daemon_config import NodeRole, WorkflowNode
from headrace.apps.workflow.executor import Executor
from headrace.apps.workflow.topics import TopicReader, Topics, create_topics, document_of
from headrace.core.clock import SYSTEM_CLOCK, Deadline

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console

    from examples.harness.daemons import Endpoints
    from examples.workflow.turnaround import Flight


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

#: Seconds between two lines on how far it is.
_SHOW_EVERY = 5.0

#: Seconds without another outcome after which the demo gives up: several sessions, and Spark's
#: start.
_PATIENCE = 240.0


@dataclass(slots=True)
class InstanceCounts:
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


class DemoRun:
    """Starts instances, and kills processes on the way. For one thread."""

    def __init__(
        self,
        flights: Sequence[Flight],
        daemons: Daemons,
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
        self.progress = InstanceCounts(len(flights))

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
            self._daemons.require_running()
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
            pause.wait(POLL_INTERVAL)
        self._say(f"all {progress.total} instances have an outcome")

    def _start(self) -> None:
        progress = self.progress
        count = progress.may_start
        if count > 0:
            flights = self._flights[progress.started : progress.started + count]
            self._executor.start_all("turnaround", [(each.instance, each.args) for each in flights])
            progress.started += len(flights)

    def _read(self) -> None:
        """Read outcomes that have come."""
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
        while not all(self._holds_some(daemon) for daemon in self._daemons):
            self._daemons.require_running()
            self._read()
            if deadline.expired:
                raise DemoError(f"nothing came of this in {_PATIENCE:.0f} s: {what}")
            pause.wait(POLL_INTERVAL)

    def _holds_some(self, daemon: Daemon) -> bool:
        snapshot = daemon.read()
        return snapshot is not None and bool(snapshot.partitions)

    def _say(self, text: str) -> None:
        say(self._console, f"{SYSTEM_CLOCK.monotonic() - self._began:4.0f} s  {text}")


def nodes(endpoints: Endpoints, work: Path, engine: str) -> Daemons:
    """Return the reducer and two workers, not started."""
    topics, found = Topics(), []
    for name, role in (
        ("reducer", NodeRole.REDUCER),
        ("worker-1", NodeRole.WORKER),
        ("worker-2", NodeRole.WORKER),
    ):
        node = WorkflowNode(
            "examples.workflow.turnaround:flows",
            endpoints.bootstrap_servers,
            topics,
            work / name / "state",
            endpoints.zookeeper_hosts,
            role,
            _THREADS,
            engine,
        )
        channels = node.configuration()["channels"]
        found.append(Daemon(name, work / name, endpoints, channels))
    return Daemons(found)


def run(instances: int, engine: str, directory: Path | None, console: Console) -> Verdict:
    """Run the demo and check outcomes and effects. Blocks; on the main thread.

    Raises:
        HeadraceError: it could not be run to its end.
    """
    require_servers()
    flights = flights_of(read_flights(instances))
    cancelled = sum(not flight.flown for flight in flights)

    def play(work: WorkDirectory) -> Verdict:
        say(
            console,
            f"{len(flights)} flights, {cancelled} of them cancelled: inspect, then refuel and "
            "clean, then board",
        )
        return _play(flights, work, engine, console)

    return verified_in(directory, console, play)


def _play(flights: Sequence[Flight], work: WorkDirectory, engine: str, console: Console) -> Verdict:
    """Start everything, run, stop the processes, and compare."""
    path = work.path / "ledger.db"
    with (
        closing(Ledger.create(path)) as ledger,
        servers(work) as endpoints,
        nodes(endpoints, work.path, engine) as daemons,
    ):
        os.environ[LEDGER] = str(path)
        client = endpoints.client
        create_topics(client, Topics(), partitions=PARTITIONS, assignments=PARTITIONS)
        for daemon in daemons:
            daemon.start()
        with (
            Executor(flows, endpoints.bootstrap_servers) as executor,
            TopicReader(client, Topics().outcomes, from_beginning=True) as outcomes,
            daemons.stopped(),
        ):
            DemoRun(flights, daemons, executor, outcomes, console).play()
        say(console, *daemons.complaints())
        again = sum(count - 1 for count in ledger.calls().values())
        say(console, f"calls that were made again after a kill, under the same key: {again}")
        with closing(ResultReader(endpoints, Topics().outcomes, PARTITIONS)) as reader:
            found = [document_of(record) for record in reader.read_to_end()]
        return compare(flights, [each for each in found if each is not None], ledger)


def main(instances: int, engine: str, directory: Path | None) -> int:
    """Run the demo, say how it went, and return the exit code. On the main thread."""
    return concluded(lambda console: run(instances, engine, directory, console))
