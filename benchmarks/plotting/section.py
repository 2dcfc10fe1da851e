"""A part of the page, and what all of them say alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.rounds import SHORTEST

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


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
    return f"## `{line['benchmark']}`\n\n{', '.join(said)}.{ended}\n{_short_rounds(line)}"


def _short_rounds(line: Mapping[str, Any]) -> str:
    """Return what to say of a line that was kept before short rounds were refused."""
    found = list(_seconds(line))
    short = [each for each in found if each < SHORTEST]
    if not short:
        return ""
    return (
        f"\n**Kept from before rounds shorter than {SHORTEST:g} seconds were refused**: "
        f"{len(short)} of its {len(found)} times are shorter, {min(short):g} s at the least, and "
        "what a process does once is a large part of those. To be measured again.\n"
    )


def _seconds(measured: Mapping[str, Any]) -> Iterator[float]:
    """Yield the times that rounds took, wherever they stand."""
    for name, value in measured.items():
        if isinstance(value, dict):
            yield from _seconds(value)
        elif "seconds" in name.split("_") and "cpu" not in name:
            yield from value if isinstance(value, list) else [value]


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
