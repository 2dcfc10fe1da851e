"""The comparison: topologies of each kind over many keys, exactly once, round by round."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks import stack
from benchmarks.report import Report, say
from benchmarks.rounds import PEERS_MARGIN, PEERS_STEADY, SHORTEST, alternate, warmed
from benchmarks.streams.restart import MANY_KEYS, RestartPlan, holding, restarting
from benchmarks.streams.sides import OTHERS, SIDES, Runner, command_of
from benchmarks.streams.topics import StreamTopics
from headrace.devstack.jars import KAFKA_STREAMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.rounds import Measured, Rounds
    from headrace.devstack import LocalStack

#: What each topology's rate is, over that of Kafka Streams, at least; None: there is no target.
_TARGETS = {
    "tumbling": 2.0,
    "hopping": 5.0,
    "session": 1.0,
    "count": None,
    "wordcount": 1.5,
    "join": 3.0,
    "spark": 0.8,
}

#: The topics of each kind that does not read visits.
_TOPICS = {"wordcount": "lines", "join": "pairs"}

_RATIO = "ratio_to_kafka_streams"

#: What the figures of the restart are at most: seconds, and MiB with the default state.cache.
_MOST = {
    "restart_first_output_s": 5.0,
    "restarted_memory_mib": 564,
    "many_keys_memory_mib": 564,
}

_LEAST = {f"{kind}_{_RATIO}": target for kind, target in _TARGETS.items() if target is not None}

#: What a round measured beside its rate, and is kept of each side.
_KEPT = ("seconds", "outputs", "commits", "touched", "cpu_seconds", "memory_mib", "threads")


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is read, of how many keys. The fields are those of ``benchmarks.keyed.run.Plan``."""

    rounds: int = 3
    seconds: float = 6.0
    shortest: float = SHORTEST
    probe: int = 100_000
    warm_ups: int = 8
    most: int = 12_800_000
    partitions: int = 4
    keys: int = 10_000
    kinds: Sequence[str] = tuple(_TARGETS)
    restart: RestartPlan | None = field(default_factory=RestartPlan)
    many: RestartPlan | None = MANY_KEYS


def run(plan: Plan | None = None) -> Report:
    """Compare, kind by kind and round by round, then kill. Blocks for about half an hour.

    Raises:
        PeerError: a side cannot be run, or its counts are wrong.
        LocalStackError: the jars of Kafka Streams cannot be fetched.
    """
    plan = plan or Plan()
    for side in SIDES:
        command_of(side)  # nothing else is begun while one of them cannot be had
    with stack.servers() as servers:
        found = dict(_each_kind(plan, servers))
        restarted = {} if plan.restart is None else restarting(servers, plan.restart)
        restarted |= {} if plan.many is None else holding(servers, plan.many)
    figures = figures_of(found) | restarted
    described = {
        "rounds": plan.rounds,
        "keys": plan.keys,
        "partitions": plan.partitions,
        "versions": {"kafka-streams": KAFKA_STREAMS.artifacts[0].revision},
    }
    return Report("streams", {"missed": missed(figures), **figures, **described}, by_round(found))


def _each_kind(plan: Plan, servers: LocalStack) -> Iterator[tuple[str, Rounds]]:
    topics: dict[str, StreamTopics] = {}
    for kind in plan.kinds:
        named = _TOPICS.get(kind, "visits")
        if named not in topics:
            topics[named] = StreamTopics(
                servers,
                keys=plan.keys,
                partitions=plan.partitions,
                most=plan.most,
                kind=named,
            )
        yield kind, _compare(plan, kind, servers, topics[named])


def _compare(plan: Plan, kind: str, servers: LocalStack, topics: StreamTopics) -> Rounds:
    """Find out how much each side is to read, then measure."""
    with ExitStack() as closing:
        runners = [Runner(side, kind, servers, topics) for side in SIDES if side.does(kind)]
        for runner in runners:
            closing.callback(runner.close)
        chosen = {
            runner: warmed(
                runner.name,
                runner.round,
                topics.of,
                plan,
                warm_ups=plan.warm_ups,
                say=say,
                steady=1 if runner.side.is_ours else PEERS_STEADY,
                margin=PEERS_MARGIN,
            )
            for runner in runners
        }

        def one(runner: Runner) -> Callable[[], Measured]:
            return lambda: runner.round(chosen[runner])

        sides = {runner.side.name: one(runner) for runner in runners}
        return alternate(sides, plan.rounds, say=say, shortest=plan.shortest)


def by_round(found: Mapping[str, Rounds]) -> dict[str, list[float]]:
    """Return what each ratio was round by round."""
    return {
        f"{kind}_ratio_to_{other}": rounds.ratios("headrace", other, "rate")
        for other in OTHERS
        for kind, rounds in found.items()
        if other in rounds.results
    }


def missed(figures: Mapping[str, Any]) -> list[str]:
    """Return the names of the figures that are not what they have to be."""
    below = [name for name, target in _LEAST.items() if figures.get(name, target) < target]
    return below + [name for name, target in _MOST.items() if figures.get(name, target) > target]


def figures_of(found: Mapping[str, Rounds]) -> dict[str, Any]:
    """Return ratios first, then processor time and rates, then what each side took."""
    figures: dict[str, Any] = {}
    for name, each in by_round(found).items():
        figures[name] = round(median(each), 3)
        figures[f"{name}_rounds"] = [round(ratio, 3) for ratio in each]
    figures["targets"] = {**_LEAST, **_MOST}
    for key, name in (("cpu_us", "cpu_us_per_record"), ("rate", "records_per_s")):
        for kind, rounds in found.items():
            for side in rounds.results:
                value = rounds.median(side, key)
                of = kind if side == "headrace" else f"{kind}_{side}"
                figures[f"{of}_{name}"] = round(value) if key == "rate" else round(value, 2)
    for kind, rounds in found.items():
        figures[kind] = {
            side: {
                "records": results[0]["records"],
                "rates": rounds.values(side, "rate"),
                **{key: rounds.median(side, key) for key in _KEPT if key in results[0]},
            }
            for side, results in rounds.results.items()
        }
    return figures
