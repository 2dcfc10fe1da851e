"""From Kafka to a Delta table, by value and by reference, against Structured Streaming."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from statistics import median, quantiles
from threading import Thread
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from benchmarks import stack
from benchmarks.delta_commits import GROWTH, commit_growth
from benchmarks.report import Report, say
from benchmarks.rounds import SHORTEST, Rounds, alternate
from benchmarks.sides import Side
from benchmarks.spark import Load, require_fair_sizes
from benchmarks.spark_channel import SparkChannel
from benchmarks.steady import latencies, produce
from benchmarks.structured_streaming import StructuredStreaming
from headrace.extensions.delta.reader import read_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from benchmarks.rounds import Measured
    from benchmarks.sides import Work
    from headrace.devstack import LocalStack

SIDES: dict[str, Callable[[Any], Work]] = {
    "value": SparkChannel,
    "reference": SparkChannel,
    "streaming": StructuredStreaming,
}

#: The figures that are compared, their sides and what they have to be.
_RATIOS = (
    ("value_ratio_100k", "100k", "value", "rate", 1.5),
    ("reference_ratio_100k", "100k", "reference", "rate", 1.3),
    ("batch_ratio_1k", "1k", "value", "batches_per_second", 1.7),
)

_LATENCIES = (("latency_p50_ratio", "p50", 0.5), ("latency_p99_ratio", "p99", 0.8))


@dataclass(frozen=True, slots=True)
class Steady:
    """Records a second, for so many seconds, of which the first ones do not count."""

    rate: int = 1_000
    seconds: float = 40.0
    warm_up: float = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is compared. ``size`` of the values in bytes, ``commits`` of the growth of a commit.

    ``sizes_differ`` and ``shortest`` as in :class:`benchmarks.spark.Plan`.
    """

    loads: tuple[Load, ...] = (
        Load("100k", 100_000, 3_000_000, "rate", "", 0.0),
        Load("1k", 1_000, 60_000, "batches_per_second", "", 0.0),
    )
    steady: Steady = field(default_factory=Steady)
    rounds: int = 3
    partitions: int = 4
    size: int = 160
    warm_up: int = 50
    master: str = "local[*]"
    commits: int = 10_000
    sizes_differ: float = 0.1
    shortest: float = SHORTEST


def run(plan: Plan | None = None) -> Report:
    """Compare, round by round, on one broker. Blocks for some minutes."""
    plan = plan or Plan()
    with stack.servers() as servers:
        for load in plan.loads:
            stack.fill(
                servers,
                load.name,
                records=load.records,
                size=plan.size,
                partitions=plan.partitions,
                keyed=True,
            )
        sides = [
            Side(name, opening, {"configs": _configs(servers, plan, name)})
            for name, opening in SIDES.items()
        ]
        try:
            rounds = {load.name: _compare(plan, load, servers, sides) for load in plan.loads}
            steady = _latency(plan, servers, [s for s in sides if s.name != "reference"])
        finally:
            for side in sides:
                side.close()
        growth = commit_growth(servers.directory / "growth", plan.commits)
    figures = _figures(plan, rounds, steady) | growth
    return Report("pipeline", {"missed": missed(figures), **figures}, by_round(rounds, steady))


def missed(figures: Mapping[str, Any]) -> list[str]:
    """Return the names of the figures that are not what they have to be."""
    least = {name: target for name, *_, target in _RATIOS}
    most = {name: target for name, _, target in _LATENCIES} | {"delta_commit_growth": GROWTH}
    below = [name for name, target in least.items() if figures.get(name, target) < target]
    return below + [name for name, target in most.items() if figures[name] > target]


def _configs(servers: LocalStack, plan: Plan, side: str) -> dict[str, str]:
    """Write what a side runs: one configuration a load, and one for steady input."""
    wanted = {load.name: (load.batch, "1s") for load in plan.loads} | {"steady": (10_000, "20ms")}
    return {
        name: _config(servers, plan, (side, name), batch, linger)
        for name, (batch, linger) in wanted.items()
    }


