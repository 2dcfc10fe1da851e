"""Serving metrics to Prometheus, and reading what a process serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias
from urllib.request import urlopen

import structlog
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, disable_created_metrics, generate_latest
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from headrace.core.clock import Deadline

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from headrace.telemetry.metrics.declared import Metrics

log = structlog.get_logger(__name__)

#: Seconds in which the server has to answer, and those that it has to end.
START_TIMEOUT, CLOSE_TIMEOUT = 10.0, 5.0

#: What ``metrics_text`` is called in HTTP.
CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


def metrics_text(metrics: Metrics) -> bytes:
    """Return all metrics in the text format of Prometheus. Any thread."""
    return generate_latest(metrics.registry)


def omit_creation_times() -> None:
    """Leave out when each series was created, of all metrics of the process.

    They would double the number of series, and tell nothing that Prometheus uses.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]


class MetricsServer:
    """Serves ``/metrics`` in the text format, all of it on one thread of its own.

    Raises:
        OSError: the address cannot be bound.
    """

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        from headrace.core.http_server import HttpServer, listen  # noqa: PLC0415 - takes a while

        listening = listen(host, port)
        self.port: int = listening.getsockname()[1]
        self._server = HttpServer(
            _application(metrics),
            listening,
            "metrics",
            failed=lambda error: log.error("metrics_ended", exc_info=error),
        )
        if not self._server.start(Deadline.after(START_TIMEOUT)):
            raise OSError(None, "the server ended at once; the log says why")

    def close(self) -> None:
        """Stop serving and end the thread."""
        self._server.close(Deadline.after(CLOSE_TIMEOUT))


def _application(metrics: Metrics) -> ASGIApp:
    """Return what answers GET and HEAD, at any path as exporters do, in the format asked for."""
    from starlette.applications import Starlette  # noqa: PLC0415 - takes a while
    from starlette.middleware import Middleware  # noqa: PLC0415
    from starlette.middleware.gzip import GZipMiddleware  # noqa: PLC0415
    from starlette.responses import Response  # noqa: PLC0415
    from starlette.routing import Route  # noqa: PLC0415

    async def answer(request: Request) -> Response:
        encode, media_type = choose_encoder(request.headers.get("accept", ""))
        names = request.query_params.getlist("name[]")
        registry = metrics.registry.restricted_registry(names) if names else metrics.registry
        return Response(encode(registry), headers={"Content-Type": media_type})

    route = Route("/{path:path}", answer, methods=["GET"])
    return Starlette(routes=[route], middleware=[Middleware(GZipMiddleware)])


MetricSample: TypeAlias = Sample
"""One value that a process serves, with its ``name`` and ``labels``."""


def read_metrics(host: str, port: int, timeout: float) -> list[MetricSample]:
    """Return what a process serves on its metrics port. Blocks, for ``timeout`` seconds at most.

    Raises:
        OSError: nothing answers there, or not in time.
    """
    with urlopen(f"http://{host}:{port}/metrics", timeout=timeout) as answer:
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return [sample for family in families for sample in family.samples]
