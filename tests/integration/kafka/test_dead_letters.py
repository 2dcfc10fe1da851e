from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from headrace.core.clock import Deadline
from headrace.core.columns import HEADERS
from headrace.core.records import TopicPartition
from headrace.core.result_columns import ResultColumns
from headrace.kafka.columnar.producer import ColumnProducer
from headrace.kafka.dead_letters import KafkaDeadLetterStore
from headrace.kafka.errors import KafkaUnavailableError, ProduceError
from headrace.kafka.ports import DeadLetter
from headrace.kafka.source import KafkaRecordReader
from headrace.testing import FakeRecord
from tests.brokers import Broker


def test_a_letter_is_stored_as_it_was_given(bootstrap_servers: str) -> None:
    """Key, value and headers, also none and the same name twice; stored when ``store`` returns."""
    broker, store = (
        Broker(bootstrap_servers),
        KafkaDeadLetterStore({"bootstrap.servers": bootstrap_servers}),
    )
    topic = broker.create_topic()
    letters = [
        DeadLetter(b"k", b"v", [("a", b"1"), ("a", None)]),
        DeadLetter(None, None, [("a", b"")]),
        DeadLetter(b"", b"x" * 900_000, []),
    ]
    for count, letter in enumerate(letters, start=1):
        store.store(topic, letter, 30)
        assert broker.end(TopicPartition(topic, 0)) == count
    found = broker.read(TopicPartition(topic, 0), 3)
    assert [(m.key(), m.value(), m.headers() or []) for m in found] == [
        (letter.key, letter.value, letter.headers) for letter in letters
    ]
    store.close()


def test_threads_share_one_producer(bootstrap_servers: str) -> None:
    """Each returns when its own record is there."""
    broker, store = (
        Broker(bootstrap_servers),
        KafkaDeadLetterStore({"bootstrap.servers": bootstrap_servers}),
    )
    topic = broker.create_topic()

    def send(number: int) -> None:
        store.store(topic, DeadLetter(None, b"%d" % number, []), 30)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(send, range(100)))
    values = {message.value() for message in broker.read(TopicPartition(topic, 0), 100)}
    assert values == {b"%d" % number for number in range(100)}
    store.close()


@pytest.mark.parametrize("in_columns", [True, False])
def test_letters_are_stored_as_they_were_given(
    bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch, *, in_columns: bool
) -> None:
    """All of more than go at once, in their order, and also without the part in C."""
    if not in_columns:
        monkeypatch.setattr(ColumnProducer, "plugin", lambda _: {})
    broker = Broker(bootstrap_servers)
    topic = broker.create_topic()
    store = KafkaDeadLetterStore({"bootstrap.servers": bootstrap_servers})
    keys = [None, *(b"%d" % n for n in range(2499))]
    values = [b"x" * 900_000 if n < 7 else None if n == 8 else b"%d" % n for n in range(2500)]
    headers = [[("a", b"%d" % n), ("a", None)][: n % 3] for n in range(2500)]
    columns = (
        pa.array(each, kind)
        for each, kind in ((keys, pa.binary()), (values, pa.binary()), (headers, HEADERS))
    )
    store.store_all(ResultColumns(topic, *columns), 30)
    assert broker.end(TopicPartition(topic, 0)) == 2500
    found = broker.read(TopicPartition(topic, 0), 2500)
    assert [(m.key(), m.value(), m.headers() or []) for m in found] == list(
        zip(keys, values, headers, strict=True)
    )
    store.close()


def test_letters_that_are_not_acknowledged_are_an_error(bootstrap_servers: str) -> None:
    """A letter that is too large is one, with the topic's name; those after it are taken."""
    broker = Broker(bootstrap_servers)
    topic = broker.create_topic()
    store = KafkaDeadLetterStore({"bootstrap.servers": bootstrap_servers})

    def letters(value: bytes) -> ResultColumns:
        return ResultColumns(topic, pa.nulls(1, pa.binary()), pa.array([value]))

    for _ in range(2):
        with pytest.raises(ProduceError, match=f"{topic} did not take a record: .* too large"):
            store.store_all(letters(b"x" * 2_000_000), 30)
        store.store_all(letters(b"small"), 30)
    assert broker.end(TopicPartition(topic, 0)) == 2
    store.close()


@pytest.mark.parametrize("missing", ["topic", "broker"])
def test_a_letter_that_is_not_acknowledged_is_an_error(
    bootstrap_servers: str, missing: str
) -> None:
    """Without the topic or a broker the error comes by the deadline, with the topic's name."""
    address = bootstrap_servers if missing == "topic" else "127.0.0.1:1"
    store = KafkaDeadLetterStore({"bootstrap.servers": address, "log_level": 0})
    with pytest.raises(ProduceError, match=r"no\.such\.topic did not take a record"):
        store.store("no.such.topic", DeadLetter(None, b"v", []), 1)
    several = ResultColumns("no.such.topic", pa.array([b"k"]), pa.array([b"v"]))
    with pytest.raises(ProduceError, match=r"no\.such\.topic did not take a record"):
        store.store_all(several, 1)
    store.close()


def test_a_record_is_read_by_its_offset(bootstrap_servers: str) -> None:
    """Exactly that one, with all that it has; nothing where there is none, or none any more."""
    broker = Broker(bootstrap_servers)
    partition = TopicPartition(broker.create_topic(), 0)
    broker.produce(partition, b"0", FakeRecord(key_=b"k", value_=b"1", headers_=[("a", b"h")]))
    broker.transact(partition, b"2", commit=False)
    reader = KafkaRecordReader({"bootstrap.servers": bootstrap_servers}, "reader")
    found = reader.read(partition, 1, Deadline.after(30))
    assert found is not None
    assert (found.key(), found.value(), found.headers()) == (b"k", b"1", [("a", b"h")])
    assert reader.read(partition, 2, Deadline.after(30)) is None
    broker.delete_before(partition, 1)
    assert reader.read(partition, 0, Deadline.after(30)) is None


def test_a_record_that_no_broker_gives_is_an_error() -> None:
    """The error comes by the deadline, with the partition and the offset."""
    reader = KafkaRecordReader({"bootstrap.servers": "127.0.0.1:1"}, "reader")
    with pytest.raises(KafkaUnavailableError, match="t-0: the record at 5 was not read in time"):
        reader.read(TopicPartition("t", 0), 5, Deadline.after(0.5))
