from __future__ import annotations

from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from headrace.metrics import Metrics, MetricsServer, PartitionReading

READING = PartitionReading(
    channel="main",
    topic="events",
    partition=3,
    state="waiting",
    epoch=2,
    position=10,
    committed=8,
    high_watermark=20,
)

PARTITION = ["channel", "partition", "topic"]

#: What dashboards and alerts rely on: renaming one breaks them without a sound.
PINNED = {
    "headrace_abandoned_workers": ("counter", ["channel"]),
    "headrace_stalls": ("counter", ["channel", "topic"]),
    "headrace_batches": ("counter", ["channel", "outcome", "topic"]),
    "headrace_buffer_bytes": ("gauge", ["channel"]),
    "headrace_claims_lost": ("counter", ["channel", "reason"]),
    "headrace_commit_failures": ("counter", ["channel", "topic"]),
    "headrace_commits": ("counter", ["channel", "topic"]),
    "headrace_committed_offset": ("gauge", PARTITION),
    "headrace_coordination_suspended": ("gauge", ["channel"]),
    "headrace_foreign_commits": ("counter", ["channel", "finding", "topic"]),
    "headrace_group_members": ("gauge", ["channel"]),
    "headrace_group_partitions": ("gauge", ["channel", "condition"]),
    "headrace_high_watermark": ("gauge", PARTITION),
    "headrace_lag_records": ("gauge", PARTITION),
    "headrace_owner_epoch": ("gauge", PARTITION),
    "headrace_partitions": ("gauge", ["channel", "state"]),
    "headrace_paused_since_timestamp_seconds": ("gauge", ["channel", "reason"]),
    "headrace_pauses": ("gauge", ["channel", "reason"]),
    "headrace_position": ("gauge", PARTITION),
    "headrace_processor_errors": ("counter", ["channel", "error", "topic"]),
    "headrace_rebalances": ("counter", ["channel"]),
    "headrace_records": ("counter", ["channel", "topic"]),
    "headrace_skipped_records": ("counter", ["channel", "reason", "topic"]),
    "headrace_stage_seconds": ("histogram", ["channel", "le", "stage"]),
}


def used() -> Metrics:
    """Return metrics of which each has one sample."""
    metrics = Metrics()
    for metric in vars(metrics).values():
        labels = getattr(metric, "_labelnames", None)
        if labels:
            metric.labels(*labels)
    metrics.watch_partitions("main", lambda: [READING])
    return metrics


def scraped(metrics: Metrics) -> dict[str, tuple[str, list[str], float]]:
    """Return kind, label names and first value of each metric, as Prometheus reads them."""
    server = MetricsServer(metrics, "127.0.0.1", 0)
    try:
        with urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
    finally:
        server.close()
    found: dict[str, tuple[str, list[str], float]] = {}
    for family in families:
        samples = [s for s in family.samples if not s.name.endswith("_created")]
        if samples:
            found[family.name] = (family.type, sorted(samples[0].labels), samples[0].value)
    return found


def test_names_kinds_and_labels_are_pinned() -> None:
    """Exactly these metrics are served, under these names, with these labels."""
    assert {name: (kind, labels) for name, (kind, labels, _) in scraped(used()).items()} == PINNED


def test_partitions_are_read_at_each_scrape() -> None:
    """The gauges of a partition say where it stands, and go when the channel does."""
    metrics = used()
    found = scraped(metrics)
    for name, value in (
        ("headrace_position", 10),
        ("headrace_committed_offset", 8),
        ("headrace_high_watermark", 20),
        ("headrace_lag_records", 12),
        ("headrace_owner_epoch", 2),
        ("headrace_partitions", 1),
    ):
        assert found[name][2] == value
    metrics.forget_partitions("main")
    assert "headrace_position" not in scraped(metrics)


def test_a_partition_that_begins_has_no_committed_offset() -> None:
    """What is not known yet is left out instead of shown as 0."""
    metrics = Metrics()
    reading = PartitionReading("main", "events", 3, "starting", 2, 0, None, None)
    metrics.watch_partitions("main", lambda: [reading])
    found = scraped(metrics)
    assert "headrace_committed_offset" not in found
    assert "headrace_lag_records" not in found
    assert found["headrace_position"][2] == 0
