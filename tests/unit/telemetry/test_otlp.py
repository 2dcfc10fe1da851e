"""Metrics and lines of the log, as a collector of OpenTelemetry's gets them."""

from __future__ import annotations

import logging
import os
import sys
from threading import Event
from typing import TYPE_CHECKING, Any

import pytest
import structlog
from opentelemetry.sdk.trace import TracerProvider
from pydantic import ValidationError
from structlog.testing import capture_logs

from headrace.config import Config, LoggingConfig
from headrace.core.clock import Deadline
from headrace.core.errors import StartError
from headrace.core.spans import BatchSource
from headrace.devstack.server import free_port
from headrace.devstack.wait import wait_for
from headrace.extensions.otel.exports import export_queue, open_log_export, open_metrics_export
from headrace.extensions.otel.exports.export_queue import MOST_WAITING, ExportQueue, Signal
from headrace.extensions.otel.tracing import open_tracer
from headrace.extensions.otel.tracing.recorded import OpenTelemetryTracer
from headrace.telemetry.logs import configure_logging, export_lines, flush
from headrace.telemetry.metrics import Metrics
from headrace.testing import FakeRecord
from tests.collector import collecting
from tests.unit.channel.in_memory import P0
from tests.unit.channel.recorder import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

    from headrace.extensions.otel.exports.log_export import OtlpLogs
    from tests.collector import Collector


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector on loopback."""
    with collecting() as server:
        yield server


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Yield the log of the queues, also after a test with cached loggers."""
    monkeypatch.setattr(export_queue, "log", structlog.get_logger())
    with capture_logs() as found:
        yield found


def configured(**sections: Any) -> Config:
    """Return a configuration with these sections."""
    processor = {"type": "arrow", "reducer": "a:b"}
    channel = {"topics": ["a"], "group": "g", "processor": processor, "sink": "noop"}
    return Config.model_validate(
        {"instance_id": "one", "state_dir": "/tmp", "channels": {"main": channel}, **sections}
    )


def exported(collector: Collector, metrics: Metrics, interval: float = 60.0) -> ExportQueue:
    """Return what sends metrics to the collector."""
    chosen = {"endpoint": collector.address("metrics"), "interval": f"{interval}s"}
    queue = open_metrics_export(configured(metrics={"otlp": chosen}), metrics)
    assert queue is not None
    return queue


# --- metrics --------------------------------------------------------------------------------


def test_metrics_have_the_names_labels_and_values_that_prometheus_reads(
    collector: Collector,
) -> None:
    """Every series that the process serves arrives, as a sum, a gauge or a histogram."""
    metrics = Metrics()
    metrics.records.labels("main", "events").inc(3)
    metrics.buffer_bytes.labels("main").set(17)
    served = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in metrics.registry.collect()
        if family.type in {"counter", "gauge"} and family.name.startswith("headrace")
        for sample in family.samples
        if not sample.name.endswith("_created")
    }

    exported(collector, metrics).close(Deadline.after(PATIENCE))

    found = collector.metrics()
    sent = {
        (name, *sorted((each.key, each.value.string_value) for each in point.attributes)): (
            point.as_double
        )
        for name, metric in found.items()
        if name.startswith("headrace")
        for point in (*metric.sum.data_points, *metric.gauge.data_points)
    }
    assert sent == served
    assert sent["headrace_records_total", ("channel", "main"), ("topic", "events")] == 3
    records = found["headrace_records_total"].sum
    assert (records.is_monotonic, records.aggregation_temporality) == (True, 2)
    assert all(point.start_time_unix_nano for point in records.data_points)
    assert found["headrace_buffer_bytes"].unit == "By"


def test_a_histogram_has_the_counts_between_its_bounds(collector: Collector) -> None:
    """Prometheus counts up to each bound, OTLP between two; count and sum are the same."""
    metrics = Metrics()
    for seconds in (0.002, 0.003, 0.2, 999.0):
        metrics.stage_seconds.labels("main", "reduce").observe(seconds)
    exported(collector, metrics).close(Deadline.after(PATIENCE))
    found = collector.metrics()["headrace_stage_seconds"]
    (point,) = [
        each
        for each in found.histogram.data_points
        if {label.value.string_value for label in each.attributes} == {"main", "reduce"}
    ]
    counts = dict(zip([*point.explicit_bounds, "above"], point.bucket_counts, strict=True))
    assert {bound: count for bound, count in counts.items() if count} == {
        0.005: 2,
        0.25: 1,
        "above": 1,
    }
    assert (point.count, point.sum, found.unit) == (4, pytest.approx(999.205), "s")
    assert not point.HasField("min")


def test_metrics_come_again_and_again(collector: Collector) -> None:
    """Each interval, with the values of that moment."""
    metrics = Metrics()
    queue = exported(collector, metrics, interval=0.05)
    try:
        metrics.records.labels("main", "events").inc()
        assert wait_for(
            lambda: "headrace_records_total" in collector.metrics(), Deadline.after(PATIENCE)
        )
        before = len(collector.metric_requests)
        assert wait_for(lambda: len(collector.metric_requests) > before, Deadline.after(PATIENCE))
    finally:
        queue.close(Deadline.after(PATIENCE))


