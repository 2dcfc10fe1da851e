"""Moving the offsets in a Delta table without data."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from headrace.core.records import TopicPartition
from headrace.extensions.delta.sink import DeltaSink
from headrace.sinks import CommitConflictError, OffsetMove, TransactionalOffsets
from headrace.sinks.console import ConsoleSink
from tests.unit.extensions.delta.delta_tables import share, stage, visible, wrap_commit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def move(number: int, start: int, target: int) -> OffsetMove:
    """Return the move of one partition's offset."""
    return OffsetMove(f"id/{number}", TopicPartition("t", number), start, target)


def test_offsets_go_forward_and_back_without_data(sink: DeltaSink, folder: Path) -> None:
    """All move in one version, the rows stay, and the next commit goes on from there."""
    sink.commit(stage(sink, "two", [2]), [share(1, 0, 7)])
    version = DeltaTable(folder).version()

    sink.move_offsets([move(0, 10, 4), move(1, 7, 20)], "test")

    assert DeltaTable(folder).version() == version + 1
    assert [sink.stored_offset(f"id/{n}") for n in (0, 1)] == [4, 20]
    assert visible(folder) == [1, 2]
    sink.commit(stage(sink, "three", [3]), [share(0, 4, 10)])
    assert visible(folder) == [1, 2, 3]


def test_the_table_s_history_says_what_was_moved(folder: Path, sink: DeltaSink) -> None:
    """The note and the member stand in the commit, and no micro-batch does."""
    other = DeltaSink(folder, member="operator")
    assert sink.stored_offset("id/0") == other.stored_offset("id/0")

    other.move_offsets([move(0, 10, 0)], json.dumps({"operation": "reset"}))

    newest = DeltaTable(folder).history(1)[0]
    assert json.loads(newest["headrace_offsets"]) == {"operation": "reset"}
    assert newest["headrace_member"] == "operator"
    assert "headrace_micro_batch" not in newest


def test_an_offset_that_is_elsewhere_stops_all_moves(sink: DeltaSink, folder: Path) -> None:
    """A conflict with another writer names the partition, and no offset moves."""
    sink.commit(stage(sink, "two", [2]), [share(1, 0, 7)])

    with pytest.raises(CommitConflictError, match="t-1"):
        sink.move_offsets([move(0, 10, 4), move(1, 6, 20)], "test")

    assert [DeltaSink(folder).stored_offset(f"id/{n}") for n in (0, 1)] == [10, 7]


def test_a_member_that_commits_in_between_is_found(
    sink: DeltaSink,
    opened: Callable[[], DeltaSink],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The move is refused, and the member's data and offset stand."""
    member = opened()

    def member_first(call: Callable[[], None]) -> None:
        member.commit(stage(member, "two", [2]), [share(0, 10, 20)])
        call()

    wrap_commit(monkeypatch, member_first)
    with pytest.raises(CommitConflictError):
        sink.move_offsets([move(0, 10, 0)], "test")
    assert sink.stored_offset("id/0") == 20


def test_a_member_finds_that_its_offset_was_moved(
    sink: DeltaSink, opened: Callable[[], DeltaSink]
) -> None:
    """A member that was working meanwhile cannot commit: its batch does not begin there."""
    member = opened()
    assert member.stored_offset("id/0") == 10
    sink.move_offsets([move(0, 10, 0)], "test")
    with pytest.raises(CommitConflictError):
        member.commit(stage(member, "two", [2]), [share(0, 10, 20)])


def test_only_sinks_with_offsets_are_keepers(folder: Path) -> None:
    """A Delta sink keeps offsets that can be moved; a console does not."""
    assert isinstance(DeltaSink(folder), TransactionalOffsets)
    assert not isinstance(ConsoleSink(), TransactionalOffsets)
