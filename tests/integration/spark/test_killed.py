from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.spark.killed import assert_nothing_lost_or_doubled

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("way", "lines"), [("delta-first", 90), ("delta-later", 200), ("delta-columns", 90)]
)
def test_a_delta_sink_killed_at_every_line_loses_and_doubles_nothing(
    way: str, lines: int, tmp_path: Path
) -> None:
    """First commit, later commit, one that adds a column: the next owner finds a whole table."""
    assert_nothing_lost_or_doubled(way, str(tmp_path), lines)


@pytest.mark.parametrize("way", ["sql-first", "sql-later"])
def test_a_sql_sink_killed_at_every_line_loses_and_doubles_nothing(
    way: str, tmp_path: Path
) -> None:
    """On SQLite, with offsets that are new, and with those that are there already."""
    assert_nothing_lost_or_doubled(way, f"sqlite:///{tmp_path / 'base.db'}", 80)
