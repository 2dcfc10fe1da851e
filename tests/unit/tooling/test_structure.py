"""The structure of the package: which files depend on each other."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headrace
from headrace.channel.life import Life
from headrace.channel.log_doubt import LogDoubt
from headrace.channel.partition import OwnedPartition, WorkerHold
from headrace.channel.pending_commits import PendingCommits
from headrace.channel.progress import Progress
from headrace.channel.retries import Retries

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(headrace.__file__).parent

#: Files that may depend on each other in a circle. Larger circles can only be read as a whole.
LARGEST_CIRCLE = 3

#: Public methods and properties of one value of the partition.
MOST_METHODS = 25


def modules() -> dict[str, Path]:
    """Return each module's file by the module's name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules that a file imports, those under ``TYPE_CHECKING`` and in functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module


def graph() -> dict[str, set[str]]:
    """Return the imports of each module."""
    known = modules()
    return {name: set(imports(path, known)) - {name} for name, path in known.items()}


def circles(edges: dict[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components of two and more modules (Kosaraju's algorithm)."""
    order: list[str] = []
    seen: set[str] = set()
    for name in edges:
        _finish(name, edges, seen, order)
    reverse: dict[str, set[str]] = {name: set() for name in edges}
    for name, targets in edges.items():
        for target in targets:
            reverse[target].add(name)
    seen, found = set(), []
    for name in reversed(order):
        component: list[str] = []
        _finish(name, reverse, seen, component)
        if len(component) > 1:
            found.append(set(component))
    return found


def _finish(start: str, edges: dict[str, set[str]], seen: set[str], order: list[str]) -> None:
    """Append what ``start`` leads to in the order in which a depth-first search leaves it."""
    if start in seen:
        return
    seen.add(start)
    stack = [(start, iter(sorted(edges[start])))]
    while stack:
        name, targets = stack[-1]
        target = next((each for each in targets if each not in seen), None)
        if target is None:
            stack.pop()
            order.append(name)
        else:
            seen.add(target)
            stack.append((target, iter(sorted(edges[target]))))


def test_circles_finds_each_component_of_a_made_up_graph() -> None:
    """Modules that reach each other are one circle, and what only leads there is none."""
    edges = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert sorted(map(sorted, circles(edges))) == [["a", "b", "c"], ["d", "e"]]


def test_no_circle_of_imports_has_more_than_three_files() -> None:
    """Imports under ``TYPE_CHECKING`` count: they say what a reader has to know as well."""
    large = [sorted(found) for found in circles(graph()) if len(found) > LARGEST_CIRCLE]
    assert large == []


@pytest.mark.parametrize(
    "value", [OwnedPartition, Life, Progress, Retries, LogDoubt, PendingCommits, WorkerHold]
)
def test_a_value_of_the_partition_has_25_public_methods_at_most(value: type) -> None:
    """Each has rules of its own that can be read at once."""
    public = [name for name in vars(value) if not name.startswith("_")]
    assert len(public) <= MOST_METHODS, public


def test_only_the_channel_takes_the_whole_runtime() -> None:
    """Parts take the parts that they use, so that a signature shows the dependencies."""
    takers = {
        path.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.arg)
        and isinstance(node.annotation, ast.Name)
        and node.annotation.id == "ChannelRuntime"
    }
    assert takers == {"channel.py"}
