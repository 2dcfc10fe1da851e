"""Rows of a database's table that say which micro-batch they are of, and their removal."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from sqlalchemy.exc import OperationalError

from headrace.core.errors import ConfigError, ResultMisfitError, StartError
from headrace.core.records import TopicPartition
from headrace.extensions.sql.offsets import OriginsTable
from headrace.extensions.sql.sink import SqlSink
from headrace.sinks import OffsetMove, ReplaceRefusedError
from headrace.sinks.by_key import WriteMode
from headrace.testing.sinks import micro_batch
from tests.unit.extensions.sql.sql_tables import Base, share, wrap_commit

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.sinks.contract import PartitionCommit

    Sinks = Callable[..., SqlSink]

ADD = "ALTER TABLE {} ADD COLUMN headrace_origin VARCHAR(64)"


def move(start: int, target: int, number: int = 0) -> OffsetMove:
    """Return the move of a partition's offset."""
    return OffsetMove(f"id/{number}", TopicPartition("t", number), start, target)


def staged(sink: SqlSink, row: int) -> Any:
    """Return one row as staged."""
    return sink.stage(micro_batch(f"batch-{row}"), pa.table({"id": [row], "name": ["x"]}))


def store(sink: SqlSink, row: int, *shares: PartitionCommit) -> None:
    """Commit one row of these ranges."""
    sink.commit(staged(sink, row), shares)


@pytest.fixture
def sink(base: Base, sinks: Sinks) -> SqlSink:
    """Return a sink with a row for each ten records of partition 0, up to 30."""
    base.run(ADD.format("t"))
    sink = sinks(origin=True)
    sink.open()
    for row in range(3):
        store(sink, row, share(0, 10 * row, 10 * row + 10))
    return sink


def test_rows_say_which_micro_batch_they_are_of(sink: SqlSink, base: Base) -> None:
    """A second table has the origins of micro-batches, without those that made no row."""
    empty = pa.table({"id": pa.array([], pa.int64()), "name": pa.array([], pa.string())})
    sink.commit(sink.stage(micro_batch("empty"), empty), [share(0, 30, 40)])
    sink.commit(sink.stage(micro_batch("none"), None), [share(0, 40, 50)])
    store(sink, 3, share(0, 50, 60), share(1, 0, 7))
    assert base.rows()[-2:] == [(2, "x", "batch-2"), (3, "x", "batch-3")]
    noted = base.run(
        "SELECT target, identity, micro_batch, first_offset, next_offset FROM headrace_origins"
    )
    assert noted[-3:] == [
        ("main.t", "id/0", "batch-2", 20, 30),
        ("main.t", "id/0", "batch-3", 50, 60),
        ("main.t", "id/1", "batch-3", 0, 7),
    ]


def test_origins_are_removed_with_their_rows(sink: SqlSink, base: Base) -> None:
    """The same range can be replaced again, and no missing row is counted."""
    assert sink.replace([move(30, 10)], "by hand") == 2
    assert [row[0] for row in base.rows()] == [0]
    assert base.run("SELECT micro_batch FROM headrace_origins") == [("batch-0",)]
    assert base.run("SELECT note FROM headrace_offsets") == [("by hand",)]
    store(sink, 5, share(0, 10, 30))
    assert sink.plan_replace([move(30, 10)]).rows == 1


def test_rows_from_before_stand_in_the_way_of_their_range_alone(base: Base, sinks: Sinks) -> None:
    """Origins are known from the first one that was noted, also after a move back before it."""
    old = sinks()
    old.open()
    store(old, 0, share(0, 0, 10))
    base.run(ADD.format("t"))
    sink = sinks(origin=True)
    sink.open()
    store(sink, 1, share(0, 10, 20))
    with pytest.raises(ReplaceRefusedError, match="those of id/0 have one from offset 10 on"):
        sink.replace([move(20, 5)], "test")
    sink.move_offsets([move(20, 5)], "append")
    store(sink, 2, share(0, 5, 20))

    with pytest.raises(ReplaceRefusedError, match="those of id/0 have one from offset 10 on"):
        sink.replace([move(20, 5)], "test")
    with pytest.raises(ReplaceRefusedError, match="those of id/7 have none yet"):
        sink.plan_replace([move(20, 5, 7)])
    base.run("DELETE FROM t WHERE headrace_origin IS NULL")
    assert sink.replace([move(20, 5)], "test") == 2


