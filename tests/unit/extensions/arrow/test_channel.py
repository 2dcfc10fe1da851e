from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from headrace.config import ChannelConfig, KafkaConfig
from headrace.core.errors import ImportPathError
from headrace.processors.factory import build_processor
from headrace.testing import FakeRecord, InMemoryBroker, in_memory_channel, running
from tests.unit.channel.in_memory import P0, P1, committed, eventually, filled_broker

if TYPE_CHECKING:
    from pathlib import Path

    from headrace import InboundKafkaChannel
    from headrace.processors import BatchProcessor
    from headrace.spark import MicroBatch


def lengths(table: pa.Table, batch: MicroBatch) -> pa.Table:
    """Return one row for each record, without the value."""
    sizes = pc.binary_length(table.column("value"))
    named = table.select(["partition", "offset", "timestamp", "headers"])
    return named.append_column("size", sizes).append_column(
        "channel", pa.array([batch.channel] * table.num_rows)
    )


def nothing(table: pa.Table, batch: MicroBatch) -> None:
    """Return no rows."""
    del table, batch


def refuse_fives(table: pa.Table, batch: MicroBatch) -> pa.Table:
    """Fail on the value 5 of partition 1."""
    del batch
    records = table.select(["partition", "value"]).to_pylist()
    if {"partition": 1, "value": b"5"} in records:
        raise ValueError("no fives")
    return table.select(["partition", "offset"])


def wrong(table: pa.Table, batch: MicroBatch) -> Any:
    """Return what is no table."""
    del batch
    return table.to_pylist()


def settings(name: str, sink: dict[str, Any] | str) -> dict[str, Any]:
    """Return what is particular to a channel with one of the reducers above."""
    processor = {"type": "arrow", "reducer": f"{__name__}:{name}"}
    return {"processor": processor, "sink": sink}


def no_spark() -> NoReturn:
    """Fail: a channel of type arrow takes no Spark runtime."""
    raise AssertionError("a channel of type arrow takes no Spark")


def build(chosen: dict[str, Any]) -> BatchProcessor:
    """Build a processor as the controller does."""
    config = ChannelConfig.model_validate({"topics": ["events"], "group": "group", **chosen})
    return build_processor(config, no_spark, "member", KafkaConfig())


def channel(
    broker: InMemoryBroker, name: str, sink: dict[str, Any] | str, **more: Any
) -> InboundKafkaChannel:
    """Build a channel with one of the reducers above."""
    return in_memory_channel(build(settings(name, sink)), broker, **more)


def test_a_channel_stores_rows_and_offsets_without_spark(tmp_path: Path) -> None:
    """Rows of all partitions are in the Delta table with their offsets, once, and committed."""
    broker, folder = filled_broker(), tmp_path / "table"
    record = FakeRecord(value_=b"abc", headers_=[("trace", b"1")], timestamp_=1_700_000_000_123)
    broker.produce(P0, record)

    with running(channel(broker, "lengths", {"type": "delta", "path": str(folder)})):
        assert committed(broker, P0, 11)
        assert committed(broker, P1, 10)

    order = [("partition", "ascending"), ("offset", "ascending")]
    rows = DeltaTable(folder).to_pyarrow_table().sort_by(order).to_pylist()
    assert [(row["partition"], row["offset"]) for row in rows] == [
        *((0, number) for number in range(11)),
        *((1, number) for number in range(10)),
    ]
    last = rows[10]
    assert (last["size"], last["channel"]) == (3, "member")
    assert last["headers"] == [{"key": "trace", "value": b"1"}]
    assert last["timestamp"].timestamp() == 1_700_000_000.123


def test_the_sinks_offset_wins_at_the_start(tmp_path: Path) -> None:
    """The table's offset wins over the group's, so stored records are not read again."""
    broker, folder = filled_broker(), tmp_path / "table"
    sink = {"type": "delta", "path": str(folder)}
    with running(channel(broker, "lengths", sink)):
        assert committed(broker, P0, 10)
        assert committed(broker, P1, 10)
    broker.forget("group", P0)
    broker.produce(P0, b"new")

    with running(channel(broker, "lengths", sink)):
        assert committed(broker, P0, 11)

    assert DeltaTable(folder).to_pyarrow_table().num_rows == 21


def test_no_result_stores_offsets_only(tmp_path: Path) -> None:
    """A reducer that returns None has the offsets go on."""
    broker, path = filled_broker(), tmp_path / "rows.jsonl"
    with running(channel(broker, "nothing", {"type": "jsonl", "path": str(path)})):
        assert committed(broker, P0, 10)
    assert path.read_text() == ""


def test_only_the_batch_that_fails_alone_fails(tmp_path: Path) -> None:
    """The error policy meets the batch with the bad record, and nothing of the other partition."""
    broker, path = filled_broker(), tmp_path / "rows.jsonl"
    skip = {"retry": {"attempts": 2, "backoff": "1ms"}, "rejects": {"failing": "skip"}}

    sink = {"type": "jsonl", "path": str(path)}
    with running(channel(broker, "refuse_fives", sink, **skip)):
        assert committed(broker, P0, 10)
        assert committed(broker, P1, 10)

    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(row["offset"] for row in rows if row["partition"] == 0) == list(range(10))
    assert not [row for row in rows if row["partition"] == 1]


def test_a_result_that_is_not_a_table_fails_the_batch() -> None:
    """The error says which type was returned and which one is wanted."""
    errors: list[BaseException] = []
    made = in_memory_channel(
        build(settings("wrong", "noop")),
        filled_broker(),
        on_failure=lambda _, error: errors.append(error),
        retry={"attempts": 1},
    )
    with running(made):
        eventually(lambda: bool(errors))
    assert "returned a list; it must return a pyarrow.Table" in str(errors[0])


@pytest.mark.parametrize(
    ("path", "told"),
    [("nowhere_at_all:f", "no module"), (f"{__name__}:no_spark", r"called with \(table, batch\)")],
)
def test_a_reducer_that_cannot_be_called_is_refused(path: str, told: str) -> None:
    """A reducer that is not a function of a table and a batch ends the start."""
    with pytest.raises(ImportPathError, match=told):
        build({"processor": {"type": "arrow", "reducer": path}, "sink": "noop"})
