"""All metrics of a process: seconds, bytes, records, and labels that stay few."""

from __future__ import annotations

from headrace.metrics.declared import Metrics
from headrace.metrics.readings import MetricSpec, PartitionReading
from headrace.metrics.server import MetricsServer, Sample, read_metrics

__all__ = [
    "MetricSpec",
    "Metrics",
    "MetricsServer",
    "PartitionReading",
    "Sample",
    "read_metrics",
]
