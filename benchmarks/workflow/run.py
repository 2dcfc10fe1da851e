"""The comparison: instances of a workflow of three steps, in turns, and with a worker killed."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import stack
from benchmarks.peers.environments import versions
from benchmarks.peers.process import PeerError
from benchmarks.report import Report, say
from benchmarks.rounds import SHORTEST, alternate, long_enough
from benchmarks.workflow.sides import (
    OTHERS,
    REPEATED,
    SIDES,
    VISIBILITY_TIMEOUT,
    Runner,
    Side,
    require,
    server_of,
)
from headrace.core.clock import Deadline

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from benchmarks.rounds import Measured, Rounds

#: The figures that are compared, and which side is divided by which.
_RATIOS = (
    ("ratio_to_celery", "arrow", "celery"),
    ("spark_ratio_to_celery", "spark", "celery"),
    ("ratio_to_temporal", "arrow", "temporal"),
    ("spark_ratio_to_temporal", "spark", "temporal"),
    ("ratio_to_asyncio", "arrow", "asyncio"),
    ("spark_ratio_to_asyncio", "spark", "asyncio"),
)

#: What a round measured beside its rate, and is kept of each side.
_KEPT = ("seconds", "cpu_seconds", "memory_mib")

#: What is kept of the round in which a worker is killed.
_COUNTS = (
    "instances",
    "lost",
    "wrong",
    "outcomes_twice",
    "calls_again",
    "applied_twice",
    "not_applied",
    "seconds",
)

#: Seconds that a server of a peer has to start.
_START = 30.0


@dataclass(frozen=True, slots=True)
class Instances:
    """How many a round has. For :func:`benchmarks.rounds.long_enough`."""

    records: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How many instances are run, and how.

    The first four are those of :class:`benchmarks.peers.run.Plan`, in instances. In rounds of
    latency ``per_second`` are started for ``paced`` seconds. In the last one ``kill`` are started
    together, whose calls take ``pause`` seconds; a system that shows nothing for ``patience``
    seconds has lost what is left, and what it does not make again within ``settle`` seconds of
    quiet it does not make again.
    """

    rounds: int = 3
    seconds: float = 8.0
    shortest: float = SHORTEST
    probe: int = 100
    most: int = 200_000
    per_second: float = 10.0
    paced: float = 6.0
    kill: int = 200
    pause: float = 0.005
    patience: float = 60.0
    settle: float = 1.2 * VISIBILITY_TIMEOUT
    sides: Sequence[str] = tuple(side.name for side in SIDES)


#: To see that it goes: one short round of each kind, whose figures say little.
QUICK = Plan(rounds=1, seconds=1.0, shortest=0.0, probe=50, most=400, paced=2.0, kill=100)


def run(without: Collection[str] = (), *, quick: bool = False, plan: Plan | None = None) -> Report:
    """Compare, round by round. Blocks for some minutes, and longer where peers are installed first.

    Raises:
        PeerError: a side cannot be installed or run; ``without`` leaves one that is not ours out.
    """
    plan = plan or (QUICK if quick else Plan())
    sides = _wanted(plan, without)
    for side in sides:
        require(side)  # nothing else is begun while one of them cannot be had
    with stack.servers() as servers, ExitStack() as closing:
        runners = []
        for side in sides:
            server = server_of(side, servers.directory)
            if server is not None:
                server.start(Deadline.after(_START))
                closing.callback(server.kill)
            runners.append(Runner(side, servers, server))
            closing.callback(runners[-1].close)
        rates, paced, killed = _compare(plan, runners)
    ratios = by_round(rates, paced)
    figures = figures_of(plan, ratios, rates, paced, killed)
    return Report("workflow", figures | {"left_out": sorted(without)}, ratios)


def _wanted(plan: Plan, without: Collection[str]) -> list[Side]:
    unknown = sorted(set(without) - set(OTHERS))
    if unknown:
        raise PeerError(f"{', '.join(unknown)} is no other system; there are {', '.join(OTHERS)}")
    return [side for side in SIDES if side.name in plan.sides and side.name not in without]


def _compare(
    plan: Plan, runners: Sequence[Runner]
) -> tuple[Rounds, Rounds, Mapping[str, Measured]]:
    """Find out how many instances each side is to run, then measure."""
    patience = plan.patience

    def rate(runner: Runner, many: Instances) -> Measured:
        return runner.round("rate", many.records, patience=patience)

    def at_most(wanted: float) -> Instances:
        return Instances(min(plan.most, round(wanted)))

    def probed(runner: Runner) -> Instances:
        return long_enough(runner.name, lambda many: rate(runner, many), at_most, plan, say=say)

    def paced(runner: Runner) -> Measured:
        many = round(plan.per_second * plan.paced)
        return runner.round("paced", many, per_second=plan.per_second, patience=patience)

    def each(measure: Callable[[Runner], Measured]) -> dict[str, Callable[[], Measured]]:
        return {runner.name: _bound(measure, runner) for runner in runners}

    chosen = {runner: probed(runner) for runner in runners}
    rates = alternate(
        each(lambda runner: rate(runner, chosen[runner])),
        plan.rounds,
        say=say,
        shortest=plan.shortest,
    )
    latencies = alternate(each(paced), plan.rounds, say=say, shortest=0.0)
    killed = {}
    for runner in runners:
        killed[runner.name] = runner.killed(
            plan.kill, pause=plan.pause, patience=patience, settle=plan.settle
        )
        found = killed[runner.name]
        say(f"a worker killed: {runner.name} " + ", ".join(f"{n} {found[n]}" for n in _COUNTS))
    return rates, latencies, killed


def _bound(measure: Callable[[Runner], Measured], runner: Runner) -> Callable[[], Measured]:
    return lambda: measure(runner)


def by_round(rates: Rounds, paced: Rounds) -> dict[str, list[float]]:
    """Return what each ratio was round by round: of rates, then of latencies."""
    there = [each for each in _RATIOS if {each[1], each[2]} <= rates.results.keys()]
    found = {name: rates.ratios(one, other, "rate") for name, one, other in there}
    for name, one, other in there:
        for key in ("p50", "p99"):
            found[f"{key}_{name}"] = paced.ratios(one, other, f"{key}_ms")
    return found


def figures_of(
    plan: Plan,
    ratios: Mapping[str, Sequence[float]],
    rates: Rounds,
    paced: Rounds,
    killed: Mapping[str, Measured],
) -> dict[str, Any]:
    """Return ratios first, then what each side did."""
    figures: dict[str, Any] = {}
    for name, each in ratios.items():
        figures[name] = round(median(each), 3)
        figures[f"{name}_rounds"] = [round(ratio, 3) for ratio in each]
    for side, results in rates.results.items():
        instances = results[0]["instances"]
        figures[side] = {
            "instances": instances,
            "rates": rates.values(side, "rate"),
            **{name: rates.median(side, name) for name in _KEPT},
            "cpu_ms_per_instance": round(rates.median(side, "cpu_seconds") / instances * 1000, 2),
            "p50_ms": paced.values(side, "p50_ms"),
            "p99_ms": paced.values(side, "p99_ms"),
            **{n: sum(rates.values(side, n) + paced.values(side, n)) for n in REPEATED},
        }
    for side, found in killed.items():
        figures[f"{side}_killed"] = {name: found[name] for name in _COUNTS}
    return figures | {
        "rounds": plan.rounds,
        "started_per_second": plan.per_second,
        "versions": {**versions("celery"), **versions("temporal"), **versions("aiokafka")},
    }
