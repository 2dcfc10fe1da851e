"""All metrics of a process, declared once."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from itertools import product
from platform import python_version
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.metrics import MetricWrapperBase

from headrace.telemetry.metrics.readings import (
    MetricSpec,
    PartitionCollector,
    PoolCollector,
    StateCollector,
    ThreadCollector,
)
from headrace.telemetry.thread_time import ThreadRole, ThreadTime
from headrace.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from headrace.telemetry.metrics.readings import (
        PartitionSnapshot,
        PoolSnapshot,
        StateSnapshot,
    )

M = TypeVar("M", bound=MetricWrapperBase)

#: Seconds. From a commit that costs a millisecond to a job that runs for minutes.
STAGE_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

_TOPIC = ("channel", "topic")
_PAUSE_REASONS = (
    "operator",
    "downstream",
    "error",
    "config",
    "restoring",
    "state",
    "task",
    "misfit",
)


class Metrics:
    """The metrics of one process. Every method and metric may be used on any thread.

    ``specs`` lists what is declared here; beside that Prometheus's own ``process_`` metrics are
    served where the operating system gives them.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._partitions = PartitionCollector()
        self._threads = ThreadCollector()
        self._states = StateCollector()
        self._pools = PoolCollector()
        self._metrics: list[tuple[MetricSpec, MetricWrapperBase]] = []
        self.specs: list[MetricSpec] = []
        for collector in (self._partitions, self._threads, self._states, self._pools):
            self.specs += collector.specs
            self.registry.register(collector)
        ProcessCollector(registry=self.registry)
        self._declare_process()
        self._declare_delivery()
        self._declare_data_flow()
        self._declare_commits()
        self._declare_group()
        self._declare_health()
        self._begin_series({})

    def _declare_process(self) -> None:
        self._gauge(
            "build_info", "1, with the version of Headrace and of Python.", "version", "python"
        ).labels(VERSION, python_version()).set(1)
        self.config_reloads = self._counter(
            "config_reloads",
            "Times that the configuration was read again.",
            outcome=("applied", "unchanged", "partly", "rejected"),
        )
        self.config_last_reload_success = self._gauge(
            "config_last_reload_success",
            "1 if the configuration as last read could be applied, else 0.",
        )
        self.config_last_reload_success.set(1)
        self.config_last_reload_timestamp = self._gauge(
            "config_last_reload_timestamp_seconds",
            "When the configuration was last read again and not rejected, in seconds since the "
            "epoch; 0 for never.",
        )
        self.config_pending_changes = self._gauge(
            "config_pending_changes", "Changed settings that are not applied yet."
        )
        self.config_watch_stalled = self._gauge(
            "config_watch_stalled",
            "1 while the configuration's files cannot be looked at, because reading them hangs.",
        )

        self.telemetry_dropped = self._counter(
            "telemetry_dropped",
            "Spans, lines of the log and rounds of metrics that no collector took.",
            signal=("traces", "metrics", "logs"),
        )

    def _declare_delivery(self) -> None:
        self.records = self._counter("records", "Records answered.", *_TOPIC)
        self.batches = self._counter(
            "batches",
            "Batches by how they ended.",
            *_TOPIC,
            outcome=("answered", "failed", "withdrawn"),
        )
        self.skipped = self._counter(
            "skipped_records",
            "Records passed over, by policy or as an operator asked.",
            *_TOPIC,
            reason=("failing", "undecodable", "no_key", "out_of_range", "operator"),
        )
        self.overflow = self._counter(
            "overflow_records",
            "Records beyond max_pending, left out or put into the dead-letter topic.",
            *_TOPIC,
            choice=("newest", "oldest", "sample", "own"),
        )
        self.dead_lettered = self._counter(
            "dead_lettered_records", "Records put into the dead-letter topic.", *_TOPIC
        )
        self.bisections = self._counter(
            "bisections", "Failed batches divided to find the records that fail.", *_TOPIC
        )
        self.errors = self._counter(
            "processor_errors", "Errors handed to on_exception.", *_TOPIC, "error"
        )

    def _declare_data_flow(self) -> None:
        self.buffer_bytes = self._gauge(
            "buffer_bytes",
            "Bytes fetched and not yet answered, object overhead counted.",
            "channel",
        )
        stages = MetricSpec(
            "headrace_stage_seconds",
            "histogram",
            ("channel", "stage"),
            "Time spent by stage of the data flow.",
            {"stage": ("on_next_batch", "arrow", "reduce", "sink_commit", "commit")},
        )
        self.stage_seconds = self._declared(
            stages,
            Histogram(
                stages.name,
                stages.text,
                stages.labels,
                buckets=STAGE_BUCKETS,
                registry=self.registry,
            ),
        )

    def _declare_commits(self) -> None:
        self.commits = self._counter("commits", "Offset commits stored.", *_TOPIC)
        self.commit_failures = self._counter(
            "commit_failures", "Offset commits that failed.", *_TOPIC
        )
        self.foreign_commits = self._counter(
            "foreign_commits",
            "Stored offsets found to be another program's, or gone, by what was found.",
            *_TOPIC,
            finding=("stale", "foreign", "late", "missing", "superseded"),
        )

    def _declare_group(self) -> None:
        self.rebalances = self._counter("rebalances", "Changes of this member's share.", "channel")
        self.claims_lost = self._counter(
            "claims_lost",
            "Claims that ended without being given back.",
            "channel",
            reason=(
                "lease_over",
                "session_lost",
                "membership_lost",
                "node_changed",
                "fenced",
                "stopped",
                "failed",
            ),
        )
        self.suspended = self._gauge(
            "coordination_suspended",
            "1 while ZooKeeper does not answer and nothing new is delivered, else 0.",
            "channel",
        )
        self.group_members = self._gauge(
            "group_members", "Members of the group, as this one sees it.", "channel"
        )
        self.group_partitions = self._gauge(
            "group_partitions",
            "Partitions of the group that need attention, as this member sees it.",
            "channel",
            condition=("unowned", "pending", "contended", "missing", "foreign"),
        )

    def _declare_health(self) -> None:
        self.pauses = self._gauge(
            "pauses",
            "Pauses of the channel and of single partitions.",
            "channel",
            reason=_PAUSE_REASONS,
        )
        self.paused_since = self._gauge(
            "paused_since_timestamp_seconds",
            "When the oldest pause of a reason began, in seconds since the epoch; 0 without one.",
            "channel",
            reason=_PAUSE_REASONS,
        )
        self.stalls = self._counter(
            "stalls", "Partitions found to stand still though their log grew.", "channel", "topic"
        )
        self.enforced = self._counter(
            "enforced_processing",
            "Pieces of work of tasks that were taken while one of their topics had no records, and "
            "was at its end for max_task_idle.",
            "channel",
        )
        self.truncations = self._counter(
            "log_truncations",
            "Logs found to have lost records before the partition's position; it rests then.",
            "channel",
            "topic",
        )
        self.abandoned = self._counter(
            "abandoned_workers", "Worker threads given up as hung.", "channel"
        )

    def _gauge(self, name: str, text: str, *labels: str, **values: tuple[str, ...]) -> Gauge:
        spec = MetricSpec(f"headrace_{name}", "gauge", (*labels, *values), text, values)
        return self._declared(spec, Gauge(spec.name, text, spec.labels, registry=self.registry))

    def _counter(self, name: str, text: str, *labels: str, **values: tuple[str, ...]) -> Counter:
        """Declare a counter. ``values`` names the labels whose values are known, and these."""
        spec = MetricSpec(f"headrace_{name}_total", "counter", (*labels, *values), text, values)
        return self._declared(spec, Counter(spec.name, text, spec.labels, registry=self.registry))

    def _declared(self, spec: MetricSpec, metric: M) -> M:
        self.specs.append(spec)
        self._metrics.append((spec, metric))
        return metric

    def begin_channel(self, channel: str) -> None:
        """Initialize a channel's counters to 0: ``increase`` does not see a first event."""
        self._begin_series({"channel": channel})

    def begin_topic(self, channel: str, topic: str) -> None:
        """Initialize a topic's counters to 0, as :meth:`begin_channel` does."""
        self._begin_series({"channel": channel, "topic": topic})

    def _begin_series(self, given: Mapping[str, str]) -> None:
        """Make the series of the counters whose further labels have known values."""
        for spec, metric in self._metrics:
            if spec.kind == "counter" and {*given, *spec.values} == set(spec.labels):
                for chosen in product(*spec.values.values()):
                    metric.labels(*given.values(), *chosen)

    def forget_topic(self, channel: str, topic: str) -> None:
        """Drop the series of a topic that is none of the channel's any more."""
        self._forget_series({"channel": channel, "topic": topic})

    def forget_channel(self, channel: str) -> None:
        """Drop all series of a channel that is not to run any more."""
        self.forget_partitions(channel)
        self._forget_series({"channel": channel})

    def _forget_series(self, wanted: Mapping[str, str]) -> None:
        for spec, metric in self._metrics:
            if not wanted.keys() <= set(spec.labels):
                continue
            samples = [sample.labels for family in metric.collect() for sample in family.samples]
            for labels in samples:
                if wanted.items() <= labels.items():
                    with suppress(KeyError):  # a histogram has several samples of the same labels
                        metric.remove(*(labels[name] for name in spec.labels))

    def watch_partitions(
        self, channel: str, source: Callable[[], Iterable[PartitionSnapshot]]
    ) -> None:
        """Read ``source`` at each scrape for the partition gauges of ``channel``."""
        self._partitions.sources[channel] = source

    def watch_state(self, channel: str, source: Callable[[], StateSnapshot]) -> None:
        """Read ``source`` at each scrape for the metrics of the state of ``channel``."""
        self._states.sources[channel] = source

    def watch_pool(self, channel: str, source: Callable[[], PoolSnapshot | None]) -> None:
        """Read ``source`` at each scrape for the metrics of the pool of ``channel``."""
        self._pools.sources[channel] = source

    def forget_partitions(self, channel: str) -> None:
        """Stop reading the partitions of ``channel``, their state and its processor's pool."""
        for collector in (self._partitions, self._states, self._pools):
            collector.sources.pop(channel, None)

    def thread_time(self, channel: str, role: ThreadRole, name: str | None = None) -> ThreadTime:
        """Return the time account of a thread that begins, until :meth:`forget_thread`.

        ``name`` tells threads of one role apart; their numbers have to stay few.
        """
        time = ThreadTime(channel, role, name or role.value)
        self._threads.times[time.key] = time
        return time

    def forget_thread(self, time: ThreadTime) -> None:
        """Remove the time of a thread, because it ends."""
        if self._threads.times.get(time.key) is time:
            del self._threads.times[time.key]

    def thread_times(self) -> tuple[ThreadTime, ...]:
        """Return the time accounts of the threads that run now."""
        return tuple(self._threads.times.values())

    @contextmanager
    def stage(self, channel: str, stage: str) -> Iterator[None]:
        """Measure the block as one observation of ``stage``."""
        begin = perf_counter()
        try:
            yield
        finally:
            self.stage_seconds.labels(channel, stage).observe(perf_counter() - begin)
