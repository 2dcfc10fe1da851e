"""A daemon with a Spark channel under load and under operations, watched for what it hoards."""

from __future__ import annotations

import signal
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.chaos.world import MEMBER
from benchmarks.growth import Sampler, live_heap, more_of, percent_an_hour, usual
from benchmarks.lifecycle.operations import Operations
from benchmarks.lifecycle.schedule import Kind, draw
from benchmarks.lifecycle.world import LOAD, OTHER, SOMETIMES, STEADY, Load, World
from benchmarks.report import Report, say
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.devstack.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
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

#: What the logs, the ledgers and the sinks have to be looked at for.
_TOLD_BY_LOGS = frozenset({"operations_failed", "duplicates", "lost", "bad_exits"})

#: The channel whose batches Spark reduces, into a Delta table.
_SPARK = "spark"

#: All but those for which the process would be another one.
_KINDS = tuple(kind for kind in Kind if kind not in {Kind.RESTART, Kind.STOP})

#: More operations than any run has time for in an hour.
_MANY = 5_000

#: The heap has its full size from the start: otherwise the JVM's size says when it collected last.
_FIXED_HEAP = {
    "driver_memory": "1GiB",
    "properties": {"spark.driver.extraJavaOptions": "-Xms1g -XX:+AlwaysPreTouch"},
}

