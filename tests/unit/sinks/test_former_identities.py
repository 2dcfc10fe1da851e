"""Sinks that earlier versions wrote to, with topic ids in librdkafka's alphabet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import headrace.sinks
from headrace.core.errors import StartError
from headrace.core.records import (
    TopicPartition,
    former_identity,
    former_topic_id,
    identity_of,
    kafkas_topic_id,
    present_identity,
)
from headrace.extensions.delta import table as delta_format
from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.delta.table import FORMAT_KEY
from headrace.extensions.sql.sink import SqlSink
from headrace.sinks.contract import OffsetMove, PartitionCommit
from headrace.sinks.errors import CommitConflictError
from headrace.testing.sinks import micro_batch
from tests.unit.extensions.delta.delta_tables import visible

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.extensions.sql.sql_tables import Base

#: One topic id as Kafka prints it, and as librdkafka does.
KAFKAS, FORMER = "-0vHkN_QtyVv6cS6PqPz-w", "+0vHkN/QtyVv6cS6PqPz+w"

P = TopicPartition("t", 0)


def share(topic_id: str, start: int, next_offset: int, number: int = 0) -> PartitionCommit:
    """Return one partition's share of a commit, under the identity of a version."""
    identity = identity_of("c", "g/h", topic_id, number)
    return PartitionCommit(identity, TopicPartition("t", number), start, next_offset)


IDENTITY, OLD = share(KAFKAS, 0, 1).identity, share(FORMER, 0, 1).identity


def store(sink: DeltaSink | SqlSink, row: int, *shares: PartitionCommit) -> None:
    """Commit one row of these ranges."""
    staged = sink.stage(micro_batch(f"row-{row}", shares), pa.table({"id": [row]}))
    sink.commit(staged, shares)  # type: ignore[arg-type]


@pytest.fixture(params=["delta", "sql"])
def sink(request: pytest.FixtureRequest, folder: Path, base: Base) -> DeltaSink | SqlSink:
    """Return a sink that says which records its rows are of."""
    if request.param == "delta":
        return DeltaSink(folder, origin=True)
    base.run("ALTER TABLE t ADD COLUMN headrace_origin TEXT")
    sink = SqlSink(base.url, "t", origin=True)
    sink.open()
    return sink


def test_both_alphabets_say_the_same_id() -> None:
    """An identity of either form leads to the other one; what is no topic id stays as it is."""
    assert (kafkas_topic_id(FORMER), former_topic_id(KAFKAS)) == (KAFKAS, FORMER)
    assert (former_identity(IDENTITY), present_identity(OLD)) == (OLD, IDENTITY)
    assert present_identity(IDENTITY) == IDENTITY
    for same in ("7c0vHkNmQtyVv6cS6PqPzw", "id-1"):
        assert former_identity(identity_of("c", "g", same, 0)) is None
        assert present_identity(identity_of("c", "g", same, 0)) == f"c/g/{same}/0"


@pytest.mark.parametrize("topic_id", [FORMER, "A" * 21 + "+", "/" + "A" * 21, KAFKAS, "A" * 22])
@pytest.mark.parametrize("group", ["g", "g/h", "g+h/" + "A" * 22])
def test_identities_stored_by_a_user_s_sink_can_be_renamed(topic_id: str, group: str) -> None:
    """Each identity becomes the one that the sink is asked for, at each call."""
    stored = identity_of("c", group, topic_id, 7)
    wanted = identity_of("c", group, kafkas_topic_id(topic_id), 7)
    assert headrace.sinks.present_identity(stored) == wanted
    assert headrace.sinks.present_identity(wanted) == wanted


def test_an_earlier_version_s_offset_is_where_the_sink_goes_on(sink: DeltaSink | SqlSink) -> None:
    """It is found, it conflicts like any other, and from the next commit on the new one counts."""
    store(sink, 1, share(FORMER, 0, 10))
    assert sink.stored_offset(IDENTITY) == 10
    with pytest.raises(CommitConflictError):
        store(sink, 2, share(KAFKAS, 0, 10))
    assert sink.stored_offset(IDENTITY) == 10
    store(sink, 3, share(KAFKAS, 10, 20))
    assert sink.stored_offset(IDENTITY) == 20
    sink.move_offsets([OffsetMove(IDENTITY, P, 20, 5)], "back")
    assert sink.stored_offset(IDENTITY) == 5


def test_rows_of_an_earlier_version_can_be_replaced(sink: DeltaSink | SqlSink) -> None:
    """Their origins name the partition in the former way, and are found all the same."""
    for row in range(2):
        store(sink, row, share(FORMER, row * 10, row * 10 + 10))
    store(sink, 2, share(KAFKAS, 20, 30))
    back = [OffsetMove(IDENTITY, P, 30, 12)]
    plan = sink.plan_replace(back)
    assert (plan.offsets, plan.rows) == ({IDENTITY: 10}, 2)
    assert sink.replace([OffsetMove(IDENTITY, P, 30, 10)], "again") == 2
    assert sink.stored_offset(IDENTITY) == 10


def test_earlier_versions_refuse_the_table_from_then_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would find an old offset in it, or none."""
    sink = DeltaSink(folder)
    store(sink, 1, share(FORMER, 0, 10))
    assert DeltaTable(folder).transaction_version(FORMAT_KEY) == 1
    store(sink, 2, share(KAFKAS, 10, 20))
    assert DeltaTable(folder).transaction_version(FORMAT_KEY) == 2
    monkeypatch.setattr(delta_format, "FORMAT_VERSION", 1)
    with pytest.raises(StartError, match="upgrade this member"):
        DeltaSink(folder).stored_offset(OLD)
    assert visible(folder) == [1, 2]


@pytest.mark.parametrize("was_there", [True, False])
def test_earlier_versions_refuse_the_row_from_then_on(base: Base, *, was_there: bool) -> None:
    """The row that they look for has a format that they do not know, also for a new partition."""
    sink = SqlSink(base.url, "t")
    sink.open()
    if was_there:
        store(sink, 1, share(FORMER, 0, 10))
    store(sink, 2, share(KAFKAS, 10, 20))
    rows = base.run("SELECT identity, next_offset, format FROM headrace_offsets ORDER BY 3")
    assert rows == [(IDENTITY, 20, 1), (OLD, 10, 2)]
