"""Micro-batches beside those of Structured Streaming: `spark` and `pipeline`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.plotting.charts import CEILING, OURS, PEER, Bar, bars
from benchmarks.plotting.section import Section, heading, table, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    Line = Mapping[str, Any]

#: What the sides are called, ours first.
_SIDES = {
    "channel": ("Headrace, by value", OURS),
    "value": ("Headrace, by value", OURS),
    "reference": ("Headrace, by reference", OURS),
    "streaming": ("Structured Streaming", PEER),
    "tuned": ("Structured Streaming, source tuned", CEILING),
}

_CHARTS = (
    ("rate_100k", "Thousand records a second, micro-batches of 100,000", 1000),
    ("batches_per_second_1k", "Micro-batches a second, of 1,000 records", 1),
)

_METHOD = """\
One broker and one ZooKeeper on the same machine, 4 partitions, values of {size} bytes, {rounds}
rounds in alternating order after one that warms up, in which every row is counted. One process
with one Spark session for each side, all with the same settings. A ratio is the median of the
rounds' ratios.
"""


def section(line: Line) -> Section:
    """Return the targets, a chart for each size of micro-batch, and all figures."""
    name = line["benchmark"]
    charts = {
        f"{name}-{figure.replace('_', '-')}.svg": bars(title, _bars(line, figure, unit))
        for figure, title, unit in _CHARTS
        if _bars(line, figure, unit)
    }
    parts = [
        heading(line),
        _METHOD.format(size=line["record_bytes"], rounds=line["rounds"]),
        _targets(line),
        *[f"![{name}](results/{chart})\n" for chart in charts],
        table(("figure", "value"), [(f"`{key}`", line[key]) for key in line if _is_figure(key)]),
    ]
    return Section("\n".join(part for part in parts if part), charts)


def _bars(line: Line, figure: str, unit: int) -> list[Bar]:
    return [
        Bar(called, line[f"{side}_{figure}"] / unit, colour)
        for side, (called, colour) in _SIDES.items()
        if f"{side}_{figure}" in line
    ]


def _targets(line: Line) -> str:
    rows = [
        (
            f"`{name}`",
            line[name],
            f"{'at most' if _is_time(name) else 'at least'} {target}",
            verdict(line[name], target, at_least=not _is_time(name)),
        )
        for name, target in line.get("targets", {}).items()
    ]
    return table(("figure", "value", "target", ""), rows) if rows else ""


def _is_time(name: str) -> bool:
    return name.startswith(("latency", "delta"))


def _is_figure(name: str) -> bool:
    said_above = ("benchmark", "at", "cores", "python", "machine", "load", "packages", "targets")
    return name not in said_above
