from __future__ import annotations

from typing import TYPE_CHECKING

from tests.integration.extensions.spark import sql_processes

if TYPE_CHECKING:
    from pathlib import Path


def test_a_process_killed_at_every_step_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """From plan to answer: before and after each statement and COMMIT, rows and offsets agree."""
    sql_processes.assert_killed_at_every_step(f"sqlite:///{tmp_path / 'base.db'}")


def test_processes_that_fight_over_partitions_store_each_offset_once(tmp_path: Path) -> None:
    """Members that take each other's partitions are told so, and what is stored is whole."""
    sql_processes.assert_fights_store_each_offset_once(f"sqlite:///{tmp_path / 'base.db'}", 20)
