"""The time of a Spark job: the threads' accounts, and the trace of the batch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace.core.spans import BatchSource
from headrace.extensions.otel.tracing.recorded import OpenTelemetryTracer
from headrace.telemetry.thread_time import ThreadActivity, ThreadRole
from headrace.testing.records import make_batch
from tests.integration.extensions.spark.channels import ADVANCE, SECONDS, Channel, places

if TYPE_CHECKING:
    from collections.abc import Callable


def test_lane_and_sink_account_for_job_and_commit(channel: Callable[..., Channel]) -> None:
    """The lane's time is at Spark and the sink's at its commit; both accounts have an end."""
    ch = channel(places)
    assert ch.send(0, [b"v"] * 50).result(SECONDS) == ADVANCE
    spent = {time.role: time.seconds() for time in ch.metrics.thread_times()}
    assert spent.keys() == {ThreadRole.LANE, ThreadRole.SINK}
    assert spent[ThreadRole.LANE][ThreadActivity.SPARK] > 0
    assert spent[ThreadRole.SINK][ThreadActivity.COMMIT] > 0
    ch.close()
    assert ch.metrics.thread_times() == ()


def test_a_job_is_found_from_its_batch(channel: Callable[..., Channel]) -> None:
    """The micro-batch is below the batch, and both the job and the sink's commit are below that."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    ch = channel(places)
    assignment = ch.assignments[0]
    source = BatchSource("channel", "group", assignment.partition, 1, 0)
    made = make_batch([b"v"] * 50, assignment=assignment)
    span = OpenTelemetryTracer(provider).batch(source, made.records)
    batch = replace(made, span=span)
    assert ch.processor.on_next_batch(batch).result(SECONDS) == ADVANCE
    span.end()
    parents = {
        found.name: found.parent.span_id if found.parent is not None else None
        for found in exporter.get_finished_spans()
    }
    ids = {
        found.name: context.span_id
        for found in exporter.get_finished_spans()
        if (context := found.get_span_context()) is not None
    }
    assert parents == {
        "batch": None,
        "micro_batch": ids["batch"],
        "spark_job": ids["micro_batch"],
        "sink_commit": ids["micro_batch"],
    }
