from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.core.errors import StartError
from headrace.core.tables import Decode, Decoding
from headrace.extensions.spark.sql import VIEW, SqlReducer
from tests.integration.extensions.spark.channels import ADVANCE, SECONDS, Channel

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.extensions.spark.runtime import SparkRuntime

JSON = Decode(Decoding.JSON, "id INT, name STRING")


def test_a_query_reduces_each_micro_batch(channel: Callable[..., Channel]) -> None:
    """The view has the decoded columns of one micro-batch at a time, and the record's own."""
    query = "select name, sum(id) as total, max(_kafka.offset) as last from batch group by name"
    ch = channel(SqlReducer(query), decode=JSON)
    rows: list[bytes | None] = [b'{"id": 1, "name": "a"}', b'{"id": 2, "name": "a"}']

    assert ch.send(0, rows).result(SECONDS) == ADVANCE
    assert ch.send(0, rows, start=2).result(SECONDS) == ADVANCE
    found = sorted((row["last"], row["name"], row["total"]) for row in ch.rows())
    assert found == [(1, "a", 3), (3, "a", 3)]


def test_a_query_sees_the_bytes_without_decoding(channel: Callable[..., Channel]) -> None:
    """Without decoding the view has the columns of Spark's Kafka source, headers among them."""
    ch = channel(SqlReducer("select offset, length(value) as size, headers from batch"))
    assert ch.send(0, [b"abc", None]).result(SECONDS) == ADVANCE
    assert ch.rows() == [
        {"offset": 0, "size": 3, "headers": None},
        {"offset": 1, "size": None, "headers": None},
    ]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("select nme from batch", "nme"),
        ("select id from orders", "orders"),
        ("selekt id from batch", "selekt"),
        ("drop view batch", "drop"),
        ("insert into t select id from batch", "insert"),
        ("create temporary view other as select 1", "create"),
        ("select id from batch; select 1", ";"),
    ],
)
def test_a_query_without_a_plan_is_refused_at_the_start(
    channel: Callable[..., Channel], query: str, told: str
) -> None:
    """A query with a mistake, and all that is no query, ends the start with what Spark says."""
    with pytest.raises(StartError, match=r"processor.sql cannot be planned") as raised:
        channel(SqlReducer(query), decode=JSON)
    text = str(raised.value)
    assert told in text
    assert "view batch with the columns id, name, _kafka" in text


def test_no_view_is_left_that_would_keep_the_records(spark_runtime: SparkRuntime) -> None:
    """After planning, and after a failure to, the session has no view of the micro-batch."""
    session = spark_runtime.new_session()
    frame = session.createDataFrame([(1,)], "id INT")
    assert SqlReducer("select id + 1 as next from batch")(frame).toArrow().to_pylist() == [
        {"next": 2}
    ]
    with pytest.raises(StartError):
        SqlReducer("select no from batch").check(frame)
    assert not session.catalog.tableExists(VIEW)
