from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from pathlib import Path
from random import randbytes
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from headrace.core.clock import Deadline
from headrace.core.errors import FencedError, RowsRefusedError, SinkFailedError, StartError
from headrace.core.records import ResultRecord, TopicPartition
from headrace.devstack.wait import wait_for
from headrace.kafka.fencing import fence_producers
from headrace.kafka.result_transactions import sink_group
from headrace.sinks.contract import OffsetMove, StoredLeaderEpochs
from headrace.sinks.errors import CommitConflictError
from headrace.sinks.kafka import KafkaSink
from headrace.testing.sinks import BatchCommitContract, TransactionalOffsetsContract, micro_batch
from tests.brokers import Broker
from tests.integration.kafka.sink_writer import TOGETHER
from tests.kafka_sinks import KafkaPlace, committed_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.kafka import ResultTransactions
    from headrace.sinks.contract import PartitionCommit
    from headrace.testing.sinks import Frames, Row, SinkPlace

WAIT = 30.0
_ROOT = Path(__file__).resolve().parents[3]

#: Fewer cannot be: producing, sending offsets, committing, and what is around them.
_LINES = 50

#: Partitions of a topic that is given some.
_MORE = 8

#: Rows of processes that are killed at the same time.
_AT_ONCE = 4


@pytest.fixture(scope="module")
def broker(bootstrap_servers: str) -> Broker:
    """One producer and one admin client for all tests."""
    return Broker(bootstrap_servers)


@pytest.fixture
def place(broker: Broker) -> Iterator[KafkaPlace]:
    """Topics and a group of a test's own."""
    with closing(KafkaPlace(broker)) as place:
        yield place


@pytest.fixture
def results(place: KafkaPlace) -> Iterator[ResultTransactions]:
    """Open the transactions that a sink commits through."""
    with closing(place.results()) as results:
        yield results


class TestKafka(BatchCommitContract, TransactionalOffsetsContract):
    """The contract on topics, with rows as values in JSON."""

    @pytest.fixture
    def place(self, broker: Broker) -> Iterator[SinkPlace]:
        """Return topics of a test's own; its offsets are those of a topic that exists."""
        with closing(KafkaPlace(broker)) as self.known:
            yield self.known

    def identity(self, number: int) -> str:
        """Return what a partition's offset is stored under."""
        return self.known.identity(number)

    def share(self, number: int, start: int, next_offset: int) -> PartitionCommit:
        """Return one partition's share of a commit."""
        return self.known.share(number, start, next_offset)

    @pytest.fixture
    def frames(self) -> Frames:
        """Return what makes tables of rows."""
        return _as_json


def _as_json(rows: list[Row]) -> pa.Table:
    return pa.table({"value": pa.array([json.dumps(row) for row in rows], pa.string())})