def test_a_metric_that_cannot_be_read_costs_a_round_and_no_more(
    collector: Collector, said: list[Any]
) -> None:
    """The log says so, and the next round is complete."""
    metrics = Metrics()

    def fail() -> Any:
        raise ValueError("gone")

    metrics.watch_state("main", fail)
    queue = exported(collector, metrics)
    queue.flush(Deadline.after(PATIENCE))
    metrics.forget_partitions("main")
    queue.close(Deadline.after(PATIENCE))
    assert [each["event"] for each in said] == ["telemetry_not_read"]
    assert "headrace_build_info" in collector.metrics()


# --- lines of the log -----------------------------------------------------------------------


def send_log(collector: Collector) -> OtlpLogs:
    """Send the lines of the log to the collector, too."""
    chosen = {"endpoint": collector.address("logs")}
    export = open_log_export(configured(logging={"otlp": chosen}))
    assert export is not None
    configure_logging(LoggingConfig())
    export_lines(export)
    return export


def fields(record: LogRecord) -> dict[str, Any]:
    """Return the attributes of a line."""
    found = {}
    for each in record.attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        found[each.key] = (
            [item.string_value for item in value.values] if kind == "array_value" else value
        )
    return found


def test_a_line_has_its_severity_name_and_fields(collector: Collector) -> None:
    """The record has the fields of the JSON: numbers, lists, and parts as JSON."""
    send_log(collector)
    structlog.get_logger("headrace.test").warning(
        "partition_lost", partition=3, seconds=0.5, names=["a", "b"], parts={"a": 1}, nobody=None
    )
    flush()
    ((logger, record),) = collector.logs()
    assert (logger, record.event_name, record.body.string_value) == (
        "headrace.test",
        "partition_lost",
        "partition_lost",
    )
    assert (record.severity_number, record.severity_text) == (13, "warning")
    assert fields(record) == {
        "partition": 3,
        "seconds": 0.5,
        "names": ["a", "b"],
        "parts": '{"a": 1}',
    }
    assert record.time_unix_nano
    assert record.trace_id == b""
    (resource,) = {
        item.value.string_value
        for request in collector.log_requests
        for found in request.resource_logs
        for item in found.resource.attributes
        if item.key == "service.instance.id"
    }
    assert resource == "one"


def test_a_line_says_which_span_it_was_logged_in(collector: Collector) -> None:
    """Lines of the user's code in a batch are found from its trace."""
    send_log(collector)
    provider = TracerProvider(shutdown_on_exit=False)
    span = OpenTelemetryTracer(provider).batch(
        BatchSource("main", "group", P0, 1, 0), [FakeRecord()]
    )
    with span.active():
        logging.getLogger("orders").warning("no price")
    flush()
    ((logger, record),) = collector.logs()
    assert (logger, record.body.string_value) == ("orders", "no price")
    ((_, context),) = span.headers()
    place = f"00-{record.trace_id.hex()}-{record.span_id.hex()}-".encode()
    assert context is not None
    assert context.startswith(place)


def test_a_libraries_line_has_its_text_and_an_error_its_traceback(collector: Collector) -> None:
    """Under the names that OpenTelemetry has for them."""
    send_log(collector)
    logging.getLogger("kazoo").warning("connection dropped")
    error = ValueError("gone")
    structlog.get_logger("headrace.test").error("worker_failed", exc_info=error)
    flush()
    (_, library), (_, failed) = collector.logs()
    assert (library.event_name, library.body.string_value) == ("library_log", "connection dropped")
    assert failed.severity_number == 17
    assert "ValueError: gone" in fields(failed)["exception.stacktrace"]


def test_repeats_are_held_back_and_clients_of_the_collector_left_out(
    collector: Collector,
) -> None:
    """Lines that are held back are not exported, and an exporter's own line is not either."""
    send_log(collector)
    for _ in range(30):
        structlog.get_logger("headrace.test").info("seen")
    logging.getLogger("opentelemetry.exporter").error("no answer")
    flush()
    assert {record.event_name for _, record in collector.logs()} == {"seen"}
    assert len(collector.logs()) == 10


