from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.chaos.commits import Commit, _decoded, backwards
from benchmarks.chaos.oracle import Stored, acknowledged, compare

if TYPE_CHECKING:
    from pathlib import Path

_SENT = {0: 0, 1: 1, 2: 2}


def _stored(*numbers: int, member: str = "a") -> list[Stored]:
    return [Stored(number, "p-0", number, member, 1) for number in numbers]


def test_records_stored_once_and_in_order_are_right() -> None:
    """No record is lost, duplicated or disordered."""
    found = compare(_SENT, _stored(0, 1, 2))
    assert (found.lost, found.duplicated, found.disordered) == (0, 0, 0)
    assert found.acknowledged == found.stored == 3


def test_a_missing_record_is_lost() -> None:
    """Each acknowledged record that no sink has counts."""
    assert compare(_SENT, _stored(0, 2)).lost == 1


def test_a_missing_unreadable_record_is_not_lost() -> None:
    """The record counts separately, and only if it is missing."""
    found = compare(_SENT, _stored(0), waits=lambda number: number < 2)
    assert (found.lost, found.unreadable) == (1, 1)


def test_each_further_occurrence_is_a_duplicate() -> None:
    """A record that occurs three times is duplicated twice, and not out of order."""
    found = compare(_SENT, _stored(0, 1, 1, 2, 1))
    assert (found.duplicated, found.disordered) == (2, 0)


def test_a_record_behind_a_later_one_is_disordered() -> None:
    """The first occurrence of each record has to rise within its partition."""
    assert compare(_SENT, _stored(0, 2, 1)).disordered == 1


def test_a_record_whose_acknowledgement_got_lost_may_be_there() -> None:
    """It is neither lost nor a duplicate."""
    found = compare({0: 0}, _stored(0, 1))
    assert (found.lost, found.duplicated) == (0, 0)


def test_moves_are_changes_of_the_writer() -> None:
    """A claim that went to another member and came back moved twice."""
    rows = [*_stored(0), *_stored(1, member="b"), *_stored(2)]
    found = compare(_SENT, [*rows, Stored(3, "p-1", 0, "a", 1)])
    assert (found.claims, found.moved, found.moves) == (2, 1, 2)


def test_a_line_that_is_not_whole_is_not_read(tmp_path: Path) -> None:
    """The producer may be writing it just now."""
    path = tmp_path / "acknowledged"
    path.write_text("0 0\n1 1\n2", encoding="utf-8")
    assert acknowledged(path) == {0: 0, 1: 1}


def test_a_lower_commit_than_the_one_before_is_backwards() -> None:
    """Each partition of each group counts for itself, and an equal commit is none."""
    commits = [
        Commit("g", "t", 0, 5),
        Commit("g", "t", 1, 1),
        Commit("other", "t", 0, 9),
        Commit("g", "t", 0, 5),
        Commit("g", "t", 0, 4),
        Commit("g", "t", 0, 6),
    ]
    assert backwards(commits, ["g"]) == {"g": 1}


def test_a_commit_is_decoded_and_everything_else_is_left_out() -> None:
    """Tombstones and keys of other kinds are no commits."""
    key = b"\x00\x01\x00\x01g\x00\x02tt\x00\x00\x00\x03"
    value = b"\x00\x03" + (77).to_bytes(8, "big") + b"rest"
    assert _decoded(key, value) == Commit("g", "tt", 3, 77)
    assert _decoded(key, None) is None
    assert _decoded(b"\x00\x02\x00\x01g", value) is None
