"""Records in columns are those that the Python client gives, whatever the broker has."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from headrace.channel.buffer import chunk_of
from headrace.core.columns import ColumnRun
from headrace.core.errors import ConfigError
from headrace.core.records import Batch, TopicPartition, offset_of
from headrace.core.tables import table_of
from headrace.devstack.server import LOOPBACK, free_port
from headrace.kafka import KafkaRecordSource
from headrace.kafka.columnar import ColumnarRecordSource
from headrace.kafka.columnar.library import load
from headrace.kafka.errors import LibraryMissingError
from headrace.testing.records import FakeAssignment, FakeRecord
from tests.brokers import Broker
from tests.contracts.kafka_world import Reader

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.core.record_runs import Run
    from headrace.core.records import Record

PREFETCH = 16 << 20


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    """Skip where there is no library."""
    try:
        load()
    except LibraryMissingError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def broker(bootstrap_servers: str) -> Broker:
    """The local broker."""
    return Broker(bootstrap_servers)


def facts(record: Record) -> tuple[Any, ...]:
    """Return all that can be asked of a record."""
    place = (record.topic(), record.partition(), record.offset())
    content = (record.key(), record.value(), record.headers() or None)
    return (*place, *content, record.timestamp(), len(record))


class Kept(Reader):
    """Keeps the columns, too, in one run for each partition."""

    def __init__(self, source: ColumnarRecordSource) -> None:
        super().__init__(source)
        self.runs: dict[TopicPartition, ColumnRun] = {}

    def take(self, partition: TopicPartition, records: Run) -> None:
        """Put what came behind what is there."""
        assert isinstance(records, ColumnRun)
        super().take(partition, records)
        before = self.runs.get(partition)
        self.runs[partition] = records if before is None else before.followed_by(records)


def read(reader: Reader, *partitions: TopicPartition) -> None:
    """Read partitions from their beginning to their end."""
    reader.source.assign(dict.fromkeys(partitions, 0))
    try:
        reader.until_end(*partitions)
    finally:
        reader.source.close()


def client_of(broker: Broker) -> dict[str, Any]:
    """Return the properties of a client."""
    return {"bootstrap.servers": broker.address, "log_level": 0}


def require_same(broker: Broker, *partitions: TopicPartition) -> Kept:
    """Read in both ways, and compare every record, the ends, and what Spark would get."""
    plain = Reader(KafkaRecordSource(client_of(broker), "group", PREFETCH))
    columns = Kept(ColumnarRecordSource(client_of(broker), "group", PREFETCH))
    read(plain, *partitions)
    read(columns, *partitions)
    assert columns.ends == plain.ends
    for partition in partitions:
        expected, got = plain.records[partition], columns.records[partition]
        assert list(map(facts, got)) == list(map(facts, expected))
        assert table(columns.runs[partition]).equals(table(expected))
    return columns


def table(records: Run) -> pa.Table:
    """Return what Spark would get, in one chunk."""
    partition = TopicPartition(str(records[0].topic()), int(records[0].partition() or 0))
    end = offset_of(records[-1]) + 1
    return table_of(Batch(FakeAssignment(partition), 0, records, end, 0)).combine_chunks()


def various(count: int) -> list[FakeRecord]:
    """Return records of all kinds."""
    keys = [None, b"", b"key", bytes(300)]
    values = [b"value", None, b"", bytes(range(256)), b"x" * 5000]
    now = int(time.time() * 1000)  # the broker's retention would drop what is older
    headers: list[Any] = [None, [("a", b"1")], [("a", None), ("a", b""), ("ä€𝄞", b"\xff" * 9)]]
    return [
        FakeRecord(
            key_=keys[n % 4],
            value_=values[n % 5],
            headers_=headers[n % 3],
            timestamp_=now + n,
        )
        for n in range(count)
    ]


@pytest.fixture
def partition(broker: Broker) -> TopicPartition:
    """A partition of a new topic; its records may be of any time."""
    return TopicPartition(broker.create_topic(), 0)


def test_records_of_all_kinds(broker: Broker, partition: TopicPartition) -> None:
    """Keys, values, headers and times come as they are, what is missing among what is not."""
    broker.produce(partition, *various(250))
    columns = require_same(broker, partition)
    assert len(columns.records[partition]) == 250


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_batches(broker: Broker, partition: TopicPartition, codec: str) -> None:
    """Every codec of the client's gives the same records, several thousand in one fetch."""
    producer = Producer({"bootstrap.servers": broker.address, "compression.type": codec})
    for n in range(7000):
        producer.produce(
            partition.topic, b"%d" % n * 9, b"%d" % (n % 7), headers=[("n", b"%d" % n)]
        )
    assert producer.flush(30) == 0
    columns = require_same(broker, partition)
    assert len(columns.records[partition]) == 7000


