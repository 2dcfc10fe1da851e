from __future__ import annotations

import functools
import signal
from typing import TYPE_CHECKING

import pytest

from headrace.devstack.server import LOOPBACK, free_port
from tests.integration.daemon.rig import Site, eventually

if TYPE_CHECKING:
    from tests.integration.daemon.rig import Daemon


def test_a_daemon_delivers_shows_its_metrics_and_stops_in_order(site: Site) -> None:
    """SIGTERM: everything is committed, no node is left, the logs are JSON, the exit code 0."""
    for number in (0, 1):
        site.broker.produce(site.partition(number), *[b"%d-%d" % (number, n) for n in range(50)])
    daemon = site.run()
    eventually(lambda: site.offsets() == [50, 50])
    where = {"channel": "main", "topic": site.topic}
    assert daemon.metric("headrace_records_total", **where) == 100
    for name in ("0", "1"):
        lag = functools.partial(daemon.metric, "headrace_lag_records", **where, partition=name)
        eventually(lambda lag=lag: lag() == 0)
    assert len(site.nodes()) == 3
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    assert site.nodes() == []
    assert site.offsets() == [50, 50]
    for number in (0, 1):
        mine = [value for value in site.seen() if value.startswith(f"{number}-")]
        assert mine == [f"{number}-{n}" for n in range(50)]
    _logs_are_complete(daemon)
    assert not (site.directory / "state" / "one" / "session.json").exists()


def _logs_are_complete(daemon: Daemon) -> None:
    for event in daemon.events():
        assert {"event", "level", "timestamp", "logger"} <= event.keys()
    names = [event["event"] for event in daemon.events()]
    for name in ("metrics_served", "controller_started", "partition_claimed", "stopping"):
        assert name in names
    assert names[-1] == "controller_stopped"


def test_a_signal_ends_a_start_that_waits(site: Site) -> None:
    """SIGTERM while Kafka is waited for: exit 0 at once, and no session is left."""
    document = site.document()
    document["kafka"]["bootstrap_servers"] = f"{LOOPBACK}:{free_port()}"
    daemon = site.daemon(document).start()
    daemon.wait_event("zookeeper_session_started")
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    names = [event["event"] for event in daemon.events()]
    assert "stopped_during_start" in names
    assert "not_started" not in names
    assert site.nodes() == []
    assert not (site.directory / "state" / "one" / "session.json").exists()


def test_a_second_signal_ends_the_process_at_once(site: Site) -> None:
    """While a function hangs, the second SIGTERM does not wait for the deadline."""
    site.broker.produce(site.partition(0), b"first")
    daemon = site.run("hang")
    eventually(lambda: site.seen() == ["first"])
    daemon.signal(signal.SIGTERM)
    daemon.wait_event("stopping")
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 128 + signal.SIGTERM


def test_sigusr1_logs_threads_partitions_and_calls(site: Site) -> None:
    """SIGUSR1 shows threads and partitions, and where a function hangs; the process goes on."""
    site.broker.produce(site.partition(0), b"first")
    daemon = site.run("hang")
    eventually(lambda: site.seen() == ["first"])
    daemon.signal(signal.SIGUSR1)
    doing = daemon.wait_event("partition_status")
    assert (doing["topic"], doing["partition"]) == site.partition(0)
    assert doing["state"] == "running"
    assert doing["callback_seconds"] > 0
    assert any(call.endswith(" hang") for call in doing["calls"])
    assert daemon.wait_event("stack_dump")["threads"] > 5
    daemon.wait_event("thread_stack")
    assert daemon.running.poll() is None
    daemon.signal(signal.SIGTERM)
    daemon.signal(signal.SIGTERM)
    daemon.wait()


def test_a_line_logged_by_the_users_code_names_its_batch(site: Site) -> None:
    """A line of the standard library's logging has channel, topic, partition, epoch and batch."""
    site.broker.produce(site.partition(1), b"first")
    daemon = site.run("say")
    line = daemon.wait_event("seen first")
    bound = {name: line[name] for name in ("channel", "topic", "partition", "epoch", "batch", "by")}
    topic, partition = site.partition(1)
    named = {"channel": "main", "topic": topic, "partition": partition}
    assert bound == {**named, "epoch": 1, "batch": 0, "by": "say"}
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0


def test_a_stop_that_overruns_names_the_unfinished_partition(site: Site) -> None:
    """A function that hangs costs its own partition only; the exit code is 5, the claims free."""
    site.broker.produce(site.partition(0), b"first")
    site.broker.produce(site.partition(1))
    document = site.document("hang")
    document["shutdown_timeout"] = "3s"
    daemon = site.daemon(document).start()
    eventually(lambda: site.seen() == ["first"])
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 5
    left = daemon.wait_event("shutdown_timed_out")["unfinished"]
    assert any(str(site.partition(0)) in thing for thing in left)
    assert not any(str(site.partition(1)) in thing for thing in left)
    assert site.nodes() == []
    assert site.offsets() == [0, 0]


def test_a_name_that_is_held_is_refused_by_pid(site: Site) -> None:
    """A second daemon with the same identity does not start and says who holds it."""
    first = site.run()
    first.wait_event("member_joined")
    second = site.run()
    assert second.wait() == 3
    refusal = second.wait_event("not_started")
    assert f"process {first.running.pid}" in refusal["error"]
    assert first.running.poll() is None
    first.signal(signal.SIGINT)
    assert first.wait() == 0


@pytest.mark.slow
def test_wrong_credentials_end_the_process_and_name_the_setting(site: Site) -> None:
    """A daemon that may not join a group says so and ends with exit 3; the group goes on."""
    document = site.document()
    with site.zookeeper() as session:
        session.ensure(f"/{site.group}")
    chroot = {"chroot": f"/{site.group}", "acl": "creator"}
    document["zookeeper"] |= {**chroot, "digest": {"username": "u", "password": "right"}}
    first = site.daemon(document).start()
    first.wait_event("partition_claimed")
    other = site.document() | {"instance_id": "two"}
    other["zookeeper"] |= {**chroot, "digest": {"username": "u", "password": "wrong"}}
    second = site.daemon(other).start()
    assert second.wait() == 3
    assert "zookeeper.digest" in second.wait_event("coordinator_failed")["reason"]
    assert first.running.poll() is None


@pytest.mark.slow
def test_a_name_that_another_host_holds_is_refused(site: Site) -> None:
    """The second daemon ends with exit 3 also where only ZooKeeper knows of the holder."""
    first = site.run()
    first.wait_event("member_joined")
    document = site.document()
    document["state_dir"] = str(site.directory / "elsewhere")
    second = site.daemon(document).start()
    assert second.wait() == 3
    assert "one" in second.wait_event("coordinator_failed")["reason"]
    assert first.running.poll() is None
