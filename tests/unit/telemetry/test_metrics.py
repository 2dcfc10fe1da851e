from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.channel.commits import OffsetVerdict
from headrace.channel.pauses import PauseReason
from headrace.channel.states import FINAL, PartitionState
from headrace.controller.reports import ReloadOutcome
from headrace.coordinators.claims import LossReason
from headrace.core import http_server
from headrace.extensions.keyed.store import StoreSize
from headrace.telemetry.metrics import (
    Metrics,
    MetricsServer,
    OperatorSnapshot,
    PartitionSnapshot,
    PhaseSnapshot,
    PoolSnapshot,
    StateSnapshot,
)
from headrace.telemetry.metrics.reference import BEGIN, END, render, update
from headrace.telemetry.thread_time import ACTIVITIES, ThreadActivity, ThreadRole

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from enum import Enum

#: How a reload may end.
RELOADS = set(ReloadOutcome) - {ReloadOutcome.UNDER_WAY}

READING = PartitionSnapshot(
    channel="main",
    topic="events",
    partition=3,
    state="waiting",
    epoch=2,
    position=10,
    committed=8,
    high_watermark=20,
    lag_seconds=2.5,
    sink_seconds=1.5,
)

#: The state that a channel keeps by key.
STATE = StateSnapshot(
    keys_touched=9,
    timers_fired=8,
    late=7,
    rejected=6,
    size=StoreSize(rows=5, bytes=400, timers=3, quarantined=2),
    restore_remaining=1,
    unwritten_rows=2,
    unwritten_bytes=500,
    is_refused=True,
    stream_time_lag=0.5,
    phases=(PhaseSnapshot("open", 4, 90.0), PhaseSnapshot("closed", 1)),
    amounts={"calls_in_flight": 10},
    counts={"attempts": 11},
    standby_lags={4: 12},
    operators=(
        OperatorSnapshot(
            "shop",
            "pages",
            "aggregate",
            "windows",
            {"records": 90, "late": 4, "alone": 3, "closed": 2, "skipped": 1},
            rows=40,
            bytes=900,
            time_lag=2.5,
        ),
    ),
)

#: What the threads of a processor's pool are doing.
POOL = PoolSnapshot(threads=4, busy=3, waiting=2, ended={"returned": 12, "failed": 1}, left=1)

#: What dashboards and alerts rely on: renaming one breaks them without a sound. A change here is a
#: change for those who run Headrace, and has a line in CHANGELOG.md.
GOLDEN = Path(__file__).with_name("metrics.golden")

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def used() -> Metrics:
    """Return metrics of which each has one sample."""
    metrics = Metrics()
    for spec, metric in metrics._metrics:
        if spec.labels and not any(family.samples for family in metric.collect()):
            metric.labels(*spec.labels)
    metrics.watch_partitions("main", lambda: [READING])
    metrics.watch_state("main", lambda: STATE)
    metrics.watch_pool("main", lambda: POOL)
    metrics.thread_time("main", ThreadRole.FETCHER)
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


@pytest.fixture
def served() -> Iterator[MetricsServer]:
    """Metrics that are served on loopback."""
    server = MetricsServer(used(), "127.0.0.1", 0)
    yield server
    server.close()


