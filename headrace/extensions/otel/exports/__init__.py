"""The process's own telemetry, sent to an OpenTelemetry collector: logs, metrics, and the queue.

Nothing of OpenTelemetry is imported unless it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.extras import Extra, required

if TYPE_CHECKING:
    from headrace.config import Config
    from headrace.extensions.otel.exports.export_queue import ExportQueue
    from headrace.extensions.otel.exports.log_export import OtlpLogs
    from headrace.telemetry.metrics import Metrics


def open_log_export(config: Config) -> OtlpLogs | None:
    """Return what takes the lines of the log, None where ``logging.otlp`` asks for none.

    Raises:
        StartError: it is asked for, and OpenTelemetry is not installed.
    """
    chosen = config.logging.otlp
    if chosen is None:
        return None
    with required(Extra.OTEL, f"logging.otlp.endpoint, which is {chosen.endpoint},"):
        from headrace.extensions.otel.exports.log_export import exported_logs  # noqa: PLC0415 - an extra

    return exported_logs(chosen, config.tracing.service_name, config.instance_id)


def open_metrics_export(config: Config, metrics: Metrics) -> ExportQueue | None:
    """Return what sends ``metrics`` now and then, None where ``metrics.otlp`` asks for none.

    Raises:
        StartError: it is asked for, and OpenTelemetry is not installed.
    """
    chosen = config.metrics.otlp
    if chosen is None:
        return None
    with required(Extra.OTEL, f"metrics.otlp.endpoint, which is {chosen.endpoint},"):
        from headrace.extensions.otel.exports.metrics_export import (  # noqa: PLC0415 - an extra
            exported_metrics,
        )

    return exported_metrics(chosen, config.tracing.service_name, config.instance_id, metrics)


__all__ = ["open_log_export", "open_metrics_export"]
