"""Exceptions: as few as callers tell apart, each in its family's module and on one page."""

from __future__ import annotations

import ast
import builtins
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import headrace
from headrace.core.errors import Refusal
from tests.pages import ROOT

PACKAGE = Path(headrace.__file__).parent

#: Exception classes of the package.
MOST = 79

#: Raised to leave a thread or a function, and caught by what called it; a user sees none of them.
CONTROL_FLOW = {
    "EventRefusedError": "the collector turns it into a rejection, which has its text",
    "PoisonError": "a fold that is made again with care",
    "RowError": "a kernel of streams: its operator deals with the record",
    "StoppedEarlyError": "a signal during the start",
    "WorkerAbandoned": "a worker thread that another one has replaced",
}

#: Classes that are not in a module of errors, each with its reason.
ELSEWHERE = {
    "AnswerError": "beside the client that raises it, which must not load what the API takes",
    "ApiError": "beside the answer that it carries",
    "StoppedEarlyError": "beside the handler that raises it, and which imports nothing",
    "WorkerAbandoned": "beside the call that raises it",
}

_BUILT_IN = {
    name
    for name, found in vars(builtins).items()
    if isinstance(found, type) and issubclass(found, BaseException)
}


@dataclass(frozen=True, slots=True)
class ExceptionClass:
    """One class of the package that derives from BaseException."""

    name: str
    bases: tuple[str, ...]
    path: Path


@cache
def exception_classes() -> dict[str, ExceptionClass]:
    """Return the exception classes of the package by name, without importing it."""
    classes = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases = tuple(ast.unparse(base).rpartition(".")[2] for base in node.bases)
                classes[node.name, path] = ExceptionClass(node.name, bases, path)
    known, found = set(_BUILT_IN), {}
    while more := [each for each in classes.values() if known.intersection(each.bases)]:
        for each in more:
            del classes[each.name, each.path]
            assert each.name not in found, f"two exception classes are named {each.name}"
            found[each.name] = each
            known.add(each.name)
    return found


def derives_from(name: str, base: str, classes: dict[str, ExceptionClass]) -> bool:
    """Return whether a class of the package is ``base`` or derives from it."""
    if name == base:
        return True
    return name in classes and any(
        derives_from(each, base, classes) for each in classes[name].bases
    )


def shown_classes() -> dict[str, ExceptionClass]:
    """Return the exception classes that a user can meet."""
    return {
        name: found
        for name, found in exception_classes().items()
        if not name.startswith("_") and name not in CONTROL_FLOW
    }


def listed_names() -> list[str]:
    """Return the names in the first column of the tables of docs/errors.md."""
    lines = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8").splitlines()
    cells = [line.split("|")[1] for line in lines if line.startswith("| `")]
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


def test_page_of_errors_lists_each_class_that_a_user_can_meet() -> None:
    """It lists each of them once, and nothing else."""
    assert sorted(listed_names()) == sorted(shown_classes())


def test_exception_classes_are_no_more_than_callers_tell_apart() -> None:
    """The number does not grow by itself."""
    count = len(exception_classes())
    assert count == MOST, (
        f"the package has {count} exception classes, and {MOST} are written down here. Raise the "
        "class of a family in headrace/core/errors.py or of a room's errors.py, with a text that "
        "names the thing, the value and the next step. A class of its own is for what a caller "
        "tells apart by except or isinstance: then change the number here, and give the class a "
        "row in docs/errors.md"
    )


@pytest.mark.parametrize("name", sorted(shown_classes()))
def test_class_that_a_user_can_meet_has_a_family(name: str) -> None:
    """It derives from HeadraceError, so that a caller can catch all by one name."""
    assert derives_from(name, "HeadraceError", exception_classes())


def test_exception_classes_are_in_modules_of_errors() -> None:
    """Private ones stay with their only use."""
    stray = {
        found.name
        for found in exception_classes().values()
        if found.path.name != "errors.py" and not found.name.startswith("_")
    }
    assert stray == set(ELSEWHERE)


def test_control_flow_names_classes_that_exist() -> None:
    """None of them is left over."""
    assert set(CONTROL_FLOW) <= set(exception_classes())


@pytest.mark.parametrize("page", ["errors.md", "admin.md"])
@pytest.mark.parametrize("refusal", Refusal)
def test_refusals_are_documented(refusal: Refusal, page: str) -> None:
    """The page of errors and that of the API have each ``error`` that the API answers."""
    assert f"`{refusal.value}`" in (ROOT / "docs" / page).read_text(encoding="utf-8")
