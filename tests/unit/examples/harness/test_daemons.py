from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.demo.demo import channels_into
from examples.demo.reducer import COLUMNS
from examples.harness.daemons import Daemon, DaemonSnapshot, Endpoints, snapshot_of
from headrace import config
from headrace.extensions.spark.section import SparkProcessorConfig
from headrace.telemetry.metrics import Metrics, MetricsServer, PartitionSnapshot, read_metrics

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def daemon(tmp_path: Path) -> Daemon:
    """Make a daemon that is not started."""
    endpoints = Endpoints("127.0.0.1:9092", "127.0.0.1:2181")
    return Daemon("daemon-7", tmp_path / "daemon", endpoints, channels_into(tmp_path / "table"))


@pytest.fixture
def served() -> Iterator[tuple[Metrics, int]]:
    """Serve the metrics of a member that holds two partitions; return them and the port."""
    metrics = Metrics()
    held = partial(PartitionSnapshot, epoch=1, state="idle", committed=40, high_watermark=100)
    metrics.watch_partitions(
        "flights", lambda: [held("flights", "flights", n, position=50) for n in (2, 5)]
    )
    server = MetricsServer(metrics, "127.0.0.1", 0)
    yield metrics, server.port
    server.close()


def test_the_configuration_is_one_that_headrace_takes(daemon: Daemon) -> None:
    """The file loads, and what the demo relies on stands in it."""
    loaded = config.load(daemon.config_file)
    assert loaded.instance_id == "daemon-7"
    assert Path(loaded.state_dir).parent == daemon.config_file.parent
    assert loaded.spark.master == "local[1]"
    assert 4 <= loaded.zookeeper.session_timeout <= 6
    processor = loaded.channels["flights"].processor
    assert isinstance(processor, SparkProcessorConfig)
    assert processor.ddl is not None
    assert len(COLUMNS) == processor.ddl.count(",") + 1


def test_a_reading_sums_what_the_metrics_say(served: tuple[Metrics, int]) -> None:
    """Partitions, lag, batches, commits and the time of Spark's jobs are in the metrics."""
    metrics, port = served
    metrics.batches.labels("flights", "flights", "answered").inc(3)
    metrics.stage_seconds.labels("flights", "reduce").observe(1.5)
    metrics.stage_seconds.labels("flights", "sink_commit").observe(7)
    samples = read_metrics("127.0.0.1", port, 5)
    assert snapshot_of(samples, "flights") == DaemonSnapshot(frozenset({2, 5}), 120, 3, 1.5, 1)
    assert snapshot_of(samples, "others").partitions == frozenset()


def test_a_daemon_that_is_not_there_has_no_reading(daemon: Daemon) -> None:
    """Without a process there is nothing to read, nothing to kill, and nothing wrong."""
    assert daemon.read() is None
    assert daemon.state == "stopped"
    daemon.require_running()
    daemon.kill()


def test_the_end_of_a_log_is_quoted_below_its_name(daemon: Daemon) -> None:
    """A failure shows the last lines of the log and where the rest is."""
    daemon.log_file.write_text("".join(f"line {n}\n" for n in range(100)), encoding="utf-8")
    quoted = daemon.end_of_log().splitlines()
    assert str(daemon.log_file) in quoted[0]
    assert quoted[-1].strip() == "line 99"
    assert len(quoted) == 16
