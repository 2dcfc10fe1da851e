"""Values of single metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import Counter, Gauge


def value_of(metric: Counter | Gauge) -> float:
    """Return the value of a metric that has no labels, or that was asked for with all of them."""
    (family,) = metric.collect()
    return family.samples[0].value
