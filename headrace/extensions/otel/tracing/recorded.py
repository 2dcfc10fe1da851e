"""Traces as OpenTelemetry records and sends them: batch, job and commit."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace import (
    Link,
    SpanKind,
    StatusCode,
    get_current_span,
    set_span_in_context,
    use_span,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headrace.core.record_runs import headers_in
from headrace.core.user_text import describe_error, plain_error
from headrace.extensions.otel.exports.export_queue import ExportQueue, Signal, resource
from headrace.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan

    from headrace.config import TracingConfig
    from headrace.core.clock import Deadline
    from headrace.core.records import Record
    from headrace.core.spans import BatchSource, Headers, Span

log = structlog.get_logger(__name__)

#: Traces of records that the span of a batch is linked to, the first ones: half of what
#: OpenTelemetry keeps of a span's links, so that a batch of many producers stays small.
MOST_LINKS = 64

#: Characters of a header that cannot be read, in the log.
_SHOWN = 100

_PROPAGATOR = TraceContextTextMapPropagator()
_PARENT = "traceparent"
_FIELDS = frozenset({_PARENT, "tracestate"})


def exporting_tracer(
    config: TracingConfig, endpoint: str, instance: str, on_drop: Callable[[int], None]
) -> OpenTelemetryTracer:
    """Return a tracer that sends what it records to ``endpoint``, by OTLP over HTTP."""
    provider = TracerProvider(
        sampler=ParentBasedTraceIdRatio(1 / config.sample_one_in),
        resource=resource(config.service_name, instance),
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=config.timeout)
    queue = ExportQueue(
        Signal.TRACES,
        lambda spans: exporter.export(spans) is SpanExportResult.SUCCESS,
        exporter.shutdown,
    )
    queue.on_drop(on_drop)
    provider.add_span_processor(_ToQueue(queue))
    return OpenTelemetryTracer(provider, queue, propagate=config.propagate)


class _ToQueue(SpanProcessor):
    """Has spans sent that are over."""

    def __init__(self, queue: ExportQueue) -> None:
        self._queue = queue

    def on_end(self, span: ReadableSpan) -> None:
        context = span.get_span_context()
        if context is not None and context.trace_flags.sampled:
            self._queue.put(span)


class OpenTelemetryTracer:
    """A ``Tracer`` on a provider of OpenTelemetry's, and on the ``queue`` that it closes.

    ``propagate``: records that are made say in headers which span made them.
    """

    def __init__(
        self,
        provider: TracerProvider,
        queue: ExportQueue | None = None,
        *,
        propagate: bool = True,
    ) -> None:
        self._queue = queue
        self._malformed: set[tuple[str, str]] = set()
        self.propagate = propagate
        self.tracer = provider.get_tracer("headrace", VERSION)

    def batch(self, source: BatchSource, records: Sequence[Record]) -> Span:
        attributes: dict[str, str | int] = {
            **_messaging(source),
            "messaging.batch.message_count": len(records),
            "headrace.channel": source.channel,
            "headrace.epoch": source.epoch,
            "headrace.start": source.start,
        }
        parent = None
        if len(records) == 1:
            attributes["messaging.kafka.offset"] = records[0].offset() or 0
            parent = self.context_of(next(headers_in(records, _PARENT), ()), source)
        span = self.tracer.start_span(
            "batch", context=parent, kind=SpanKind.CONSUMER, attributes=attributes
        )
        if len(records) > 1 and span.is_recording():
            for context in self._traces_in(records, source):
                span.add_link(get_current_span(context).get_span_context())
        several = source if len(records) > 1 else None
        return _RecordedSpan(self, span, several, continued=parent is not None)

    def _traces_in(self, records: Sequence[Record], source: BatchSource) -> Iterator[Context]:
        """Yield the traces that records are of, each once, up to ``MOST_LINKS``."""
        seen: set[bytes | None] = set()
        found = 0
        for headers in headers_in(records, _PARENT):
            data = dict(headers)[_PARENT]
            context = None if data in seen else self.context_of(headers, source)
            seen.add(data)
            if context is not None:
                yield context
                found += 1
            if found == MOST_LINKS:
                return

    def context_of(
        self, headers: Iterable[tuple[str, bytes | None]], source: BatchSource
    ) -> Context | None:
        """Return the trace that a record's headers say it is of; the last ones count."""
        carrier = {
            name: (data or b"").decode("ascii", "replace")
            for name, data in headers
            if name in _FIELDS
        }
        if _PARENT not in carrier:
            return None
        context = _PROPAGATOR.extract(carrier)
        if get_current_span(context).get_span_context().is_valid:
            return context
        place = (source.channel, source.partition.topic)
        if place not in self._malformed:
            self._malformed.add(place)
            channel, topic = place
            shown = carrier[_PARENT][:_SHOWN]
            log.warning("trace_header_malformed", channel=channel, topic=topic, header=shown)
        return None

    def close(self, deadline: Deadline) -> None:
        """Send what is left. Blocks until the deadline and for two seconds at most."""
        if self._queue is not None:
            self._queue.close(deadline)


