"""Traces: what is recorded of a batch, its job and its commit, and that nothing is without them."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import StatusCode, get_current_span
from structlog.testing import capture_logs

from headrace.config import TracingConfig
from headrace.core.clock import Deadline
from headrace.core.errors import StartError
from headrace.core.record_runs import OffsetRun
from headrace.core.records import ResultRecord, TopicPartition
from headrace.core.result_columns import each_of
from headrace.core.spans import (
    NO_SPAN,
    NO_TRACER,
    BatchSource,
    current_headers,
    linked_span,
    use_span,
)
from headrace.extensions.keyed.changed_rows import ChangedRows
from headrace.extensions.keyed.row import KeyRow, PartitionKey, RowChange
from headrace.extensions.keyed.sink import KeyedSink, OutputColumns, SinkTopics, StagedState
from headrace.extensions.keyed.state import Layer, LayeredState
from headrace.extensions.keyed.tables import OUTPUT
from headrace.extensions.otel.tracing import open_tracer
from headrace.extensions.otel.tracing.recorded import MOST_LINKS, OpenTelemetryTracer
from headrace.processors import BatchResponse, ChannelContext
from headrace.processors.simple import Deliver, SimpleKafkaProcessor, SimpleOptions
from headrace.sinks.kafka import KafkaSink
from headrace.telemetry.metrics import Metrics
from headrace.testing import (
    FakeClock,
    FakeRecord,
    InMemoryBroker,
    InMemoryDeadLetters,
    in_memory_channel,
    make_batch,
    running,
)
from headrace.testing.keyed import MemoryStore
from headrace.testing.records import in_columns
from tests.collector import collecting
from tests.unit.channel.in_memory import P0, committed, values
from tests.unit.channel.recorder import PATIENCE, Recorder
from tests.unit.processors.spark_bench import Bench, GroupingSink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

    from headrace.core.records import Batch, Record
    from headrace.core.result_columns import Results
    from headrace.core.spans import Span
    from tests.collector import Collector


SOURCE = BatchSource("main", "group", P0, 3, 0)
TEN = [FakeRecord(offset_=n) for n in range(10)]


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
    source = BatchSource("main", "group", TopicPartition("events", partition), 3, 17)
    return tracer.batch(source, [FakeRecord(offset_=17 + n) for n in range(10)])


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
    with use_span(linked_span([NO_SPAN, first, second], "micro_batch", records=20)):
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
    """The block's exception is recorded once and raised."""
    span = a_batch(tracer)
    with pytest.raises(ZeroDivisionError):
        fail_in(span)
    span.end()
    (batch,) = named(exporter, "batch")
    assert batch.status.status_code is StatusCode.ERROR


def fail_in(span: Span) -> None:
    """Fail as the work of a span."""
    with use_span(span):
        raise ZeroDivisionError


def test_no_span_is_recorded_without_a_tracer() -> None:
    """One constant span stands for all work, and keeps no attribute."""
    span = NO_TRACER.batch(SOURCE, TEN)
    assert span is NO_SPAN
    assert linked_span([span, span], "micro_batch") is NO_SPAN
    with use_span(span.child("spark_job")) as inner:
        assert inner is NO_SPAN
    assert open_tracer(TracingConfig(), "one") is NO_TRACER
    NO_TRACER.close(Deadline.after(0))


