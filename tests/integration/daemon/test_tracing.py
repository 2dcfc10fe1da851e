from __future__ import annotations

import signal
from typing import TYPE_CHECKING, cast

from headrace.core.records import TopicPartition
from headrace.devstack.server import free_port
from headrace.testing import FakeRecord
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


def test_a_trace_goes_from_the_producer_to_the_dead_letter(site: Site) -> None:
    """The span of a record's batch is below its producer's, and the dead letter names it."""
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    header = ("traceparent", f"00-{trace}-{parent}-01".encode())
    dead = TopicPartition(site.broker.create_topic(), 0)
    policy = {
        "retry": {"attempts": 1},
        "rejects": {"failing": "dead_letter", "topic": dead.topic},
    }
    with collecting() as collector:
        tracing = {"endpoint": collector.endpoint}
        document = {**site.document("refuse_poison", **policy), "tracing": tracing}
        daemon = site.daemon(document).start()
        site.broker.produce(site.partition(0), FakeRecord(value_=b"poison", headers_=[header]))
        eventually(lambda: site.offsets()[0] == 1)
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
    (letter,) = site.broker.read(dead, 1)
    headers = cast("list[tuple[str, bytes]]", letter.headers())
    found = [data for name, data in headers if name == "traceparent"]
    assert found[:-1] == [header[1]]
    batches = {span.span_id.hex(): span for span in collector.spans() if span.name == "batch"}
    assert {span.trace_id.hex() for span in batches.values()} == {trace}
    assert {span.parent_span_id.hex() for span in batches.values()} == {parent}
    assert found[-1].rpartition(b"-")[0] in {f"00-{trace}-{each}".encode() for each in batches}


def test_a_daemon_sends_its_metrics_and_its_log(site: Site) -> None:
    """The last of both come with the stop, and a line of the user's code says its span."""
    site.broker.produce(site.partition(0), b"a", b"b")
    with collecting() as collector:
        endpoints = {name: collector.address(name) for name in ("traces", "metrics", "logs")}
        document = {
            **site.document("say"),
            "tracing": {"endpoint": endpoints["traces"]},
            "metrics": {"otlp": {"endpoint": endpoints["metrics"]}},
            "logging": {"otlp": {"endpoint": endpoints["logs"]}},
        }
        daemon = site.daemon(document).start()
        eventually(lambda: site.offsets()[0] == 2)
        daemon.signal(signal.SIGTERM)
        assert daemon.wait() == 0
    counted = collector.metrics()["headrace_records_total"].sum.data_points
    assert sum(point.as_double for point in counted) == 2
    lines = {record.event_name: record for _, record in collector.logs()}
    assert {"controller_started", "stopping", "controller_stopped"} <= lines.keys()
    traces = {span.trace_id for span in collector.spans() if span.name == "batch"}
    assert {lines[f"seen {value}"].trace_id for value in "ab"} <= traces
    fields = {each.key: each.value.string_value for each in lines["seen a"].attributes}
    assert (fields["by"], fields["channel"]) == ("say", "main")
    written = {each["event"] for each in daemon.events()}
    assert written == set(lines)
