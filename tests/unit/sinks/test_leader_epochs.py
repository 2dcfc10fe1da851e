"""Sinks that store with an offset under which leader the log led there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from headrace.core.records import TopicPartition
from headrace.extensions.delta.reader import DeltaLog
from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.sql.sink import SqlSink
from headrace.sinks.contract import OffsetMove, PartitionCommit, StoredLeaderEpochs
from headrace.sinks.errors import CommitConflictError
from headrace.sinks.several import SeveralSink, alone
from headrace.testing.sinks import micro_batch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.extensions.sql.sql_tables import Base

IDENTITY, P = "id/0", TopicPartition("t", 0)


def store(sink: DeltaSink | SqlSink, start: int, next_offset: int, epoch: int | None) -> None:
    """Commit one row."""
    share = PartitionCommit(IDENTITY, P, start, next_offset, None, epoch)
    staged = sink.stage(micro_batch(f"row-{start}", [share]), pa.table({"id": [start]}))
    sink.commit(staged, [share])  # type: ignore[arg-type]


@pytest.fixture(params=["delta", "sql"])
def opened(
    request: pytest.FixtureRequest, folder: Path, base: Base
) -> Callable[[], DeltaSink | SqlSink]:
    """Open sinks on one table."""

    def open_one() -> DeltaSink | SqlSink:
        sink = DeltaSink(folder) if request.param == "delta" else SqlSink(base.url, "t")
        sink.open()
        return sink

    return open_one


def test_the_epoch_moves_with_the_offset(opened: Callable[[], DeltaSink | SqlSink]) -> None:
    """Another member reads it; nothing is stored of a commit that is refused."""
    sink = opened()
    assert isinstance(sink, StoredLeaderEpochs)
    assert sink.stored_leader_epoch(IDENTITY) is None
    for at, epoch in enumerate((0, 0, 7)):
        store(sink, at * 10, at * 10 + 10, epoch)
        assert opened().stored_leader_epoch(IDENTITY) == epoch
    with pytest.raises(CommitConflictError):
        store(sink, 10, 20, 9)
    assert (opened().stored_offset(IDENTITY), opened().stored_leader_epoch(IDENTITY)) == (30, 7)


def test_an_epoch_that_is_not_known_takes_the_place_of_one(
    opened: Callable[[], DeltaSink | SqlSink],
) -> None:
    """The epoch is unknown after a move by an operator, and for records without one."""
    sink = opened()
    store(sink, 0, 10, 3)
    sink.move_offsets([OffsetMove(IDENTITY, P, 10, 5)], "back")
    assert opened().stored_leader_epoch(IDENTITY) is None
    store(sink, 5, 20, 4)
    assert opened().stored_leader_epoch(IDENTITY) == 4
    store(sink, 20, 30, None)
    assert opened().stored_leader_epoch(IDENTITY) is None


def test_a_table_s_log_is_as_before_where_the_leader_is(folder: Path) -> None:
    """The epoch is written when it is another one, and is no partition's offset for readers."""
    sink = DeltaSink(folder)
    store(sink, 0, 10, 3)
    store(sink, 10, 20, 3)
    entries = [(folder / "_delta_log" / f"{at:020}.json").read_text() for at in (1, 2)]
    assert ["headrace/leader/" in entry for entry in entries] == [True, False]
    offsets = [commit.offsets for commit in DeltaLog(folder).read_new()]
    assert offsets[1:] == [{IDENTITY: 10}, {IDENTITY: 20}]


def test_several_outputs_have_the_epoch_of_the_one_that_is_behind(folder: Path, base: Base) -> None:
    """Reading goes on at its offset."""
    ahead, behind = DeltaSink(folder), SqlSink(base.url, "t")
    for sink in (ahead, behind):
        sink.open()
        store(sink, 0, 10, 3)
    store(ahead, 10, 20, 4)
    several = SeveralSink([alone("ahead", ahead), alone("behind", behind)])
    assert several.stored_offset(IDENTITY) == 10
    assert several.stored_leader_epoch(IDENTITY) == 3