_MIB = 1 << 20
_MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run. Growth of memory counts behind the first ``warm_up`` minutes, or half of a run.

    ``interval`` is in seconds between two looks, ``gap`` between two operations. For ``rest``
    seconds, from the middle of the warm-up and at the end, all channels are held, so that threads
    and descriptors can be compared as they are in the last ``look`` seconds of it. It is longer
    than pools keep threads that have nothing to do: delta-rs's ten seconds, Spark's a minute. How
    many those have before says how busy the machine was, up to the pool's bound. The first one
    lies in the warm-up because a process gives memory back in it, and takes it again after it.
    """

    minutes: float = 60.0
    warm_up: float = 10.0
    interval: float = 5.0
    gap: float = 3.0
    rest: float = 80.0
    look: float = 15.0
    seed: int = 1
    master: str = "local[2]"
    load: Load = field(default_factory=Load)

    @property
    def settled(self) -> float:
        """Return the seconds after which growth of memory counts."""
        return min(self.warm_up, self.minutes / 2) * _MINUTE


def run(minutes: float = 60.0, seed: int = 1, plan: Plan | None = None) -> Report:
    """Run for so many minutes, or until SIGINT or SIGTERM, and say what came of it. Blocks."""
    plan = plan or Plan(minutes, seed=seed)
    with World.opened(plan.load) as world:
        figures = Soak(plan, world).figures()
        missed = [name for name, most in TARGETS.items() if figures[name] > most]
        if not _TOLD_BY_LOGS.isdisjoint(missed):
            say(f"missed {', '.join(missed)}; everything is kept in {world.keep('soak')}")
    return Report("soak", {"holds": not missed, "missed": missed, **figures})


@dataclass(frozen=True, slots=True)
class Rest:
    """When the channels were held, in monotonic seconds, and what was there then.

    ``threads`` are Python's, by name; ``heap`` is what lives in the JVM's, in bytes, None where
    the JDK's tools are missing.
    """

    began: float
    threads: Mapping[str, int]
    heap: int | None


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
        rests, interrupted = self._operate(daemon, operations, began)
        seconds = SYSTEM_CLOCK.monotonic() - began
        sampler.stop()
        read = {LOAD: (STEADY, SOMETIMES), OTHER: (STEADY,), _SPARK: (STEADY,)}
        outcome = self._world.outcome(read, [daemon])
        return {
            **_growth(sampler, [rest.began for rest in rests], began, self._plan),
            "live_heap_mib": [rest.heap and round(rest.heap / _MIB, 1) for rest in rests],
            "more_python_threads": more_of([rests[0].threads], [rests[-1].threads]),
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
            sections={"spark": {"master": self._plan.master, **_FIXED_HEAP}},
            environment={MEMBER: "one"},
        )

    def _operate(
        self, daemon: Daemon, operations: Operations, began: float
    ) -> tuple[list[Rest], bool]:
        """Do one thing after the other until the time is over.

        Returns the rests, and whether somebody ended the run early.
        """
        ends = [began + self._plan.settled / 2, began + self._plan.minutes * _MINUTE]
        rests: list[Rest] = []
        try:
            with _interrupts():
                for operation in draw(self._plan.seed, _MANY, daemons=1, kinds=_KINDS):
                    operations.carry_out([operation])
                    if SYSTEM_CLOCK.monotonic() >= ends[len(rests)]:
                        rests.append(self._rest(daemon, operations))
                    if len(rests) == len(ends):
                        return rests, False
        except KeyboardInterrupt:
            say("interrupted; looking at what there is")
        return [*rests, self._rest(daemon, operations)], True

    def _rest(self, daemon: Daemon, operations: Operations) -> Rest:
        """Bring the daemon to where it began, have it work there, and hold it. Blocks."""
        operations.end()
        topics = self._world.topics
        held = 3 * topics[STEADY] + topics[SOMETIMES]
        wait_for(lambda: len(_positions(daemon)) == held, Deadline.after(_MINUTE))
        before = _positions(daemon)
        wait_for(lambda: _all_further(before, _positions(daemon)), Deadline.after(_MINUTE))
        with operations.all_held():
            now = SYSTEM_CLOCK.monotonic()
            heap = live_heap(daemon.get("status")["spark"]["pid"])
            wait_for(
                lambda: SYSTEM_CLOCK.monotonic() > now + self._plan.rest,
                Deadline(now + 2 * self._plan.rest),
            )
            return Rest(now, Counter(daemon.threads()), heap)


def _positions(daemon: Daemon) -> dict[tuple[str, str, int], int]:
    return {
        (channel, each["topic"], each["partition"]): each["position"]
        for channel in daemon.document["channels"]
        for each in daemon.partitions(channel)
    }


def _all_further(
    before: dict[tuple[str, str, int], int], after: dict[tuple[str, str, int], int]
) -> bool:
    """Whether every partition moved, so that whatever is opened with the first batch is open."""
    return before.keys() == after.keys() and all(before[held] < after[held] for held in before)


def _growth(sampler: Sampler, rests: list[float], began: float, plan: Plan) -> dict[str, Any]:
    """Compare the last rest with the first one; fit a line to the memory after the warm-up."""
    begin = max(began + plan.settled, rests[0] + plan.rest)
    threads, descriptors, memory, courses = [], [], {}, {}
    for name, found in sampler.samples.items():
        first, last = (
            [each for each in found if plan.rest - plan.look <= each.at - rest < plan.rest]
            for rest in (rests[0], rests[-1])
        )
        busy = [each for each in found if begin <= each.at < rests[-1]]
        courses[name] = _course(found, first, last)
        threads.append(_grown(courses[name]["threads"]))
        descriptors.append(_grown(courses[name]["fds"]))
        memory[f"{name}_rss_growth"] = round(percent_an_hour(busy), 2)
    return {
        **memory,
        "threads_growth": max(threads),
        "fds_growth": max(descriptors),
        "growth_over_minutes": round((rests[-1] - begin) / _MINUTE, 1),
        "processes_gone": sorted(sampler.gone),
        **courses,
    }


def _course(samples: list[Sample], first: list[Sample], last: list[Sample]) -> dict[str, Any]:
    """Return a process's memory all the way, and what else it has in the first and last rest."""
    steps = max(1, len(samples) // 12)
    before, after = usual(first), usual(last)
    return {
        "rss_mib": [round(each.rss / _MIB, 1) for each in samples[::steps]],
        "threads": [before[0], after[0]],
        "more_threads": more_of([each.names for each in first], [each.names for each in last]),
        "fds": [before[1], after[1]],
        "more_fds": more_of([each.kinds for each in first], [each.kinds for each in last]),
    }


def _grown(ends: list[int]) -> int:
    return ends[1] - ends[0]


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
