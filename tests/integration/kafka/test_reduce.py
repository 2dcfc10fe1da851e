from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from headrace.cli import app
from headrace.core.errors import UsageError
from headrace.core.records import TopicPartition
from headrace.ops.dryrun import commands
from headrace.ops.dryrun.commands import Range, read_range
from headrace.testing import FakeRecord
from tests.brokers import Broker, Stored

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any


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


def test_a_range_that_does_not_exist_is_refused(bootstrap_servers: str) -> None:
    """A topic, a partition and offsets that do not exist are named."""
    broker, properties = Broker(bootstrap_servers), {"bootstrap.servers": bootstrap_servers}
    partition = TopicPartition(broker.create_topic(), 0)
    broker.produce(partition, b"a", b"b")

    for wanted, told in [
        (Range(partition, 0, 3), "has the offsets 0-2"),
        (Range(TopicPartition(partition.topic, 1), 0, 1), "has no partition 1; it has 1"),
        (Range(TopicPartition("no-such-topic", 0), 0, 1), "does not exist"),
    ]:
        with pytest.raises(UsageError, match=told):
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


def test_a_channel_is_tried_and_not_touched(
    bootstrap_servers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a whole configuration the group's offset and the sink's table stay as they were.

    ZooKeeper is not asked, and no file is written: neither in state_dir nor beside the table.
    """
    monkeypatch.setattr(commands, "configure_logging", lambda _: None)
    broker, group, sink = Broker(bootstrap_servers), f"group.{tmp_path.name}", tmp_path / "table"
    partition = TopicPartition(broker.create_topic(), 0)
    broker.produce(partition, b"a", b"bcd", b"e")
    broker.commit(group, partition, 1, "kept")
    write_deltalake(sink, pa.table({"offset": pa.array([0]), "size": pa.array([1], pa.int32())}))
    config = tmp_path / "headrace.yaml"
    config.write_text(json.dumps(_document(broker, partition.topic, group, sink)), encoding="utf-8")
    before = _files(tmp_path)

    source = f"{partition.topic}:0:0-3"
    done = CliRunner().invoke(app, ["reduce", "--config", str(config), "--input", source, "--json"])

    assert done.exit_code == 0, done.output
    sizes = [json.loads(line)["size"] for line in done.stdout.splitlines()]
    assert sizes == [1, 3, 1]
    assert broker.committed(group, partition) == [Stored(1, "kept")]
    assert _files(tmp_path) == before
    assert DeltaTable(sink).version() == 0


def _document(broker: Broker, topic: str, group: str, sink: Path) -> dict[str, Any]:
    """Return a configuration whose ZooKeeper is not there."""
    return {
        "state_dir": str(sink.with_name("state")),
        "kafka": {"bootstrap_servers": broker.address},
        "zookeeper": {"hosts": "127.0.0.1:1"},
        "channels": {
            "main": {
                "topics": [topic],
                "group": group,
                "processor": {"type": "arrow", "reducer": "tests.unit.testing.test_reducers:sizes"},
                "sink": {"type": "delta", "path": str(sink)},
            }
        },
    }


def _files(folder: Path) -> dict[Path, bytes | None]:
    """Return what is in a folder and in those below it."""
    return {each: each.read_bytes() if each.is_file() else None for each in folder.rglob("*")}