def _messaging(source: BatchSource) -> dict[str, str | int]:
    """Return what OpenTelemetry's conventions for messaging have for records of a partition."""
    return {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": source.group,
        "messaging.destination.name": source.partition.topic,
        "messaging.destination.partition.id": str(source.partition.partition),
    }


class _RecordedSpan:
    """A ``Span`` of OpenTelemetry's. ``several`` says where its records are from, if it has some.

    Of one that is ``continued`` the records that are made say so also where it is not recorded.
    """

    def __init__(
        self,
        owner: OpenTelemetryTracer,
        span: trace.Span,
        several: BatchSource | None = None,
        *,
        continued: bool = False,
    ) -> None:
        self._owner = owner
        self._span = span
        self._several = several
        self.continued = continued

    @property
    def recording(self) -> bool:
        return bool(self._span.get_span_context().trace_flags.sampled)

    def child(self, name: str, others: Sequence[Span] = (), **attributes: str | int) -> Span:
        links = [
            Link(other._span.get_span_context())  # noqa: SLF001 - of the same class
            for other in others
            if isinstance(other, _RecordedSpan)
        ]
        named = {f"headrace.{key}": value for key, value in attributes.items()}
        context = set_span_in_context(self._span)
        span = self._owner.tracer.start_span(name, context=context, links=links, attributes=named)
        return _RecordedSpan(self._owner, span, continued=self.continued)

    def active(self) -> AbstractContextManager[object]:
        return use_span(self._span, record_exception=False, set_status_on_exception=False)

    def record(self, record: Record) -> AbstractContextManager[object]:
        source = self._several
        if source is None or not self.recording:
            return nullcontext()
        context = self._owner.context_of(record.headers() or (), source)
        if context is None:
            return nullcontext()
        span = self._owner.tracer.start_span(
            "record",
            context=context,
            kind=SpanKind.CONSUMER,
            attributes={**_messaging(source), "messaging.kafka.offset": record.offset() or 0},
            links=[Link(self._span.get_span_context())],
        )
        return use_span(span, end_on_exit=True)

    def headers(self) -> Headers:
        if not self._owner.propagate or not (self.recording or self.continued):
            return []
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier, set_span_in_context(self._span))
        return [(name, text.encode()) for name, text in carrier.items()]

    def end(self, error: BaseException | None = None, outcome: str = "") -> None:
        if not self._span.is_recording():
            return
        if outcome:
            self._span.set_attribute("headrace.outcome", outcome)
        if error is not None:
            error = plain_error(error)
            self._span.set_attribute("error.type", type(error).__name__)
            self._span.record_exception(error)
            self._span.set_status(StatusCode.ERROR, describe_error(error))
        self._span.end()
