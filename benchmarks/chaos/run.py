"""One run: a group at work, a schedule of faults, and the oracle's verdict."""

from __future__ import annotations

import shutil
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.chaos import keyed, oracle
from benchmarks.chaos.attack import Attack
from benchmarks.chaos.commits import backwards, read_commits
from benchmarks.chaos.doubts import in_doubt
from benchmarks.chaos.repeats import repeats
from benchmarks.chaos.schedule import Schedule, draw
from benchmarks.chaos.verdict import Events, Evidence, Offsets, judge
from benchmarks.chaos.watcher import OffsetWatcher
from benchmarks.chaos.world import TOPIC, Setting, World
from benchmarks.report import say
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.progress import Silence, signs_of_work
from headrace.devstack.server import ServerProcess
from headrace.devstack.wait import FAR_S, SILENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Collection

    from benchmarks.chaos.commits import Commit
    from benchmarks.chaos.oracle import Conservation
    from benchmarks.chaos.repeats import Repeat
    from benchmarks.report import Report

#: Seconds in which a member that is behind at the end stores nothing, and is taken to never do.
_DRAINED = 120.0

#: Seconds that the producer has at the end for what is on its way.
_FLUSH = 150.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run. ``rate`` is in records a second."""

    schedule: Schedule
    rate: int = 200
    setting: Setting = field(default_factory=Setting)


def run(minutes: float = 10.0, seed: int = 1) -> Report:
    """Draw a schedule and carry it out. Blocks for a minute or two longer than that."""
    return carry_out(Plan(draw(seed, minutes * 60)))


def carry_out(plan: Plan, *, keep: bool = False) -> Report:
    """Carry a plan out in a folder of its own, which is kept with ``keep`` or when it fails."""
    directory = Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
    say(f"seed {plan.schedule.seed}, {plan.schedule.seconds:.0f} s, in {directory}")
    report = Run(plan, directory).report()
    if report.figures["holds"] and not keep:
        shutil.rmtree(directory, ignore_errors=True)
    else:
        say(f"everything is kept in {directory}")
    return report


class Run:
    """One run in a folder. For one thread."""

    def __init__(self, plan: Plan, directory: Path) -> None:
        self._plan = plan
        self._world = World(directory, plan.schedule.members, plan.setting)
        self._ledger = directory / "acknowledged"
        self._attack = Attack(self._world, plan.schedule)
        self._clean: dict[str, int] = {}
        self._clean_exits: list[int] = []
        self._clean_unreturned: list[str] = []

    def report(self) -> Report:
        """Do everything and say what came of it. Blocks."""
        return judge(self.evidence())

    def evidence(self) -> Evidence:
        """Do everything and gather what is left. Blocks."""
        with ExitStack() as ending:
            ending.callback(self._world.close)
            self._world.start()
            self._start_members()
            watchers = self._watchers(ending)
            producer = self._produce(ending)
            began = SYSTEM_CLOCK.monotonic()
            self._attack.after_clean = self._judge_clean
            self._attack.run()
            seconds = SYSTEM_CLOCK.monotonic() - began
            produced_all = producer.stop(Deadline.after(_FLUSH)) == 0
            drained = self._await_drained()
            self._stop_members()
            return self._gather(watchers, seconds, complete=produced_all and drained)

    # --- doing ------------------------------------------------------------------------------

    def _start_members(self) -> None:
        for name in self._plan.schedule.running:
            self._world.daemons[name].lane.do(self._world.daemons[name].start)
        for daemon in self._world.daemons.values():
            daemon.lane.settle()
        silence = self._world.silence(*self._plan.schedule.running)
        started = [self._world.daemons[name] for name in self._plan.schedule.running]

        def settled() -> bool:
            return self._all_owned() or not all(daemon.running for daemon in started)

        wait_for(settled, Deadline.after(FAR_S), silence)
        if not self._all_owned():
            ended = [f"{d.name} ended with: {d.last_words()}" for d in started if not d.running]
            raise AssertionError(
                f"the members did not share everything; see {self._world.directory}; "
                + "; ".join(ended)
            )

    def _all_owned(self) -> bool:
        return sum(daemon.owns() for daemon in self._world.daemons.values()) == self._world.claims

    def _watchers(self, ending: ExitStack) -> dict[str, OffsetWatcher]:
        partitions = self._plan.setting.partitions
        watchers = {
            name: OffsetWatcher(self._world.zookeeper.address, name, TOPIC, partitions)
            for name in self._world.channels
            if name not in self._in_kafka()
        }
        for watcher in watchers.values():
            watcher.start()
            ending.callback(watcher.stop)
        return watchers

    def _in_kafka(self) -> list[str]:
        return [
            name
            for name, channel in self._world.channels.items()
            if channel.get("offsets", {}).get("type") != "zookeeper"
        ]

    def _produce(self, ending: ExitStack) -> ServerProcess:
        """Start the producer, and wait for its first record."""
        producer = ServerProcess.start(
            [
                *(sys.executable, "-m", "benchmarks.chaos.producer"),
                *(self._world.broker.address, TOPIC, str(self._plan.setting.partitions)),
                *(str(self._plan.rate), str(self._ledger)),
            ],
            log_file=self._world.directory / "producer.log",
            deadline=Deadline.after(FAR_S),
            environment={"PYTHONPATH": str(Path(__file__).parents[2])},
        )
        ending.callback(producer.kill)
        silence = Silence(signs_of_work([producer.identity.pid]), SILENCE_S)
        if not wait_for(self._has_begun, Deadline.after(FAR_S), silence):
            log = self._world.directory / "producer.log"
            raise AssertionError(f"nothing was acknowledged; see {log}")
        return producer

    def _has_begun(self) -> bool:
        return self._ledger.exists() and self._ledger.stat().st_size > 0

    def _judge_clean(self) -> None:
        self._clean = {name: self._check(name).duplicated for name in self._world.channels}
        self._clean_exits = self._exits()
        self._clean_unreturned = list(self._attack.unreturned)

    def _await_drained(self) -> bool:
        """Wait until the last acknowledged record of each partition is stored everywhere.

        It is waited for as long as more is stored, or members that have nothing yet work on their
        start: how long that takes is the machine's.
        """
        sent = oracle.acknowledged(self._ledger)
        last: dict[int, int] = {}
        for number, offset in sent.items():
            partition = number % self._plan.setting.partitions
            last[partition] = max(offset, last.get(partition, -1))
        wanted = {f"{TOPIC}-{partition}": offset for partition, offset in last.items()}
        say("healed; waiting for the rest")

        def reached() -> list[dict[str, int]]:
            return [oracle.reached(self._world.sink(name)) for name in self._world.channels]

        def stored() -> bool:
            self._attack.supervise()
            return all(each.get(p, -1) >= wanted[p] for each in reached() for p in wanted)

        silence = Silence(lambda: (str(reached()), self._world.starting()), _DRAINED)
        return bool(wait_for(stored, Deadline.after(FAR_S), silence))

    def _stop_members(self) -> None:
        for daemon in self._world.daemons.values():
            daemon.lane.do(daemon.stop)
        for daemon in self._world.daemons.values():
            daemon.lane.settle()

    def _check(self, channel: str, waiting: Collection[int] = ()) -> Conservation:
        """Compare; missing records of the partitions that are ``waiting`` are not lost."""
        partitions = self._plan.setting.partitions
        sink = self._world.sink(channel)
        return oracle.check(self._ledger, sink, lambda number: number % partitions in waiting)

    def _exits(self) -> list[int]:
        return [code for daemon in self._world.daemons.values() for code in daemon.codes]

    # --- gathering --------------------------------------------------------------------------

    def _gather(
        self, watchers: dict[str, OffsetWatcher], seconds: float, *, complete: bool
    ) -> Evidence:
        channels = self._world.channels
        commits = read_commits(self._world.broker.address)
        by_channel = {name: [c for c in commits if c.group == name] for name in channels}
        by_channel |= {name: watcher.commits for name, watcher in watchers.items()}
        events = Events(
            seconds,
            self._attack.done,
            self._exits(),
            self._clean_exits,
            self._attack.unreturned,
            self._clean_unreturned,
            self._attack.waited,
        )
        return Evidence(
            seed=self._plan.schedule.seed,
            rate=self._plan.rate,
            complete=complete,
            found={name: self._check(name, self._waiting(name)) for name in channels},
            clean=self._clean,
            offsets={
                name: self._offsets(name, each, watchers.get(name))
                for name, each in by_channel.items()
            },
            repeats={name: self._repeats(name, each) for name, each in by_channel.items()},
            counted={
                name: keyed.check(self._world.sink(name), self._world.verified(name))
                for name in channels
                if keyed.is_counted(self._world.sink(name))
            },
            transactional=[name for name in channels if "offsets" not in channels[name]],
            events=events,
        )

    def _waiting(self, channel: str) -> frozenset[int]:
        """Return the partitions that nobody can begin with; the members are gone."""
        if channel not in self._in_kafka():
            return frozenset()
        return in_doubt(self._world.broker.address, channel, TOPIC, self._plan.setting.partitions)

    def _offsets(
        self, channel: str, commits: list[Commit], watcher: OffsetWatcher | None
    ) -> Offsets:
        """Say what was seen; a group's commits in Kafka are all read at the end, or it fails."""
        kept = self._world.channels[channel].get("offsets", {}).values()
        return Offsets(
            commits=len(commits),
            backwards=backwards(commits, [channel])[channel],
            watched=watcher is None or (watcher.alive and watcher.looks > 0),
            fenced="zookeeper" in kept or "transactions" in kept,
        )

    def _repeats(self, channel: str, commits: list[Commit]) -> list[Repeat]:
        return repeats(oracle.stored(self._world.sink(channel)), commits)