def test_a_row_becomes_the_record_that_its_columns_say(place: KafkaPlace) -> None:
    """Key, value, headers, partition and time are the row's; nulls leave it to the client."""
    sink = place.sink()
    sink.open()
    rows = pa.table(
        {
            "key": pa.array(["a", None]),
            "value": pa.array([b"1", None], pa.binary()),
            "topic": pa.array(["elsewhere", None]),
            "partition": pa.array([1, None], pa.int32()),
            "headers": pa.array(
                [[{"key": "h", "value": b"x"}, {"key": "h", "value": None}], None],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
            "timestamp": pa.array([1_700_000_000_123_456, None], pa.timestamp("us", tz="UTC")),
        }
    )
    sink.commit(sink.stage(micro_batch("one"), rows), [place.share(0, 0, 10)])

    first, second = sorted(place.records(), key=lambda each: each.value() is None)
    assert (first.key(), first.value(), first.partition()) == (b"a", b"1", 1)
    assert first.headers() == [("h", b"x"), ("h", None)]
    assert first.timestamp() == (1, 1_700_000_000_123)
    assert (second.key(), second.value(), second.headers()) == (None, None, None)
    assert second.timestamp()[1] > first.timestamp()[1]


def test_without_a_topic_each_row_says_where_it_goes(place: KafkaPlace, broker: Broker) -> None:
    """The records of one transaction may go to several topics."""
    other = broker.create_topic()
    sink = KafkaSink(place.results())
    sink.open()
    rows = pa.table({"value": ["a", "b"], "topic": [place.topic, other]})
    sink.commit(sink.stage(micro_batch("one"), rows), [place.share(0, 0, 10)])
    sink.close()

    assert [each.value() for each in place.records()] == [b"a"]
    assert [each.value() for each in committed_records(broker.address, other)] == [b"b"]


def test_a_topic_that_is_missing_stops_the_start(place: KafkaPlace) -> None:
    """Records are not to make a topic by the way."""
    with closing(place.results()) as results, pytest.raises(StartError, match="does not exist"):
        KafkaSink(results, "no-such-topic").open()


def test_the_leader_epoch_moves_with_the_offset(place: KafkaPlace) -> None:
    """Another member reads from the brokers what was stored, and nothing of what was refused."""

    def store(start: int, next_offset: int, epoch: int | None) -> None:
        share = replace(place.share(0, start, next_offset), leader_epoch=epoch)
        rows = _as_json([{"id": start}])
        writer.commit(writer.stage(micro_batch(f"row-{start}"), rows), [share])

    writer, identity = place.sink(), place.identity(0)
    assert isinstance(writer, StoredLeaderEpochs)
    assert writer.stored_leader_epoch(identity) is None
    for at, epoch in enumerate((0, 7, None, 8)):
        store(at * 10, at * 10 + 10, epoch)
        assert place.sink().stored_leader_epoch(identity) == epoch
    with pytest.raises(CommitConflictError):
        store(10, 20, 9)
    reader = place.sink()
    assert (reader.stored_offset(identity), reader.stored_leader_epoch(identity)) == (40, 8)
    partition = TopicPartition(place.source, 0)
    writer.move_offsets([OffsetMove(identity, partition, 40, 5)], "back")
    assert (reader.stored_offset(identity), reader.stored_leader_epoch(identity)) == (5, None)
    assert place.sink().stored_leader_epoch(place.identity(1)) is None


def test_offsets_are_in_a_group_of_their_own_and_name_the_topic(
    place: KafkaPlace, results: ResultTransactions
) -> None:
    """An offset of a former topic of the name is none, and nor is one of an unknown topic."""
    assert results.commit([place.share(0, 0, 10)]) == []
    partition = TopicPartition(place.source, 0)

    (stored,) = place.broker.committed(sink_group(place.group), partition)
    assert stored is not None
    assert stored.offset == 10
    said = json.loads(stored.metadata)
    # under another name where earlier versions would take it for another topic's
    assert said.get("topic_id", said.get("topic_uuid")) == place.topic_id
    assert place.broker.committed(place.group, partition) == [None]
    former = json.dumps({"version": 1, "epoch": 0, "member": "m", "topic_id": "former"})
    place.broker.commit(sink_group(place.group), partition, 99, former)
    assert results.stored(place.identity(0)) is None
    assert results.stored(f"cluster/{place.group}/AAAAAAAAAAAAAAAAAAAAAg/0") is None


def test_a_former_owner_that_was_shut_out_stores_nothing_more(
    place: KafkaPlace, results: ResultTransactions
) -> None:
    """The open commit is undone with an error, and only another membership can commit again."""
    record = ResultRecord(place.topic, b"v")
    assert results.commit([place.share(0, 0, 10, "tx.1")], [record]) == []
    fence_producers(place.properties, ["tx.1"], Deadline.after(WAIT))

    for _ in range(2):
        with pytest.raises(FencedError):
            results.commit([place.share(0, 10, 20, "tx.1")], [record])
    assert len(place.records()) == 1
    assert results.stored(place.identity(0)) == 10
    assert results.commit([place.share(0, 10, 20, "tx.2")], [record]) == []
    assert len(place.records()) == 2


def test_an_owner_shut_out_in_the_middle_of_a_transaction_leaves_nothing(
    place: KafkaPlace, results: ResultTransactions
) -> None:
    """The next owner comes while records are on their way: they are never read."""

    def interrupted() -> Iterator[ResultRecord]:
        yield ResultRecord(place.topic, b"first")
        fence_producers(place.properties, ["tx.1"], Deadline.after(WAIT))
        yield ResultRecord(place.topic, b"second")

    with pytest.raises(FencedError):
        results.commit([place.share(0, 0, 10, "tx.1")], interrupted())
    with closing(place.results("other")) as other:
        assert other.stored(place.identity(0)) is None
        taken = [ResultRecord(place.topic, b"theirs")]
        assert other.commit([place.share(0, 0, 10, "tx.2")], taken) == []
    assert [each.value() for each in place.records()] == [b"theirs"]


def test_a_record_that_cannot_be_produced_undoes_all(
    place: KafkaPlace, results: ResultTransactions
) -> None:
    """The message says which, nobody waits behind the open transaction, and the next one goes."""
    small, nowhere = ResultRecord(place.topic, b"v"), ResultRecord(place.topic, b"v", partition=99)
    with pytest.raises(RowsRefusedError, match=r"a record with|did not take"):
        results.commit([place.share(0, 0, 10, "tx.1")], [small, nowhere])
    assert place.records() == []
    assert results.commit([place.share(0, 0, 10, "tx.1")], [small]) == []
    assert len(place.records()) == 1


def test_a_partition_that_was_added_since_the_producer_began_is_found(
    place: KafkaPlace, results: ResultTransactions, broker: Broker
) -> None:
    """The record is no one's fault: it is stored there at once, by a client that knew fewer."""
    first = ResultRecord(place.topic, b"first", partition=0)
    assert results.commit([place.share(0, 0, 10, "tx.1")], [first]) == []
    broker.add_partitions(place.topic, _MORE)
    added = ResultRecord(place.topic, b"added", partition=_MORE - 1)
    assert results.commit([place.share(0, 10, 20, "tx.1")], [added]) == []
    found = {(each.partition(), each.value()) for each in place.records()}
    assert found == {(0, b"first"), (_MORE - 1, b"added")}


def test_a_record_that_the_topic_does_not_take_is_refused(
    place: KafkaPlace, results: ResultTransactions
) -> None:
    """The brokers say so, and not only that the records beside it were dropped; others go on."""
    large, small = ResultRecord(place.topic, randbytes(2_000_000)), ResultRecord(place.topic, b"v")
    with pytest.raises(RowsRefusedError, match="Message size too large"):
        results.commit([place.share(0, 0, 10, "tx.1")], [small, large])
    assert place.records() == []

    def is_stored() -> bool:
        """Whether the next one went: the client may drop it once more, with what was in flight."""
        with suppress(SinkFailedError):
            return results.commit([place.share(0, 0, 10, "tx.1")], [small]) == []
        return False

    assert wait_for(is_stored, Deadline.after(WAIT))
    assert len(place.records()) == 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_process_killed_at_every_line_loses_and_doubles_nothing(place: KafkaPlace) -> None:
    """Writing a group, on every thread: each next owner finds all of it, or nothing."""
    # they wait more than they work: several share the lines, each with topics and a group
    with ExitStack() as held:
        writers = []
        for first in range(_AT_ONCE):
            writers.append(held.enter_context(_writers(KafkaPlace(place.broker), first)))
            held.callback(writers[-1].kill)
        total = 0
        for each in writers:
            said, complaint = each.communicate(timeout=1700)
            assert each.returncode == 0, complaint
            *stored, (_, last) = (line.split() for line in said.splitlines())
            assert int(last) > _LINES
            total += int(stored[-1][0])

    # the last process of each, and some that were killed between commit and answer
    assert total > 2 * TOGETHER * _AT_ONCE


def _writers(place: KafkaPlace, first: int) -> subprocess.Popen[str]:
    about = [place.broker.address, place.group, place.source, place.topic_id, place.topic]
    module = "tests.integration.kafka.sink_writer"
    command = [sys.executable, "-m", module, str(first), str(_AT_ONCE), *about]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=_ROOT)
