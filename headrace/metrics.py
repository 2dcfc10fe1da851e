"""All metrics of a process, declared once: seconds, bytes, records, and labels that stay few."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from socket import SHUT_RDWR
from time import perf_counter
from typing import TYPE_CHECKING
from urllib.request import urlopen

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

#: Seconds. From a commit that costs a millisecond to a job that runs for minutes.
STAGE_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)

_PARTITION = ["channel", "topic", "partition"]


@dataclass(frozen=True, slots=True)
class PartitionReading:
    """Where one owned partition stands at the moment of a scrape."""

    channel: str
    topic: str
    partition: int
    state: str
    epoch: int
    position: int
    committed: int | None
    high_watermark: int | None


class _PartitionCollector(Collector):
    """Reads the partitions when Prometheus asks, so that the data path pays nothing for them."""

    def __init__(self) -> None:
        self.sources: dict[str, Callable[[], Iterable[PartitionReading]]] = {}

    def collect(self) -> Iterable[GaugeMetricFamily]:
        position = _family("position", "Next offset to deliver.")
        committed = _family("committed_offset", "Offset a restart would begin at.")
        end = _family("high_watermark", "End of the partition as last fetched.")
        lag = _family("lag_records", "Records between the committed offset and the end.")
        epoch = _family("owner_epoch", "Epoch of the claim on the partition.")
        state = GaugeMetricFamily(
            "headrace_partitions", "Partitions held, by state.", labels=["channel", "state"]
        )
        counts: dict[tuple[str, str], int] = {}
        for source in list(self.sources.values()):
            for reading in source():
                labels = [reading.channel, reading.topic, str(reading.partition)]
                position.add_metric(labels, reading.position)
                epoch.add_metric(labels, reading.epoch)
                if reading.committed is not None:
                    committed.add_metric(labels, reading.committed)
                if reading.high_watermark is not None:
                    end.add_metric(labels, reading.high_watermark)
                    done = reading.position if reading.committed is None else reading.committed
                    lag.add_metric(labels, max(0, reading.high_watermark - done))
                key = (reading.channel, reading.state)
                counts[key] = counts.get(key, 0) + 1
        for (channel, name), count in sorted(counts.items()):
            state.add_metric([channel, name], count)
        return [position, committed, end, lag, epoch, state]


def _family(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"headrace_{name}", text, labels=_PARTITION)


class Metrics:
    """The metrics of one process. Every method and metric may be used on any thread."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._partitions = _PartitionCollector()
        self.registry.register(self._partitions)
        self._declare_delivery()
        self._declare_commits()
        self._declare_group()
        self._declare_health()

    def _declare_delivery(self) -> None:
        topic = ("channel", "topic")
        self.records = self._counter("records", "Records answered.", *topic)
        self.batches = self._counter("batches", "Batches by how they ended.", *topic, "outcome")
        self.skipped = self._counter(
            "skipped_records", "Records passed over by policy.", *topic, "reason"
        )
        self.errors = self._counter(
            "processor_errors", "Errors handed to on_exception.", *topic, "error"
        )
        self.buffer_bytes = self._gauge(
            "buffer_bytes",
            "Bytes fetched and not yet answered, object overhead counted.",
            "channel",
        )
        self.stage_seconds = Histogram(
            "headrace_stage_seconds",
            "Time spent by stage of the data flow.",
            ["channel", "stage"],
            buckets=STAGE_BUCKETS,
            registry=self.registry,
        )

    def _declare_commits(self) -> None:
        topic = ("channel", "topic")
        self.commits = self._counter("commits", "Offset commits stored.", *topic)
        self.commit_failures = self._counter(
            "commit_failures", "Offset commits that failed.", *topic
        )
        self.foreign_commits = self._counter(
            "foreign_commits",
            "Stored offsets found to be somebody else's, or gone, by what was found.",
            *topic,
            "finding",
        )

    def _declare_group(self) -> None:
        self.rebalances = self._counter(
            "rebalances", "Changes of what this member is to have.", "channel"
        )
        self.claims_lost = self._counter(
            "claims_lost", "Claims that ended without being given back.", "channel", "reason"
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
            "Partitions of the group that somebody has to look at, as this member sees it.",
            "channel",
            "condition",
        )

    def _declare_health(self) -> None:
        self.pauses = self._gauge(
            "pauses", "Pauses of the channel and of single partitions.", "channel", "reason"
        )
        self.paused_since = self._gauge(
            "paused_since_timestamp_seconds",
            "When the oldest pause of a reason began, in seconds since the epoch; 0 without one.",
            "channel",
            "reason",
        )
        self.stalls = self._counter(
            "stalls", "Partitions found to stand still though their log grew.", "channel", "topic"
        )
        self.abandoned = self._counter(
            "abandoned_workers", "Worker threads given up as hung.", "channel"
        )

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"headrace_{name}", text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"headrace_{name}", text, labels, registry=self.registry)

    def watch_partitions(
        self, channel: str, source: Callable[[], Iterable[PartitionReading]]
    ) -> None:
        """Read ``source`` at each scrape for the partition gauges of ``channel``."""
        self._partitions.sources[channel] = source

    def forget_partitions(self, channel: str) -> None:
        """Stop reading the partitions of ``channel``."""
        self._partitions.sources.pop(channel, None)

    @contextmanager
    def stage(self, channel: str, stage: str) -> Iterator[None]:
        """Measure the block as one observation of ``stage``."""
        begin = perf_counter()
        try:
            yield
        finally:
            self.stage_seconds.labels(channel, stage).observe(perf_counter() - begin)


class MetricsServer:
    """Serves ``/metrics`` in the text format on a thread of its own.

    Raises:
        OSError: the address cannot be bound.
    """

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        self._server, self._thread = start_http_server(port, host, metrics.registry)
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop serving and end the thread."""
        # Wakes the thread, which else looks only every half second whether to end. Not every
        # system lets a listening socket be shut down; there the end takes that half second.
        with suppress(OSError):
            self._server.socket.shutdown(SHUT_RDWR)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


@dataclass(frozen=True, slots=True)
class Sample:
    """One value that a process serves, with its labels."""

    name: str
    labels: Mapping[str, str]
    value: float


def read_metrics(host: str, port: int, timeout: float) -> list[Sample]:
    """Return what a process serves on its metrics port. Blocks, for ``timeout`` seconds at most.

    Raises:
        OSError: nothing answers there, or not in time.
    """
    with urlopen(f"http://{host}:{port}/metrics", timeout=timeout) as answer:
        text = answer.read().decode()
    return [
        Sample(sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
