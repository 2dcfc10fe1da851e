"""A benchmark without charts of its own: its figures as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from benchmarks.plotting.section import Section, heading, table

if TYPE_CHECKING:
    from collections.abc import Mapping

#: What the heading says.
_IN_HEADING = frozenset({"benchmark", "at", "cores", "python", "machine", "load", "packages"})


def section(line: Mapping[str, Any]) -> Section:
    """Return all figures, in the order in which the benchmark gave them."""
    rows = [(f"`{name}`", value) for name, value in line.items() if name not in _IN_HEADING]
    return Section(f"{heading(line)}\n{table(('figure', 'value'), rows)}")