def test_tables_of_one_database_are_replaced_apart(sink: SqlSink, base: Base, sinks: Sinks) -> None:
    """They have micro-batches of the same names when one transaction takes both."""
    base.run("CREATE TABLE u (id INTEGER, name TEXT)", ADD.format("u"))
    other = sinks("u", origin=True)
    other.open()
    other.move_offsets([move(0, 30)], "to where the other is")
    pair = [(each, staged(each, 3)) for each in (sink, other)]
    SqlSink.commit_together(pair, [share(0, 30, 40)])

    assert other.replace([move(40, 30)], "test") == 1

    assert base.rows("u") == []
    assert [row[0] for row in base.rows()] == [0, 1, 2, 3]
    assert sink.plan_replace([move(40, 30)]).rows == 1


def test_more_micro_batches_than_a_statement_takes(sink: SqlSink, base: Base) -> None:
    """They are looked up and removed in several statements of one transaction."""
    for row in range(3, 1103):
        store(sink, row, share(0, 10 * row, 10 * row + 10))
    assert sink.replace([move(11030, 10)], "test") == 1102
    assert [row[0] for row in base.rows()] == [0]


@pytest.mark.parametrize(
    ("has_column", "origin", "said"),
    [(True, False, "set origin: true"), (False, True, "ADD COLUMN headrace_origin")],
)
def test_column_and_setting_go_together(
    base: Base, sinks: Sinks, *, has_column: bool, origin: bool, said: str
) -> None:
    """One without the other ends the start, with what to do."""
    if has_column:
        base.run(ADD.format("t"))
    with pytest.raises(StartError, match=said):
        sinks(origin=origin).open()


def test_the_column_is_the_sink_s_own(sink: SqlSink) -> None:
    """A result that brings one of that name is refused."""
    with pytest.raises(ResultMisfitError, match="the sink's own"):
        sink.stage(micro_batch("one"), pa.table({"id": [1], "headrace_origin": ["x"]}))


def test_rows_that_cannot_be_replaced_are_refused(base: Base, sinks: Sinks) -> None:
    """Rows without origins, and rows that replaced others, are refused with the reason."""
    del base
    with pytest.raises(ReplaceRefusedError, match="set origin: true"):
        sinks().plan_replace([move(10, 0)])
    upserting = {"mode": WriteMode.UPSERT, "key": ["id"]}
    with pytest.raises(ReplaceRefusedError, match="upserts the rows again by their keys"):
        sinks(**upserting).replace([move(10, 0)], "test")
    with pytest.raises(ConfigError, match="origin goes with mode append"):
        sinks(origin=True, **upserting)


@pytest.mark.parametrize("start", [10, 30])
@pytest.mark.parametrize("is_stored", [True, False])
def test_an_unknown_outcome_is_found_by_the_offset(
    sink: SqlSink, base: Base, monkeypatch: pytest.MonkeyPatch, *, start: int, is_stored: bool
) -> None:
    """A moved offset shows that it was stored; otherwise a repetition removes the rows once."""
    if start == 10:
        sink.move_offsets([move(30, 10)], "before")

    def lose(call: Callable[[], None]) -> None:
        if is_stored:
            call()
        raise sqlite3.OperationalError("connection lost")

    real = OriginsTable.remove

    def remove(*arguments: Any) -> int:
        monkeypatch.undo()
        wrap_commit(sink, lose)
        return real(*arguments)

    monkeypatch.setattr(OriginsTable, "remove", remove)
    if is_stored and start == 30:
        assert sink.replace([move(start, 10)], "test") == 2
    else:
        with pytest.raises(OperationalError, match="connection lost"):
            sink.replace([move(start, 10)], "test")
        assert len(base.rows()) == (1 if is_stored else 3)
        assert sink.replace([move(start, 10)], "test") == (0 if is_stored else 2)
    assert [row[0] for row in base.rows()] == [0]
    assert sink.stored_offset("id/0") == 10
