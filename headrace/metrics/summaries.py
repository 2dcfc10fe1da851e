"""What the metrics say of the channels, for who shows it without Prometheus. Any thread."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import Counter

    from headrace.metrics.declared import Metrics
    from headrace.thread_time import Activity, Role


@dataclass(frozen=True, slots=True)
class StageTotal:
    """A stage of the data flow since the start: how often it was done, in how many seconds."""

    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ChannelSummary:
    """One channel since the start, its running threads, and its group.

    ``stages`` are those that were done at least once, ``threads`` the seconds by role and
    activity, ``conditions`` the partitions of the group that somebody has to look at.
    """

    records: float
    batches: float
    skipped: float
    dead_letters: float
    errors: float
    commit_failures: float
    rebalances: float
    stages: dict[str, StageTotal]
    threads: dict[tuple[Role, Activity], float]
    conditions: dict[str, int]


class Summary:
    """Every channel at one moment: each metric is walked over once, however many they are."""

    def __init__(self, metrics: Metrics) -> None:
        self._records = _counted(metrics.records)
        self._batches = _counted(metrics.batches)
        self._skipped = _counted(metrics.skipped)
        self._dead_letters = _counted(metrics.dead_lettered)
        self._errors = _counted(metrics.errors)
        self._commit_failures = _counted(metrics.commit_failures)
        self._rebalances = _counted(metrics.rebalances)
        self._stages = _stages(metrics)
        self._threads = _threads(metrics)
        self._conditions = _conditions(metrics)

    def channel(self, name: str) -> ChannelSummary:
        """Return what there is of a channel; zeros of one that nothing is known of."""
        return ChannelSummary(
            records=self._records.get(name, 0.0),
            batches=self._batches.get(name, 0.0),
            skipped=self._skipped.get(name, 0.0),
            dead_letters=self._dead_letters.get(name, 0.0),
            errors=self._errors.get(name, 0.0),
            commit_failures=self._commit_failures.get(name, 0.0),
            rebalances=self._rebalances.get(name, 0.0),
            stages=self._stages.get(name, {}),
            threads=self._threads.get(name, {}),
            conditions=self._conditions.get(name, {}),
        )


def _counted(counter: Counter) -> dict[str, float]:
    """Return the sum of a counter by channel, over all its other labels."""
    counts: defaultdict[str, float] = defaultdict(float)
    for family in counter.collect():
        for sample in family.samples:
            if sample.name.endswith("_total"):
                counts[sample.labels["channel"]] += sample.value
    return dict(counts)


def _stages(metrics: Metrics) -> dict[str, dict[str, StageTotal]]:
    counts: dict[tuple[str, str], float] = {}
    seconds: dict[tuple[str, str], float] = {}
    for family in metrics.stage_seconds.collect():
        for sample in family.samples:
            stage = sample.labels["channel"], sample.labels["stage"]
            if sample.name.endswith("_count"):
                counts[stage] = sample.value
            elif sample.name.endswith("_sum"):
                seconds[stage] = sample.value
    found: defaultdict[str, dict[str, StageTotal]] = defaultdict(dict)
    # what is being observed at this moment may have one of the two and not yet the other
    for (channel, name), count in counts.items():
        if count:
            found[channel][name] = StageTotal(int(count), seconds.get((channel, name), 0.0))
    return dict(found)


def _threads(metrics: Metrics) -> dict[str, dict[tuple[Role, Activity], float]]:
    totals: defaultdict[str, dict[tuple[Role, Activity], float]] = defaultdict(dict)
    for time in metrics.thread_times():
        spent = totals[time.channel]
        for activity, seconds in time.seconds().items():
            spent[time.role, activity] = spent.get((time.role, activity), 0.0) + seconds
    return dict(totals)


def _conditions(metrics: Metrics) -> dict[str, dict[str, int]]:
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for family in metrics.group_partitions.collect():
        for sample in family.samples:
            if sample.value:
                found[sample.labels["channel"]][sample.labels["condition"]] = int(sample.value)
    return dict(found)
