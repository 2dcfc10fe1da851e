"""What the code logs, read from its calls, and docs/events.md with it.

A call names an event, its level and most of its fields, so these come from the code. The sentence
in between is written by hand. Fields that are bound to a logger, or passed on in a mapping, are in
no call: they stay as the page has them.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    _Function = ast.FunctionDef | ast.AsyncFunctionDef

_ROOT = Path(__file__).resolve().parent.parent
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_EVENT = re.compile(r"[a-z]+(_[a-z]+)+")

#: Levels, the least urgent first.
_LEVELS = ("debug", "info", "warning", "error")

#: The methods of a logger that log an event.
_METHODS = {*_LEVELS, "exception", "log"}

#: What no call logs by this name: the name that the lines of the libraries are given.
_GIVEN = "library_log"

#: Where events go that the page does not describe yet.
UNDESCRIBED = "\n## To be described\n\n| event | level | when | fields |\n|---|---|---|---|\n"


@dataclass
class Event:
    """Levels and fields; of the code's, as far as its calls name them."""

    levels: set[str] = field(default_factory=set)
    fields: set[str] = field(default_factory=set)


@cache
def logged() -> dict[str, Event]:
    """Return what the code logs."""
    found: dict[str, Event] = defaultdict(Event)
    for file in sorted((_ROOT / "headrace").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if "get_logger" not in text:
            continue
        tree = ast.parse(text)
        functions = [node for node in ast.walk(tree) if isinstance(node, _FUNCTION)]
        made = {function: list(_calls(function)) for function in functions}
        silent = [function for function in functions if not made[function]]
        for function in functions:
            for level, call in made[function]:
                for name in _names(call, function, silent):
                    found[name].levels |= level
                    found[name].fields |= {k.arg for k in call.keywords if k.arg} - {"exc_info"}
    pipe = (_ROOT / "headrace" / "telemetry" / "logs" / "pipe.py").read_text(encoding="utf-8")
    assert f'event["event"] = event["event"], "{_GIVEN}"' in pipe
    found[_GIVEN].fields.add("detail")
    return dict(found)


def _calls(function: ast.AST) -> Iterator[tuple[set[str], ast.Call]]:
    """Yield the calls that log something, with their levels; none for a computed level."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            level = node.func.attr
            if level in _METHODS and ast.unparse(node.func.value) in {"log", "self._log"}:
                yield {"error" if level == "exception" else level} - {"log"}, node


def _names(call: ast.Call, function: _Function, silent: list[_Function]) -> set[str]:
    """Return the events that a call may log.

    A variable stands for what the function assigns to it, or else for an event that a function of
    the module hands on: one that logs nothing itself.
    """
    assert isinstance(call.func, ast.Attribute)
    first = call.args[1 if call.func.attr == "log" else 0]
    if isinstance(first, ast.Constant):
        return {str(first.value)}
    assigned = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == ast.unparse(first)
    ]
    return {
        node.value
        for source in assigned or silent
        for node in ast.walk(source)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and _EVENT.fullmatch(node.value)
    }


def update(page: str) -> str:
    """Return docs/events.md with levels and fields completed, and without events that are gone."""
    lines, described = [], set()
    for line in page.partition(UNDESCRIBED)[0].splitlines():
        if not line.startswith("| `"):
            lines.append(line)
            continue
        name, levels, when, fields = (cell.strip() for cell in line.strip("|").split("|"))
        name = name.strip("`")
        if name in logged():
            described.add(name)
            lines.append(_row(name, levels, when, fields))
    new = [_row(name, "", "", "") for name in sorted(logged().keys() - described)]
    rest = UNDESCRIBED + "\n".join(new) + "\n" if new else ""
    return "\n".join(lines) + "\n" + rest


def _row(name: str, levels: str, when: str, fields: str) -> str:
    event = logged()[name]
    if not event.levels <= set(levels.split(", ")):
        told = event.levels | set(filter(None, levels.split(", ")))
        levels = ", ".join(sorted(told, key=_LEVELS.index))
    missing = event.fields - set(re.findall(r"`([a-z_]+)`", fields))
    added = [f"`{each}`" for each in sorted(missing)]
    return f"| `{name}` | {levels} | {when} | {', '.join(filter(None, [fields, *added]))} |"
