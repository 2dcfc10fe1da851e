"""The table of all metrics in docs/metrics.md, written from their declarations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.telemetry.metrics.declared import Metrics

if TYPE_CHECKING:
    from headrace.telemetry.metrics.readings import MetricSpec

BEGIN = "<!-- metrics: written by scripts/reference.py -->"
END = "<!-- end of metrics -->"

_HEAD = "| metric | kind | labels | meaning |\n|---|---|---|---|"


def render() -> str:
    """Return the table of all metrics, by name."""
    specs = sorted(Metrics().specs, key=lambda spec: spec.name)
    return "\n".join([_HEAD, *map(_row, specs)])


def update(page: str) -> str:
    """Return the page with the table between its markers written again."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{render()}\n\n{END}{after}"


def _row(spec: MetricSpec) -> str:
    known = "".join(f" `{label}`: {', '.join(values)}." for label, values in spec.values.items())
    labels = ", ".join(spec.labels) or "none"
    return f"| `{spec.name}` | {spec.kind} | {labels} | {spec.text}{known} |"