def test_transactions(broker: Broker, partition: TopicPartition) -> None:
    """Only committed records come of transactions, and ends lie behind the markers."""
    broker.transact(partition, *various(5))
    broker.transact(partition, *various(7), commit=False)
    broker.produce(partition, *various(3))
    broker.transact(partition, b"last", commit=False)
    columns = require_same(broker, partition)
    offsets = columns.offsets(partition)
    assert (offsets[:5], len(offsets)) == ([0, 1, 2, 3, 4], 8)
    # the broker writes the marker of what was aborted when it likes, and so perhaps behind those
    assert columns.ends[partition] == 19
    assert offsets[-1] in {15, 16}


def test_several_partitions_and_topics(broker: Broker) -> None:
    """Records that come mixed in one fetch are told apart by topic and partition."""
    topics = broker.create_topic(3), broker.create_topic(2)
    partitions = [TopicPartition(topics[0], n) for n in range(3)]
    partitions += [TopicPartition(topics[1], n) for n in range(2)]
    for place, each in enumerate(partitions):
        broker.produce(each, *various(20 * (place + 1)))
    require_same(broker, *partitions)


def test_a_record_larger_than_a_fetch(broker: Broker, partition: TopicPartition) -> None:
    """A value beyond all limits of one fetch comes whole, between small ones."""
    broker.produce(partition, b"before", bytes(1_000_000), b"behind")
    columns = require_same(broker, partition)
    assert [len(record) for record in columns.records[partition]] == [6, 1_000_000, 6]


def test_a_fetch_of_large_records_stays_small(broker: Broker, partition: TopicPartition) -> None:
    """A run has a few MB, however much was prefetched: a slice of it may keep that much alive."""
    broker.produce(partition, *[bytes(100_000)] * 120)
    source = ColumnarRecordSource(client_of(broker), "group", PREFETCH)
    source.assign({partition: 0})
    time.sleep(2)  # has all of them prefetched, or else finds less
    sizes: list[int] = []
    lengths: list[int] = []
    while sum(lengths) < 120:
        runs = [run for _, run in source.fetch(0.1).chunks]
        lengths += map(len, runs)
        sizes += [chunk_of(run).size for run in runs]
    source.close()
    assert max(sizes) < 6_000_000


def test_records_outlive_the_consumer(broker: Broker, partition: TopicPartition) -> None:
    """Columns belong to whoever holds them: they can be read when the client is gone."""
    broker.produce(partition, *various(50))
    source = ColumnarRecordSource(client_of(broker), "group", PREFETCH)
    source.assign({partition: 0})
    runs: list[Any] = []
    while sum(map(len, runs)) < 50:
        runs += [run for _, run in source.fetch(0.1).chunks]
    part = runs[0][-1:]
    del runs
    source.close()
    source.close()
    assert part[0].offset() == part.next_offset - 1


def test_wrong_properties_are_refused(broker: Broker) -> None:
    """A property that librdkafka does not know is an error of the configuration that names it."""
    client = {**client_of(broker), "no.such.property": 1}
    with pytest.raises(ConfigError, match=r"no\.such\.property"):
        ColumnarRecordSource(client, "group", PREFETCH)
    client = {**client_of(broker), "fetch.wait.max.ms": "soon"}
    with pytest.raises(ConfigError, match=r"fetch\.wait\.max\.ms"):
        ColumnarRecordSource(client, "group", PREFETCH)


def test_a_broker_that_is_down_is_reported() -> None:
    """Errors of the client as a whole go to the callback that other clients call, too."""
    told: list[Any] = []
    client = {
        "bootstrap.servers": f"{LOOPBACK}:{free_port()}",
        "log_level": 0,
        "error_cb": told.append,
        "logger": None,
    }
    source = ColumnarRecordSource(client, "group", PREFETCH)
    reader = Reader(source)
    source.assign({TopicPartition("any", 0): 0})
    try:
        reader.until(lambda: bool(told))
    finally:
        source.close()
    assert all(error.str() for error in told)
    assert reader.errors == []
