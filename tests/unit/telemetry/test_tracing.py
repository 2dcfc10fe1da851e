"""Traces: what is recorded of a batch, its job and its commit, and that nothing is without them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode, get_current_span

from headrace.config import TracingConfig
from headrace.core.clock import Deadline
from headrace.core.errors import StartError
from headrace.core.records import TopicPartition
from headrace.core.spans import NO_SPAN, NO_TRACER, joint, within
from headrace.processors import BatchResponse
from headrace.telemetry.tracing import open_tracer
from headrace.telemetry.tracing.recorded import OpenTelemetryTracer
from headrace.testing import InMemoryBroker, in_memory_channel, running
from tests.collector import collecting
from tests.unit.channel.in_memory import P0, committed, values
from tests.unit.channel.recorder import PATIENCE, Recorder
from tests.unit.processors.spark_bench import Bench, GroupingSink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan

    from headrace.core.records import Batch
    from headrace.core.spans import Span
    from tests.collector import Collector


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    """Keeps what was recorded."""
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> OpenTelemetryTracer:
    """Records everything at once."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OpenTelemetryTracer(provider)


def a_batch(tracer: OpenTelemetryTracer, partition: int = 0) -> Span:
    """Begin the trace of a batch."""
    return tracer.batch("main", TopicPartition("events", partition), 3, 17, 10)


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    """Return the finished spans of a name."""
    return [span for span in exporter.get_finished_spans() if span.name == name]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Return what is said of a span."""
    return dict(span.attributes or {})


def below(span: ReadableSpan, parent: ReadableSpan) -> bool:
    """Whether a span is a part of another."""
    return span.parent is not None and span.parent.span_id == number_of(parent)


def number_of(span: ReadableSpan) -> int:
    """Return what tells a span from others."""
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def test_a_batch_and_its_commit_make_a_trace(
    tracer: OpenTelemetryTracer, exporter: InMemorySpanExporter
) -> None:
    """The commit is below the batch whose offset it stores, and user code runs in its span."""
    broker = InMemoryBroker()
    broker.create_topic("events", 1)
    inside: list[int] = []

    def look(_: Batch) -> BatchResponse:
        inside.append(get_current_span().get_span_context().span_id)
        return BatchResponse.advance()

    channel = in_memory_channel(Recorder(look), broker, tracer=tracer)
    with running(channel):
        broker.produce(P0, *values(10))
        assert committed(broker, P0, 10)
    (batch,) = named(exporter, "batch")
    assert attributes(batch)["messaging.destination.name"] == "events"
    assert attributes(batch)["messaging.batch.message_count"] == 10
    assert attributes(batch)["headrace.start"] == 0
    assert attributes(batch)["headrace.outcome"] == "answered"
    (commit,) = named(exporter, "commit")
    assert below(commit, batch)
    assert attributes(commit)["headrace.offset"] == 10
    assert inside == [number_of(batch)]


def test_a_batch_that_fails_says_why(
    tracer: OpenTelemetryTracer, exporter: InMemorySpanExporter
) -> None:
    """Each delivery has a trace; that of the failed one has the error and no commit."""
    broker = InMemoryBroker()
    broker.create_topic("events", 1)

    def fail_once(batch: Batch) -> BatchResponse:
        if batch.attempt == 1:
            raise ValueError("not now")
        return BatchResponse.advance()

    channel = in_memory_channel(Recorder(fail_once), broker, tracer=tracer)
    with running(channel):
        broker.produce(P0, *values(10))
        assert committed(broker, P0, 10)
    failed, answered = named(exporter, "batch")
    assert failed.status.status_code is StatusCode.ERROR
    assert failed.status.description == "ValueError: not now"
    assert attributes(failed)["headrace.outcome"] == "failed"
    (commit,) = named(exporter, "commit")
    assert below(commit, answered)


def test_a_job_is_below_one_batch_and_linked_to_the_others(
    tracer: OpenTelemetryTracer, exporter: InMemorySpanExporter
) -> None:
    """A micro-batch of several batches is found from each of their traces."""
    first, second = a_batch(tracer, 0), a_batch(tracer, 1)
    with within(joint([NO_SPAN, first, second], "micro_batch", records=20)):
        pass
    first.end()
    second.end()
    (job,) = named(exporter, "micro_batch")
    one, other = named(exporter, "batch")
    assert below(job, one)
    assert [link.context.span_id for link in job.links] == [number_of(other)]
    assert attributes(job) == {"headrace.records": 20}


def test_a_spark_job_and_its_commit_are_parts_of_the_micro_batch(
    tracer: OpenTelemetryTracer, exporter: InMemorySpanExporter
) -> None:
    """Two batches are one micro-batch: its job and the sink's commit are below it."""
    bench = Bench()
    spans = [a_batch(tracer, number) for number in (0, 1)]
    for number, span in enumerate(spans):
        bench.processor.on_next_batch(replace(bench.batch(number), span=span))
    bench.run_once()
    for span in spans:
        span.end()
    first, second = named(exporter, "batch")
    (micro_batch,) = named(exporter, "micro_batch")
    assert below(micro_batch, first)
    assert [link.context.span_id for link in micro_batch.links] == [number_of(second)]
    assert attributes(micro_batch)["headrace.records"] == 20
    for name in ("spark_job", "sink_commit"):
        (part,) = named(exporter, name)
        assert below(part, micro_batch)


