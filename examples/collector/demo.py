"""The demo of the collector: set-up, run, stop, check."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from examples.collector.groups import Verdict, compare, schedule
from examples.harness.daemons import Daemons, DaemonSnapshot
from examples.harness.flights import DemoError, read_flights
from examples.harness.progress import DemoProgress, Pace, View, say
from examples.harness.run import (
    PhasedRun,
    ResultReader,
    WorkDirectory,
    concluded,
    leave_servers,
    require_servers,
    servers,
    verified_in,
)
from headrace.apps.collector import daemon_config
from headrace.apps.collector.commands import outcome_in
from headrace.core.clock import SYSTEM_CLOCK
from headrace.kafka.topic_producer import TopicProducer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from rich.console import Console

    from examples.collector.groups import Schedule
    from headrace.core.records import Record

EVENTS, OUTCOMES = "eventbus-collector", "eventbus-collector-outcomes"

PARTITIONS = 8

#: The kill happens as soon as so large a share of the groups has an outcome.
KILL_FROM = 0.25


class CollectorDemoPhase(Enum):
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


def next_phase(phase: CollectorDemoPhase, facts: Facts) -> CollectorDemoPhase:
    """Return the phase that the facts lead to: the same one, or the one after it."""
    match phase:
        case CollectorDemoPhase.STARTING if facts.is_shared:
            return CollectorDemoPhase.FLOWING
        case CollectorDemoPhase.FLOWING if (
            facts.done >= KILL_FROM * facts.groups and facts.is_shared
        ):
            return CollectorDemoPhase.TAKING_OVER
        case CollectorDemoPhase.TAKING_OVER if facts.worked and any(
            len(h) == PARTITIONS for h in facts.held
        ):
            return CollectorDemoPhase.RETURNING
        case CollectorDemoPhase.RETURNING if facts.is_shared:
            return CollectorDemoPhase.FINISHING
        case CollectorDemoPhase.FINISHING if facts.done >= facts.groups:
            return CollectorDemoPhase.DONE
        case _:
            return phase


def outcomes_in(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return the outcomes among the records of their topic."""
    found = (outcome_in(record.value()) for record in records)
    return [each for each in found if each is not None]


class _View(View):
    """What is shown, in the demo's words."""

    __slots__ = ()

    @property
    def summary(self) -> str:
        """Events and groups in one line."""
        return (
            f"{self.produced} of {self.total} events produced, {self.stored} groups have outcomes"
        )


class DemoRun(PhasedRun[CollectorDemoPhase]):
    """Drives the daemons through the story, by the outcomes that can be read."""

    view = _View

    def __init__(
        self,
        planned: Schedule,
        daemons: Daemons,
        producer: TopicProducer,
        reader: ResultReader,
        *,
        engine: str,
        seconds: float,
    ) -> None:
        pace = Pace(len(planned.events), seconds)
        records = planned.records()
        super().__init__(
            CollectorDemoPhase.STARTING, daemons, producer, records, pace, engine=engine
        )
        self._groups = len(planned.groups)
        self._reader = reader
        self._done: set[str] = set()

    @property
    def stored(self) -> int:
        return len(self._done)

    def play(self, progress: DemoProgress) -> None:
        super().play(progress)
        commits = {each.name: (each.read() or DaemonSnapshot()).commits for each in self.daemons}
        self.lines.append(
            "commits of the processes that run at the end: "
            f"{', '.join(f'{name} {count}' for name, count in commits.items())}"
        )
        if not commits[self.victim.name]:
            raise DemoError(f"{self.victim.name} committed nothing after it was started again")

    def look(self) -> None:
        self._done.update(str(each.get("id")) for each in outcomes_in(self._reader.read()))

    def next_phase(self) -> CollectorDemoPhase:
        held = [self.readings[daemon.name].partitions for daemon in self.daemons]
        survivor, _ = self.readings
        worked = self.readings[survivor].commits - self.at_kill[survivor].commits
        return next_phase(self.phase, Facts(len(self._done), self._groups, held, worked))

    def enter(self, phase: CollectorDemoPhase) -> None:
        if phase is CollectorDemoPhase.TAKING_OVER:
            partitions = " ".join(map(str, sorted(self.kill().partitions)))
            self.lines.append(
                f"kill point: {self.victim.name}, holding partitions {partitions}, by SIGKILL with "
                f"outcomes of {len(self._done)} groups ({len(self._done) / self._groups:.1%})"
            )
        elif phase is CollectorDemoPhase.RETURNING:
            seconds = SYSTEM_CLOCK.time() - self.killed_at
            survivor, _ = self.readings
            self.lines.append(
                f"take-over: {seconds:.1f} s from the kill until {survivor} had all partitions "
                "with their state"
            )
            self.victim.start()


def channels(engine: str) -> dict[str, Any]:
    """Return the channel of the demo's daemons: that of ``run``, which waits for a restart.

    The times to live are far longer than the demo, whose events wait while a daemon is down.
    """
    wanted = daemon_config.CollectorOptions("", EVENTS, OUTCOMES, engine=engine)
    found: dict[str, Any] = daemon_config.configuration(wanted)["channels"]
    found[daemon_config.CHANNEL]["processor"]["options"] |= {"orphan_ttl": "1h", "late_ttl": "1h"}
    return found


def run(
    days: int, engine: str, seconds: float, directory: Path | None, console: Console, *, keep: bool
) -> Verdict:
    """Run the demo and check the outcomes. Blocks; on the main thread.

    ``days`` are those of 2013 from the first on; ``seconds`` is the pace of the events.

    Raises:
        HeadraceError: it could not be run to its end.
    """
    require_servers()
    flights = read_flights()
    dates = flights["month"] * 100 + flights["day"]
    flights = flights[dates.isin(sorted(dates.unique())[:days])]
    planned = schedule(flights)

    def play(work: WorkDirectory) -> Verdict:
        say(console, planned.describe())
        outcomes = _play(planned, work, engine, seconds, console)
        (work.path / "outcomes.json").write_text(json.dumps(outcomes), encoding="utf-8")
        return compare(outcomes, planned.groups, flights)

    def leave(work: WorkDirectory) -> None:
        leave_servers(work, console, f"topics {EVENTS} and {OUTCOMES}")

    return verified_in(directory, console, play, leave if keep else None)


def _play(
    planned: Schedule, work: WorkDirectory, engine: str, seconds: float, console: Console
) -> list[dict[str, Any]]:
    """Start everything, go through the story, stop the daemons; return the outcomes."""
    with (
        servers(work) as endpoints,
        Daemons.of(work.path, endpoints, 2, channels(engine)) as daemons,
    ):
        client = endpoints.client
        wanted = daemon_config.CollectorOptions(
            endpoints.bootstrap_servers, EVENTS, OUTCOMES, create=PARTITIONS
        )
        daemon_config.prepare_topics(wanted, client)
        producer = TopicProducer(client, EVENTS)
        with closing(ResultReader(endpoints, OUTCOMES, PARTITIONS)) as reader:
            played = DemoRun(planned, daemons, producer, reader, engine=engine, seconds=seconds)
            with daemons.stopped(), DemoProgress(console) as progress:
                played.play(progress)
        with closing(ResultReader(endpoints, OUTCOMES, PARTITIONS)) as reader:
            outcomes = outcomes_in(reader.read_to_end())
    say(console, *played.lines, *daemons.complaints())
    return outcomes


def main(days: int, engine: str, seconds: float, directory: Path | None, *, keep: bool) -> int:
    """Run the demo, say how it went, and return the exit code. On the main thread."""
    return concluded(lambda console: run(days, engine, seconds, directory, console, keep=keep))
