"""A collector of traces, metrics and logs on loopback."""

from __future__ import annotations

import gzip
import threading
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
    from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
    from opentelemetry.proto.trace.v1.trace_pb2 import Span


_KINDS: dict[str, Any] = {
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}


class Collector(HTTPServer):
    """Takes OTLP over HTTP and keeps it; another ``answer`` than 200 refuses it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = 200
        self.requests: list[ExportTraceServiceRequest] = []
        self.metric_requests: list[ExportMetricsServiceRequest] = []
        self.log_requests: list[ExportLogsServiceRequest] = []

    @property
    def endpoint(self) -> str:
        """Return the collector's address for traces."""
        return self.address("traces")

    def address(self, signal: str) -> str:
        """Return its address for traces, metrics or logs."""
        return f"http://127.0.0.1:{self.server_port}/v1/{signal}"

    def metrics(self) -> dict[str, Metric]:
        """Return all metrics that have come by their names, as they were the last time."""
        return {
            metric.name: metric
            for request in tuple(self.metric_requests)
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def logs(self) -> list[tuple[str, LogRecord]]:
        """Return all lines that have come, each with its logger."""
        return [
            (scope.scope.name, record)
            for request in tuple(self.log_requests)
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        ]

    def spans(self) -> list[Span]:
        """Return all spans that have come."""
        return [
            span
            for request in tuple(self.requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


class _Handler(BaseHTTPRequestHandler):
    """Answers every request in kind."""

    def do_POST(self) -> None:
        """Keep what was sent."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert isinstance(self.server, Collector)
        if self.server.answer == HTTPStatus.OK:
            kept: dict[str, list[Any]] = {
                "/v1/traces": self.server.requests,
                "/v1/metrics": self.server.metric_requests,
                "/v1/logs": self.server.log_requests,
            }
            kept[self.path].append(_KINDS[self.path].FromString(body))
        self.send_response(self.server.answer)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector for the block."""
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()
