from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.extensions.spark import killed_replacing
from tests.integration.extensions.spark.killed import assert_nothing_lost_or_doubled

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("way", "lines"),
    [("delta-first", 90), ("delta-later", 200), ("delta-columns", 90), ("delta-frames", 150)],
)
def test_a_delta_sink_killed_at_every_line_loses_and_doubles_nothing(
    way: str, lines: int, tmp_path: Path
) -> None:
    """First commit, later one, one that adds a column, two of Spark's: the table is whole."""
    committed = (0, 1, 2) if way == "delta-frames" else (0, 1)
    assert_nothing_lost_or_doubled(way, str(tmp_path), lines, committed)


def test_a_group_killed_at_every_line_is_stored_whole_or_not_at_all(tmp_path: Path) -> None:
    """Two micro-batches in one version of a Delta table, or in one transaction of SQLite."""
    assert_nothing_lost_or_doubled("delta-group", str(tmp_path / "tables"), 200, (0, 2))
    url = f"sqlite:///{tmp_path / 'base.db'}"
    assert_nothing_lost_or_doubled("sql-group", url, 80, (0, 2))


def test_a_merge_killed_at_every_line_adds_each_record_once(tmp_path: Path) -> None:
    """The row of a key has the sum of all records below the stored offset, and the last of them."""
    assert_nothing_lost_or_doubled("delta-merge", str(tmp_path), 200, (0, 2))


def test_a_group_that_fails_and_is_killed_while_it_is_divided_loses_nothing(tmp_path: Path) -> None:
    """None, the first or both of two micro-batches with files in place already are stored."""
    assert_nothing_lost_or_doubled("delta-divided", str(tmp_path), 200, (0, 1, 2))


@pytest.mark.parametrize("way", ["sql-first", "sql-later"])
def test_a_sql_sink_killed_at_every_line_loses_and_doubles_nothing(
    way: str, tmp_path: Path
) -> None:
    """On SQLite, with offsets that are new, and with those that are there already."""
    assert_nothing_lost_or_doubled(way, f"sqlite:///{tmp_path / 'base.db'}", 80)


def test_an_upsert_killed_at_every_line_leaves_the_last_row_of_each_key(tmp_path: Path) -> None:
    """On SQLite: the row of a key is that of the record below the stored offset."""
    url = f"sqlite:///{tmp_path / 'base.db'}"
    assert_nothing_lost_or_doubled("sql-upsert", url, 80, (0, 2))


@pytest.mark.parametrize("kind", ["delta", "sql"])
def test_rows_say_which_records_they_are_of_wherever_a_sink_is_killed(
    kind: str, tmp_path: Path
) -> None:
    """With origins: from each offset on exactly the rows of its micro-batch can be replaced."""
    where = str(tmp_path) if kind == "delta" else f"sqlite:///{tmp_path / 'base.db'}"
    assert_nothing_lost_or_doubled(f"{kind}-origin", where, 80, (0, 2))


@pytest.mark.parametrize(("kind", "lines"), [("delta", 100), ("sql", 100)])
def test_a_range_is_replaced_whole_or_not_at_all(kind: str, lines: int, tmp_path: Path) -> None:
    """Killed at every line of it: rows and offsets are those of before, or those of after."""
    where = str(tmp_path) if kind == "delta" else f"sqlite:///{tmp_path / 'base.db'}"
    killed_replacing.assert_all_or_nothing(kind, where, lines)
