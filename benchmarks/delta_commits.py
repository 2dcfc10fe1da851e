"""How a commit to a Delta table grows with the commits before it."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.core.records import TopicPartition
from headrace.extensions.delta.sink import DeltaSink
from headrace.sinks import PartitionCommit
from headrace.sinks.micro_batch import MicroBatch

if TYPE_CHECKING:
    from pathlib import Path

#: Commits whose median is taken: 50 on each side of the one that is asked about.
_AROUND = 50

_EARLY = 100

#: The most that a commit may take, in times of an early one.
GROWTH = 2.0


def commit_growth(folder: Path, commits: int) -> dict[str, Any]:
    """Commit ten rows again and again; compare the last commits with those around the 100th."""
    sink = DeltaSink(folder)
    sink.open()
    rows = pa.table({"id": list(range(10))})
    partition, seconds = TopicPartition("growth", 0), []
    try:
        for number in range(commits + _AROUND):
            staged = sink.stage(MicroBatch(f"batch-{number}", "growth", ()), rows)
            began = perf_counter()
            sink.commit(staged, [PartitionCommit("growth", partition, number, number + 1)])
            seconds.append(perf_counter() - began)
    finally:
        sink.close()
    early, late = (median(seconds[at - _AROUND : at + _AROUND]) for at in (_EARLY, commits))
    return {
        "delta_commit_growth": round(late / early, 3),
        "delta_commit_growth_target": GROWTH,
        "delta_commit_100_s": round(early, 5),
        f"delta_commit_{commits}_s": round(late, 5),
    }
