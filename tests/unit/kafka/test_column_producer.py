"""Results in columns against librdkafka's own imitation of a broker: what comes out of them."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.columns import HEADERS
from headrace.core.errors import HeadraceError, RowsRefusedError
from headrace.core.records import ResultRecord
from headrace.core.result_columns import ResultColumns, each_of
from headrace.kafka.columnar import library
from headrace.kafka.columnar import producer as module
from headrace.kafka.columnar.producer import ColumnProducer
from headrace.kafka.errors import LibraryMissingError, ProduceError
from headrace.kafka.result_transactions import produce_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.core.result_columns import Results

TOPIC = "out"
QUIET = {"log_level": 0}


@pytest.fixture(autouse=True)
def _library() -> None:
    """Skip where there is no library."""
    try:
        library.load()
    except LibraryMissingError as missing:
        pytest.skip(str(missing))


class Site:
    """A producer that takes columns, and what it produced."""

    def __init__(self, **properties: Any) -> None:
        chosen = {**QUIET, "partitioner": "murmur2_random", **properties}
        self.producer = Producer({**chosen, **ColumnProducer.plugin(chosen)})
        columns = ColumnProducer.of_the_newest()
        assert columns is not None
        self.columns = columns

    def produce(self, results: Results, seconds: float = 20.0) -> None:
        """Produce results."""
        deadline = Deadline.after(seconds, SYSTEM_CLOCK)
        produce_all(results, self.producer, deadline, self.columns)

    def read(self, count: int, partitions: int = 4) -> list[list[Any]]:
        """Return what is in each partition, once so many records are read."""
        brokers = self.producer.list_topics(timeout=10).brokers.values()
        servers = ",".join(f"{each.host}:{each.port}" for each in brokers)
        consumer = Consumer({**QUIET, "bootstrap.servers": servers, "group.id": "test"})
        consumer.assign([TopicPartition(TOPIC, n, OFFSET_BEGINNING) for n in range(partitions)])
        found: list[list[Any]] = [[] for _ in range(partitions)]
        until = time.monotonic() + 20
        while sum(map(len, found)) < count and time.monotonic() < until:
            for message in consumer.consume(1000, 1.0):
                assert message.error() is None
                partition = message.partition()
                assert partition is not None
                found[partition].append(message)
        consumer.close()
        return found


@pytest.fixture
def site() -> Iterator[Site]:
    """A producer with a broker that lives as long."""
    site = Site(**{"test.mock.num.brokers": 1})
    yield site
    site.producer.purge()


def columns_of(records: Sequence[ResultRecord]) -> ResultColumns:
    """Return records in columns that begin in the middle of others."""
    wanted = (("value", pa.binary()), ("key", pa.binary()), ("headers", HEADERS))
    made: dict[str, Any] = {
        name: [getattr(each, name) for each in records]
        for name in ("value", "key", "partition", "timestamp")
    }
    made["headers"] = [
        None if each.headers is None else [{"key": n, "value": v} for n, v in each.headers]
        for each in records
    ]
    types = {**dict(wanted), "partition": pa.int32(), "timestamp": pa.int64()}
    columns = {
        name: pa.array([None, *values, None], types[name]).slice(1, len(records))
        for name, values in made.items()
    }
    return ResultColumns(
        TOPIC,
        columns["key"],
        columns["value"],
        columns["headers"],
        columns["partition"],
        columns["timestamp"],
    )


RECORDS = [
    ResultRecord(TOPIC, b"a", b"k", None, 1, 1_000),
    ResultRecord(TOPIC, None, b"k", None, 1, 2_000),
    ResultRecord(TOPIC, b"with", b"k", [("h", b"1"), ("n", None)], 1, 3_000),
    ResultRecord(TOPIC, b"", b"", None, 1, 4_000),
    ResultRecord(TOPIC, b"none", None, None, 1, 5_000),
    ResultRecord(TOPIC, b"last", b"k", [("h", b"2")], 1, 6_000),
]


def test_records_come_out_as_they_are_and_in_order(site: Site) -> None:
    """Those with headers among those without; nothing and no bytes are two things."""
    columns = columns_of(RECORDS)
    assert list(columns) == RECORDS
    site.produce([columns, ResultRecord(TOPIC, b"single", partition=1, timestamp=7_000)])
    _, found, *_ = site.read(7)
    assert [
        ResultRecord(TOPIC, each.value(), each.key(), each.headers(), 1, each.timestamp()[1])
        for each in found[:-1]
    ] == RECORDS
    assert found[-1].value() == b"single"


def test_headers_are_those_of_records_one_by_one(site: Site) -> None:
    """Names and values of any bytes, none, several of one name, and records without among them."""
    source = random.Random(1)
    names = ["h", "", "name of several words", "Größe"]
    headers: list[Any] = [
        [(source.choice(names), source.choice([None, b"", source.randbytes(9)])) for _ in range(n)]
        for n in (source.randrange(4) for _ in range(500))
    ]
    records = [
        ResultRecord(TOPIC, b"%d" % n, None, each or None, 1, 1_000)
        for n, each in enumerate(headers)
    ]
    columns = columns_of(records)
    site.produce([columns])
    site.produce(each_of([columns]))
    _, found, *_ = site.read(1000)
    assert [(int(each.value()), each.headers()) for each in found] == 2 * [
        *enumerate(each or None for each in headers)
    ]


def test_the_first_time_of_all_is_not_now(site: Site) -> None:
    """The client takes 0 for now, so that a record of then is a millisecond later."""
    records = [ResultRecord(TOPIC, b"v", b"k", None, 1, time) for time in (0, 1, 2_000)]
    site.produce([columns_of(records), *records])
    _, found, *_ = site.read(6)
    assert [each.timestamp()[1] for each in found] == [1, 1, 2_000] * 2


def test_keys_go_where_they_go_one_by_one(site: Site) -> None:
    """A partition that is not chosen is that of the key, and a time that is not is now's."""
    keys = [b"%d" % number for number in range(200)]
    columns = ResultColumns(TOPIC, pa.array(keys), pa.array(keys))
    site.produce([columns])
    site.produce(each_of([columns]))
    for messages in site.read(400):
        half = len(messages) // 2
        values = [each.value() for each in messages]
        assert values[:half] == values[half:]
        assert all(each.timestamp()[1] > time.time() * 1000 - 60_000 for each in messages)


