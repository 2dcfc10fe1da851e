"""Records that the executors of a cluster read, also when one of them dies over it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from headrace.clock import Deadline
from headrace.local.waiting import wait_for
from headrace.spark.runtime import SparkRuntime
from headrace.spark.settings import SparkSettings
from tests.brokers import Broker
from tests.integration.channel.rig import Group
from tests.integration.spark.conftest import with_connector
from tests.integration.spark.standalone import WAIT, Cluster
from tests.integration.spark.test_by_reference import NUMBERS, Site

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame

    from headrace.spark.micro_batch import MicroBatch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A master with two workers."""
    cluster = Cluster(tmp_path, workers=2)
    yield cluster
    cluster.close()


@pytest.fixture
def runtime(cluster: Cluster) -> Iterator[SparkRuntime]:
    """A session whose two executors are there."""
    settings = SparkSettings(cluster.master, cluster.properties, warm_up=1)
    runtime = SparkRuntime(with_connector(replace(settings, start_timeout=2 * WAIT)))
    runtime.start()
    yield runtime
    runtime.stop(Deadline.after(WAIT))


@pytest.fixture
def site(
    runtime: SparkRuntime, bootstrap_servers: str, zookeeper_hosts: str, tmp_path: Path
) -> Iterator[Site]:
    """A topic with two partitions and a group of the test's own."""
    broker = Broker(bootstrap_servers)
    group = Group(broker, zookeeper_hosts, tmp_path, broker.create_topic(len(NUMBERS)))
    yield Site(group, runtime)
    group.close()


def holding(directory: Path) -> Any:
    """Return a reducer whose tasks wait, each in an executor, until they are let go."""

    def hold(frames: Any) -> Any:
        import os  # noqa: PLC0415 - runs in a Python worker
        import time  # noqa: PLC0415

        (directory / f"held-{os.getpid()}").touch()
        while not (directory / "go").exists():
            time.sleep(0.05)
        yield from frames

    def reduce(df: DataFrame, batch: MicroBatch) -> DataFrame:
        assert batch.records > 0
        rows = df.selectExpr("partition", "offset", "cast(value as string) as value")
        return rows.mapInArrow(hold, rows.schema)

    return reduce


def test_a_worker_may_die_over_its_tasks(site: Site, cluster: Cluster, tmp_path: Path) -> None:
    """Each record is in the table once, those that the dead executor was reading among them."""
    group = site.group
    group.produce(500, *NUMBERS)
    with site.running(holding(tmp_path)):
        held = wait_for(lambda: len([*tmp_path.glob("held-*")]) >= 2, Deadline.after(WAIT))
        assert held, "the tasks do not run on both executors"
        cluster.kill_worker(0)
        (tmp_path / "go").touch()
        done = wait_for(lambda: group.offsets(*NUMBERS) == [500, 500], Deadline.after(WAIT))
        assert done, group.offsets(*NUMBERS)
        group.produce(100, *NUMBERS, start=500)
        done = wait_for(lambda: group.offsets(*NUMBERS) == [600, 600], Deadline.after(WAIT))
        assert done, group.offsets(*NUMBERS)

    assert site.rows() == [(number, n) for number in NUMBERS for n in range(600)]
