"""What the metrics say of one channel, for who shows it without Prometheus. Any thread."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.metrics.declared import Metrics
    from headrace.thread_time import Activity, Role


@dataclass(frozen=True, slots=True)
class StageTotal:
    """A stage of the data flow since the start: how often it was done, in how many seconds."""

    count: int
    seconds: float


def stage_totals(metrics: Metrics, channel: str) -> dict[str, StageTotal]:
    """Return the stages that were done at least once."""
    counts: dict[str, float] = {}
    seconds: dict[str, float] = {}
    for family in metrics.stage_seconds.collect():
        for sample in family.samples:
            if sample.labels.get("channel") != channel:
                continue
            if sample.name.endswith("_count"):
                counts[sample.labels["stage"]] = sample.value
            elif sample.name.endswith("_sum"):
                seconds[sample.labels["stage"]] = sample.value
    # what is being observed at this moment may have one of the two and not yet the other
    return {
        stage: StageTotal(int(count), seconds.get(stage, 0.0))
        for stage, count in counts.items()
        if count
    }


def thread_totals(metrics: Metrics, channel: str) -> dict[tuple[Role, Activity], float]:
    """Return the seconds that the channel's running threads spent, by role and activity."""
    totals: defaultdict[tuple[Role, Activity], float] = defaultdict(float)
    for time in metrics.thread_times():
        if time.channel == channel:
            for activity, seconds in time.seconds().items():
                totals[time.role, activity] += seconds
    return dict(totals)


def group_conditions(metrics: Metrics, channel: str) -> dict[str, int]:
    """Return how many partitions of the group are in which condition somebody has to look at."""
    return {
        sample.labels["condition"]: int(sample.value)
        for family in metrics.group_partitions.collect()
        for sample in family.samples
        if sample.labels["channel"] == channel and sample.value
    }
