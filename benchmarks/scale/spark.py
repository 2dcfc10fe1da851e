"""A channel by reference on a Spark cluster of one machine: a master, and workers of one core."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

from benchmarks import stack
from benchmarks.report import say
from benchmarks.scale.cluster import Cluster
from benchmarks.sides import Side
from benchmarks.spark_channel import SparkChannel
from headrace.devstack.jars import cached, connector_set

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.scale.used import Usage
    from headrace.devstack import LocalStack

_GROUPS = count()


def reduce_on(
    servers: LocalStack, topics: Sequence[stack.Topic], usage: Usage, *, workers: int, batch: int
) -> dict[int, dict[str, Any]]:
    """Count by key in each topic, and return what that took by number of partitions. Blocks.

    ``batch`` is a micro-batch's most records. The first topic is read once before, not counted.
    """
    folder = servers.directory / f"cluster-{workers}"
    folder.mkdir()
    cluster = Cluster(folder, workers)
    try:
        configs = {topic.name: _config(servers, topic, cluster, workers, batch) for topic in topics}
        with Side("spark", SparkChannel, {"configs": configs}) as side:
            say(f"{workers} workers, warm-up: {_round(side, topics[0], usage)}")
            return {len(topic.ends): _round(side, topic, usage) for topic in topics}
    finally:
        cluster.close()


def _round(side: Side, topic: stack.Topic, usage: Usage) -> dict[str, Any]:
    before = usage.now()
    measured = side.round(
        {
            "config": topic.name,
            "group": f"{topic.name}-{next(_GROUPS)}",
            "ends": topic.ends,
            "counting": False,
        }
    )
    after = usage.now()
    used = after.ours - before.ours
    found = {
        "rate": measured["rate"],
        "seconds": measured["seconds"],
        "micro_batch_s": round(1 / measured["batches_per_second"], 3),
        "mean_batch": measured["mean_batch"],
        "cpu_s_per_million": round(used / topic.records * 1e6, 3),
        "cores_busy": round((after.machine - before.machine) / (after.at - before.at), 2),
    }
    say(f"{topic.name}: {found}")
    return found


def _config(
    servers: LocalStack, topic: stack.Topic, cluster: Cluster, workers: int, batch: int
) -> str:
    path = stack.configuration(
        servers.directory / f"cluster-{workers}" / topic.name,
        stack.addresses(servers),
        {
            "topics": [topic.name],
            "group": "bench",
            "source": "by_reference",
            "batch": {"max_records": max(1, batch // len(topic.ends)), "linger": "1s"},
            "processor": {
                "type": "spark",
                "reducer": "benchmarks.reducers:count_by_key",
                "max_records": batch,
            },
            "sink": "noop",
        },
        spark={
            "master": cluster.master,
            "warm_up": 5,
            "connector": str(cached(connector_set())[0].parent),
            "properties": {
                **cluster.properties,
                "spark.sql.shuffle.partitions": str(workers),  # Spark's own 200 are for more cores
            },
        },
    )
    return str(path)