def test_lines_that_no_collector_takes_are_counted(
    collector: Collector, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard error has them, with the number that the collector did not take."""
    collector.answer = 400
    export, told = send_log(collector), list[int]()
    structlog.get_logger("headrace.test").info("seen")
    flush()
    export.on_drop(told.append)
    structlog.get_logger("headrace.test").info("seen_too")
    flush()
    assert told == [1, 1]
    flush()
    written = capsys.readouterr().err
    assert '"event": "seen_too"' in written
    assert '"event": "telemetry_dropped"' in written


# --- the queue ------------------------------------------------------------------------------


class Gate:
    """A collector that answers when it is let."""

    def __init__(self) -> None:
        self.opened = Event()
        self.reached = Event()
        self.sent: list[Any] = []

    def send(self, items: Sequence[Any]) -> bool:
        """Take the items, once that is let."""
        self.reached.set()
        assert self.opened.wait(PATIENCE)
        self.sent += items
        return True


def test_a_full_queue_counts_and_never_blocks() -> None:
    """A silent collector costs the entries beyond the queue, and no other."""
    gate, told = Gate(), list[int]()
    queue = ExportQueue(Signal.TRACES, gate.send, gate.opened.set, interval=0.01)
    queue.put("first")
    assert gate.reached.wait(PATIENCE)
    for number in range(MOST_WAITING + 3):
        queue.put(number)
    queue.on_drop(told.append)
    assert queue.dropped == sum(told) == 3
    gate.opened.set()
    queue.close(Deadline.after(PATIENCE))
    assert gate.sent == ["first", *range(MOST_WAITING)]
    queue.put("late")
    assert queue.dropped == 4


def test_a_close_leaves_a_silent_collector_behind() -> None:
    """It ends at the deadline; what waits is dropped, and the client is told to give up."""
    gate = Gate()
    queue = ExportQueue(Signal.LOGS, gate.send, gate.opened.set, interval=0.01)
    queue.put("first")
    assert gate.reached.wait(PATIENCE)
    queue.put("second")
    assert not queue.flush(Deadline.after(0))
    queue.close(Deadline.after(0))
    assert queue.dropped == 1
    assert gate.opened.is_set()
    # the thread ends with the client, and says nothing in another test
    queue.close(Deadline.after(PATIENCE))


def test_a_failing_client_costs_its_entries(said: list[Any]) -> None:
    """The log names the signal and the error, and how many are gone."""

    def fail(_: Sequence[Any]) -> bool:
        raise OSError("no route")

    queue = ExportQueue(Signal.METRICS, fail, lambda: None)
    queue.put("one")
    queue.close(Deadline.after(PATIENCE))
    assert [(each["event"], each["signal"]) for each in said] == [
        ("telemetry_not_sent", "metrics"),
        ("telemetry_dropped", "metrics"),
    ]
    assert queue.dropped == 1


def test_a_forked_child_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no thread that would, and must not wait for one."""
    gate = Gate()
    gate.opened.set()
    queue = ExportQueue(Signal.LOGS, gate.send, gate.opened.set)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: -1)
        queue.put("of the child")
        queue.flush(Deadline.after(PATIENCE))
    queue.close(Deadline.after(PATIENCE))
    assert (gate.sent, queue.dropped) == ([], 0)


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("http://otel:4318", "/v1/{}"),
        ("https://otel:4318/", "/v1/{}"),
        ("http://otel?tenant=a", "/v1/{}?tenant=a"),
        ("http://otel:4318/v1/traces", ""),
        ("http://otel/otlp/", ""),
    ],
)
def test_an_endpoint_without_a_path_has_that_of_its_signal(given: str, path: str) -> None:
    """The endpoint is a base as in OpenTelemetry; one with a path is used as it is."""
    own = {"otlp": {"endpoint": given}}
    config = configured(tracing={"endpoint": given}, metrics=own, logging=own)
    assert config.metrics.otlp is not None
    assert config.logging.otlp is not None
    found = {
        "traces": config.tracing.endpoint,
        "metrics": config.metrics.otlp.endpoint,
        "logs": config.logging.otlp.endpoint,
    }
    base = given if not path else given.partition("?")[0].rstrip("/")
    assert found == {signal: base + path.format(signal) for signal in found}


@pytest.mark.parametrize("given", ["otel:4318", "ftp://otel", "http://[::1", "http://"])
def test_an_endpoint_that_is_no_address_is_refused(given: str) -> None:
    """The message says what one looks like."""
    with pytest.raises(ValidationError, match="is not an address such as http://"):
        configured(tracing={"endpoint": given})


def test_spans_that_no_collector_takes_are_counted(collector: Collector) -> None:
    """Spans count as lines and metrics do."""
    collector.answer = 400
    dropped: list[int] = []
    tracing = configured(tracing={"endpoint": collector.endpoint}).tracing
    tracer = open_tracer(tracing, "one", dropped.append)
    tracer.batch(BatchSource("main", "group", P0, 1, 0), [FakeRecord()]).end()
    tracer.close(Deadline.after(PATIENCE))
    assert dropped == [1]


# --- the extra ------------------------------------------------------------------------------


def test_no_export_is_open_by_default() -> None:
    """Lines and metrics are exported only if they are configured."""
    assert open_log_export(configured()) is None
    assert open_metrics_export(configured(), Metrics()) is None


def test_without_the_extra_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the place and the command."""
    monkeypatch.setitem(sys.modules, "headrace.extensions.otel.exports.log_export", None)
    monkeypatch.setitem(sys.modules, "headrace.extensions.otel.exports.metrics_export", None)
    address = f"http://127.0.0.1:{free_port()}/v1/logs"
    chosen = configured(logging={"otlp": {"endpoint": address}})
    with pytest.raises(StartError, match=r"logging.otlp.*pip install 'headrace\[otel\]'"):
        open_log_export(chosen)
    chosen = configured(metrics={"otlp": {"endpoint": address}})
    with pytest.raises(StartError, match=r"metrics.otlp.*pip install 'headrace\[otel\]'"):
        open_metrics_export(chosen, Metrics())
