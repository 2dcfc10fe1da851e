"""Micro-batches of a channel against those of Structured Streaming.

Which has its source's own settings, as most people run it, and those that a channel by reference
gives the same source: then it is faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from benchmarks import stack
from benchmarks.report import Report, say
from benchmarks.rounds import SHORTEST, Rounds, alternate
from benchmarks.sides import Side
from benchmarks.spark_channel import STAGES, SparkChannel
from benchmarks.structured_streaming import StructuredStreaming

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.rounds import Measured
    from headrace.devstack import LocalStack


@dataclass(frozen=True, slots=True)
class Load:
    """One size of micro-batch: its cap in records, and how many records a round has."""

    name: str
    batch: int
    records: int
    figure: str
    ratio: str
    target: float


@dataclass(frozen=True, slots=True)
class Plan:
    """What is compared. ``size`` of the values in bytes.

    The channel's micro-batches may differ from the others in size by ``sizes_differ`` of the cap
    where that is to its favour, or it is no comparison. A round of less than ``shortest`` seconds
    is refused.
    """

    loads: tuple[Load, ...] = (
        Load("100k", 100_000, 3_500_000, "rate", "throughput_ratio_100k", 2.0),
        Load("1k", 1_000, 100_000, "batches_per_second", "batch_ratio_1k", 2.0),
    )
    rounds: int = 3
    partitions: int = 4
    size: int = 160
    warm_up: int = 50
    master: str = "local[*]"
    sizes_differ: float = 0.1
    shortest: float = SHORTEST


def run(plan: Plan | None = None) -> Report:
    """Compare, round by round, on one broker. Blocks for some minutes."""
    plan = plan or Plan()
    with stack.servers() as servers:
        settings = {"configs": {load.name: _config(servers, plan, load) for load in plan.loads}}
        for load in plan.loads:
            stack.fill(
                servers,
                load.name,
                records=load.records,
                size=plan.size,
                partitions=plan.partitions,
                keyed=True,
            )
        with (
            Side("channel", SparkChannel, settings) as channel,
            Side("streaming", StructuredStreaming, settings | {"tuned": False}) as streaming,
            Side("tuned", StructuredStreaming, settings) as tuned,
        ):
            sides = (channel, streaming, tuned)
            rounds = {load.name: _compare(plan, load, servers, sides) for load in plan.loads}
    return Report("spark", _figures(plan, rounds), by_round(plan, rounds))


def _config(servers: LocalStack, plan: Plan, load: Load) -> str:
    """Write the channel's configuration.

    Each partition has an equal part of a full micro-batch, and the buffer has room for those of
    three, with the copies in columns: one runs, one is ready and one is being fetched.
    """
    path = stack.configuration(
        servers.directory / "bench" / load.name,
        stack.addresses(servers),
        {
            "topics": [load.name],
            "group": "bench",
            "batch": {"max_records": load.batch // plan.partitions, "linger": "1s"},
            "buffer": {"max_bytes": "512MiB"},
            "processor": {
                "type": "spark",
                "reducer": "benchmarks.reducers:count_by_key",
                "max_records": load.batch,
            },
            "sink": "noop",
        },
        spark={"master": plan.master, "warm_up": plan.warm_up},
    )
    return str(path)


def _compare(plan: Plan, load: Load, servers: LocalStack, sides: Sequence[Side]) -> Rounds:
    """Warm up with a round in which Spark counts every row; then measure."""
    ends = stack.ends(servers, load.name, plan.partitions)
    groups = count()

    def one(side: Side, *, counting: bool) -> Callable[[], Measured]:
        return lambda: side.round(
            {
                "config": load.name,
                "group": f"{load.name}-{next(groups)}",
                "batch": load.batch,
                "ends": ends,
                "counting": counting,
            }
        )

    checked = alternate(
        {side.name: one(side, counting=True) for side in sides},
        1,
        say=lambda line: say(f"{load.name} warm-up, every row counted: {line}"),
        shortest=0.0,
    )
    for side in sides:
        counted = checked.values(side.name, "counted")
        if counted != [load.records]:
            raise AssertionError(f"{side.name} counted {counted} of {load.records} rows")
    rounds = alternate(
        {side.name: one(side, counting=False) for side in sides},
        plan.rounds,
        say=lambda line: say(f"{load.name} {line}"),
        shortest=plan.shortest,
    )
    for other in ("streaming", "tuned"):
        require_fair_sizes(load, rounds, "channel", plan.sizes_differ, other)
    return rounds


def require_fair_sizes(
    load: Load, rounds: Rounds, side: str, sizes_differ: float, other: str = "streaming"
) -> None:
    """Refuse micro-batches whose size flatters the channel: larger for a rate, smaller for a count.

    A lane waits for no slow partition, so that its micro-batches are not always full. They may
    differ by ``sizes_differ`` of the cap.
    """
    ours, theirs = (rounds.median(each, "mean_batch") for each in (side, other))
    flattery = ours - theirs if load.figure == "rate" else theirs - ours
    if flattery > sizes_differ * load.batch:
        sizes = f"{ours} records on average against {theirs}"
        raise AssertionError(f"{load.name}: micro-batches of {sizes} are no fair comparison")


def by_round(plan: Plan, rounds: Mapping[str, Rounds]) -> dict[str, list[float]]:
    """Return what each ratio was round by round."""
    return {
        f"{tuned}{load.ratio}": rounds[load.name].ratios("channel", other, load.figure)
        for load in plan.loads
        for tuned, other in (("", "streaming"), ("tuned_", "tuned"))
    }


def _figures(plan: Plan, rounds: dict[str, Rounds]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for load in plan.loads:
        ratio = rounds[load.name].ratio("channel", "streaming", load.figure)
        figures[load.ratio] = round(ratio, 3)
        ratio = rounds[load.name].ratio("channel", "tuned", load.figure)
        figures[f"tuned_{load.ratio}"] = round(ratio, 3)
    targets = {load.ratio: load.target for load in plan.loads}
    figures["targets"] = targets
    figures["missed"] = [name for name, target in targets.items() if figures[name] < target]
    for load in plan.loads:
        measured, name = rounds[load.name], load.name
        for other, called in (("streaming", "ratios"), ("tuned", "tuned_ratios")):
            ratios = measured.ratios("channel", other, load.figure)
            figures[f"{called}_{name}"] = [round(ratio, 3) for ratio in ratios]
        for side in measured.results:
            for key in ("rate", "batches_per_second", "mean_batch", "seconds"):
                figures[f"{side}_{key}_{name}"] = measured.median(side, key)
        for stage in STAGES:
            figures[f"channel_{stage}_s_{name}"] = measured.median("channel", f"{stage}_s")
        figures[f"records_{name}"] = load.records
    return figures | {"rounds": plan.rounds, "record_bytes": plan.size}