def test_a_queue_that_is_full_loses_and_doubles_nothing() -> None:
    """Records without room are produced once there is some, before later ones."""
    site = Site(**{"test.mock.num.brokers": 1, "queue.buffering.max.messages": 100})
    values = [b"%d" % number for number in range(2000)]
    ones = pa.array([1] * 2000, pa.int32())
    headers = pa.array([[("h", each)] for each in values], HEADERS)
    site.produce([ResultColumns(TOPIC, pa.array(values), pa.array(values), headers, ones)])
    _, found, *_ = site.read(2000)
    assert [each.value() for each in found] == values
    assert [each.headers() for each in found] == [[("h", each)] for each in values]


def test_a_queue_that_stays_full_is_said() -> None:
    """No broker takes anything until the deadline."""
    site = Site(**{"bootstrap.servers": "127.0.0.1:1", "queue.buffering.max.messages": 10})
    values = pa.array([b"v"] * 20)
    with pytest.raises(ProduceError, match="topic out: the brokers take no more records"):
        site.produce([ResultColumns(TOPIC, values, values)], 0.3)
    site.producer.purge()


def test_a_record_that_is_too_large_is_refused_and_named(site: Site) -> None:
    """The error is that of a record produced by itself."""
    values = pa.array([b"v", b"v" * 2_000_000, b"v"])
    columns = ResultColumns(TOPIC, pa.array([b"k"] * 3), values)
    said = []
    for results in ([columns], list(columns)):
        with pytest.raises(RowsRefusedError, match="with 2000001 bytes of key and val") as raised:
            site.produce(results)
        said.append(str(raised.value))
    assert said[0] == said[1]


def test_records_that_brokers_refuse_are_reported_once() -> None:
    """A failure is that of its own records, and not of later ones."""
    site = Site(**{"bootstrap.servers": "127.0.0.1:1", "message.timeout.ms": 200})
    columns = ResultColumns(TOPIC, pa.array([b"k"]), pa.array([b"v"]))
    said = []
    for results in ([columns], list(columns)):
        with pytest.raises(HeadraceError) as raised:
            site.produce(results)
        said.append((type(raised.value), str(raised.value)))
    expected = "the brokers did not take a record: topic out: Local: Message timed out"
    assert said == [(ProduceError, expected)] * 2
    site.produce([])


def test_a_client_has_its_own_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's plugins are left alone, and without the library there are no columns."""
    assert ColumnProducer.plugin({"plugin.library.paths": "mine.so"}) == {}
    Producer({**QUIET, "bootstrap.servers": "127.0.0.1:1"})
    assert ColumnProducer.of_the_newest() is None

    def missing() -> None:
        raise LibraryMissingError("not built")

    monkeypatch.setattr(module, "load", missing)
    assert ColumnProducer.plugin({}) == {}
    assert ColumnProducer.of_the_newest() is None
