"""Which tests a run has and in which order: the longest files first, of the slow ones a share.

The seconds of each file are in durations.json, written by a run with ``--store-durations``.
"""

from __future__ import annotations

import ast
import json
import subprocess
import zlib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]
_DURATIONS = Path(__file__).with_name("durations.json")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what ``make test`` and CI set."""
    group = parser.getgroup("headrace")
    group.addoption(
        "--slow-share",
        metavar="COUNT",
        type=int,
        default=1,
        help="of the slow tests, run one share of COUNT, the next one after each commit, and those "
        "that the last commit touched; 1 is all of them",
    )
    group.addoption(
        "--store-durations",
        action="store_true",
        help=f"write what the files of this run took to {_DURATIONS.relative_to(_ROOT)}",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Measure, where that is asked for; workers of pytest-xdist report to the process that asks."""
    if config.getoption("--store-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Stopwatch())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files first, and of the slow tests leave out other shares."""
    seconds = json.loads(_DURATIONS.read_text(encoding="utf-8"))
    # files that nobody has measured yet come first: they may be the longest
    items.sort(key=lambda item: -seconds.get(_file(item.path), float("inf")))
    count = config.getoption("--slow-share")
    if count > 1:
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        others = _others(slow, count)
        gone = {item for item in items if item.path in others and item.get_closest_marker("slow")}
        config.hook.pytest_deselected(items=list(gone))
        items[:] = [item for item in items if item not in gone]


def _others(files: set[Path], count: int) -> set[Path]:
    """Return the files that are in other shares and that nothing touched."""
    share = int(_git("rev-list", "--count", "HEAD") or 0) % count
    changed = set(_git("diff", "--name-only", "HEAD~1", "HEAD").split())
    others = {file for file in files if share_of(_file(file), count) != share}
    return {file for file in others if not touches(file, changed)}


def share_of(file: str, count: int) -> int:
    """Return which of so many shares a file of tests is in: always the same."""
    return zlib.crc32(file.encode()) % count


def touches(test: Path, changed: set[str]) -> bool:
    """Return whether a change of these files touches a test.

    It does if a file of the test's folder changed, or one of a room that it imports, itself or
    through helpers of tests. What every room builds on touches none.
    """
    if any(Path(_ROOT, file).parent == test.parent for file in changed):
        return True
    modules, waiting = {""}, [test]
    while waiting:
        for module in _imported(waiting.pop()) - modules:
            modules.add(module)
            file = _ROOT / f"{module.replace('.', '/')}.py"
            if module.startswith("tests.") and file.is_file():
                waiting.append(file)
    ours = (module.split(".") for module in modules if module.startswith("headrace."))
    rooms = tuple(f"headrace/{parts[1]}" for parts in ours)
    return any(file.startswith(rooms) for file in changed)


@cache
def _imported(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
    return {module for module in found if not module.startswith("headrace.core")}


def _git(*command: str) -> str:
    done = subprocess.run(
        ["git", *command], cwd=_ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout if done.returncode == 0 else ""


def _file(path: Path) -> str:
    return str(path.relative_to(_ROOT))


class _Stopwatch:
    """Adds up what the tests of each file take, with their set-up."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration  # type: ignore[assignment]

    def pytest_sessionfinish(self) -> None:
        known = json.loads(_DURATIONS.read_text(encoding="utf-8"))
        known.update({file: round(seconds) for file, seconds in self._seconds.items()})
        kept = {file: known[file] for file in sorted(known) if (_ROOT / file).exists()}
        _DURATIONS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