def test_without_an_endpoint_nothing_is_imported() -> None:
    """A process that traces nothing does not pay for OpenTelemetry."""
    program = (
        "import sys, headrace.core.spans, headrace.extensions.otel.tracing\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_without_the_extra_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endpoint without OpenTelemetry names the extra that is missing."""
    monkeypatch.delitem(sys.modules, "headrace.extensions.otel.tracing.recorded")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    config = TracingConfig(endpoint="http://127.0.0.1:4318/v1/traces")
    with pytest.raises(StartError, match=r"pip install 'headrace\[otel\]'"):
        open_tracer(config, "one")


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector on loopback."""
    with collecting() as server:
        yield server


def test_traces_reach_a_collector(collector: Collector) -> None:
    """Spans arrive by OTLP over HTTP by the close of the tracer."""
    config = TracingConfig(endpoint=collector.endpoint)
    tracer = open_tracer(config, "one")
    batch = tracer.batch(SOURCE, TEN)
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
    spans = [tracer.batch(SOURCE, TEN) for _ in range(2000)]
    assert sum(span.recording for span in spans) < 100
    tracer.close(Deadline.after(PATIENCE))


ONE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
OTHER = "00-1bf7651916cd43dd8448eb211c80319c-c7ad6b7169203331-01"
UNSAMPLED = "00-2cf7651916cd43dd8448eb211c80319c-d7ad6b7169203331-00"


def of_trace(parent: str, offset: int = 0, state: str | None = None) -> FakeRecord:
    """Return a record whose producer says which trace it is of."""
    headers: list[tuple[str, bytes | None]] = [("own", b"1"), ("traceparent", parent.encode())]
    if state is not None:
        headers.append(("tracestate", state.encode()))
    return FakeRecord(offset_=offset, headers_=headers)


def context_in(span: SpanContext | None) -> str:
    """Return a context as a header has it."""
    assert span is not None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def test_a_batch_of_one_record_goes_on_with_its_trace(
    tracer: OpenTelemetryTracer, exporter: InMemorySpanExporter
) -> None:
    """The record's span is the parent, with its state, and says whether it is traced at all."""
    tracer.batch(SOURCE, [of_trace(ONE, 7, "vendor=1")]).end()
    unsampled = tracer.batch(SOURCE, [of_trace(UNSAMPLED)])
    unsampled.end()
    assert not unsampled.recording
    (batch,) = named(exporter, "batch")
    assert context_in(batch.parent) == ONE
    assert batch.parent is not None
    assert batch.parent.trace_state.get("vendor") == "1"
    assert attributes(batch)["messaging.kafka.offset"] == 7
    assert attributes(batch)["messaging.consumer.group.name"] == "group"


@pytest.mark.parametrize("columns", [False, True])
def test_a_batch_of_several_is_linked_to_their_traces(
    tracer: OpenTelemetryTracer, exporter: InMemorySpanExporter, columns: bool
) -> None:
    """Each trace once, in the order of the records, also of records in columns."""
    headers = [ONE, None, OTHER, ONE, UNSAMPLED]
    records = [
        FakeRecord(*P0, n) if parent is None else replace(of_trace(parent, n), topic_=P0.topic)
        for n, parent in enumerate(headers)
    ]
    run = in_columns(records, P0, pieces=2) if columns else records
    tracer.batch(SOURCE, run).end()
    (batch,) = named(exporter, "batch")
    assert batch.parent is None
    assert [context_in(link.context) for link in batch.links] == [ONE, OTHER, UNSAMPLED]


def test_links_are_bounded_and_references_have_none(
    tracer: OpenTelemetryTracer, exporter: InMemorySpanExporter
) -> None:
    """The first traces are linked; records by reference have unknown ones."""
    contexts = [f"00-{n:032x}-{n:016x}-01" for n in range(1, 2 * MOST_LINKS)]
    tracer.batch(SOURCE, [of_trace(each, n) for n, each in enumerate(contexts)]).end()
    tracer.batch(SOURCE, OffsetRun(0, 10, 100)).end()
    many, none = named(exporter, "batch")
    assert [context_in(link.context) for link in many.links] == contexts[:MOST_LINKS]
    assert none.links == ()


@pytest.mark.parametrize(
    "header", [b"", b"nonsense", b"00-0-0-01", b"\xff" * 55, f"00-{'0' * 32}-{1:016x}-01".encode()]
)
def test_a_malformed_header_is_ignored_and_logged_once(
    tracer: OpenTelemetryTracer, exporter: InMemorySpanExporter, header: bytes
) -> None:
    """The batch has a trace of its own; the log names topic and header, and not again."""
    record = FakeRecord(headers_=[("traceparent", header)])
    with capture_logs() as logs:
        for records in ([record], [record, record], [record]):
            tracer.batch(SOURCE, records).end()
    assert [(span.parent, span.links) for span in named(exporter, "batch")] == [(None, ())] * 3
    (said,) = logs
    assert (said["event"], said["channel"], said["topic"]) == (
        "trace_header_malformed",
        "main",
        "events",
    )


def test_a_function_of_one_record_goes_on_with_its_trace(
    tracer: OpenTelemetryTracer, exporter: InMemorySpanExporter
) -> None:
    """The span is the producer's child, is linked to the batch, and has the function's error."""
    records = [of_trace(ONE, 1), FakeRecord(offset_=2), of_trace(OTHER, 3)]
    inside: list[str] = []

    def function(record: Record) -> None:
        inside.append(context_in(get_current_span().get_span_context()))
        if record.offset() == 3:
            raise ValueError("no")

    processor = SimpleKafkaProcessor(function, SimpleOptions(Deliver.RECORD))
    processor.open(ChannelContext("main", "group", Metrics(), FakeClock()))
    span = tracer.batch(SOURCE, records)
    with span.active():
        answer = processor.on_next_batch(replace(make_batch(records, start=1), span=span))
    span.end()
    assert answer == BatchResponse.advance(offset=3, max_records=1)
    (batch,) = named(exporter, "batch")
    first, last = named(exporter, "record")
    assert [context_in(each.parent) for each in (first, last)] == [ONE, OTHER]
    assert {link.context.span_id for link in first.links} == {number_of(batch)}
    assert attributes(first)["messaging.kafka.offset"] == 1
    assert last.status.status_code is StatusCode.ERROR
    expected = [each.get_span_context() for each in (first, batch, last)]
    assert inside == [context_in(each) for each in expected]


def test_a_dead_letter_says_which_span_made_it(
    tracer: OpenTelemetryTracer, exporter: InMemorySpanExporter
) -> None:
    """Behind the record's own headers, among them the context that its producer gave it."""
    broker, letters = InMemoryBroker(), InMemoryDeadLetters()
    broker.create_topic("events", 1)
    broker.create_topic("dead")
    broker.produce(P0, of_trace(ONE))

    def refuse(_: Batch) -> BatchResponse:
        raise ValueError("no")

    policy: dict[str, Any] = {
        "retry": {"attempts": 1, "backoff": "1ms", "max_backoff": "1ms"},
        "rejects": {"failing": "dead_letter", "topic": "dead"},
    }
    channel = in_memory_channel(
        Recorder(refuse), broker, tracer=tracer, dead_letters=letters, **policy
    )
    with running(channel):
        assert committed(broker, P0, 1)
    ((_, letter),) = letters.letters
    found = [data for name, data in letter.headers if name == "traceparent"]
    last = named(exporter, "batch")[-1]
    assert found == [ONE.encode(), context_in(last.get_span_context()).encode()]


class Produced:
    """Transactions that keep what is produced."""

    def __init__(self) -> None:
        self.records: list[ResultRecord] = []

    def commit(self, moves: Any, records: Results = ()) -> list[Any]:
        """Keep the records."""
        del moves
        self.records += each_of(records)
        return []


@pytest.mark.parametrize("propagate", [True, False])
def test_a_result_says_which_span_made_it(exporter: InMemorySpanExporter, propagate: bool) -> None:
    """The Kafka sink's rows and copies have the context after their own headers."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = OpenTelemetryTracer(provider, propagate=propagate)
    produced = Produced()
    sink = KafkaSink(cast("Any", produced), "out")
    rows = sink.stage(cast("Any", None), pa.table({"value": ["a"]}))
    copy = ResultRecord("left", b"b", None, [("own", b"1")])
    with use_span(linked_span([a_batch(tracer)], "sink_commit")):
        sink.commit_with([rows], [], [copy])
    (commit,) = named(exporter, "sink_commit")
    context = context_in(commit.get_span_context()).encode()
    traced = [("traceparent", context)] if propagate else []
    assert [each.headers or [] for each in produced.records] == [traced, [("own", b"1"), *traced]]
    assert current_headers() == []


def results_of(batches: list[Span]) -> list[ResultRecord]:
    """Return what a Kafka sink produces of one row that batches were reduced to."""
    produced = Produced()
    sink = KafkaSink(cast("Any", produced), "out")
    rows = sink.stage(cast("Any", None), pa.table({"value": ["a"]}))
    with (
        use_span(linked_span(batches, "micro_batch")) as job,
        use_span(linked_span([job], "sink_commit")),
    ):
        sink.commit(rows, [])
    return produced.records


def test_an_unsampled_trace_goes_on_in_results(
    tracer: OpenTelemetryTracer, exporter: InMemorySpanExporter
) -> None:
    """The next consumer finds the same trace and state, and that it is not sampled."""
    batch = tracer.batch(SOURCE, [of_trace(UNSAMPLED, state="vendor=1")])
    (result,) = results_of([NO_SPAN, batch])
    said = dict(result.headers or [])
    _, trace, span, flags = (said["traceparent"] or b"").decode().split("-")
    _, came_trace, came_span, _ = UNSAMPLED.split("-")
    assert (trace, flags) == (came_trace, "00")
    assert span != came_span
    assert said["tracestate"] == b"vendor=1"
    assert exporter.get_finished_spans() == ()


def test_results_of_unsampled_batches_get_no_context() -> None:
    """A record's own context, which a reducer may pass on, must not be hidden by another's."""
    provider = TracerProvider(sampler=ParentBased(ALWAYS_OFF), shutdown_on_exit=False)
    tracer = OpenTelemetryTracer(provider)
    alone = tracer.batch(SOURCE, [FakeRecord()])
    several = tracer.batch(SOURCE, [of_trace(ONE), of_trace(UNSAMPLED, 1)])
    one = tracer.batch(SOURCE, [of_trace(UNSAMPLED)])
    silent = OpenTelemetryTracer(provider, propagate=False).batch(SOURCE, [of_trace(UNSAMPLED)])
    for batches in ([alone], [several], [one, several], [silent], []):
        (result,) = results_of(batches)
        assert result.headers is None


def test_outputs_of_state_by_key_say_it_and_rows_of_the_changelog_do_not(
    tracer: OpenTelemetryTracer, exporter: InMemorySpanExporter
) -> None:
    """A state is not a result for a consumer."""
    produced, state = Produced(), LayeredState(MemoryStore())
    sink = KeyedSink(cast("Any", produced), state, SinkTopics("log", {"out": "out"}), FakeClock())
    change = ChangedRows.of([(PartitionKey(0, b"a"), RowChange(None, KeyRow(b"1")))])
    said = {"to": "out", "key": b"a", "value": b"v", "ts": 1, "headers": None}
    outputs = OutputColumns([pa.array([said], OUTPUT)])
    staged = StagedState(Layer("x", change), outputs)
    with use_span(a_batch(tracer)):
        sink.commit(staged, [])
    (batch,) = named(exporter, "batch")
    row, output = produced.records
    assert (row.topic, row.headers) == ("log", None)
    assert output.headers == [
        ("traceparent", context_in(batch.get_span_context()).encode()),
    ]
