"""Which tests a run has, in which order and in which process.

The longest files come first, and of the slow ones a share. The seconds of each file are in
durations.json, written by a run with ``--store-durations``. All tests of a file are in one process,
and so are all files that share a Spark session.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

_ROOT = Path(__file__).parents[1]
_DURATIONS = Path(__file__).with_name("durations.json")

#: What a file counts for, in seconds, until somebody measures it.
_UNMEASURED = 120

#: Folders whose folders are rooms.
_OF_ROOMS = ("apps", "extensions", "ops")

#: Where one session is shared, and how tests ask for it.
_SPARK = "tests/integration/extensions/spark"
_SHARED = re.compile(r"\b(spark_runtime|channel): ")


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
        others = _others(slow, count, seconds)
        gone = {item for item in items if item.path in others and item.get_closest_marker("slow")}
        config.hook.pytest_deselected(items=list(gone))
        items[:] = [item for item in items if item not in gone]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Divide the files among the processes; all that share a Spark session are for one of them."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import (  # type: ignore[import-untyped]  # noqa: PLC0415 - may be missing
        LoadFileScheduling,
    )

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(super()._split_scope(nodeid))

    return Scheduling(config, log)


@cache
def scope_of(file: str) -> str:
    """Return what is one process's: the file, or all those that share a Spark session.

    A session takes as much as dozens of tests to start, and again until its JVM has compiled.
    """
    in_room = file.startswith(_SPARK) and (_ROOT / file).is_file()
    shares = in_room and _SHARED.search((_ROOT / file).read_text(encoding="utf-8"))
    return _SPARK if shares else file


def _others(files: set[Path], count: int, seconds: Mapping[str, float]) -> set[Path]:
    """Return the files that are in other shares and that nothing touched."""
    changed = set(_git("diff", "--name-only", "HEAD~1", "HEAD").split())
    lengths = {file: seconds.get(_file(file), _UNMEASURED) for file in files}
    turn = int(_git("rev-list", "--count", "HEAD") or 0) % count
    others = files - shares(lengths, count)[turn]
    return {file for file in others if not touches(file, changed)}


def shares(lengths: Mapping[Path, float], count: int) -> list[set[Path]]:
    """Divide files into so many shares that take about as long: the longest go first."""
    found: list[set[Path]] = [set() for _ in range(count)]
    sums = [0.0] * count
    for file in sorted(lengths, key=lambda file: (-lengths[file], file)):
        least = sums.index(min(sums))
        found[least].add(file)
        sums[least] += lengths[file]
    return found


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
    rooms = tuple("/".join(parts[: 3 if parts[1] in _OF_ROOMS else 2]) for parts in ours)
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
