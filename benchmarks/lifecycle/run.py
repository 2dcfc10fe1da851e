"""The rounds that are measured, the operations that must harm nothing, and the figures of both."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import stack
from benchmarks.lifecycle.figures import Measuring
from benchmarks.lifecycle.operations import Operations
from benchmarks.lifecycle.schedule import draw
from benchmarks.lifecycle.world import LOAD, OTHER, SOMETIMES, STEADY, Load, World
from benchmarks.report import Report, say

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The most that each figure may be.
TARGETS = {
    "pause_ack_s": 0.5,
    "resume_first_batch_s": 0.5,
    "stop_idle_s": 2.0,
    "stop_busy_over_batch_s": 2.0,
    "reload_hot_s": 1.0,
    "reload_hot_released": 0,
    "reload_topic_added_released": 0,
    "ran_while_paused": 0,
    "operations_failed": 0,
    "duplicates": 0,
    "lost": 0,
    "bad_exits": 0,
}

#: Seconds that each batch takes of what is stopped while it is busy.
_BUSY = 1.0

#: Records of each partition for one of those stops: far more than are read meanwhile.
_BACKLOG = 500

_QUIET, _SLOW = "quiet", "slow"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run. ``stops`` counts those of an idle and those of a busy daemon."""

    rounds: int = 5
    stops: int = 3
    operations: int = 50
    seed: int = 1
    load: Load = field(default_factory=Load)


def run(seed: int = 1, plan: Plan | None = None) -> Report:
    """Measure, then operate, on one ZooKeeper and one broker. Blocks for some minutes."""
    plan = plan or Plan(seed=seed)
    with World.opened(plan.load) as world:
        figures = Run(plan, world).figures()
        missed = [name for name, most in TARGETS.items() if figures[name] > most]
        if missed:
            say(f"missed {', '.join(missed)}; everything is kept in {world.keep('lifecycle')}")
    by_round = {name: each for name, each in figures["rounds"].items() if name in TARGETS}
    return Report("lifecycle", {"holds": not missed, "missed": missed, **figures}, by_round)


class Run:
    """One run. For one thread."""

    def __init__(self, plan: Plan, world: World) -> None:
        self._plan = plan
        self._world = world
        self._rounds: dict[str, list[float]] = defaultdict(list)

    def figures(self) -> dict[str, Any]:
        """Do everything and return the figures, the most important first. Blocks."""
        self._stops()
        self._world.produce()
        one, two = self._world.daemon("one"), self._world.daemon("two")
        one.start()
        counts = self._measure(Measuring(one, self._plan.load.partitions))
        two.start()
        operations = Operations(self._world, [one, two])
        operations.carry_out(draw(self._plan.seed, self._plan.operations))
        operations.end()
        read = {LOAD: (STEADY, SOMETIMES), OTHER: (STEADY,)}
        outcome = self._world.outcome(read, [one, two])
        middle = {name: round(median(values), 3) for name, values in self._rounds.items()}
        return {
            **{name: middle[name] for name in TARGETS if name in middle},
            **counts,
            "operations": operations.done,
            "operations_failed": len(operations.failures),
            **outcome.figures(),
            "moves": sum(each.moves for each in outcome.found.values()),
            **{name: value for name, value in middle.items() if name not in TARGETS},
            "failures": operations.failures,
            "by_kind": operations.summary(),
            "by_channel": {name: asdict(each) for name, each in outcome.found.items()},
            "rounds": {name: _rounded(values) for name, values in self._rounds.items()},
            "targets": TARGETS,
            "seed": self._plan.seed,
        }

    # --- what is measured -----------------------------------------------------------------------

    def _measure(self, measuring: Measuring) -> dict[str, int]:
        """Pause and reload, round by round, under load; return what must be 0."""
        measuring.await_all()
        hot = topic = 0
        for _ in range(self._plan.rounds):
            self._note(measuring.pause("hold"))
            self._note(measuring.pause("hold", partition=0), "partition_")
            self._note(measuring.pause("drain"), "drain_")
            self._note(measuring.pause("drain", partition=1), "drain_partition_")
            seconds, released = measuring.reload_hot()
            self._note(seconds)
            hot += released
            seconds, released = measuring.reload_topic()
            self._note(seconds)
            topic += released
            say(f"round: { {name: round(values[-1], 3) for name, values in self._rounds.items()} }")
        return {
            "reload_hot_released": hot,
            "reload_topic_added_released": topic,
            "ran_while_paused": measuring.violations,
        }

    def _stops(self) -> None:
        """Stop a daemon that has nothing to do, and one in the midst of long batches."""
        partitions = self._plan.load.partitions
        for topic in (_QUIET, _SLOW):
            stack.create(self._world.servers, topic, partitions)
        self._world.backlog(_SLOW, self._plan.stops * partitions * _BACKLOG)
        quiet = self._world.daemon(_QUIET, {_QUIET: self._world.channel(_QUIET, _QUIET, _QUIET)})
        slow = self._world.daemon(
            _SLOW, {_SLOW: self._world.channel(_SLOW, _SLOW, _SLOW, work=_BUSY)}
        )
        for _ in range(self._plan.stops):
            quiet.start()
            measured = Measuring(quiet, partitions)
            measured.await_owned(_QUIET)
            self._note({"stop_idle_s": measured.stop()["stop_s"]})
            slow.start()
            measured = Measuring(slow, partitions)
            measured.await_busy()
            over = measured.stop()["stop_over_batch_s"]
            self._note({"stop_busy_over_batch_s": over})
        say(f"stops: {dict(self._rounds)}")

    def _note(self, seconds: Mapping[str, float], prefix: str = "") -> None:
        for name, value in seconds.items():
            self._rounds[prefix + name].append(value)


def _rounded(values: list[float]) -> list[float]:
    return [round(value, 3) for value in values]
