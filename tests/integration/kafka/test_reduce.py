from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.offsets.errors import RequestError
from headrace.records import TopicPartition
from headrace.reducing import commands
from headrace.reducing.ranges import Range, read_range
from headrace.testing import FakeRecord
from tests.brokers import Broker


def test_a_range_is_read_and_nothing_else_is(bootstrap_servers: str) -> None:
    """Exactly the offsets asked for come, with key, headers and time, over several fetches."""
    broker = Broker(bootstrap_servers)
    partition = TopicPartition(broker.create_topic(2), 1)
    broker.produce(partition, *(b"%d" % number for number in range(2500)))
    broker.produce(partition, FakeRecord(key_=b"k", value_=None, headers_=[("h", b"1")]))

    table = read_range(Range(partition, 10, 2501), {"bootstrap.servers": bootstrap_servers})

    assert table.column("offset").to_pylist() == list(range(10, 2501))
    assert table.column("value").to_pylist()[:2] == [b"10", b"11"]
    last = table.slice(2490).to_pylist()[0]
    assert (last["key"], last["value"], last["headers"]) == (
        b"k",
        None,
        [{"key": "h", "value": b"1"}],
    )


def test_a_range_that_is_not_there_is_refused(bootstrap_servers: str) -> None:
    """A topic, a partition and offsets that do not exist are named."""
    broker, properties = Broker(bootstrap_servers), {"bootstrap.servers": bootstrap_servers}
    partition = TopicPartition(broker.create_topic(), 0)
    broker.produce(partition, b"a", b"b")

    for wanted, told in [
        (Range(partition, 0, 3), "has the offsets 0-2"),
        (Range(TopicPartition(partition.topic, 1), 0, 1), "has no partition 1; it has 1"),
        (Range(TopicPartition("no-such-topic", 0), 0, 1), "does not exist"),
    ]:
        with pytest.raises(RequestError, match=told):
            read_range(wanted, properties)


def test_a_reducer_is_tried_on_a_range(
    bootstrap_servers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command reads from the brokers that it is told of, and leaves no trace in a group."""
    monkeypatch.setattr(commands, "configure_logging", lambda _: None)
    broker = Broker(bootstrap_servers)
    partition = TopicPartition(broker.create_topic(), 0)
    broker.produce(partition, b"a", b"bcd", b"e")
    arguments = ["--reducer", "tests.unit.testing.test_reducers:sizes", "--type", "arrow", "--json"]
    where = ["--input", f"{partition.topic}:0:1-3", "--bootstrap-servers", bootstrap_servers]

    done = CliRunner().invoke(app, ["reduce", *arguments, *where])

    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows == [{"offset": 1, "size": 3}, {"offset": 2, "size": 1}]
    assert broker.committed("headrace-reduce", partition) == [None]
