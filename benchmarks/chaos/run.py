"""One run: a group at work, a schedule of faults, and the oracle's verdict."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.chaos import oracle
from benchmarks.chaos.attack import Attack
from benchmarks.chaos.commits import backwards, read_commits
from benchmarks.chaos.schedule import Kind, Schedule, draw
from benchmarks.chaos.watcher import OffsetWatcher
from benchmarks.chaos.world import TOPIC, Setting, World
from benchmarks.report import Report, say
from headrace.clock import SYSTEM_CLOCK, Deadline
from headrace.local.process import ServerProcess
from headrace.local.waiting import wait_for

if TYPE_CHECKING:
    from benchmarks.chaos.oracle import Conservation

#: Seconds that the members have to own everything at first, and to store everything at the end.
_READY = 90.0
_DRAINED = 120.0

#: Seconds that the producer has at the end for what is on its way.
_FLUSH = 150.0

#: What a run must at least have had to count: faults a minute, and the share of the records that
#: the producer was to make.
_FAULTS_A_MINUTE = 3.0
_RATE_SHARE = 0.25
_MOVED_SHARE = 0.5

#: From this length on every kind of fault must have happened.
_EVERY_KIND_S = 600.0

#: What a member may end with: in order, or to be started afresh after something was down, or by a
#: SIGTERM that came before Python had loaded it.
_EXPECTED_EXITS = frozenset({0, 3, 5, 70, 128 + signal.SIGTERM})


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

    def report(self) -> Report:
        """Do everything and say what came of it. Blocks."""
        with ExitStack() as ending:
            ending.callback(self._world.close)
            self._world.start()
            self._start_members()
            watchers = self._watchers(ending)
            producer = self._produce()
            ending.callback(producer.kill)
            began = SYSTEM_CLOCK.monotonic()
            self._attack.after_clean = self._count_clean
            self._attack.run()
            seconds = SYSTEM_CLOCK.monotonic() - began
            produced_all = producer.stop(Deadline.after(_FLUSH)) == 0
            drained = self._await_drained()
            self._stop_members()
            found = {name: self._check(name) for name in self._world.channels}
            back = backwards(read_commits(self._world.broker.address), self._in_kafka())
            back |= {name: watcher.backwards for name, watcher in watchers.items()}
        return self._figures(found, back, seconds, complete=produced_all and drained)

    # --- doing ------------------------------------------------------------------------------

    def _start_members(self) -> None:
        for name in self._plan.schedule.running:
            self._world.daemons[name].lane.do(self._world.daemons[name].start)
        if not wait_for(self._all_owned, Deadline.after(_READY)):
            raise AssertionError(
                f"the members did not share everything; see {self._world.directory}"
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

    def _produce(self) -> ServerProcess:
        return ServerProcess.start(
            [
                *(sys.executable, "-m", "benchmarks.chaos.producer"),
                *(self._world.broker.address, TOPIC, str(self._plan.setting.partitions)),
                *(str(self._plan.rate), str(self._ledger)),
            ],
            log_file=self._world.directory / "producer.log",
            deadline=Deadline.after(_READY),
            environment={"PYTHONPATH": str(Path(__file__).parents[2])},
        )

    def _count_clean(self) -> None:
        self._clean = {name: self._check(name).duplicated for name in self._world.channels}

    def _await_drained(self) -> bool:
        """Wait until the last acknowledged record of each partition is stored everywhere."""
        sent = oracle.acknowledged(self._ledger)
        last: dict[int, int] = {}
        for number, offset in sent.items():
            partition = number % self._plan.setting.partitions
            last[partition] = max(offset, last.get(partition, -1))
        wanted = {f"{TOPIC}-{partition}": offset for partition, offset in last.items()}
        say("healed; waiting for the rest")

        def stored() -> bool:
            reached = [oracle.reached(self._world.sink(name)) for name in self._world.channels]
            return all(each.get(p, -1) >= wanted[p] for each in reached for p in wanted)

        return bool(wait_for(stored, Deadline.after(_DRAINED)))

    def _stop_members(self) -> None:
        for daemon in self._world.daemons.values():
            daemon.lane.do(daemon.stop)
        for daemon in self._world.daemons.values():
            daemon.lane.settle()

    def _check(self, channel: str) -> Conservation:
        return oracle.check(self._ledger, self._world.sink(channel))

    # --- saying -----------------------------------------------------------------------------

    def _figures(
        self,
        found: dict[str, Conservation],
        back: dict[str, int],
        seconds: float,
        *,
        complete: bool,
    ) -> Report:
        schedule = self._plan.schedule
        done = self._attack.done
        transactional = [n for n in found if self._is_transactional(n)]
        first = next(iter(found.values()))
        moved = sum(each.moved for each in found.values())
        claims = sum(each.claims for each in found.values())
        exits = Counter(code for daemon in self._world.daemons.values() for code in daemon.exits)
        rate = first.acknowledged / seconds
        must_not = {
            "lost": sum(each.lost for each in found.values()),
            "duplicated": sum(found[name].duplicated for name in transactional),
            "duplicated_by_clean_events": sum(self._clean.values()),
            "disordered": sum(found[name].disordered for name in transactional),
            "commits_backwards": sum(n for name, n in back.items() if self._is_fenced(name)),
            "unexpected_exits": sum(n for code, n in exits.items() if code not in _EXPECTED_EXITS),
        }
        floors = {
            "complete": complete,
            "faults_a_minute": done.total() / seconds * 60 >= _FAULTS_A_MINUTE,
            "every_kind": seconds < _EVERY_KIND_S or set(done) == set(Kind),
            "rate": rate >= _RATE_SHARE * self._plan.rate,
            "moved": moved >= _MOVED_SHARE * claims,
        }
        figures: dict[str, Any] = {
            "holds": not any(must_not.values()) and all(floors.values()),
            "seed": schedule.seed,
            "acknowledged": first.acknowledged,
            **must_not,
            "claims_moved": moved,
            "claims": claims,
            "moves": sum(each.moves for each in found.values()),
            "faults": {kind.value: done[kind] for kind in Kind},
            "faults_a_minute": round(done.total() / seconds * 60, 1),
            "records_a_second": round(rate, 1),
            "seconds": round(seconds),
            "below_floor": [name for name, met in floors.items() if not met],
            "backwards_by_channel": back,
            "clean_duplicates_by_channel": self._clean,
            "by_channel": {name: asdict(each) for name, each in found.items()},
            "exits": {str(code): n for code, n in sorted(exits.items())},
        }
        return Report("chaos", figures)

    def _is_transactional(self, channel: str) -> bool:
        return "offsets" not in self._world.channels[channel]

    def _is_fenced(self, channel: str) -> bool:
        """Whether the channel's offsets are kept where a former owner's commit is refused."""
        offsets = self._world.channels[channel].get("offsets", {})
        return "zookeeper" in offsets.values() or "transactions" in offsets.values()
