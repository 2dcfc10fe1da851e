"""Traces as OpenTelemetry records and sends them: batch, job and commit."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace import Link, SpanKind, StatusCode, set_span_in_context, use_span

from headrace.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from opentelemetry import trace

    from headrace.config import TracingConfig
    from headrace.core.clock import Deadline
    from headrace.core.records import TopicPartition
    from headrace.core.spans import Span


#: Seconds that the last traces have to be sent in, out of a stop's deadline.
CLOSE_TIMEOUT = 2.0


def exporting_tracer(config: TracingConfig, endpoint: str, instance: str) -> OpenTelemetryTracer:
    """Return a tracer that sends what it records to ``endpoint``, by OTLP over HTTP."""
    provider = TracerProvider(
        sampler=ParentBasedTraceIdRatio(1 / config.sample_one_in),
        resource=Resource.create(
            {
                "service.name": config.service_name,
                "service.version": VERSION,
                "service.instance.id": instance,
            }
        ),
        shutdown_on_exit=False,
    )
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=config.timeout)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return OpenTelemetryTracer(provider)


class OpenTelemetryTracer:
    """A ``Tracer`` on a provider of OpenTelemetry's, which it closes."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("headrace", VERSION)

    def batch(
        self, channel: str, partition: TopicPartition, epoch: int, start: int, records: int
    ) -> Span:
        attributes: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.operation.name": "process",
            "messaging.destination.name": partition.topic,
            "messaging.destination.partition.id": str(partition.partition),
            "messaging.batch.message_count": records,
            "headrace.channel": channel,
            "headrace.epoch": epoch,
            "headrace.start": start,
        }
        span = self._tracer.start_span("batch", kind=SpanKind.CONSUMER, attributes=attributes)
        return _RecordedSpan(self._tracer, span)

    def close(self, deadline: Deadline) -> None:
        """Send what is left. Blocks until the deadline and for two seconds at most."""
        # on a thread of its own, because the SDK tries a silent collector again for longer
        thread = Thread(target=self._provider.shutdown, name="tracing-close", daemon=True)
        thread.start()
        thread.join(deadline.at_most(CLOSE_TIMEOUT))


class _RecordedSpan:
    """A ``Span`` of OpenTelemetry's."""

    def __init__(self, tracer: trace.Tracer, span: trace.Span) -> None:
        self._tracer = tracer
        self._span = span

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
        span = self._tracer.start_span(name, context=context, links=links, attributes=named)
        return _RecordedSpan(self._tracer, span)

    def active(self) -> AbstractContextManager[object]:
        return use_span(self._span, record_exception=False, set_status_on_exception=False)

    def end(self, error: BaseException | None = None, outcome: str = "") -> None:
        if not self._span.is_recording():
            return
        if outcome:
            self._span.set_attribute("headrace.outcome", outcome)
        if error is not None:
            self._span.record_exception(error)
            self._span.set_status(StatusCode.ERROR, f"{type(error).__name__}: {error}")
        self._span.end()