def test_one_commit_of_several_micro_batches_is_a_part_of_the_first(
    tracer: OpenTelemetryTracer, exporter: InMemorySpanExporter
) -> None:
    """It is linked to the others, and each micro-batch ends without an error."""
    bench = Bench(sink=GroupingSink())
    for number in (0, 1):
        span = a_batch(tracer, number)
        bench.processor.on_next_batch(replace(bench.batch(number), span=span))
        bench.runner.run_once()
    bench.commit()

    first, second = named(exporter, "micro_batch")
    (commit,) = named(exporter, "sink_commit")
    assert below(commit, first)
    assert [link.context.span_id for link in commit.links] == [number_of(second)]
    assert {each.status.status_code for each in (first, second)} == {StatusCode.UNSET}


def test_a_failed_spark_job_says_why(
    tracer: OpenTelemetryTracer, exporter: InMemorySpanExporter
) -> None:
    """The error is in the job's span and in the micro-batch's; nothing was committed."""
    bench = Bench()
    bench.engine.script = [ValueError("poison")]
    bench.processor.on_next_batch(replace(bench.batch(0), span=a_batch(tracer)))
    bench.run_once()
    for name in ("spark_job", "micro_batch"):
        (span,) = named(exporter, name)
        assert span.status.description == "ValueError: poison"
    assert named(exporter, "sink_commit") == []


def test_an_error_ends_the_span_and_goes_on(
    tracer: OpenTelemetryTracer, exporter: InMemorySpanExporter
) -> None:
    """What a block raises is recorded once, and raised."""
    span = a_batch(tracer)
    with pytest.raises(ZeroDivisionError):
        fail_in(span)
    span.end()
    (batch,) = named(exporter, "batch")
    assert batch.status.status_code is StatusCode.ERROR


def fail_in(span: Span) -> None:
    """Fail as the work of a span."""
    with within(span):
        raise ZeroDivisionError


def test_nothing_is_recorded_without_a_tracer() -> None:
    """The one span that stands for all work takes everything and keeps nothing."""
    span = NO_TRACER.batch("main", P0, 1, 0, 10)
    assert span is NO_SPAN
    assert joint([span, span], "micro_batch") is NO_SPAN
    with within(span.child("spark_job")) as inner:
        assert inner is NO_SPAN
    assert open_tracer(TracingConfig(), "one") is NO_TRACER
    NO_TRACER.close(Deadline.after(0))


def test_without_an_endpoint_nothing_is_imported() -> None:
    """A process that traces nothing does not pay for OpenTelemetry."""
    program = (
        "import sys, headrace.core.spans, headrace.telemetry.tracing\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_without_the_extra_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint without OpenTelemetry names the extra that is missing."""
    monkeypatch.delitem(sys.modules, "headrace.telemetry.tracing.recorded")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    config = TracingConfig(endpoint="http://127.0.0.1:4318/v1/traces")
    with pytest.raises(StartError, match=r"pip install 'headrace\[tracing\]'"):
        open_tracer(config, "one")


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector on loopback."""
    with collecting() as server:
        yield server


def test_traces_reach_a_collector(collector: Collector) -> None:
    """What is recorded arrives by OTLP over HTTP at the latest when the tracer is closed."""
    config = TracingConfig(endpoint=collector.endpoint)
    tracer = open_tracer(config, "one")
    batch = tracer.batch("main", P0, 1, 0, 10)
    batch.child("commit").end()
    batch.end()
    tracer.close(Deadline.after(PATIENCE))
    assert [span.name for span in collector.spans()] == ["commit", "batch"]
    (resource,) = {
        (item.key, item.value.string_value)
        for request in collector.requests
        for found in request.resource_spans
        for item in found.resource.attributes
        if item.key == "service.instance.id"
    }
    assert resource == ("service.instance.id", "one")


def test_one_in_a_thousand_is_recorded(collector: Collector) -> None:
    """Most batches cost no more than the decision not to record them."""
    tracer = open_tracer(TracingConfig(endpoint=collector.endpoint, sample_one_in=1000), "one")
    spans = [tracer.batch("main", P0, 1, 0, 10) for _ in range(2000)]
    assert sum(span.recording for span in spans) < 100
    tracer.close(Deadline.after(PATIENCE))