def _config(
    servers: LocalStack, plan: Plan, place: tuple[str, str], batch: int, linger: str
) -> str:
    side, name = place
    referring = side == "reference"
    by = {"source": "by_reference"} if referring else {"buffer": {"max_bytes": "512MiB"}}
    connector = {"connector": "maven"} if referring else {}
    reducer = "timestamps" if name == "steady" else "count_by_key"
    path = stack.configuration(
        servers.directory / "bench" / side / name,
        stack.addresses(servers),
        {
            "topics": [name],
            "group": "bench",
            **by,
            "batch": {"max_records": batch // plan.partitions, "linger": linger},
            "processor": {
                "type": "spark",
                "reducer": f"benchmarks.reducers:{reducer}",
                "max_records": batch,
            },
            "sink": {"type": "delta", "path": str(servers.directory / "tables" / "unused")},
        },
        spark={"master": plan.master, "warm_up": plan.warm_up, **connector},
    )
    return str(path)


def _compare(plan: Plan, load: Load, servers: LocalStack, sides: list[Side]) -> Rounds:
    """Warm up with one round, then measure; every round's table is added up."""
    ends = stack.ends(servers, load.name, plan.partitions)
    numbers = count()

    def one(side: Side) -> Callable[[], Measured]:
        def round_of() -> Measured:
            table = servers.directory / "tables" / f"{side.name}-{load.name}-{next(numbers)}"
            measured = side.round(
                {
                    "config": load.name,
                    "topic": load.name,
                    "group": table.name,
                    "batch": load.batch,
                    "ends": ends,
                    "counting": False,
                    "table": str(table),
                }
            )
            _require_all(table, load.records)
            return measured

        return round_of

    actions = {side.name: one(side) for side in sides}
    alternate(actions, 1, say=lambda line: say(f"{load.name} warm-up: {line}"), shortest=0.0)
    rounds = alternate(
        actions,
        plan.rounds,
        say=lambda line: say(f"{load.name} {line}"),
        shortest=plan.shortest,
    )
    for ours in ("value", "reference"):
        require_fair_sizes(load, rounds, ours, plan.sizes_differ)
    return rounds


def _require_all(table: Path, records: int) -> None:
    """Add up the counts in a table."""
    found = pc.sum(read_rows(table, ["count"]).column("count")).as_py()
    if found != records:
        raise AssertionError(f"{table.name} has {found} of {records} records")


def _latency(plan: Plan, servers: LocalStack, sides: list[Side]) -> Rounds:
    """Measure from each record's timestamp to the commit that has it, under steady input."""
    steady, numbers = plan.steady, count()
    records = round(steady.rate * steady.seconds)

    def one(side: Side) -> Callable[[], Measured]:
        def round_of() -> Measured:
            topic = f"steady-{side.name}-{next(numbers)}"
            table = servers.directory / "tables" / topic
            stack.create(servers, topic, plan.partitions)
            producer = Thread(
                target=produce, args=(servers.bootstrap_servers, topic, steady.rate, records)
            )
            producer.start()
            try:
                side.round(
                    {
                        "config": "steady",
                        "topic": topic,
                        "group": topic,
                        "batch": 10_000,
                        "records": records,
                        "counting": False,
                        "table": str(table),
                    }
                )
            finally:
                producer.join()
            require_each_once(table, records)
            return spread(latencies(table, steady.warm_up), records, steady)

        return round_of

    actions = {side.name: one(side) for side in sides}
    return alternate(actions, plan.rounds, say=lambda line: say(f"steady {line}"), shortest=0.0)


def require_each_once(table: Path, records: int) -> None:
    """Return if a table has each record of a topic, and none twice. Blocks.

    Raises:
        AssertionError: it has not.
    """
    rows = read_rows(table, ["partition", "offset"])
    different = rows.group_by(["partition", "offset"]).aggregate([]).num_rows
    if (rows.num_rows, different) != (records, records):
        raise AssertionError(
            f"{table.name} has {rows.num_rows} rows, of {different} records; {records} were sent"
        )


def spread(found: list[float], records: int, steady: Steady) -> Measured:
    """Return the median and the 99th percentile of latencies, of which there have to be enough."""
    least = records * (1 - steady.warm_up / steady.seconds) * 0.9
    if len(found) < least:
        raise AssertionError(f"{len(found)} latencies of at least {least:.0f} records")
    cuts = quantiles(found, n=100)
    return {"p50": round(cuts[49], 4), "p99": round(cuts[98], 4), "measured": len(found)}


def by_round(rounds: Mapping[str, Rounds], steady: Rounds) -> dict[str, list[float]]:
    """Return what each ratio was round by round."""
    found = {
        name: rounds[load].ratios(side, "streaming", figure)
        for name, load, side, figure, _ in _RATIOS
        if load in rounds
    }
    return found | {
        name: steady.ratios("value", "streaming", figure) for name, figure, _ in _LATENCIES
    }


def _figures(plan: Plan, rounds: dict[str, Rounds], steady: Rounds) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for name, ratios in by_round(rounds, steady).items():
        figures[name] = round(median(ratios), 3)
        figures[f"{name}s"] = [round(ratio, 3) for ratio in ratios]
    figures["targets"] = {name: target for name, *_, target in (*_RATIOS, *_LATENCIES)}
    for load, measured in rounds.items():
        for side in measured.results:
            for key in ("rate", "batches_per_second", "mean_batch"):
                figures[f"{side}_{key}_{load}"] = measured.median(side, key)
    for side in steady.results:
        for key in ("p50", "p99"):
            figures[f"{side}_latency_{key}_s"] = steady.median(side, key)
    return figures | {"rounds": plan.rounds, "record_bytes": plan.size}
