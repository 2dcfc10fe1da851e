"""A daemon with a Spark channel under load and under operations, watched for what it hoards."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.chaos.world import MEMBER
from benchmarks.growth import Sampler, increase, percent_an_hour
from benchmarks.lifecycle.operations import Operations
from benchmarks.lifecycle.schedule import Kind, draw
from benchmarks.lifecycle.world import LOAD, OTHER, SOMETIMES, STEADY, Load, World
from benchmarks.report import Report, say
from headrace.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from benchmarks.growth import Sample
    from benchmarks.lifecycle.daemon import Daemon

#: The most that each figure may be. Memory is in percent an hour.
TARGETS = {
    "daemon_rss_growth": 1.0,
    "jvm_rss_growth": 1.0,
    "threads_growth": 0,
    "fds_growth": 0,
    "operations_failed": 0,
    "duplicates": 0,
    "lost": 0,
    "bad_exits": 0,
}

#: The channel whose batches Spark reduces, into a Delta table.
_SPARK = "spark"

#: All but those for which the process would be another one.
_KINDS = tuple(kind for kind in Kind if kind not in {Kind.RESTART, Kind.STOP})

#: More operations than any run has time for in an hour.
_MANY = 5_000

_MIB = 1 << 20
_MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run. Growth is looked at behind the first ``warm_up`` minutes, or half of a run.

    ``interval`` is in seconds between two looks, ``gap`` between two operations.
    """

    minutes: float = 60.0
    warm_up: float = 10.0
    interval: float = 5.0
    gap: float = 3.0
    seed: int = 1
    master: str = "local[2]"
    load: Load = field(default_factory=Load)


def run(minutes: float = 60.0, seed: int = 1, plan: Plan | None = None) -> Report:
    """Run for so many minutes, or until SIGINT or SIGTERM, and say what came of it. Blocks."""
    plan = plan or Plan(minutes, seed=seed)
    with World.opened(plan.load) as world:
        figures = Soak(plan, world).figures()
    missed = [name for name, most in TARGETS.items() if figures[name] > most]
    return Report("soak", {"holds": not missed, "missed": missed, **figures})


class Soak:
    """One run. For the main thread."""

    def __init__(self, plan: Plan, world: World) -> None:
        self._plan = plan
        self._world = world

    def figures(self) -> dict[str, Any]:
        """Do everything and return the figures, the most important first. Blocks."""
        daemon = self._daemon()
        daemon.start()
        self._world.produce()
        pids = {"daemon": daemon.pid, "jvm": daemon.get("status")["spark"]["pid"]}
        sampler = Sampler(pids, self._plan.interval)
        operations = Operations(self._world, [daemon], self._plan.gap)
        began = SYSTEM_CLOCK.monotonic()
        sampler.start()
        interrupted = self._operate(operations, began)
        seconds = SYSTEM_CLOCK.monotonic() - began
        sampler.stop()
        operations.end()
        read = {LOAD: (STEADY, SOMETIMES), OTHER: (STEADY,), _SPARK: (STEADY,)}
        outcome = self._world.outcome(read, [daemon])
        return {
            **self._growth(sampler, began),
            "operations_failed": len(operations.failures),
            **outcome.figures(),
            "minutes": round(seconds / _MINUTE, 1),
            "interrupted": interrupted,
            "operations": operations.done,
            "failures": operations.failures,
            "by_kind": operations.summary(),
            "by_channel": {name: asdict(each) for name, each in outcome.found.items()},
            "targets": TARGETS,
            "seed": self._plan.seed,
        }

    def _daemon(self) -> Daemon:
        spark = {
            "topics": [STEADY],
            "group": _SPARK,
            "batch": {"linger": "200ms"},
            "buffer": {"max_bytes": "64MiB"},
            "processor": {"type": "spark", "reducer": "benchmarks.chaos.delta:reduce"},
            "sink": {"type": "delta", "path": str(self._world.sink(_SPARK))},
        }
        channels = {
            LOAD: self._world.channel("one", LOAD),
            OTHER: self._world.channel("one", OTHER),
            _SPARK: spark,
        }
        return self._world.daemon(
            "one",
            channels,
            sections={"spark": {"master": self._plan.master}},
            environment={MEMBER: "one"},
        )

    def _operate(self, operations: Operations, began: float) -> bool:
        """Do one thing after the other until the time is over; whether somebody ended that."""
        until = began + self._plan.minutes * _MINUTE
        try:
            with _interrupts():
                for operation in draw(self._plan.seed, _MANY, daemons=1, kinds=_KINDS):
                    operations.carry_out([operation])
                    if SYSTEM_CLOCK.monotonic() >= until:
                        break
        except KeyboardInterrupt:
            say("interrupted; looking at what there is")
            return True
        return False

    def _growth(self, sampler: Sampler, began: float) -> dict[str, Any]:
        warm_up = min(self._plan.warm_up, self._plan.minutes / 2) * _MINUTE
        samples = {
            name: [each for each in found if each.at >= began + warm_up] or found
            for name, found in sampler.samples.items()
        }
        both = list(samples.values())
        return {
            "daemon_rss_growth": round(percent_an_hour(samples["daemon"]), 2),
            "jvm_rss_growth": round(percent_an_hour(samples["jvm"]), 2),
            "threads_growth": max(increase([each.threads for each in found]) for found in both),
            "fds_growth": max(increase([each.descriptors for each in found]) for found in both),
            "growth_over_minutes": round(
                (samples["daemon"][-1].at - samples["daemon"][0].at) / _MINUTE, 1
            ),
            "processes_gone": sorted(sampler.gone),
            **{name: _course(found) for name, found in sampler.samples.items()},
        }


def _course(samples: list[Sample]) -> dict[str, Any]:
    """Return a process at the beginning, at the end, and in between."""
    steps = max(1, len(samples) // 12)
    return {
        "rss_mib": [round(each.rss / _MIB, 1) for each in samples[::steps]],
        "threads": [samples[0].threads, samples[-1].threads],
        "fds": [samples[0].descriptors, samples[-1].descriptors],
    }


@contextmanager
def _interrupts() -> Iterator[None]:
    """Have SIGTERM end the block as SIGINT does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
