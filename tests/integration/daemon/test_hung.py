"""Processes that hang: they end with exit code 70, long before ``shutdown_timeout``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.daemon.rig import Site, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.brokers import Broker

#: Far more than a test waits for the process to end.
LONG = "10m"


@pytest.mark.slow
def test_a_third_hung_callback_ends_the_process(
    broker: Broker, zookeeper_hosts: str, tmp_path: Path
) -> None:
    """Exit code 70, the hung partitions named, each hang told, nothing committed, no node left."""
    site = Site(broker, zookeeper_hosts, tmp_path, partitions=3)
    try:
        for number in range(3):
            site.broker.produce(site.partition(number), b"%d" % number)
        document = site.document("hang", batch_timeout="500ms")
        document["shutdown_timeout"] = LONG
        daemon = site.daemon(document).start()
        assert daemon.wait() == 70
        failed = daemon.wait_event("channel_failed")
        for number in range(3):
            assert str(site.partition(number)) in failed["error"]
        events = [event["event"] for event in daemon.events()]
        assert events.count("worker_stuck") == events.count("worker_abandoned") == 3
        assert any(call.endswith(" hang") for call in daemon.wait_event("worker_stuck")["calls"])
        assert site.nodes() == []
        assert site.offsets() == [0, 0]
    finally:
        site.close()


@pytest.mark.slow
def test_a_hung_coordinator_ends_the_process_and_its_session(site: Site) -> None:
    """Exit code 70, and its nodes are gone, so that others can have its partitions."""
    document = site.document("freeze_the_coordinator")
    document["shutdown_timeout"] = LONG
    document["zookeeper"]["session_timeout"] = "4s"
    daemon = site.daemon(document).start()
    eventually(lambda: site.offsets() == [0, 0])
    site.broker.produce(site.partition(0), b"first")
    assert daemon.wait() == 70
    daemon.wait_event("thread_stalled")
    assert daemon.wait_event("controller_stopped")
    assert site.nodes() == []
