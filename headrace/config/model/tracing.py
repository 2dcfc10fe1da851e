"""The ``tracing`` section."""

from __future__ import annotations

from typing import Annotated

from headrace.config.kinds.scalars import WholeNumber
from headrace.config.kinds.text import FreeText, Text
from headrace.config.kinds.units import Pause
from headrace.config.model.base import Cold, Section

_ADDRESS = Text("an address such as http://127.0.0.1:4318/v1/traces", r"https?://\S+")


class TracingConfig(Section):
    """Traces of batches for OpenTelemetry; they take the extra headrace[tracing]."""

    endpoint: Cold[Annotated[str, _ADDRESS] | None] = None
    """Where a collector takes OTLP over HTTP; null: nothing is traced, and it costs nothing."""

    one_in: Cold[Annotated[int, WholeNumber(1)]] = 1
    """Of how many batches one is traced."""

    service_name: Cold[FreeText] = "headrace"
    """What the process is called in the traces."""

    timeout: Cold[Pause] = 10.0
    """How long the collector may take to answer; traces it does not take are dropped."""
