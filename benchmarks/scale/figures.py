"""From what was measured to how the cost of a record grows."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.scale.run import Plan

    #: What was measured, by number of daemons or workers, and then of partitions.
    Table = Mapping[str, Mapping[str, Mapping[str, Any]]]

#: How much more processor time a record may take with many partitions, or with more daemons.
TARGET = 1.2

#: What a plan says of how the figures came about.
_OF_PLAN = ("records", "size", "batch")


def figures(
    plan: Plan, daemons: Table, rest: Mapping[str, Mapping[str, Any]], workers: Table
) -> dict[str, Any]:
    """Return the growth first, then everything that was measured."""
    few, many = str(min(plan.partitions)), str(max(plan.partitions))
    one, most = str(min(plan.daemons)), str(max(plan.daemons))

    def cost(number: str, partitions: str) -> float:
        return float(daemons[number][partitions]["cpu_s_per_million"])

    growth = {
        "cost_growth_partitions": round(cost(one, many) / cost(one, few), 3),
        "cost_growth_daemons": round(cost(most, few) / cost(one, few), 3),
        "cost_growth_both": round(cost(most, many) / cost(one, few), 3),
    }
    return {
        **growth,
        "target": TARGET,
        "missed": [name for name, found in growth.items() if found > TARGET],
        "spark_cpu_ms_per_task": {
            number: spark_cpu_ms_per_task(found, plan.records) for number, found in workers.items()
        },
        "daemons": daemons,
        "rest": rest,
        "workers": workers,
        **{name: value for name, value in asdict(plan).items() if name in _OF_PLAN},
    }


def spark_cpu_ms_per_task(
    by_partitions: Mapping[str, Mapping[str, Any]], records: int
) -> float | None:
    """Return what one more partition costs in each micro-batch, over driver and executors.

    None with fewer than two numbers of partitions.
    """
    least, most = min(map(int, by_partitions)), max(map(int, by_partitions))
    if least == most:
        return None
    few, many = by_partitions[str(least)], by_partitions[str(most)]
    more = float(many["cpu_s_per_million"] - few["cpu_s_per_million"]) * records / 1e6
    tasks = (most - least) * records / float(many["mean_batch"])
    return round(more / tasks * 1000, 2)
