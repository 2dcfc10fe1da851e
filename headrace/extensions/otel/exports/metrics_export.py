"""All metrics of the process for a collector, by the names that Prometheus has them under."""

from __future__ import annotations

import time
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from headrace.extensions.otel.exports.export_queue import ExportQueue, Signal, resource
from headrace.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from opentelemetry.sdk.resources import Resource

    from headrace.config import MetricsOtlpConfig
    from headrace.telemetry.metrics import Metrics, MetricSample

_SCOPE = InstrumentationScope("headrace", VERSION)

#: What OpenTelemetry calls the unit that a name says.
_UNITS = {"seconds": "s", "bytes": "By"}

#: Labels of a series, which tell it from others of its metric.
_Labels = tuple[tuple[str, str], ...]


def exported_metrics(
    config: MetricsOtlpConfig, service_name: str, instance: str, metrics: Metrics
) -> ExportQueue:
    """Return what sends all metrics to ``config.endpoint``, by OTLP over HTTP."""
    exporter = OTLPMetricExporter(endpoint=config.endpoint, timeout=config.timeout)
    source, begin = resource(service_name, instance), time.time_ns()
    return ExportQueue(
        Signal.METRICS,
        lambda found: all(exporter.export(each) is MetricExportResult.SUCCESS for each in found),
        exporter.shutdown,
        interval=config.interval,
        collect=lambda: [metrics_data(metrics, source, begin, time.time_ns())],
    )


def metrics_data(metrics: Metrics, source: Resource, begin: int, now: int) -> MetricsData:
    """Return all metrics as they are, counted since ``begin``; times are in ns since the epoch.

    What Prometheus calls a counter is a monotonic sum, and both histograms are the same: names,
    labels and values are those that the process serves.
    """
    found = []
    for family in metrics.registry.collect():
        samples = [each for each in family.samples if not each.name.endswith("_created")]
        if samples:
            name = f"{family.name}_total" if family.type == "counter" else family.name
            data = _data(family.type, samples, begin, now)
            found.append(Metric(name, family.documentation, _unit(family.name), data))
    return MetricsData([ResourceMetrics(source, [ScopeMetrics(_SCOPE, found, "")], "")])


def _data(kind: str, samples: Sequence[MetricSample], begin: int, now: int) -> Any:
    if kind == "histogram":
        points = list(_histograms(samples, begin, now))
        return Histogram(points, AggregationTemporality.CUMULATIVE)
    numbers = [NumberDataPoint(dict(each.labels), begin, now, each.value) for each in samples]
    if kind == "counter":
        return Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    return Gauge(numbers)


def _histograms(
    samples: Sequence[MetricSample], begin: int, now: int
) -> Iterator[HistogramDataPoint]:
    """Yield a point for each series: Prometheus counts up to each bound, OTLP between two."""
    buckets: dict[_Labels, list[tuple[float, int]]] = defaultdict(list)
    sums: dict[_Labels, float] = {}
    for each in samples:
        labels = dict(each.labels)
        bound = labels.pop("le", None)
        series = tuple(labels.items())
        if bound is not None:
            buckets[series].append((float(bound), int(each.value)))
        elif each.name.endswith("_sum"):
            sums[series] = each.value
    for series, counted in buckets.items():
        counted.sort()
        bounds = [bound for bound, _ in counted[:-1]]
        upto = [count for _, count in counted]
        counts = [after - before for before, after in pairwise([0, *upto])]
        yield _point(dict(series), (begin, now), upto[-1], sums[series], counts, bounds)


def _point(  # noqa: PLR0917 - a point's parts
    labels: Mapping[str, str],
    times: tuple[int, int],
    count: int,
    total: float,
    counts: Sequence[int],
    bounds: Sequence[float],
) -> HistogramDataPoint:
    # the least and the greatest value are not known, and OTLP may be without them
    unknown: Any = None
    return HistogramDataPoint(labels, *times, count, total, counts, bounds, unknown, unknown)


def _unit(name: str) -> str:
    return next((unit for word, unit in _UNITS.items() if name.endswith(f"_{word}")), "")
