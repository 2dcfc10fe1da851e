"""All metrics of a process: seconds, bytes, records, and labels that stay few."""

from __future__ import annotations

from headrace.telemetry.metrics.declared import Metrics
from headrace.telemetry.metrics.readings import (
    ChannelSummary,
    OperatorSnapshot,
    PartitionSnapshot,
    PhaseSnapshot,
    PoolSnapshot,
    StageTotal,
    StateSnapshot,
    Summary,
)
from headrace.telemetry.metrics.server import (
    CONTENT_TYPE,
    MetricSample,
    MetricsServer,
    metrics_text,
    omit_creation_times,
    read_metrics,
)

__all__ = [
    "CONTENT_TYPE",
    "ChannelSummary",
    "MetricSample",
    "Metrics",
    "MetricsServer",
    "OperatorSnapshot",
    "PartitionSnapshot",
    "PhaseSnapshot",
    "PoolSnapshot",
    "StageTotal",
    "StateSnapshot",
    "Summary",
    "metrics_text",
    "omit_creation_times",
    "read_metrics",
]
