"""Traces of batches. Nothing of OpenTelemetry is imported unless they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.extras import Extra, required
from headrace.core.spans import NO_TRACER, Tracer

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.config import TracingConfig


def open_tracer(
    config: TracingConfig, instance: str, on_drop: Callable[[int], None] = lambda _: None
) -> Tracer:
    """Return what records traces, and sends them from a thread of its own. Does not block.

    ``instance`` names the process; ``on_drop`` is told how many spans no collector took.

    Raises:
        StartError: traces are asked for, and OpenTelemetry is not installed.
    """
    if config.endpoint is None:
        return NO_TRACER
    with required(Extra.OTEL, f"tracing.endpoint, which is {config.endpoint},"):
        from headrace.extensions.otel.tracing.recorded import exporting_tracer  # noqa: PLC0415 - an extra

    return exporting_tracer(config, config.endpoint, instance, on_drop)


__all__ = ["open_tracer"]
