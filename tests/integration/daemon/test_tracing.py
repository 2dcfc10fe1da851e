from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from headrace.devstack.server import free_port
from tests.collector import collecting
from tests.integration.daemon.rig import eventually

if TYPE_CHECKING:
    from tests.integration.daemon.rig import Daemon, Site


def traced(site: Site, endpoint: str) -> Daemon:
    """Start a daemon that traces every batch, and wait until it has committed some."""
    site.broker.produce(site.partition(0), b"a", b"b")
    site.broker.produce(site.partition(1), b"c")
    daemon = site.daemon({**site.document(), "tracing": {"endpoint": endpoint}}).start()
    eventually(lambda: site.offsets() == [2, 1])
    return daemon


def test_a_daemon_sends_its_traces(site: Site) -> None:
    """Each batch has its span and, below it, that of its commit; the stop sends what is left."""
    with collecting() as collector:
        daemon = traced(site, collector.endpoint)
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
    spans = collector.spans()
    batches = {span.span_id for span in spans if span.name == "batch"}
    assert batches
    assert {span.parent_span_id for span in spans if span.name == "commit"} == batches


def test_a_collector_that_is_away_holds_nothing_up(site: Site) -> None:
    """Records are processed and the stop is in order, though no trace can be sent."""
    daemon = traced(site, f"http://127.0.0.1:{free_port()}/v1/traces")
    daemon.signal(signal.SIGTERM)
    assert daemon.wait() == 0
    assert sorted(site.seen()) == ["a", "b", "c"]
    daemon.wait_event("controller_stopped")