def test_connections_without_a_request_take_no_threads(
    served: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scrapes are answered next to many half requests, which are closed."""
    monkeypatch.setattr(http_server, "REQUEST_TIMEOUT", 0.5)
    threads = threading.active_count()
    half = [socket.create_connection(("127.0.0.1", served.port), timeout=10) for _ in range(300)]
    for connection in half:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n")
    with urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=10) as answer:
        assert b"headrace_build_info" in answer.read()
    assert threading.active_count() == threads
    for connection in half:
        with suppress(ConnectionError):
            assert connection.recv(1) == b""
        connection.close()


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv4 through IPv6")
def test_every_address_of_the_machine_is_that_of_either_family() -> None:
    """A server on ``::`` is reached by IPv4, too."""
    server = MetricsServer(used(), "::", 0)
    try:
        for host in ("127.0.0.1", "[::1]"):
            with urlopen(f"http://{host}:{server.port}/metrics", timeout=10) as answer:
                assert b"headrace_build_info" in answer.read()
    finally:
        server.close()


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/metrics", {}, 200),
        ("GET", "/", {"Accept": "application/openmetrics-text; version=1.0.0"}, 200),
        ("GET", "/metrics?name[]=headrace_build_info", {}, 200),
        ("GET", "/metrics", {"Accept-Encoding": "gzip"}, 200),
        ("HEAD", "/metrics", {}, 200),
        ("HEAD", "/", {}, 200),
        ("POST", "/metrics", {}, 405),
    ],
)
def test_scrapes_are_answered_in_the_way_that_they_ask_for(
    served: MetricsServer, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    """GET and HEAD work at any path, compressed or not, in either format."""
    with httpx.Client(base_url=f"http://127.0.0.1:{served.port}", trust_env=False) as client:
        answer = client.request(method, path, headers={"Accept-Encoding": "identity", **headers})
    assert answer.status_code == status
    assert ("headrace_build_info" in answer.text) == (method == "GET")
    assert ("headrace_pauses" in answer.text) == (method == "GET" and "name" not in path)
    assert ("# EOF" in answer.text) == ("Accept" in headers)
    assert (answer.headers.get("content-encoding") == "gzip") == ("Accept-Encoding" in headers)


def test_names_kinds_labels_and_help_are_pinned() -> None:
    """Exactly the metrics of the golden file are declared, with these labels and these words."""
    lines = [
        f"{spec.name} {spec.kind} [{', '.join(spec.labels)}] {spec.text}"
        for spec in sorted(Metrics().specs, key=lambda spec: spec.name)
    ]
    assert lines == GOLDEN.read_text(encoding="utf-8").splitlines()


def test_declared_metrics_are_served() -> None:
    """Prometheus reads each metric with the kind and labels of its declaration."""
    declared = {
        spec.name.removesuffix("_total"): (
            spec.kind,
            sorted([*spec.labels, "le"] if spec.kind == "histogram" else spec.labels),
        )
        for spec in Metrics().specs
    }
    served = {name: (kind, labels) for name, (kind, labels, _) in scraped(used()).items()}
    assert {name: found for name, found in served.items() if name in declared} == declared
    assert all(name.startswith("process_") for name in served.keys() - declared.keys())


def test_the_table_is_written_between_its_markers() -> None:
    """The text around it is kept."""
    page = update(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert page == f"before\n{BEGIN}\n\n{render()}\n\n{END}\nafter\n"


def test_partitions_are_read_at_each_scrape() -> None:
    """The gauges of a partition say where it stands, and go when the channel does."""
    metrics = used()
    found = scraped(metrics)
    for name, value in (
        ("headrace_position", 10),
        ("headrace_committed_offset", 8),
        ("headrace_high_watermark", 20),
        ("headrace_lag_records", 12),
        ("headrace_lag_seconds", 2.5),
        ("headrace_sink_freshness_seconds", 1.5),
        ("headrace_owner_epoch", 2),
        ("headrace_partition_paused", 0),
    ):
        assert found[name][2] == value
    where = {"channel": "main", "state": "waiting"}
    assert metrics.registry.get_sample_value("headrace_partitions", where) == 1
    elsewhere = {"channel": "main", "state": "starting"}
    assert metrics.registry.get_sample_value("headrace_partitions", elsewhere) == 0
    metrics.forget_partitions("main")
    assert "headrace_position" not in scraped(metrics)


def test_a_partition_that_begins_has_no_committed_offset() -> None:
    """An unknown value is left out instead of shown as 0."""
    metrics = Metrics()
    reading = PartitionSnapshot("main", "events", 3, 2, "starting", 0)
    metrics.watch_partitions("main", lambda: [reading])
    found = scraped(metrics)
    assert "headrace_committed_offset" not in found
    for name in ("lag_records", "lag_seconds", "sink_freshness_seconds"):
        assert f"headrace_{name}" not in found
    assert found["headrace_position"][2] == 0


def test_each_partition_says_whether_it_is_paused() -> None:
    """1 in the state PAUSED, 0 in every other, whatever the other partitions are in."""
    metrics = Metrics()
    states = sorted(set(PartitionState) - FINAL, key=lambda state: state.value)
    readings = [replace(READING, partition=n, state=s.value) for n, s in enumerate(states)]
    metrics.watch_partitions("main", lambda: readings)
    for number, state in enumerate(states):
        where = {"channel": "main", "topic": "events", "partition": str(number)}
        found = metrics.registry.get_sample_value("headrace_partition_paused", where)
        assert found == (state is PartitionState.PAUSED)


def test_a_partition_that_left_has_no_series() -> None:
    """Series of partitions are as many as partitions are held."""
    metrics = Metrics()
    held = [replace(READING, partition=number) for number in range(3)]
    metrics.watch_partitions("main", lambda: held)
    assert len(samples(metrics, "headrace_position")) == 3
    del held[1:]
    assert [labels["partition"] for labels in samples(metrics, "headrace_position")] == ["0"]


def test_a_sink_is_as_fresh_as_its_freshest_partition() -> None:
    """The newest record of all partitions counts; one without records says nothing."""
    metrics = Metrics()
    ages = (7.0, 3.0, None)
    readings = [replace(READING, partition=n, sink_seconds=age) for n, age in enumerate(ages)]
    metrics.watch_partitions("main", lambda: readings)
    assert scraped(metrics)["headrace_sink_freshness_seconds"][2] == 3.0


def test_counters_of_a_topic_begin_at_zero_and_are_forgotten() -> None:
    """A first failure is an increase from 0; a topic that is given up leaves no series."""
    metrics = Metrics()
    for topic in ("kept", "gone"):
        metrics.begin_topic("main", topic)
        metrics.batches.labels("main", topic, "answered").inc()
    assert (
        metrics.registry.get_sample_value(
            "headrace_commit_failures_total", {"channel": "main", "topic": "kept"}
        )
        == 0
    )
    metrics.forget_topic("main", "gone")
    for name in ("headrace_commits_total", "headrace_batches_total"):
        assert {labels["topic"] for labels in samples(metrics, name)} == {"kept"}


def test_counters_of_a_channel_begin_at_zero() -> None:
    """The first lost claim of a kind is an increase from 0 as well."""
    metrics = Metrics()
    metrics.begin_channel("main")
    found = samples(metrics, "headrace_claims_lost_total")
    assert {labels["reason"] for labels in found} == {reason.value for reason in LossReason}
    assert len(samples(metrics, "headrace_rebalances_total")) == 1


@pytest.mark.parametrize(
    ("metric", "label", "values"),
    [
        ("headrace_claims_lost_total", "reason", LossReason),
        ("headrace_foreign_commits_total", "finding", set(OffsetVerdict) - {OffsetVerdict.INTACT}),
        (
            "headrace_config_reloads_total",
            "outcome",
            set(ReloadOutcome) - {ReloadOutcome.UNDER_WAY},
        ),
        ("headrace_pauses", "reason", PauseReason),
        ("headrace_paused_since_timestamp_seconds", "reason", PauseReason),
        ("headrace_partitions", "state", set(PartitionState) - FINAL),
    ],
)
def test_known_values_are_those_that_the_code_has(
    metric: str, label: str, values: Iterable[Enum]
) -> None:
    """A label's values are declared as the enumeration has them that they come from."""
    declared = next(spec.values[label] for spec in Metrics().specs if spec.name == metric)
    assert set(declared) == {value.value for value in values}


def test_a_channel_that_is_removed_leaves_no_series() -> None:
    """Series with the channel's name are removed, of each kind; others stay."""
    metrics = Metrics()
    for channel in ("kept", "gone"):
        metrics.begin_topic(channel, "events")
        metrics.buffer_bytes.labels(channel).set(1)
        with metrics.stage(channel, "commit"):
            pass
    metrics.forget_channel("gone")
    for name in ("headrace_commits_total", "headrace_buffer_bytes", "headrace_stage_seconds_sum"):
        assert {labels["channel"] for labels in samples(metrics, name)} == {"kept"}


def test_a_thread_that_is_left_behind_makes_way_for_another() -> None:
    """Two threads of one name are served once, and the end of the first does not end the second."""
    metrics = Metrics()
    first, second = (metrics.thread_time("main", ThreadRole.LANE) for _ in range(2))
    metrics.forget_thread(first)
    assert metrics.thread_times() == (second,)
    metrics.forget_thread(second)
    assert metrics.thread_times() == ()


def test_the_time_of_a_thread_is_served_until_it_ends() -> None:
    """Each activity of its role has a series, and none of another role."""
    metrics = Metrics()
    time = metrics.thread_time("main", ThreadRole.WORKER, "worker-1")
    time.switch_to(ThreadActivity.PROCESS)
    found = samples(metrics, "headrace_thread_seconds_total")
    assert {labels["activity"] for labels in found} == {
        activity.value for activity in ACTIVITIES[ThreadRole.WORKER]
    }
    assert {(labels["role"], labels["thread"]) for labels in found} == {("worker", "worker-1")}
    metrics.forget_thread(time)
    assert samples(metrics, "headrace_thread_seconds_total") == []


def samples(metrics: Metrics, name: str) -> list[dict[str, str]]:
    """Return the labels of each series of a metric."""
    return [
        sample.labels
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name
    ]


def test_the_state_of_a_channel_is_read_at_a_scrape() -> None:
    """Counts and sizes are those of the snapshot; what is not counted yet has no sample."""
    found = scraped(used())
    read = {
        name.removeprefix("headrace_keyed_"): found[name][2] for name in found if "keyed" in name
    }
    expected = {
        "keys_touched": 9,
        "timers_fired": 8,
        "late": 7,
        "rejected": 6,
        "expired": 0,
        "cache_hits": 0,
        "cache_misses": 0,
        "rows": 5,
        "bytes": 400,
        "timers": 3,
        "quarantined": 2,
        "restore_remaining": 1,
        "unwritten_rows": 2,
        "unwritten_bytes": 500,
        "writes_refused": 1,
        "stream_time_lag_seconds": 0.5,
        "standby_lag": 12,
        "phase_keys": 4,
        "phase_oldest_seconds": 90,
        "amount": 10,
        "counts": 11,
    }
    assert read == expected
    metrics = Metrics()
    metrics.watch_state("main", StateSnapshot)
    assert "headrace_keyed_rows" not in scraped(metrics)
    assert "headrace_keyed_late" in scraped(metrics)
    metrics.forget_partitions("main")
    assert "headrace_keyed_late" not in scraped(metrics)


def test_the_operators_of_a_topology_are_read_at_a_scrape() -> None:
    """Each figure is there by topology, channel and operator; what an operator has not is not."""
    metrics = used()
    found = scraped(metrics)
    own = [name for name in found if "streams" in name]
    read = {name.removeprefix("headrace_streams_"): found[name][2] for name in own}
    assert read == {
        "records": 90,
        "late": 4,
        "alone": 3,
        "closed": 2,
        "skipped": 1,
        "rows": 40,
        "bytes": 900,
        "operator_time_lag_seconds": 2.5,
    }
    labels = {"topology": "shop", "channel": "main", "operator": "pages"}
    assert samples(metrics, "headrace_streams_late_total") == [labels]
    table = StateSnapshot(
        operators=(OperatorSnapshot("shop", "people", "table", counts={"records": 2}),)
    )
    metrics.watch_state("main", lambda: table)
    assert [name for name in scraped(metrics) if "streams" in name] == ["headrace_streams_records"]


def test_the_lag_of_each_standby_is_read_at_a_scrape() -> None:
    """Each copy has a sample by its partition, and one whose lag is not known has none."""
    metrics = used()
    metrics.watch_state("main", lambda: StateSnapshot(standby_lags={0: None, 3: 12}))
    name = "headrace_keyed_standby_lag"
    assert samples(metrics, name) == [{"channel": "main", "partition": "3"}]
    assert metrics.registry.get_sample_value(name, {"channel": "main", "partition": "3"}) == 12


def test_the_pool_of_a_processor_is_read_at_a_scrape() -> None:
    """Busy, idle and left threads, what waits and has ended; none where there is no pool."""
    metrics = used()
    states = {each["state"] for each in samples(metrics, "headrace_pool_threads")}
    assert states == {"busy", "idle", "left"}
    found = scraped(metrics)
    assert found["headrace_pool_threads"][2] == 3
    assert found["headrace_pool_waiting_calls"][2] == 2
    assert found["headrace_pool_calls"][2] == 12
    metrics.watch_pool("main", lambda: None)
    assert samples(metrics, "headrace_pool_threads") == []
    metrics.watch_pool("main", lambda: POOL)
    metrics.forget_partitions("main")
    assert samples(metrics, "headrace_pool_threads") == []
