"""Daemons with Spark: what signals to all processes of a service do to a job that runs."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from tests.integration.daemon.rig import WAIT, Site, spark_section

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.daemon.rig import Daemon

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

#: Seconds for Spark's start and its first job on a busy machine.
START = 150.0

#: A reducer whose job waits in a Python worker until it is let go.
_REDUCERS = """
import pathlib
import time

HERE = pathlib.Path({directory!r})


def slowly(frames):
    (HERE / "running").touch()
    while not (HERE / "go").exists():
        time.sleep(0.05)
    yield from frames


def wait_in_a_worker(df, batch):
    return df.selectExpr("CAST(value AS STRING) AS value").mapInPandas(slowly, "value STRING")
"""


@pytest.fixture
def busy(site: Site) -> Daemon:
    """A daemon with a Spark job that waits in a Python worker."""
    (site.directory / "reducers.py").write_text(_REDUCERS.format(directory=str(site.directory)))
    site.broker.produce(site.partition(0), *[b"%d" % n for n in range(10)])
    daemon = site.daemon(_document(site)).start()
    assert wait_for((site.directory / "running").exists, Deadline.after(START))
    return daemon


def _document(site: Site) -> dict[str, Any]:
    document = site.document()
    document["spark"] = spark_section(1, driver_memory="512MiB")
    document["channels"]["main"] |= {
        "processor": {"type": "spark", "reducer": "reducers:wait_in_a_worker"},
        "sink": {"type": "jsonl", "path": str(site.directory / "rows")},
    }
    return document


def _family(daemon: Daemon) -> list[psutil.Process]:
    """Return the daemon's process, Spark's JVM and its Python workers."""
    family = [psutil.Process(daemon.running.pid)]
    family += family[0].children(recursive=True)
    names = [process.name() for process in family]
    assert "java" in names
    assert len(names) >= 4
    return family


def _javas(daemon: Daemon) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(daemon.running.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found += [child] if child.name() == "java" else []
    return found


def _rows(file: Path) -> list[int]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return [int(json.loads(line)["value"]) for line in lines]


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_a_signal_for_every_process_lets_the_job_finish(
    site: Site, busy: Daemon, number: signal.Signals
) -> None:
    """SIGTERM as of KillMode=control-group, SIGINT as of a terminal: stored, committed, exit 0."""
    family = _family(busy)
    if number is signal.SIGTERM:
        for process in family:
            process.send_signal(number)
    else:
        os.killpg(busy.running.pid, number)
    busy.wait_event("stopping")
    assert all(process.is_running() for process in family)
    (site.directory / "go").touch()
    assert busy.wait() == 0
    assert _rows(site.directory / "rows") == list(range(10))
    assert site.offsets() == [10, 0]
    assert site.nodes() == []
    _, alive = psutil.wait_procs(family[1:], timeout=WAIT)
    assert alive == []


def test_a_job_that_does_not_end_is_cancelled_at_the_deadline(site: Site) -> None:
    """Exit code 5, nothing stored or committed, and neither JVM nor worker is left."""
    (site.directory / "reducers.py").write_text(_REDUCERS.format(directory=str(site.directory)))
    site.broker.produce(site.partition(0), b"0")
    daemon = site.daemon({**_document(site), "shutdown_timeout": "4s"}).start()
    assert wait_for((site.directory / "running").exists, Deadline.after(START))
    family = _family(daemon)
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 5
    assert "1 unanswered batch" in str(daemon.wait_event("shutdown_timed_out")["unfinished"])
    _, alive = psutil.wait_procs(family[1:], timeout=WAIT)
    assert alive == []
    assert site.offsets() == [0, 0]
    assert site.nodes() == []


def test_a_killed_daemon_leaves_no_process_behind(busy: Daemon) -> None:
    """SIGKILL under a job: JVM and Python workers end by themselves."""
    family = _family(busy)
    busy.signal(signal.SIGKILL)
    busy.wait()
    _, alive = psutil.wait_procs(family[1:], timeout=WAIT)
    assert alive == []


def test_a_stop_does_not_wait_for_a_session_in_another_ones_place(site: Site) -> None:
    """A batch that waits for it goes back undelivered, the exit code is 0, and no JVM is left."""
    (site.directory / "reducers.py").write_text(_REDUCERS.format(directory=str(site.directory)))
    (site.directory / "go").touch()
    document = _document(site)
    file = site.directory / "config.yaml"
    file.write_text(json.dumps(document), encoding="utf-8")
    daemon = site.daemon(document).start(config=file)
    daemon.wait_event("controller_started", START)
    document["spark"]["warm_up"] = 1000
    file.write_text(json.dumps(document), encoding="utf-8")
    daemon.signal(signal.SIGHUP)
    daemon.wait_event("spark_replaced")
    site.broker.produce(site.partition(0), b"0")
    place = {"channel": "main", "topic": site.topic, "partition": "0"}
    assert wait_for(
        lambda: daemon.metric("headrace_position", **place) == 1.0, Deadline.after(WAIT)
    )
    family = _javas(daemon)
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    assert "spark_not_replaced" not in [event["event"] for event in daemon.events()]
    _, alive = psutil.wait_procs(family, timeout=WAIT)
    assert alive == []
    assert site.offsets() == [0, 0]
    assert site.nodes() == []


def test_a_signal_while_spark_starts_ends_the_process(site: Site) -> None:
    """Exit code 0 without waiting for Spark, and no JVM is left."""
    (site.directory / "reducers.py").write_text(_REDUCERS.format(directory=str(site.directory)))
    daemon = site.daemon(_document(site)).start()
    found = wait_for(lambda: _javas(daemon), Deadline.after(WAIT))
    assert found
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    assert "stopped_during_start" in [event["event"] for event in daemon.events()]
    _, alive = psutil.wait_procs(found, timeout=WAIT)
    assert alive == []
