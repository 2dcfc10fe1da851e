"""Throughput and cost over partitions, for each number of daemons and of Spark workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.plotting.charts import lines
from benchmarks.plotting.section import Section, heading, table, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Line = Mapping[str, Any]
    Table = Mapping[str, Mapping[str, Mapping[str, Any]]]

_METHOD = """\
Real daemons of one group share one topic of {records:,} records of {size} bytes, on the machine
that also has the broker and ZooKeeper. They wait after its end until each has its share, and read
it from the beginning at the same moment: records summed by a processor with one worker, counted,
committed and checked. The Spark part reads the same topics by reference on a standalone master
with workers of one core, micro-batches of up to {batch:,} records, count by key, no-op sink. Costs
are seconds of processor time of all processes but broker and ZooKeeper; what those take stands
beside it.
"""

_SATURATION = """\
Where all cores are busy, more daemons cannot be faster: broker, clients and Python's
one thread at a time for each daemon share them. There the cost of a record is what tells how it
would go on with more cores, and [scaling](../docs/scaling.md) says what else grows.
"""

_DAEMON_COLUMNS = (
    ("rate", "records/s"),
    ("cpu_s_per_million", "processor s per million"),
    ("servers_cpu_s_per_million", "of the servers"),
    ("cores_busy", "cores busy"),
    ("memory_mib", "MiB each"),
    ("threads", "threads each"),
    ("connections", "connections each"),
)

_WORKER_COLUMNS = (
    ("rate", "records/s"),
    ("cpu_s_per_million", "processor s per million"),
    ("cores_busy", "cores busy"),
    ("micro_batch_s", "s per micro-batch"),
    ("mean_batch", "records in one"),
)


def section(line: Line) -> Section:
    """Return the growth of the cost, the charts and all figures."""
    charts = {
        "scale-rate.svg": _chart("Thousand records a second", line["daemons"], "rate", 1000),
        "scale-cost.svg": _chart(
            "Processor seconds per million records", line["daemons"], "cpu_s_per_million", 1
        ),
    }
    parts = [
        heading(line),
        _METHOD.format(**line),
        _growth(line),
        "![Throughput over partitions](results/scale-rate.svg)\n",
        "![Cost of a record over partitions](results/scale-cost.svg)\n",
        _figures("daemons", line["daemons"], _DAEMON_COLUMNS),
        _SATURATION,
        _rest(line),
    ]
    if line["workers"]:
        charts["scale-spark.svg"] = _chart(
            "By reference: thousand records a second", line["workers"], "rate", 1000, "worker"
        )
        tasks = line["spark_cpu_ms_per_task"]
        parts += [
            "![Spark's throughput over partitions](results/scale-spark.svg)\n",
            _figures("workers", line["workers"], _WORKER_COLUMNS),
            "One more partition in a micro-batch costs "
            + ", ".join(
                f"{cost} ms of processor time with {n} workers" for n, cost in tasks.items()
            )
            + ".\n",
        ]
    return Section("\n".join(parts), charts)


def _growth(line: Line) -> str:
    names = ("cost_growth_partitions", "cost_growth_daemons", "cost_growth_both")
    rows = [
        (
            f"`{name}`",
            line[name],
            line["target"],
            verdict(line[name], line["target"], at_least=False),
        )
        for name in names
    ]
    return table(("figure", "measured", "at most", ""), rows)


def _chart(title: str, found: Table, key: str, unit: float, what: str = "daemon") -> bytes:
    over = sorted({int(partitions) for each in found.values() for partitions in each})
    series = {
        f"{number} {what}{'s' if number != '1' else ''}": [
            each[str(partitions)][key] / unit if str(partitions) in each else None
            for partitions in over
        ]
        for number, each in found.items()
    }
    return lines(f"{title}, by number of partitions", over, series)


def _figures(what: str, found: Table, columns: Sequence[tuple[str, str]]) -> str:
    rows = [
        (int(number), int(partitions), *[each[key] for key, _ in columns])
        for number, by_partitions in found.items()
        for partitions, each in by_partitions.items()
    ]
    return table((what, "partitions", *[name for _, name in columns]), rows)


def _rest(line: Line) -> str:
    rows = [
        (int(number), each["requests_per_look"], each["requests_per_look_and_partition"])
        for number, each in line["rest"].items()
    ]
    head = ("daemons at rest", "requests to ZooKeeper for each look", "by partition")
    return table(head, rows)
