"""The comparison: a count by key over many keys, exactly once, round by round."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import stack
from benchmarks.keyed.sides import OTHERS, SIDES, Runner, Side, command_of
from benchmarks.keyed.state import StatePlan, growth, restoring
from benchmarks.keyed.topics import KeyedTopics
from benchmarks.peers.environments import versions
from benchmarks.peers.process import PeerError
from benchmarks.report import Report, say
from benchmarks.rounds import PEERS_MARGIN, PEERS_STEADY, SHORTEST, alternate, warmed
from headrace.devstack.jars import KAFKA_STREAMS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from benchmarks.rounds import Measured, Rounds

#: The figures that are compared, which side is divided by which, and what comes of it at least.
_RATIOS = (
    ("ratio_to_kafka_streams", "arrow", "kafka_streams", 0.8),
    ("spark_ratio_to_kafka_streams", "spark", "kafka_streams", 0.8),
    ("columnar_ratio_to_kafka_streams", "columnar", "kafka_streams", 2.0),
    ("ratio_to_kafka_streams_1s", "arrow", "kafka_streams_1s", None),
    ("ratio_to_quix", "arrow", "quix", 3.0),
    ("each_ratio_to_quix", "each", "quix", None),
)

#: The same, of which it is at most.
_COSTS = (("eos_overhead", "plain", "arrow", 1.5),)

#: What a micro-batch takes whose keys are some of many, over one whose keys are some of few.
GROWTH = "touched_key_growth"

#: What the other figures have to be, at least or at most.
_LEAST = {"restore_mb_s_150b": 40.0, "restore_mb_s_1024b": 180.0} | {
    name: target for name, *_, target in _RATIOS if target is not None
}
_MOST = {GROWTH: 1.6, "restart_first_delivery_s": 5.0} | {
    name: target for name, *_, target in _COSTS
}

#: What a round measured beside its rate, and is kept of each side.
_KEPT = ("seconds", "outputs", "commits", "touched", "cpu_seconds", "memory_mib", "threads")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is read, of how many keys. ``size`` of the values in bytes.

    A process that stays reads until it is no faster than before, in at most ``warm_ups`` rounds: a
    JVM still compiles what it runs after some millions of records. The other fields are those of
    :class:`benchmarks.peers.run.Plan`.
    """

    rounds: int = 3
    seconds: float = 6.0
    shortest: float = SHORTEST
    probe: int = 100_000
    warm_ups: int = 8
    most: int = 12_800_000
    partitions: int = 4
    keys: int = 10_000
    size: int = 100
    sides: Sequence[str] = tuple(side.name for side in SIDES)
    state: StatePlan = field(default_factory=StatePlan)


def run(without: Collection[str] = (), plan: Plan | None = None) -> Report:
    """Compare, round by round. Blocks for some minutes, and longer where a peer is fetched first.

    Raises:
        PeerError: a side cannot be installed or run; ``without`` leaves one that is not ours out.
    """
    plan = plan or Plan()
    sides = _wanted(plan, without)
    for side in sides:
        command_of(side)  # nothing else is begun while one of them cannot be had
    with stack.servers() as servers, ExitStack() as closing:
        topics = KeyedTopics(
            servers, keys=plan.keys, size=plan.size, partitions=plan.partitions, most=plan.most
        )
        runners = [Runner(side, servers, topics) for side in sides]
        for runner in runners:
            closing.callback(runner.close)
        rounds = _compare(plan, runners, topics)
        for runner in runners:
            runner.close()
        sizes = growth(servers.directory / "growth", plan.state)
        restored = restoring(servers, plan.state)
    ratios = by_round(rounds) | {GROWTH: sizes.ratios("many", "few", "median_ms")}
    figures = _figures(plan, rounds, ratios, sizes, restored) | {"left_out": sorted(without)}
    return Report("keyed", {"missed": missed(figures), **figures}, ratios)


def _wanted(plan: Plan, without: Collection[str]) -> list[Side]:
    unknown = sorted(set(without) - set(OTHERS))
    if unknown:
        raise PeerError(f"{', '.join(unknown)} is no other system; there are {', '.join(OTHERS)}")
    return [side for side in SIDES if side.name in plan.sides and side.name not in without]


def _compare(plan: Plan, runners: Sequence[Runner], topics: KeyedTopics) -> Rounds:
    """Find out how much each side is to read, then measure."""
    chosen = {
        runner: warmed(
            runner.name,
            runner.round,
            topics.of,
            plan,
            warm_ups=plan.warm_ups if runner.side.stays else 0,
            say=say,
            steady=PEERS_STEADY,
            margin=PEERS_MARGIN,
        )
        for runner in runners
    }

    def one(runner: Runner) -> Callable[[], Measured]:
        return lambda: runner.round(chosen[runner])

    sides = {runner.name: one(runner) for runner in runners}
    return alternate(sides, plan.rounds, say=say, shortest=plan.shortest)


def by_round(rounds: Rounds) -> dict[str, list[float]]:
    """Return what each ratio was round by round."""
    return {
        name: rounds.ratios(one, other, "rate")
        for name, one, other, _ in (*_RATIOS, *_COSTS)
        if one in rounds.results and other in rounds.results
    }


def missed(figures: Mapping[str, Any]) -> list[str]:
    """Return the names of the figures that are not what they have to be."""
    below = [name for name, target in _LEAST.items() if figures.get(name, target) < target]
    return below + [name for name, target in _MOST.items() if figures.get(name, target) > target]


def _figures(
    plan: Plan,
    rounds: Rounds,
    ratios: Mapping[str, Sequence[float]],
    sizes: Rounds,
    restored: Mapping[str, Any],
) -> dict[str, Any]:
    """Return ratios first, then rates, then what each side took."""
    figures: dict[str, Any] = {}
    for name, each in ratios.items():
        figures[name] = round(median(each), 3)
        figures[f"{name}_rounds"] = [round(ratio, 3) for ratio in each]
    figures |= restored
    figures["targets"] = {**_LEAST, **_MOST}
    figures["touched_ms"] = {side: sizes.median(side, "median_ms") for side in sizes.results}
    for side in rounds.results:
        figures[f"{side}_records_per_s"] = round(rounds.median(side, "rate"))
    for side, results in rounds.results.items():
        records = results[0]["records"]
        figures[side] = {
            "records": records,
            "rates": rounds.values(side, "rate"),
            **{key: rounds.median(side, key) for key in _KEPT if key in results[0]},
            "cpu_us_per_record": round(rounds.median(side, "cpu_seconds") / records * 1e6, 2),
        }
    return figures | {
        "rounds": plan.rounds,
        "keys": plan.keys,
        "record_bytes": plan.size,
        "partitions": plan.partitions,
        "state": asdict(plan.state),
        "versions": {"kafka-streams": KAFKA_STREAMS.artifacts[0].revision, **versions("quix")},
    }
