"""A daemon whose records the executors of a cluster read, also when one of them dies over it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from benchmarks.scale.cluster import WAIT, Cluster
from headrace.core.clock import Deadline
from headrace.devstack.jars import cached, connector_set
from headrace.devstack.wait import wait_for
from tests.brokers import Broker
from tests.integration.daemon.rig import Site

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NUMBERS = (0, 1)

#: Its tasks wait, each in an executor, until they are let go.
_REDUCERS = """
import os
import pathlib
import time

HERE = pathlib.Path(__file__).parent


def hold(frames):
    (HERE / f"held-{os.getpid()}").touch()
    while not (HERE / "go").exists():
        time.sleep(0.05)
    yield from frames


def places(df, batch):
    rows = df.selectExpr("partition", "offset", "cast(value as string) as value")
    return rows.mapInArrow(hold, rows.schema)
"""

#: In a process of its own, which may have a Spark context.
_WIDTH = """
import json
import sys

from headrace.core.clock import Deadline
from headrace.extensions.spark.runtime import SparkRuntime, SparkSettings

master, properties = json.loads(sys.argv[1])
runtime = SparkRuntime(SparkSettings(master, properties, warm_up=1))
try:
    runtime.start()
    tasks = runtime.new_session().conf.get("spark.sql.shuffle.partitions")
    print(json.dumps([runtime.cores, tasks]))
finally:
    runtime.stop(Deadline.after(30))
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A master with two workers."""
    cluster = Cluster(tmp_path, workers=2)
    yield cluster
    cluster.close()


@pytest.fixture
def site(bootstrap_servers: str, zookeeper_hosts: str, tmp_path: Path) -> Iterator[Site]:
    """A topic with two partitions and a group of the test's own."""
    site = Site(Broker(bootstrap_servers), zookeeper_hosts, tmp_path, len(NUMBERS))
    (tmp_path / "reducers.py").write_text(_REDUCERS)
    yield site
    site.close()


def document(site: Site, cluster: Cluster) -> dict[str, Any]:
    """Return the configuration of a daemon: its process has no Spark context but its own."""
    document = site.document()
    document["spark"] = {
        "master": cluster.master,
        # the first job waits for the executors, however long they take: ready is earlier
        "warm_up": 0,
        "driver_memory": "512MiB",
        "connector": str(cached(connector_set())[0].parent),
        "properties": dict(cluster.properties),
    }
    document["channels"]["main"] |= {
        "source": "by_reference",
        "processor": {"type": "spark", "reducer": "reducers:places"},
        "sink": {"type": "delta", "path": str(site.directory / "table")},
    }
    return document


def produce(site: Site, start: int, count: int) -> None:
    """Give each partition records that say their offset."""
    for number in NUMBERS:
        values = [b"%d" % offset for offset in range(start, start + count)]
        site.broker.produce(site.partition(number), *values)


def test_a_worker_may_die_over_its_tasks(site: Site, cluster: Cluster, tmp_path: Path) -> None:
    """Each record is in the table once, those that the dead executor was reading among them."""
    produce(site, 0, 500)
    daemon = site.daemon(document(site, cluster)).start()
    daemon.wait_event("spark_ready", WAIT)
    held = wait_for(lambda: len([*tmp_path.glob("held-*")]) >= 2, Deadline.after(WAIT))
    assert held, f"the tasks do not run on both executors\n{daemon.text()}"
    cluster.kill_worker(0)
    (tmp_path / "go").touch()
    done = wait_for(lambda: site.offsets() == [500, 500], Deadline.after(WAIT))
    assert done, daemon.text()
    produce(site, 500, 100)
    done = wait_for(lambda: site.offsets() == [600, 600], Deadline.after(WAIT))
    assert done, daemon.text()

    rows = DeltaTable(tmp_path / "table").to_pyarrow_table().to_pylist()
    places = sorted((row["partition"], row["offset"]) for row in rows)
    assert places == [(number, n) for number in NUMBERS for n in range(600)]


def test_a_session_is_as_wide_as_the_cluster(tmp_path: Path) -> None:
    """Micro-batches and shuffles have a task for each core, though the executors come late.

    Three cores: without executors Spark says two.
    """
    cluster = Cluster(tmp_path, workers=3)
    unawaited = {name: of for name, of in cluster.properties.items() if "scheduler" not in name}
    argument = json.dumps([cluster.master, unawaited])
    command = [sys.executable, "-c", _WIDTH, argument]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    finally:
        cluster.close()
    assert done.stdout.splitlines()[-1:] == ['[3, "3"]'], done.stderr
