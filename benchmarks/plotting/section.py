"""A part of the page, and what all of them say alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Section:
    """Text in Markdown, and charts by file name."""

    text: str
    charts: Mapping[str, bytes] = field(default_factory=dict)


def heading(line: Mapping[str, Any]) -> str:
    """Return the heading, when it was, on what machine, and how busy that was."""
    said = [
        f"{line['at'][:16].replace('T', ' ')} UTC",
        f"{line['cores']} cores",
        *[str(fact) for fact in line.get("machine", {}).values()],
        f"Python {line['python']}",
        *[f"{name} {version}" for name, version in line.get("packages", {}).items()],
    ]
    load = ", ".join(map(str, line.get("load", ())))
    ended = f" Load when it ended, over 1, 5 and 15 minutes: {load}." if load else ""
    return f"## `{line['benchmark']}`\n\n{', '.join(said)}.{ended}\n"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table, numbers to the right."""
    numeric = [all(isinstance(row[n], (int, float)) for row in rows) for n in range(len(head))]
    rule = ["---:" if right else "---" for right in numeric]
    texts = [head, rule, *[[shown(cell) for cell in row] for row in rows]]
    return "\n".join(f"| {' | '.join(text)} |" for text in texts) + "\n"


def shown(value: object) -> str:
    """Return a figure as it is read best."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {shown(each)}" for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(shown, value))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else str(value)


def verdict(figure: float | None, target: float, *, at_least: bool) -> str:
    """Return whether a target is met."""
    if figure is None:
        return "not measured"
    return "met" if (figure >= target if at_least else figure <= target) else "**missed**"
