"""docs/events.md against what the code logs."""

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

_ROOT = Path(__file__).parents[3]
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_LEVELS = {"debug", "info", "warning", "error", "exception", "log"}
_EVENT = re.compile(r"[a-z]+(_[a-z]+)+")

#: What no call logs by this name: the name that the lines of the libraries are given.
_GIVEN = "library_log"


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
        made = {function: list(calls(function)) for function in functions}
        silent = [function for function in functions if not made[function]]
        for function in functions:
            for level, call in made[function]:
                for name in names(call, function, silent):
                    found[name].levels |= level
                    found[name].fields |= {k.arg for k in call.keywords if k.arg} - {"exc_info"}
    pipe = (_ROOT / "headrace" / "telemetry" / "logs" / "pipe.py").read_text(encoding="utf-8")
    assert f'event["event"] = event["event"], "{_GIVEN}"' in pipe
    found[_GIVEN].fields.add("detail")
    return dict(found)


def calls(function: ast.AST) -> Iterator[tuple[set[str], ast.Call]]:
    """Yield the calls that log something, with their levels; none for one that is worked out."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            level = node.func.attr
            if level in _LEVELS and ast.unparse(node.func.value) in {"log", "self._log"}:
                yield {"error" if level == "exception" else level} - {"log"}, node


def names(call: ast.Call, function: _Function, silent: list[_Function]) -> set[str]:
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


def described() -> dict[str, Event]:
    """Return what stands on the page."""
    found: dict[str, Event] = {}
    for line in (_ROOT / "docs" / "events.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            name, levels, _, fields = (cell.strip() for cell in line.strip("|").split("|"))
            assert name not in found, f"{name} stands there twice"
            found[name.strip("`")] = Event(
                set(levels.split(", ")), set(re.findall(r"`([a-z_]+)`", fields))
            )
    return found


def test_the_page_has_every_event() -> None:
    """What the code logs stands in docs/events.md, and what stands there is logged."""
    assert described().keys() == logged().keys()


def test_the_page_has_levels_and_fields_of_each_event() -> None:
    """Each level and each field that a call names is on the page."""
    page, wrong = described(), {}
    for name, event in logged().items():
        levels, fields = event.levels - page[name].levels, event.fields - page[name].fields
        if levels or fields:
            wrong[name] = (levels, fields)
    assert wrong == {}
