from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headrace.channel.error_scope import ErrorScope, classify_error
from headrace.core.errors import ResultMisfitError, RowsRefusedError, SinkConflictError
from headrace.core.records import ResultRecord, TopicPartition
from headrace.sinks.contract import Guarantee, OffsetMove, PartitionCommit, TransactionalOffsets
from headrace.sinks.errors import CommitConflictError
from headrace.sinks.kafka import KafkaSink
from headrace.testing.sinks import micro_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

P0 = TopicPartition("events", 0)
SHARE = PartitionCommit("c/g/id/0", P0, 0, 10, "tx.1")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


class Transactions:
    """Notes what is committed, and finds the conflicts that a test wants."""

    def __init__(self) -> None:
        self.required: list[str] = []
        self.done: list[tuple[Sequence[object], list[ResultRecord]]] = []
        self.conflicts: list[SinkConflictError] = []
        self.closed = False

    def require(self, topic: str) -> None:
        """Note it."""
        self.required.append(topic)

    def stored(self, identity: str) -> int | None:
        """Return a number made of the identity."""
        return len(identity)

    def leader_epoch(self, identity: str) -> int | None:
        """Return a number made of the identity."""
        return len(identity)

    def commit(
        self, moves: Sequence[object], records: Iterable[ResultRecord] = ()
    ) -> list[SinkConflictError]:
        """Note it."""
        self.done.append((moves, list(records)))
        return self.conflicts

    def close(self) -> None:
        """Note it."""
        self.closed = True


@pytest.fixture
def transactions() -> Transactions:
    """Return the transactions that a sink commits through."""
    return Transactions()


def committed(
    transactions: Transactions, rows: pa.Table | None, topic: str | None = "out"
) -> list[ResultRecord]:
    """Return the records that a result becomes."""
    sink = KafkaSink(transactions, topic)
    sink.commit(sink.stage(micro_batch("one"), rows), [SHARE])
    moves, records = transactions.done[-1]
    assert moves == [SHARE]
    return records


def test_a_value_is_enough(transactions: Transactions) -> None:
    """Strings become bytes; what no column says is left to the client."""
    rows = pa.table({"value": ["a", None]})
    assert committed(transactions, rows) == [ResultRecord("out", b"a"), ResultRecord("out", None)]


def test_every_column_has_its_place(transactions: Transactions) -> None:
    """Headers keep their order and their nulls; moments become milliseconds."""
    header = {"key": "h", "value": None}
    rows = pa.table(
        {
            "timestamp": pa.array([1_500], pa.timestamp("us", tz="UTC")),
            "headers": pa.array([[header, header]], HEADERS),
            "partition": pa.array([3], pa.int32()),
            "key": pa.array([b"k"], pa.large_binary()),
            "value": pa.array([b"v"], pa.binary()),
        }
    )
    expected = ResultRecord("out", b"v", b"k", [("h", None), ("h", None)], 3, 1)
    assert committed(transactions, rows) == [expected]


def test_the_topic_of_the_sink_wins(transactions: Transactions) -> None:
    """A row's topic counts if the sink names none, as for Spark's own sink."""
    rows = pa.table({"value": ["a"], "topic": ["mine"]})
    assert [record.topic for record in committed(transactions, rows)] == ["out"]
    assert [record.topic for record in committed(transactions, rows, topic=None)] == ["mine"]


class Writer:
    """Writes each struct as the topic and its one field."""

    format = "avro"

    def __init__(self) -> None:
        self.opened: list[str | None] = []

    def open(self, topic: str | None) -> None:
        """Note it."""
        self.opened.append(topic)

    def written(self, rows: pa.ChunkedArray, topics: pa.ChunkedArray | str) -> pa.ChunkedArray:
        """Return the values of rows; null stays null."""
        names = [topics] * len(rows) if isinstance(topics, str) else topics.to_pylist()
        made = [
            None if row is None else f"{name}:{row['id']}".encode()
            for row, name in zip(rows.to_pylist(), names, strict=True)
        ]
        return pa.chunked_array([pa.array(made, pa.large_binary())])


@pytest.mark.parametrize("topic", ["out", None])
def test_structs_are_written_by_the_writer(transactions: Transactions, topic: str | None) -> None:
    """The writer is opened with the sink's topic, and told where each row goes."""
    writer: Any = Writer()
    sink = KafkaSink(transactions, topic, writer)
    sink.open()
    assert writer.opened == [topic]
    rows = pa.table({"value": [{"id": 5}, None], "topic": ["a", "b"], "key": ["k", "l"]})
    sink.commit(sink.stage(micro_batch("one"), rows), [SHARE])
    ((_, records),) = transactions.done
    first = topic or "a"
    assert records == [
        ResultRecord(first, f"{first}:5".encode(), b"k"),
        ResultRecord(topic or "b", None, b"l"),
    ]


def test_a_sink_with_a_writer_asks_for_structs(transactions: Transactions) -> None:
    """The example of a missing column is one that a writer takes."""
    writer: Any = Writer()
    sink = KafkaSink(transactions, "out", writer)
    with pytest.raises(ResultMisfitError, match=r"for instance struct\('\*'\) as value"):
        sink.stage(micro_batch("one"), pa.table({"key": ["k"]}))


@pytest.mark.parametrize("rows", [None, pa.table({})])
def test_no_result_moves_the_offsets_only(
    transactions: Transactions, rows: pa.Table | None
) -> None:
    """A reducer that returns None needs no columns."""
    assert committed(transactions, rows) == []


def _empty(kind: pa.DataType) -> pa.Array:
    return pa.array([], kind)


