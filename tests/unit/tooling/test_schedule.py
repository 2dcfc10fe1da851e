"""Which tests a run has, and in which order."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from tests.schedule import pytest_xdist_make_scheduler, scope_of, shares, touches

_ROOT = Path(__file__).parents[3]
_SQL = Path(__file__).parents[2] / "integration" / "extensions" / "spark" / "test_sql.py"


@pytest.mark.parametrize("count", [2, 3, 5])
def test_each_file_comes_up_once_in_as_many_commits_as_there_are_shares(count: int) -> None:
    """Each is in exactly one share, and no share takes much longer than the others."""
    lengths = {Path(f"test_{n}.py"): float(100 + 37 * n % 101) for n in range(40)}
    found = shares(lengths, count)
    assert sorted(file for share in found for file in share) == sorted(lengths)
    sums = [sum(lengths[file] for file in share) for share in found]
    assert max(sums) - min(sums) <= max(lengths.values())


@pytest.mark.parametrize(
    ("changed", "touched"),
    [
        ("tests/integration/extensions/spark/test_sql.py", True),
        ("tests/integration/extensions/spark/conftest.py", True),
        ("headrace/extensions/spark/sql.py", True),
        ("headrace/extensions/sql/sink.py", False),
        ("headrace/ops/admin/page/page.css", False),
        ("docs/sinks/delta.md", False),
    ],
)
def test_a_change_touches_the_tests_of_its_folder_and_of_its_room(
    changed: str, *, touched: bool
) -> None:
    """A test of SQL reducers is touched by its room and its folder, and by no other extension."""
    assert touches(_SQL, {changed}) is touched


def test_durations_are_of_files_that_are_there() -> None:
    """Durations are known of many files, and of no removed one."""
    seconds = json.loads((_ROOT / "tests" / "durations.json").read_text(encoding="utf-8"))
    assert len(seconds) > 100
    assert all((_ROOT / file).is_file() for file in seconds)


@pytest.mark.parametrize(
    ("file", "scope"),
    [
        ("tests/integration/extensions/spark/test_sinks.py", "tests/integration/extensions/spark"),
        ("tests/integration/extensions/spark/test_decode.py", "tests/integration/extensions/spark"),
        ("tests/integration/extensions/spark/test_sql_processes.py", None),
        ("tests/integration/daemon/test_spark_signals.py", None),
        ("tests/unit/extensions/spark/test_lane.py", None),
    ],
)
def test_files_that_share_a_spark_session_share_a_process(file: str, scope: str | None) -> None:
    """Each other file may be in any process."""
    assert scope_of(file) == (scope or file)


def test_the_processes_are_given_work_by_that() -> None:
    """The scheduler divides by file alone: other ways are pytest-xdist's own."""
    config = MagicMock()
    config.getvalue.return_value = ["popen", "popen"]
    config.getoption.side_effect = {"dist": "loadfile"}.__getitem__
    scheduler = pytest_xdist_make_scheduler(config, None)
    assert scheduler._split_scope(
        "tests/integration/extensions/spark/test_sinks.py::T::test_a[1]"
    ) == ("tests/integration/extensions/spark")
    assert scheduler._split_scope("tests/unit/test_service.py::test_a") == (
        "tests/unit/test_service.py"
    )
    config.getoption.side_effect = {"dist": "load"}.__getitem__
    assert pytest_xdist_make_scheduler(config, None) is None
