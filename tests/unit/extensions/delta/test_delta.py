from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from headrace.core.errors import SinkFailedError
from headrace.core.records import TopicPartition
from headrace.sinks.errors import CommitConflictError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.extensions.delta.sink import DeltaSink

from tests.unit.extensions.delta.delta_tables import (
    data_files,
    lose_the_table,
    share,
    stage,
    visible,
    wrap_commit,
)


def test_a_commit_that_raises_after_it_happened_is_found(
    sink: DeltaSink, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown outcome is read back from the table: stored means done, once."""

    def commit_then_raise(call: Callable[[], None]) -> None:
        call()
        raise OSError("the answer was lost")

    wrap_commit(monkeypatch, commit_then_raise)

    sink.commit(stage(sink, "two", [2]), [share(0, 10, 20)])

    assert visible(folder) == [1, 2]
    assert sink.stored_offset("id/0") == 20
    sink.commit(stage(sink, "three", [3]), [share(0, 20, 30)])
    assert visible(folder) == [1, 2, 3]


def test_a_commit_that_raises_before_it_happened_stores_nothing(
    sink: DeltaSink, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure that stored nothing is raised, leaves no file behind, and may be replayed."""

    def fail(_: Callable[[], None]) -> None:
        raise OSError("disk full")

    wrap_commit(monkeypatch, fail)
    staged = stage(sink, "two", [2])

    with pytest.raises(OSError, match="disk full"):
        sink.commit(staged, [share(0, 10, 20)])
    sink.discard(staged)

    assert (visible(folder), data_files(folder)) == ([1], 1)
    sink.commit(stage(sink, "again", [2]), [share(0, 10, 20)])
    assert visible(folder) == [1, 2]


def test_files_stay_when_the_outcome_cannot_be_read(
    sink: DeltaSink, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the table cannot be read either, its files are kept and a replay is refused."""
    lose_the_table(monkeypatch, folder)
    staged = stage(sink, "two", [2])
    with pytest.raises(OSError, match="went away"):
        sink.commit(staged, [share(0, 10, 20)])
    sink.discard(staged)
    (folder / "_hidden").rename(folder / "_delta_log")

    assert visible(folder) == [1, 2]
    with pytest.raises(CommitConflictError):
        sink.commit(stage(sink, "again", [2]), [share(0, 10, 20)])
    assert sink.stored_offset("id/0") == 20


def test_files_stay_when_the_next_owner_went_on_behind_an_unknown_outcome(
    sink: DeltaSink, opened: Callable[[], DeltaSink], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that was made is known by its files, also where its offset stands no longer."""
    other = opened()

    def commit_and_fail_late(call: Callable[[], None]) -> None:
        call()
        other.commit(stage(other, "next", [3]), [share(0, 20, 30)])
        raise OSError("the disk went away")

    wrap_commit(monkeypatch, commit_and_fail_late)
    staged = stage(sink, "two", [2])
    sink.commit(staged, [share(0, 10, 20)])
    sink.discard(staged)

    assert visible(folder) == [1, 2, 3]
    assert sink.stored_offset("id/0") == 30


def test_a_vacuum_leaves_files_that_are_about_to_be_committed(
    sink: DeltaSink, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files whose job took longer than files are kept are young again once they are in place."""
    staged = stage(sink, "two", [2])
    assert staged.folder is not None
    for path in staged.folder.iterdir():
        os.utime(path, (0, 0))

    def vacuum_first(call: Callable[[], None]) -> None:
        DeltaTable(folder).vacuum(dry_run=False, full=True)
        call()

    wrap_commit(monkeypatch, vacuum_first)
    sink.commit(staged, [share(0, 10, 20)])

    assert visible(folder) == [1, 2]


def test_a_crash_between_rename_and_commit_shows_nothing(
    sink: DeltaSink, opened: Callable[[], DeltaSink], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files in place that no commit names are invisible, and the range can be stored again."""

    class CrashError(BaseException):
        """Stands for the end of the process."""

    def crash(_: Callable[[], None]) -> None:
        raise CrashError

    wrap_commit(monkeypatch, crash)
    with pytest.raises(CrashError):
        sink.commit(stage(sink, "two", [2]), [share(0, 10, 20)])
    assert data_files(folder) == 2

    after = opened()

    assert after.stored_offset("id/0") == 10
    after.commit(stage(after, "again", [2]), [share(0, 10, 20)])
    assert visible(folder) == [1, 2]


def test_a_stale_handle_cannot_commit_over_a_new_owner(
    sink: DeltaSink, opened: Callable[[], DeltaSink], folder: Path
) -> None:
    """A former owner whose handle never saw the new owner's commit is refused."""
    new_owner = opened()
    new_owner.commit(stage(new_owner, "new", [2]), [share(0, 10, 20)])

    with pytest.raises(CommitConflictError) as caught:
        sink.commit(stage(sink, "old", [3]), [share(0, 10, 15), share(1, 0, 5)])

    (conflict,) = caught.value.conflicts
    assert (conflict.partition, conflict.stored) == (TopicPartition("t", 0), 20)
    assert visible(folder) == [1, 2]
    assert new_owner.stored_offset("id/1") is None


def test_a_race_between_check_and_commit_is_refused(
    sink: DeltaSink,
    opened: Callable[[], DeltaSink],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another owner's commit in the moment between check and commit is a conflict, too."""
    other = opened()

    def let_the_other_go_first(call: Callable[[], None]) -> None:
        other.commit(stage(other, "new", [2]), [share(0, 10, 20)])
        call()

    wrap_commit(monkeypatch, let_the_other_go_first)
    staged = stage(sink, "old", [3])
    with pytest.raises(CommitConflictError):
        sink.commit(staged, [share(0, 10, 15)])
    sink.discard(staged)

    assert (visible(folder), data_files(folder)) == ([1, 2], 2)


def test_a_writer_of_other_partitions_is_no_conflict(
    sink: DeltaSink,
    opened: Callable[[], DeltaSink],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A commit that comes second, to one that moved none of our offsets, is made again."""
    other = opened()

    def let_the_other_go_first(call: Callable[[], None]) -> None:
        other.commit(stage(other, "other", [2]), [share(1, 0, 10)])
        call()

    wrap_commit(monkeypatch, let_the_other_go_first, lambda call: call())
    sink.commit(stage(sink, "mine", [3]), [share(0, 10, 20)])
    sink.commit(stage(sink, "next", [4]), [share(0, 20, 30)])

    assert visible(folder) == [1, 2, 3, 4]


def test_endless_conflicts_end(
    sink: DeltaSink, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that comes second again and again fails instead of going on for ever."""

    def refuse(_: Callable[[], None]) -> None:
        """Be second."""

    wrap_commit(monkeypatch, *[refuse] * 1_000)

    with pytest.raises(SinkFailedError, match="let fewer members write"):
        sink.commit(stage(sink, "two", [2]), [share(0, 10, 20)])
    assert visible(folder) == [1]
