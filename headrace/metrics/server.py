"""Serving metrics to Prometheus, and reading what a process serves."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from socket import SHUT_RDWR
from typing import TYPE_CHECKING
from urllib.request import urlopen

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    disable_created_metrics,
    generate_latest,
    start_http_server,
)
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.metrics.declared import Metrics


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
    """Serves ``/metrics`` in the text format on a thread of its own.

    Raises:
        OSError: the address cannot be bound.
    """

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        self._server, self._thread = start_http_server(port, host, metrics.registry)
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop serving and end the thread."""
        # Wakes the thread, which else looks only every half second whether to end. Not every
        # system lets a listening socket be shut down; there the end takes that half second.
        with suppress(OSError):
            self._server.socket.shutdown(SHUT_RDWR)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


@dataclass(frozen=True, slots=True)
class Sample:
    """One value that a process serves, with its labels."""

    name: str
    labels: Mapping[str, str]
    value: float


def read_metrics(host: str, port: int, timeout: float) -> list[Sample]:
    """Return what a process serves on its metrics port. Blocks, for ``timeout`` seconds at most.

    Raises:
        OSError: nothing answers there, or not in time.
    """
    with urlopen(f"http://{host}:{port}/metrics", timeout=timeout) as answer:
        text = answer.read().decode()
    return [
        Sample(sample.name, sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
