"""Metrics that are read when Prometheus asks: of the partitions held, and of the threads' time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from headrace.telemetry.thread_time import ThreadActivity, ThreadRole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client import Counter
    from prometheus_client.metrics import MetricWrapperBase
    from prometheus_client.samples import Sample

    from headrace.telemetry.metrics.declared import Metrics
    from headrace.telemetry.thread_time import ThreadTime


@dataclass(frozen=True, slots=True)
class StageTotal:
    """A stage of the data flow since the start: how often it was done, in how many seconds."""

    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ChannelSummary:
    """One channel since the start, its running threads, and its group.

    ``stages`` are those that were done at least once, ``threads`` the seconds by role and
    activity, ``conditions`` the partitions of the group that need attention. ``left_out``
    are those of ``skipped`` that an operator asked for.
    """

    records: float
    batches: float
    skipped: float
    left_out: float
    overflow: float
    dead_letters: float
    errors: float
    commit_failures: float
    enforced: float
    rebalances: float
    stages: dict[str, StageTotal]
    threads: dict[tuple[ThreadRole, ThreadActivity], float]
    conditions: dict[str, int]


class Summary:
    """Every channel at one moment: each metric is walked over once, however many they are."""

    def __init__(self, metrics: Metrics) -> None:
        self._counts = {
            "records": _counted(metrics.records),
            "batches": _counted(metrics.batches),
            "skipped": _counted(metrics.skipped),
            "left_out": _counted(metrics.skipped, reason="operator"),
            "overflow": _counted(metrics.overflow),
            "dead_letters": _counted(metrics.dead_lettered),
            "errors": _counted(metrics.errors),
            "commit_failures": _counted(metrics.commit_failures),
            "enforced": _counted(metrics.enforced),
            "rebalances": _counted(metrics.rebalances),
        }
        self._stages = _stages(metrics)
        self._threads = _threads(metrics)
        self._conditions = _conditions(metrics)

    def channel(self, name: str) -> ChannelSummary:
        """Return what there is of a channel; zeros of one that nothing is known of."""
        return ChannelSummary(
            **{count: by_channel.get(name, 0.0) for count, by_channel in self._counts.items()},
            stages=self._stages.get(name, {}),
            threads=self._threads.get(name, {}),
            conditions=self._conditions.get(name, {}),
        )


def _counted(counter: Counter, **labels: str) -> dict[str, float]:
    """Return the sum of a counter by channel, over all other labels than ``labels``."""
    counts: defaultdict[str, float] = defaultdict(float)
    for sample in _samples(counter):
        if sample.name.endswith("_total") and labels.items() <= sample.labels.items():
            counts[sample.labels["channel"]] += sample.value
    return dict(counts)


def _samples(metric: MetricWrapperBase) -> Iterator[Sample]:
    return (sample for family in metric.collect() for sample in family.samples)


def _stages(metrics: Metrics) -> dict[str, dict[str, StageTotal]]:
    counts: dict[tuple[str, str], float] = {}
    seconds: dict[tuple[str, str], float] = {}
    for sample in _samples(metrics.stage_seconds):
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


def _threads(metrics: Metrics) -> dict[str, dict[tuple[ThreadRole, ThreadActivity], float]]:
    totals: defaultdict[str, dict[tuple[ThreadRole, ThreadActivity], float]] = defaultdict(dict)
    for time in metrics.thread_times():
        spent = totals[time.channel]
        for activity, seconds in time.seconds().items():
            spent[time.role, activity] = spent.get((time.role, activity), 0.0) + seconds
    return dict(totals)


def _conditions(metrics: Metrics) -> dict[str, dict[str, int]]:
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for sample in _samples(metrics.group_partitions):
        if sample.value:
            found[sample.labels["channel"]][sample.labels["condition"]] = int(sample.value)
    return dict(found)


_CHANNEL = ("channel",)
_PARTITION = ("channel", "topic", "partition")


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """The declaration of one metric.

    ``name`` is what a query says; of a histogram without ``_bucket``, ``_sum`` and ``_count``.
    ``values`` has those of labels that are known beforehand: the last ones of ``labels``.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str
    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """One held partition. Offsets and counts as they are just now, seconds since something.

    ``batch_offset`` is the first record of the oldest batch that is out, or that failed and comes
    again, and ``batch_end`` the offset after it; None where there is no such batch.
    ``held_back_seconds`` says how long nothing is delivered yet, after an error or because the
    processor asked for it; None where nothing holds it back. ``suspect_records`` are the records
    among which one that fails is looked for; ``dead_letters`` went to the dead-letter topic under
    this claim. ``callback_seconds`` says for how long a callback has been running, ``calls`` where
    in it its thread is; without one they are None and empty. ``lag_seconds`` is how long the next
    record has been waiting to be answered, ``sink_seconds`` the age of the newest record that was
    answered for good.
    """

    channel: str
    topic: str
    partition: int
    epoch: int
    state: str
    position: int
    batch_offset: int | None = None
    batch_end: int | None = None
    committed: int | None = None
    high_watermark: int | None = None
    buffered_records: int = 0
    held_bytes: int = 0
    outstanding_batches: int = 0
    attempts: int = 0
    suspect_records: int = 0
    dead_letters: int = 0
    held_back_seconds: float | None = None
    callback_seconds: float | None = None
    calls: tuple[str, ...] = ()
    last_error: str | None = None
    lag_seconds: float | None = None
    sink_seconds: float | None = None

    @property
    def end(self) -> int | None:
        """Return the log's end as it was last told, or the position that got past it since."""
        known = self.high_watermark
        return None if known is None else max(known, self.position)

    @property
    def lag_records(self) -> int | None:
        """Return the records between the committed offset and the end, None while the end is
        unknown.
        """
        if self.high_watermark is None:
            return None
        done = self.position if self.committed is None else self.committed
        return max(0, self.high_watermark - done)

    @property
    def paused(self) -> bool:
        """Return whether a pause has come into force, and was not only asked for."""
        return self.state == "paused"

    def facts(self) -> dict[str, Any]:
        """Return the fields by name."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def _of_partition(name: str, text: str) -> MetricSpec:
    return MetricSpec(f"headrace_{name}", "gauge", _PARTITION, text)


#: Of each held partition, by what a snapshot calls it.
_READ = {
    "position": _of_partition("position", "Next offset to deliver."),
    "committed": _of_partition("committed_offset", "Offset a restart would begin at."),
    "high_watermark": _of_partition("high_watermark", "End of the partition as last fetched."),
    "lag_records": _of_partition(
        "lag_records", "Records between the committed offset and the end."
    ),
    "lag_seconds": _of_partition(
        "lag_seconds",
        "Age of the oldest record that is not answered yet, by its own timestamp; 0 without one.",
    ),
    "epoch": _of_partition("owner_epoch", "Epoch of the claim on the partition."),
    "paused": _of_partition(
        "partition_paused",
        "1 while the partition is paused, by itself or with its channel, else 0.",
    ),
}

_STATES = MetricSpec(
    "headrace_partitions",
    "gauge",
    ("channel", "state"),
    "Partitions held, by state.",
    {
        "state": (
            "starting",
            "waiting",
            "backing_off",
            "running",
            "suspended",
            "paused",
            "releasing",
            "terminating",
        )
    },
)

_FRESHNESS = MetricSpec(
    "headrace_sink_freshness_seconds",
    "gauge",
    _CHANNEL,
    "Age of the newest record that the channel's sink has, by the record's own timestamp.",
)

_THREADS = MetricSpec(
    "headrace_thread_seconds_total",
    "counter",
    ("channel", "role", "thread", "activity"),
    "Time of the channel's threads, by what they spend it on.",
    {
        "role": tuple(role.value for role in ThreadRole),
        "activity": tuple(activity.value for activity in ThreadActivity),
    },
)


class StateSize(Protocol):
    """The size of a state by key; ``bytes`` are those of keys and rows as stored."""

    @property
    def rows(self) -> int:
        """Return the number of keys."""

    @property
    def bytes(self) -> int:
        """Return the bytes."""

    @property
    def timers(self) -> int:
        """Return the number of timers."""

    @property
    def quarantined(self) -> int:
        """Return the number of keys in quarantine, whose facts are rejected."""


@dataclass(frozen=True, slots=True)
class PhaseSnapshot:
    """Keys in one phase; ``oldest`` is the age of the oldest in seconds, None without one."""

    name: str
    keys: int
    oldest: float | None = None


@dataclass(frozen=True, slots=True)
class OperatorSnapshot:
    """An operator of a topology: its figures over the partitions that the channel has here.

    ``counts`` are since the channel started: those that can happen to such an operator. ``store``
    is the kind of its store, None without one; ``rows`` and ``bytes`` are None then, and while they
    are not counted. ``time_lag`` is by how many seconds the oldest operator time is behind the
    clock, None before the first record, and of an operator without one.
    """

    topology: str
    name: str
    kind: str
    store: str | None = None
    counts: Mapping[str, int] = field(default_factory=dict)
    rows: int | None = None
    bytes: int | None = None
    time_lag: float | None = None

    def values(self) -> dict[str, float]:
        """Return what is known, by the name of the metric."""
        gauges = {"rows": self.rows, "bytes": self.bytes, "time_lag": self.time_lag}
        known = {name: value for name, value in gauges.items() if value is not None}
        return {**self.counts, **known}


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """The state that a channel keeps by key, of the partitions that are here.

    The first ones are counts since the channel started. ``size`` is None while something of it is
    not counted, ``restore_remaining`` counts offsets of the changelog, ``unwritten_rows`` rows and
    timers that are committed and in memory, not in the store's files, and ``is_refused`` says that
    these take nothing. ``stream_time_lag`` is by how many seconds the oldest stream time is behind
    the clock, None before the first record.
    ``phases`` and ``amounts`` are those that the reducer declares, empty while something is not
    counted; ``counts`` are what was added to its counts since the channel started. ``operators``
    are those of a topology. ``standby_lags`` has by how many offsets the copies of other members'
    partitions are behind, None where that is not known.
    """

    keys_touched: int = 0
    timers_fired: int = 0
    late: int = 0
    rejected: int = 0
    expired: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    size: StateSize | None = None
    restoring: int = 0
    restore_remaining: int = 0
    unwritten_rows: int = 0
    unwritten_bytes: int = 0
    is_refused: bool = False
    stream_time_lag: float | None = None
    phases: tuple[PhaseSnapshot, ...] = ()
    amounts: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    operators: tuple[OperatorSnapshot, ...] = ()
    standby_lags: Mapping[int, int | None] = field(default_factory=dict)

    def values(self) -> dict[str, float | None]:
        """Return what is measured, by the name of the metric."""
        found: dict[str, float | None] = {name: getattr(self, name) for name in _STATE_COUNTS}
        size = self.size
        return found | {
            "rows": None if size is None else size.rows,
            "bytes": None if size is None else size.bytes,
            "timers": None if size is None else size.timers,
            "quarantined": None if size is None else size.quarantined,
            "restore_remaining": self.restore_remaining,
            "unwritten_rows": self.unwritten_rows,
            "unwritten_bytes": self.unwritten_bytes,
            "writes_refused": int(self.is_refused),
            "stream_time_lag": self.stream_time_lag,
        }


def _of_state(name: str, kind: str, text: str) -> MetricSpec:
    return MetricSpec(f"headrace_keyed_{name}", kind, _CHANNEL, text)


#: What is counted of a channel with state, by what a snapshot calls it.
_STATE_COUNTS = {
    "keys_touched": _of_state(
        "keys_touched_total", "counter", "Keys that had facts or timers, in each micro-batch."
    ),
    "timers_fired": _of_state("timers_fired_total", "counter", "Timers that fired."),
    "late": _of_state("late_total", "counter", "Records older than the stream time before them."),
    "rejected": _of_state(
        "rejected_total",
        "counter",
        "Facts left out or put into the dead-letter topic, as rejects say.",
    ),
    "expired": _of_state("expired_total", "counter", "Keys that ttl deleted."),
    "cache_hits": _of_state(
        "cache_hits_total", "counter", "Rows that were read from the store's cache."
    ),
    "cache_misses": _of_state(
        "cache_misses_total", "counter", "Rows that were read from the store's files, or not there."
    ),
}

_STATE_GAUGES = {
    "rows": _of_state("rows", "gauge", "Keys with a row, of the partitions that are held."),
    "bytes": _of_state("bytes", "gauge", "Bytes of these keys and rows, as they are stored."),
    "timers": _of_state("timers", "gauge", "Timers of these keys."),
    "quarantined": _of_state(
        "quarantined", "gauge", "Keys in quarantine, whose facts go to the topic."
    ),
    "restore_remaining": _of_state(
        "restore_remaining", "gauge", "Offsets of the changelog that are still to be read."
    ),
    "unwritten_rows": _of_state(
        "unwritten_rows",
        "gauge",
        "Rows and timers that are committed and in memory, until the next checkpoint.",
    ),
    "unwritten_bytes": _of_state(
        "unwritten_bytes", "gauge", "Bytes of memory that these rows and timers take, about."
    ),
    "writes_refused": _of_state(
        "writes_refused", "gauge", "1 while the local store does not take what is committed."
    ),
    "stream_time_lag": _of_state(
        "stream_time_lag_seconds",
        "gauge",
        "By how much the oldest stream time of a held partition is behind the clock.",
    ),
}


_PHASES = MetricSpec(
    "headrace_keyed_phase_keys",
    "gauge",
    ("channel", "phase"),
    "Keys with a state, by the phase that the reducer says it is in.",
)

_PHASE_OLDEST = MetricSpec(
    "headrace_keyed_phase_oldest_seconds",
    "gauge",
    ("channel", "phase"),
    "Age of the oldest key in a phase whose keys have one.",
)

_AMOUNTS = MetricSpec(
    "headrace_keyed_amount",
    "gauge",
    ("channel", "amount"),
    "Sum over all keys of what the reducer says of each.",
)

_STANDBY_LAG = MetricSpec(
    "headrace_keyed_standby_lag",
    "gauge",
    ("channel", "partition"),
    "Offsets of the changelog by which the copy of another member's partition is behind.",
)

_ADDED = MetricSpec(
    "headrace_keyed_counts_total",
    "counter",
    ("channel", "count"),
    "What commits have added to the counts that the reducer keeps of each key.",
)


def _of_operator(name: str, kind: str, text: str) -> MetricSpec:
    labels = ("topology", "channel", "operator")
    return MetricSpec(f"headrace_streams_{name}", kind, labels, text)


#: What there is of an operator of a topology, by what a snapshot calls it.
_OPERATORS = {
    "records": _of_operator("records_total", "counter", "Rows that came to the operator."),
    "late": _of_operator(
        "late_total",
        "counter",
        "Rows that came when their windows and the grace were over. Windows leave them out, a join "
        "still looks for partners.",
    ),
    "alone": _of_operator(
        "alone_total", "counter", "Rows without a partner that a left or an outer join told."
    ),
    "closed": _of_operator("closed_total", "counter", "Windows of keys that are over."),
    "skipped": _of_operator(
        "skipped_total",
        "counter",
        "Rows left out because they have no value, or not the key to look up.",
    ),
    "rows": _of_operator(
        "rows", "gauge", "Rows of the operator's store, of the partitions that are held."
    ),
    "bytes": _of_operator("bytes", "gauge", "Bytes of these keys and rows, as they are stored."),
    "time_lag": _of_operator(
        "operator_time_lag_seconds",
        "gauge",
        "By how much the oldest operator time of a held partition is behind the clock.",
    ),
}


class StateCollector(Collector):
    """Reads the state of channels when Prometheus asks. What is not known has no sample."""

    specs = (
        *_STATE_COUNTS.values(),
        *_STATE_GAUGES.values(),
        _PHASES,
        _PHASE_OLDEST,
        _AMOUNTS,
        _STANDBY_LAG,
        _ADDED,
        *_OPERATORS.values(),
    )

    def __init__(self) -> None:
        self.sources: dict[str, Callable[[], StateSnapshot]] = {}

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        """Return all families, without samples where no channel keeps state."""
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {
            name: _counters(spec) for name, spec in _STATE_COUNTS.items()
        }
        families |= {name: _gauges(spec) for name, spec in _STATE_GAUGES.items()}
        phases, oldest, amounts = map(_gauges, (_PHASES, _PHASE_OLDEST, _AMOUNTS))
        standbys = _gauges(_STANDBY_LAG)
        added = _counters(_ADDED)
        operators = {
            name: _counters(spec) if spec.kind == "counter" else _gauges(spec)
            for name, spec in _OPERATORS.items()
        }
        for channel, source in list(self.sources.items()):
            found = source()
            for name, value in found.values().items():
                if value is not None:
                    families[name].add_metric([channel], value)
            for phase in found.phases:
                phases.add_metric([channel, phase.name], phase.keys)
                if phase.oldest is not None:
                    oldest.add_metric([channel, phase.name], phase.oldest)
            for name, number in found.amounts.items():
                amounts.add_metric([channel, name], number)
            _add_lags(standbys, channel, found.standby_lags)
            for name, number in found.counts.items():
                added.add_metric([channel, name], number)
            for operator in found.operators:
                labels = [operator.topology, channel, operator.name]
                for name, figure in operator.values().items():
                    operators[name].add_metric(labels, figure)
        return [
            *families.values(),
            phases,
            oldest,
            amounts,
            standbys,
            added,
            *operators.values(),
        ]


def _add_lags(family: GaugeMetricFamily, channel: str, lags: Mapping[int, int | None]) -> None:
    """Add samples of the standbys whose lags are known."""
    for partition, lag in lags.items():
        if lag is not None:
            family.add_metric([channel, str(partition)], lag)


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """A processor's own pool of threads. ``waiting`` are calls that have no thread yet.

    ``ended`` counts calls by their outcomes, since the channel started. ``left`` are threads that
    are not of the pool any more: they were left to calls that hang.
    """

    threads: int
    busy: int
    waiting: int
    ended: Mapping[str, int]
    left: int = 0


_POOL_THREADS = MetricSpec(
    "headrace_pool_threads",
    "gauge",
    ("channel", "state"),
    "Threads of the processor's own pool, by state, and those that it left to calls that hang.",
    {"state": ("busy", "idle", "left")},
)

_POOL_WAITING = MetricSpec(
    "headrace_pool_waiting_calls",
    "gauge",
    _CHANNEL,
    "Calls that wait for a thread of the pool.",
)

_POOL_CALLS = MetricSpec(
    "headrace_pool_calls_total",
    "counter",
    ("channel", "outcome"),
    "Calls that the pool is done with, by outcome.",
)


class PoolCollector(Collector):
    """Reads the pools of processors when Prometheus asks."""

    specs = (_POOL_THREADS, _POOL_WAITING, _POOL_CALLS)

    def __init__(self) -> None:
        self.sources: dict[str, Callable[[], PoolSnapshot | None]] = {}

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        """Return all families, without samples where no processor has a pool."""
        threads, waiting = _gauges(_POOL_THREADS), _gauges(_POOL_WAITING)
        calls = CounterMetricFamily(_POOL_CALLS.name, _POOL_CALLS.text, labels=_POOL_CALLS.labels)
        for channel, source in list(self.sources.items()):
            found = source()
            if found is None:
                continue
            threads.add_metric([channel, "busy"], found.busy)
            threads.add_metric([channel, "idle"], found.threads - found.busy)
            threads.add_metric([channel, "left"], found.left)
            waiting.add_metric([channel], found.waiting)
            for outcome, count in found.ended.items():
                calls.add_metric([channel, outcome], count)
        return [threads, waiting, calls]


class PartitionCollector(Collector):
    """Reads the partitions when Prometheus asks, so that the data path pays nothing for them.

    A partition that is not held any more has no series: their number is bounded by what is held.
    """

    specs = (*_READ.values(), _STATES, _FRESHNESS)

    def __init__(self) -> None:
        self.sources: dict[str, Callable[[], Iterable[PartitionSnapshot]]] = {}

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return all families, without samples where nothing is held."""
        families = {name: _gauges(spec) for name, spec in _READ.items()}
        watched = list(self.sources.items())
        counts = {
            (channel, state): 0 for channel, _ in watched for state in _STATES.values["state"]
        }
        freshest: dict[str, float] = {}
        for _, source in watched:
            for held in source():
                labels = [held.channel, held.topic, str(held.partition)]
                for name, family in families.items():
                    value = getattr(held, name)
                    if value is not None:
                        family.add_metric(labels, value)
                state = held.channel, held.state
                counts[state] = counts.get(state, 0) + 1
                if held.sink_seconds is not None:
                    best = freshest.get(held.channel, held.sink_seconds)
                    freshest[held.channel] = min(best, held.sink_seconds)
        states, freshness = _gauges(_STATES), _gauges(_FRESHNESS)
        for labels_of_state, count in sorted(counts.items()):
            states.add_metric(labels_of_state, count)
        for channel, seconds in freshest.items():
            freshness.add_metric([channel], seconds)
        return [*families.values(), states, freshness]


class ThreadCollector(Collector):
    """Reads the threads' time when Prometheus asks; each ends with its thread.

    A thread that is left behind makes way for one of the same name.
    """

    specs = (_THREADS,)

    def __init__(self) -> None:
        self.times: dict[object, ThreadTime] = {}

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Return the family, with the threads that run now."""
        family = CounterMetricFamily(_THREADS.name, _THREADS.text, labels=_THREADS.labels)
        for time in tuple(self.times.values()):
            labels = [time.channel, time.role.value, time.name]
            for activity, seconds in time.seconds().items():
                family.add_metric([*labels, activity.value], seconds)
        return [family]


def _counters(spec: MetricSpec) -> CounterMetricFamily:
    return CounterMetricFamily(spec.name, spec.text, labels=spec.labels)


def _gauges(spec: MetricSpec) -> GaugeMetricFamily:
    return GaugeMetricFamily(spec.name, spec.text, labels=spec.labels)