@pytest.mark.parametrize(
    ("columns", "topic", "problem"),
    [
        ({"count": _empty(pa.int64())}, "out", "column 'count' is none of a record's"),
        ({"key": _empty(pa.string())}, "out", "column 'value' is missing"),
        ({"value": _empty(pa.string())}, None, "column 'topic' is missing"),
        ({"value": _empty(pa.int64())}, "out", "column 'value' is int64, and has to be string or"),
        (
            {"value": _empty(pa.string()), "timestamp": _empty(pa.timestamp("us"))},
            "out",
            "column 'timestamp' is timestamp",
        ),
        (
            {"value": _empty(pa.string()), "headers": _empty(pa.list_(pa.string()))},
            "out",
            "column 'headers' is list<",
        ),
    ],
)
def test_a_result_that_does_not_fit_names_each_column(
    transactions: Transactions, columns: dict[str, pa.Array], topic: str | None, problem: str
) -> None:
    """The error precedes the transaction."""
    with pytest.raises(ResultMisfitError) as caught:
        KafkaSink(transactions, topic).stage(micro_batch("one"), pa.table(columns))
    assert problem in str(caught.value)
    assert str(caught.value).endswith("change the reducer")


@pytest.mark.parametrize(
    ("column", "topic", "problem"),
    [
        (("topic", pa.array(["out", None])), None, "column 'topic' is null in 1 rows"),
        (("partition", pa.array([0, -1])), "out", "column 'partition' is below 0 in 1 rows"),
        (
            ("partition", pa.array([None, 1 << 31])),
            "out",
            "column 'partition' is above 2147483647 in 1 rows",
        ),
        (
            ("headers", pa.array([None, [{"key": None, "value": b"x"}]], HEADERS)),
            "out",
            "column 'headers' has 1 headers without a key",
        ),
        (
            ("headers", pa.array([None, [None]], HEADERS)),
            "out",
            "column 'headers' has 1 headers without a key",
        ),
    ],
)
def test_a_row_that_no_record_can_have_is_to_blame(
    transactions: Transactions, column: tuple[str, pa.Array], topic: str | None, problem: str
) -> None:
    """The error policy looks for the record behind it, in place of a rest of the partition."""
    name, values = column
    rows = pa.table({"value": ["a", "b"], name: values})
    with pytest.raises(RowsRefusedError) as caught:
        KafkaSink(transactions, topic).stage(micro_batch("one"), rows)
    assert problem in str(caught.value)
    assert classify_error(caught.value) is ErrorScope.BATCH


def test_a_column_may_be_there_once(transactions: Transactions) -> None:
    """Which of two values was meant is not said."""
    rows = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["value", "value"])
    with pytest.raises(ResultMisfitError, match="column 'value' is there twice"):
        KafkaSink(transactions, "out").stage(micro_batch("one"), rows)


def test_conflicts_are_the_processors_affair(transactions: Transactions) -> None:
    """A commit and a move that found offsets elsewhere raise what the contract says."""
    sink = KafkaSink(transactions, "out")
    keeper: Any = sink
    assert isinstance(keeper, TransactionalOffsets)
    transactions.conflicts = [SinkConflictError(P0, 0, 5)]
    with pytest.raises(CommitConflictError):
        sink.commit(sink.stage(micro_batch("one"), None), [SHARE])
    move = OffsetMove("c/g/id/0", P0, 0, 5)
    with pytest.raises(CommitConflictError):
        keeper.move_offsets([move], "by hand")
    assert transactions.done[-1] == ([move], [])


def test_rows_that_cannot_be_produced_are_to_blame(
    transactions: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the error policy may look for the records behind them."""

    def refuse(*_: object) -> None:
        raise RowsRefusedError("too large")

    monkeypatch.setattr(transactions, "commit", refuse)
    sink = KafkaSink(transactions, "out")
    with pytest.raises(RowsRefusedError, match="too large"):
        sink.commit(sink.stage(micro_batch("one"), None), [SHARE])


def test_a_sink_opens_and_closes_what_it_commits_through(transactions: Transactions) -> None:
    """The topic has to be there; without one nothing can be looked for."""
    sink = KafkaSink(transactions, "out")
    sink.open()
    KafkaSink(transactions).open()
    assert transactions.required == ["out"]
    assert sink.stored_offset("c/g/id/0") == 8
    assert sink.guarantee is Guarantee.EXACTLY_ONCE
    sink.discard(sink.stage(micro_batch("one"), None))
    sink.close()
    assert transactions.closed


def test_sinks_with_the_same_transactions_produce_in_one(transactions: Transactions) -> None:
    """Records of all topics and the offsets are in one transaction, in the order of the sinks."""
    staged = []
    for topic in ("a", "b"):
        sink = KafkaSink(transactions, topic)
        staged.append((sink, sink.stage(micro_batch("m"), pa.table({"value": [topic]}))))
    KafkaSink.commit_together(staged, [SHARE])
    ((moves, records),) = transactions.done
    assert list(moves) == [SHARE]
    assert [(record.topic, record.value) for record in records] == [("a", b"a"), ("b", b"b")]


def test_copies_are_in_the_transaction_of_the_results(transactions: Transactions) -> None:
    """After them, for another topic."""
    sink = KafkaSink(transactions, "out")
    sink.open()
    assert transactions.required == ["out"]
    staged = sink.stage(micro_batch("one"), pa.table({"value": ["v"]}))
    copy = ResultRecord("left", b"shed", b"k")
    sink.commit_with([staged, None], [SHARE], [copy])
    assert transactions.done == [([SHARE], [ResultRecord("out", b"v"), copy])]
