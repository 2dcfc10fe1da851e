"""Lines of the log as records of OpenTelemetry's, each with the span that it was logged in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import get_current
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk._logs.export import LogRecordExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from headrace.core.clock import Deadline
from headrace.extensions.otel.exports.export_queue import (
    CLOSE_TIMEOUT,
    ExportQueue,
    Signal,
    resource,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.sdk.resources import Resource

    from headrace.config import LogsOtlpConfig

_SEVERITIES = {
    "debug": SeverityNumber.DEBUG,
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "error": SeverityNumber.ERROR,
    "critical": SeverityNumber.FATAL,
}

#: Fields that a record has a place of its own for.
_OWN = frozenset({"event", "level", "logger", "timestamp"})

#: Fields that OpenTelemetry's conventions name otherwise.
_NAMES = {"exception": "exception.stacktrace"}


class OtlpLogs:
    """Takes lines of the log for a collector. Any thread; only ``flush`` waits."""

    def __init__(self, queue: ExportQueue, source: Resource) -> None:
        self._queue = queue
        self._resource = source
        self._is_answered = True

    def take(self, event: Mapping[str, Any], created: float) -> None:
        """Queue a line; ``event`` has its fields, ``created`` is in seconds since the epoch.

        What OpenTelemetry's own clients say is left out: each line that was not sent made another.
        """
        logger = str(event.get("logger", ""))
        if logger.partition(".")[0] == "opentelemetry":
            return
        level, name = str(event.get("level", "info")), str(event.get("event", ""))
        nanoseconds = int(created * 1e9)
        record = LogRecord(
            timestamp=nanoseconds,
            observed_timestamp=nanoseconds,
            context=get_current(),
            severity_text=level,
            severity_number=_SEVERITIES.get(level, SeverityNumber.INFO),
            body=str(event.get("detail", name)) if name == "library_log" else name,
            attributes={
                _NAMES.get(key, key): _attribute(value)
                for key, value in event.items()
                if key not in _OWN and value is not None
            },
            event_name=name,
        )
        scope = InstrumentationScope(logger)
        self._queue.put(ReadableLogRecord(record, self._resource, scope))

    def on_drop(self, callback: Callable[[int], None]) -> None:
        """Call ``callback`` with how many lines are dropped, those so far included."""
        self._queue.on_drop(callback)

    def flush(self) -> None:
        """Wait until what was taken is sent, for two seconds at most."""
        self._is_answered = self._queue.flush(Deadline.after(CLOSE_TIMEOUT))

    def close(self) -> None:
        """Send what is left, for two seconds at most, and end the thread.

        The interpreter's end flushes first: a collector that was silent then is not waited for
        again.
        """
        self._queue.close(Deadline.after(CLOSE_TIMEOUT if self._is_answered else 0.0))


def exported_logs(config: LogsOtlpConfig, service_name: str, instance: str) -> OtlpLogs:
    """Return what sends lines of the log to ``config.endpoint``, by OTLP over HTTP."""
    exporter = OTLPLogExporter(endpoint=config.endpoint, timeout=config.timeout)
    queue = ExportQueue(
        Signal.LOGS,
        lambda records: exporter.export(records) is LogRecordExportResult.SUCCESS,
        exporter.shutdown,
    )
    return OtlpLogs(queue, resource(service_name, instance))


def _attribute(value: object) -> Any:
    """Return a field as OTLP has values: lists of text, and JSON of what has parts itself."""
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [each if isinstance(each, str) else _text(each) for each in value]
    return _text(value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
