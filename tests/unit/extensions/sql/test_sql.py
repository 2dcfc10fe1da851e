from __future__ import annotations

import sqlite3
import traceback
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from headrace.core.errors import RowsRefusedError, StartError
from headrace.core.records import TopicPartition
from headrace.extensions.sql.offsets import OffsetsTable
from headrace.extensions.sql.sink import SqlSink, StagedRows
from headrace.sinks.contract import OffsetMove, TransactionalOffsets
from headrace.sinks.errors import CommitConflictError
from tests.unit.extensions.sql.sql_tables import Base, share, staged, wrap_commit

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def sink(sinks: Callable[..., SqlSink]) -> SqlSink:
    """Open one sink that has stored [0, 10) of partition 0 with one row."""
    sink = sinks(member="m1")
    sink.open()
    sink.commit(staged(sink, [{"id": 1, "name": "a"}]), [share(0, 0, 10)])
    return sink


def _lose(_: Callable[[], None]) -> None:
    raise sqlite3.OperationalError("connection lost")


def test_a_commit_whose_answer_is_lost_is_found_stored(base: Base, sink: SqlSink) -> None:
    """A COMMIT that took effect and raised all the same is one that succeeded."""

    def commit_and_lose(call: Callable[[], None]) -> None:
        call()
        _lose(call)

    wrap_commit(sink, commit_and_lose)
    with capture_logs() as events:
        sink.commit(staged(sink, [{"id": 2, "name": "b"}]), [share(0, 10, 20)])

    assert base.rows() == [(1, "a"), (2, "b")]
    assert sink.stored_offset("id/0") == 20
    assert [event["event"] for event in events] == ["sql_commit_found_stored"]


def test_a_commit_that_did_not_happen_raises_and_can_be_repeated(base: Base, sink: SqlSink) -> None:
    """With offsets unchanged nothing was stored, and the same range may follow."""
    rows = staged(sink, [{"id": 2, "name": "b"}])
    wrap_commit(sink, _lose)
    with pytest.raises(OperationalError, match="connection lost"):
        sink.commit(rows, [share(0, 10, 20)])
    assert base.rows() == [(1, "a")]

    sink.commit(rows, [share(0, 10, 20)])

    assert base.rows() == [(1, "a"), (2, "b")]


def test_an_outcome_that_cannot_be_looked_up_is_decided_by_the_replay(
    base: Base, sink: SqlSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised as it was; the replay of what was stored is refused."""

    def commit_and_vanish(call: Callable[[], None]) -> None:
        call()
        monkeypatch.setattr(OffsetsTable, "offset", lambda *_: _lose_connection())
        _lose(call)

    def _lose_connection() -> int:
        raise OperationalError("SELECT", {}, sqlite3.OperationalError("no way in"))

    rows = staged(sink, [{"id": 2, "name": "b"}])
    wrap_commit(sink, commit_and_vanish)
    with capture_logs() as events, pytest.raises(OperationalError, match="connection lost"):
        sink.commit(rows, [share(0, 10, 20)])
    assert [event["event"] for event in events] == ["sql_outcome_unknown"]
    monkeypatch.undo()

    with pytest.raises(CommitConflictError):
        sink.commit(rows, [share(0, 10, 20)])
    assert base.rows() == [(1, "a"), (2, "b")]


def test_a_transaction_that_was_never_begun_has_a_known_outcome(
    base: Base, sink: SqlSink, tmp_path: Path
) -> None:
    """Without a connection nothing was stored: the error is raised, and nothing else is said."""
    rows = staged(sink, [{"id": 2, "name": "b"}])
    sink.close()
    base.path.rename(tmp_path / "away")
    base.path.mkdir()
    with capture_logs() as events, pytest.raises(OperationalError, match="unable to open"):
        sink.commit(rows, [share(0, 10, 20)])
    assert events == []
    base.path.rmdir()
    (tmp_path / "away").rename(base.path)

    sink.commit(rows, [share(0, 10, 20)])

    assert base.rows() == [(1, "a"), (2, "b")]


def test_a_transaction_that_broke_before_its_commit_is_not_taken_for_stored(
    base: Base, sink: SqlSink, sinks: Callable[..., SqlSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offset at the end of the range was moved by another owner, which is a conflict."""
    other = sinks()

    def overtaken(*_: Any) -> None:
        monkeypatch.undo()
        other.move_offsets([OffsetMove("id/0", TopicPartition("t", 0), 10, 20)], "by hand")
        raise OperationalError("INSERT", {}, sqlite3.OperationalError("connection lost"))

    monkeypatch.setattr(OffsetsTable, "move", overtaken)
    with capture_logs() as events, pytest.raises(CommitConflictError) as caught:
        sink.commit(staged(sink, [{"id": 2, "name": "b"}]), [share(0, 10, 20)])

    assert [(each.expected, each.stored) for each in caught.value.conflicts] == [(10, 20)]
    assert events == []
    assert base.rows() == [(1, "a")]


class Refused(sqlite3.IntegrityError):
    """An error as psycopg's are: text with all the server says, and its parts."""

    def __init__(self, primary: str, constraint: str | None) -> None:
        super().__init__(f"{primary}\nDETAIL:  Failing row contains (1, hunter2).")
        self.diag = SimpleNamespace(message_primary=primary, constraint_name=constraint)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Refused('null value in column "name"', None), 'null value in column "name"'),
        (Refused('violates "rule"', "rule"), 'violates "rule"'),
        (Refused("no such city", "city"), 'no such city (constraint "city")'),
    ],
)
def test_a_refused_row_is_in_no_message_and_no_traceback(
    sink: SqlSink, error: Refused, said: str
) -> None:
    """Details from the server beyond the primary message and the constraint's name are left out."""

    def refuse(_: Callable[[], None]) -> None:
        raise error

    wrap_commit(sink, refuse)
    with pytest.raises(RowsRefusedError) as caught:
        sink.commit(staged(sink, [{"id": 2, "name": "b"}]), [share(0, 10, 20)])

    shown = "".join(traceback.format_exception(caught.value))
    assert str(caught.value).endswith(f": {said}")
    assert said in shown
    assert "hunter2" not in shown
    assert "DETAIL" not in shown


