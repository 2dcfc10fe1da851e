"""Charts as SVG that says nothing of when it was made and fetches nothing."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pygal
from pygal.style import Style

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

# pygal hooks itself into every later import of the process, for maps that are not used here, and
# in a way that Python warns of.
sys.meta_path[:] = [each for each in sys.meta_path if type(each) is not pygal.PluginImportFixer]

#: Colours that can be told apart, also without seeing red and green, on white and on dark.
OURS, PEER, CEILING = "#2f7fc1", "#c98a1b", "#8a8f98"
_LINES = (OURS, PEER, "#7a5fb5", "#3a9d75", CEILING)

_GREY = "#7d828a"

_STYLE = Style(
    background="transparent",
    plot_background="transparent",
    foreground=_GREY,
    foreground_strong=_GREY,
    foreground_subtle="#c9ccd1",
    font_family="sans-serif",
    label_font_size=13,
    major_label_font_size=13,
    value_font_size=13,
    value_label_font_size=13,
    value_colors=("#16181c",),
    guide_stroke_color="#c9ccd1",
    major_guide_stroke_color="#c9ccd1",
    opacity=0.9,
    title_font_size=16,
    legend_font_size=13,
    colors=_LINES,
)

_COMMON: dict[str, Any] = {
    "style": _STYLE,
    "js": (),
    "width": 820,
    "margin": 12,
    "margin_right": 36,
}

#: What pygal adds for a browser that runs scripts, and says of itself, with the day.
_ADDED = re.compile(rb"<!--.*?-->|<script.*?</script>|<script[^>]*/>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its name, its length and its colour."""

    name: str
    value: float
    colour: str


def bars(title: str, entries: Sequence[Bar]) -> bytes:
    """Return a chart of bars, the first one on top."""
    chart = pygal.HorizontalBar(
        **_COMMON,
        height=70 + 34 * len(entries),
        show_legend=False,
        print_values=True,
        value_formatter=_number,
        title=title,
        show_x_guides=False,
        show_y_guides=True,
    )
    entries = entries[::-1]
    chart.x_labels = [entry.name for entry in entries]
    chart.add("", [{"value": entry.value, "color": entry.colour} for entry in entries])
    return _plain(chart)


def lines(title: str, over: Sequence[int], series: Mapping[str, Sequence[float | None]]) -> bytes:
    """Return a chart of lines over the numbers ``over``, evenly spaced; None leaves a gap."""
    chart = pygal.Line(
        **_COMMON,
        height=340,
        legend_at_bottom=True,
        value_formatter=_number,
        title=title,
        dots_size=4,
        range=(0, None),
    )
    chart.x_labels = [f"{number:,}" for number in over]
    for name, values in series.items():
        chart.add(name, values)
    return _plain(chart)


def save(path: Path, chart: bytes) -> None:
    """Write a chart."""
    path.write_bytes(chart)


def _plain(chart: Any) -> bytes:
    chart.uuid = "headrace"  # drawn by lot otherwise
    return _ADDED.sub(b"", chart.render()) + b"\n"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 or value == int(value) else f"{value:.2g}"  # noqa: PLR2004 - two digits
