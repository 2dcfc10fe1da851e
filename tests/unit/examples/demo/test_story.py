from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from examples.demo.record import Kill, RunRecord, describe, read_record, rows_in, take_over
from examples.demo.story import KILL_TO, DemoPhase, may_kill, next_phase
from examples.harness.flights import DemoError
from examples.harness.progress import Gate, gates
from tests.unit.examples.demo.table import commit

if TYPE_CHECKING:
    from pathlib import Path

BOTH = {"a": frozenset({0, 1}), "b": frozenset({2, 3})}
RECORD = RunRecord(rows=100, members=("a", "b"))
KILLED = RunRecord(100, ("a", "b"), Kill("b", at=10.0, version=2, partitions=(2, 3)))
BACK = RunRecord(100, ("a", "b"), KILLED.kill, restart_version=3)

EARLY = [commit(0, None), commit(1, "a", {0: 20}), commit(2, "b", {2: 30})]
TAKEN = [*EARLY, commit(3, "a", {2: 35, 0: 25}, at=14.5)]


def test_no_daemon_is_killed_before_both_have_committed() -> None:
    """Half of the rows, all by one member, are not enough."""
    assert not may_kill([commit(0, None), commit(1, "a", {0: 50})], RECORD)


@pytest.mark.parametrize(("last", "expected"), [(9, False), (10, True), (40, True), (41, False)])
def test_the_kill_has_its_window(last: int, expected: bool) -> None:
    """Both have committed: the kill happens from 40 % to 70 % of the rows in the table."""
    commits = [commit(0, None), commit(1, "a", {0: 30}), commit(2, "b", {2: last})]
    assert may_kill(commits, RECORD) is expected


def test_the_window_cannot_be_missed() -> None:
    """Until the kill, fewer rows are produced than the window's end, so no stall runs past it."""
    assert gates(DemoPhase)[DemoPhase.FLOWING] is Gate.BEFORE_KILL
    assert Gate.BEFORE_KILL.value < KILL_TO


def test_offsets_of_a_partition_are_counted_once() -> None:
    """Rows in the table are the sum of each partition's newest offset."""
    assert rows_in(TAKEN) == 60


@pytest.mark.parametrize(
    "holdings",
    [
        {},
        {"a": frozenset(range(4))},
        {"a": frozenset({0, 1}), "b": frozenset({2})},
        {"a": frozenset(range(4)), "b": frozenset()},
    ],
)
def test_production_waits_for_both_daemons(holdings: dict[str, frozenset[int]]) -> None:
    """While a partition is unowned, or a member without one, nothing begins and nothing ends."""
    assert next_phase(DemoPhase.STARTING, [], holdings, RECORD, 4) is DemoPhase.STARTING
    assert next_phase(DemoPhase.RETURNING, [], holdings, BACK, 4) is DemoPhase.RETURNING


def test_the_story_goes_from_fact_to_fact() -> None:
    """Each phase ends when its fact is recorded."""
    assert next_phase(DemoPhase.STARTING, [], BOTH, RECORD, 4) is DemoPhase.FLOWING
    assert next_phase(DemoPhase.FLOWING, EARLY, BOTH, RECORD, 4) is DemoPhase.TAKING_OVER
    assert next_phase(DemoPhase.TAKING_OVER, EARLY, BOTH, KILLED, 4) is DemoPhase.TAKING_OVER
    assert next_phase(DemoPhase.TAKING_OVER, TAKEN, BOTH, KILLED, 4) is DemoPhase.RETURNING
    assert next_phase(DemoPhase.RETURNING, TAKEN, BOTH, BACK, 4) is DemoPhase.FINISHING
    assert next_phase(DemoPhase.FINISHING, TAKEN, BOTH, BACK, 4) is DemoPhase.FINISHING
    ended = [*TAKEN, commit(4, "b", {2: 50}), commit(5, "a", {0: 50})]
    assert next_phase(DemoPhase.FINISHING, ended, BOTH, BACK, 4) is DemoPhase.DONE


def test_a_member_that_stays_idle_after_the_restart_fails_the_demo() -> None:
    """Everything in the table is not enough when only one member had a part in the rest."""
    ended = [*TAKEN, commit(4, "a", {0: 50, 2: 50})]
    with pytest.raises(DemoError, match="b committed nothing after the restart"):
        next_phase(DemoPhase.FINISHING, ended, BOTH, BACK, 4)


def test_a_take_over_moves_a_partition_of_the_killed_member() -> None:
    """Commits before the kill, of the member itself, or on other partitions are none."""
    assert KILLED.kill is not None
    assert take_over(EARLY, KILLED.kill) is None
    assert take_over([*EARLY, commit(3, "a", {0: 30})], KILLED.kill) is None
    assert take_over([*EARLY, commit(3, "b", {2: 30})], KILLED.kill) is None
    assert take_over(TAKEN, KILLED.kill) == TAKEN[3]


def test_the_log_tells_the_run() -> None:
    """The report has the commits of each member, the kill point and the take-over's seconds."""
    ended = [*TAKEN, commit(4, "b", {2: 50}), commit(5, "a", {0: 50})]
    assert describe(BACK, ended) == [
        "commits per member: a 3, b 2",
        "kill point: b, holding partitions 2 3, by SIGKILL with 50 rows in (50.0%)",
        "take-over: 4.5 s from the kill to the commit in which a first moved a partition of b",
        "commits after b was started again: a 1, b 1",
    ]


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    """A record of a work directory is read back; an empty directory has none."""
    assert read_record(tmp_path) is None
    BACK.write(tmp_path)
    assert read_record(tmp_path) == BACK


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    """A file that holds no record is an error with the file's name."""
    (tmp_path / "run.json").write_text("[]", encoding="utf-8")
    with pytest.raises(DemoError, match=r"run\.json does not hold the record"):
        read_record(tmp_path)