def test_a_lost_commit_that_another_owner_overtook_is_a_conflict(
    sink: SqlSink, sinks: Callable[..., SqlSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the offsets have moved elsewhere by the time they are looked at, that is said."""
    other = sinks()

    rows = staged(sink, [{"id": 2, "name": "b"}])
    wrap_commit(sink, _lose)
    real = OffsetsTable.offset

    def move_first(*arguments: Any) -> int | None:
        other.move_offsets([OffsetMove("id/0", TopicPartition("t", 0), 10, 15)], "by hand")
        return real(*arguments)

    monkeypatch.setattr(OffsetsTable, "offset", move_first)
    with pytest.raises(CommitConflictError) as caught:
        sink.commit(rows, [share(0, 10, 20)])

    (conflict,) = caught.value.conflicts
    assert (conflict.expected, conflict.stored) == (10, 15)


def test_a_transaction_that_gave_way_is_made_again(
    base: Base, sink: SqlSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deadlock or a serialization failure undid everything, so the same is done once more."""
    deadlock = sqlite3.OperationalError("deadlock detected")
    deadlock.sqlstate = "40P01"  # type: ignore[attr-defined]
    real, turns = OffsetsTable.move, []

    def move(*arguments: Any) -> None:
        turns.append(1)
        if len(turns) < 3:
            raise OperationalError("UPDATE", {}, deadlock)
        real(*arguments)

    monkeypatch.setattr(OffsetsTable, "move", move)
    with capture_logs() as events:
        sink.commit(staged(sink, [{"id": 2, "name": "b"}]), [share(0, 10, 20)])

    assert base.rows() == [(1, "a"), (2, "b")]
    assert [(each["event"], each["log_level"], each["attempt"]) for each in events] == [
        ("sql_commit_repeated", "warning", 1),
        ("sql_commit_repeated", "warning", 2),
    ]


def test_a_row_that_the_database_refuses_undoes_the_rest(base: Base, sink: SqlSink) -> None:
    """A violated constraint leaves rows and offsets as they were, and shows no value of a row."""
    rows = staged(sink, [{"id": 2, "name": "b"}, {"id": 1, "name": "secret"}])

    with pytest.raises(RowsRefusedError, match="UNIQUE constraint") as caught:
        sink.commit(rows, [share(0, 10, 20)])

    assert "secret" not in str(caught.value)
    assert base.rows() == [(1, "a")]
    assert sink.stored_offset("id/0") == 10


def test_offsets_are_kept_with_who_stored_them(base: Base, sink: SqlSink) -> None:
    """The row of a partition names target, identity, member and micro-batch for readers."""
    assert sink.stored_offset("id/0") == 10
    columns = "target, identity, next_offset, format, member, micro_batch, note"
    assert base.run(f"SELECT {columns} FROM headrace_offsets") == [
        ("main.t", "id/0", 10, 1, "m1", "one", None)
    ]


def test_operators_move_offsets_without_opening_the_sink(
    base: Base, sink: SqlSink, sinks: Callable[..., SqlSink]
) -> None:
    """A move goes forward or back, all or none, and the row keeps its note afterwards."""
    other = sinks()
    assert isinstance(other, TransactionalOffsets)
    assert other.stored_offset("id/0") == 10
    back = OffsetMove("id/0", TopicPartition("t", 0), 10, 4)
    wrong = OffsetMove("id/1", TopicPartition("t", 1), 5, 6)
    sink.commit(StagedRows("two"), [share(1, 0, 7)])

    with pytest.raises(CommitConflictError):
        other.move_offsets([back, wrong], "reset")
    assert other.stored_offset("id/0") == 10
    other.move_offsets([back], "reset")
    sink.commit(staged(sink, [{"id": 2, "name": "b"}]), [share(0, 4, 10)])

    notes = base.run("SELECT next_offset, note FROM headrace_offsets WHERE identity = 'id/0'")
    assert notes == [(10, "reset")]


def test_a_look_before_the_first_start_creates_no_offsets_table(
    base: Base, sinks: Callable[..., SqlSink]
) -> None:
    """There is no offset then."""
    assert sinks().stored_offset("id/0") is None
    assert base.run("SELECT name FROM sqlite_master WHERE name = 'headrace_offsets'") == []


def test_a_table_has_one_name_and_offsets_of_its_own(
    base: Base, sink: SqlSink, sinks: Callable[..., SqlSink]
) -> None:
    """With its schema a table is the same, and another table begins by itself."""
    base.run("CREATE TABLE u (id INTEGER PRIMARY KEY, name TEXT)")
    assert sinks("main.t").stored_offset("id/0") == sink.stored_offset("id/0") == 10
    assert sinks("u").stored_offset("id/0") is None
    assert sinks(offsets_table="others").stored_offset("id/0") is None


def test_offsets_of_a_later_format_are_left_alone(base: Base, sink: SqlSink) -> None:
    """They are neither read nor moved, and the error says what to do."""
    base.run("UPDATE headrace_offsets SET format = 2")

    with pytest.raises(StartError, match="upgrade this member"):
        sink.stored_offset("id/0")
    with pytest.raises(StartError, match="format version 2"):
        sink.commit(StagedRows("two"), [share(0, 10, 20)])
    assert base.run("SELECT next_offset FROM headrace_offsets") == [(10,)]


def test_two_members_create_the_offsets_table_at_once(
    base: Base, sinks: Callable[..., SqlSink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that comes second finds it made."""
    first, second = sinks(), sinks()
    real = OffsetsTable.exists
    answers = [False]

    def exists(offsets: OffsetsTable) -> bool:
        return answers.pop() if answers else real(offsets)

    first.open()
    monkeypatch.setattr(OffsetsTable, "exists", exists)
    second.open()

    assert second.stored_offset("id/0") is None
    assert base.rows("headrace_offsets") == []


def test_tables_of_one_database_are_written_in_one_transaction(
    base: Base, sinks: Callable[..., SqlSink]
) -> None:
    """A refusal of one table leaves rows and offsets of the other as they were, too."""
    base.run("CREATE TABLE other (id INTEGER PRIMARY KEY, name TEXT)")
    both = [sinks(), sinks(table="other")]
    for each in both:
        each.open()
    rows, twice = [{"id": 1, "name": "a"}], [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]

    parts = [(both[0], staged(both[0], rows)), (both[1], staged(both[1], twice))]
    with pytest.raises(RowsRefusedError, match=r"^other in .*UNIQUE"):
        SqlSink.commit_together(parts, [share(0, 0, 10)])
    assert base.rows() == base.rows("other") == []
    assert [each.stored_offset("id/0") for each in both] == [None, None]

    SqlSink.commit_together([(each, staged(each, rows)) for each in both], [share(0, 0, 10)])
    assert base.rows() == base.rows("other") == [(1, "a")]
    assert [each.stored_offset("id/0") for each in both] == [10, 10]


def test_an_answer_that_is_lost_is_looked_up_for_all_tables(
    base: Base, sinks: Callable[..., SqlSink]
) -> None:
    """A COMMIT that took effect and raised all the same is one that succeeded."""
    base.run("CREATE TABLE other (id INTEGER PRIMARY KEY, name TEXT)")
    both = [sinks(), sinks(table="other")]
    for each in both:
        each.open()

    def commit_and_lose(call: Callable[[], None]) -> None:
        call()
        _lose(call)

    parts = [(each, staged(each, [{"id": 1, "name": "a"}])) for each in both]
    wrap_commit(both[0], commit_and_lose)
    SqlSink.commit_together(parts, [share(0, 0, 10)])
    assert base.rows() == base.rows("other") == [(1, "a")]
