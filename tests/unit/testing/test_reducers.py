from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import pytest

from headrace.core.errors import UndecodableRecordError
from headrace.testing import FakeRecord, LocalSpark, records_table, reduce_arrow

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.spark import MicroBatch
    from headrace.testing.reducers import Given


def sizes(table: pa.Table, batch: MicroBatch) -> pa.Table | None:
    """Return the values' sizes, None at a second attempt."""
    if batch.attempt > 1:
        return None
    return table.select(["offset"]).append_column("size", pc.binary_length(table.column("value")))


def ranges(table: pa.Table, batch: MicroBatch) -> Any:
    """Return the ranges of the micro-batch, which is no table."""
    del table
    raise LookupError(
        [(each.topic, each.partition, each.start, each.next_offset) for each in batch.ranges]
    )


def test_an_arrow_reducer_is_tested_in_one_line() -> None:
    """Records in, rows out: bytes, text, JSON and tombstones."""
    assert reduce_arrow(sizes, [b"ab", "ü", {"a": 1}, None]) == [
        {"offset": 0, "size": 2},
        {"offset": 1, "size": 2},
        {"offset": 2, "size": 8},
        {"offset": 3, "size": None},
    ]
    assert reduce_arrow(f"{__name__}:sizes", [b"ab"]) == [{"offset": 0, "size": 2}]
    assert reduce_arrow(sizes, [b"ab"], attempt=2) == []
    assert reduce_arrow(sizes, []) == []


def test_an_arrow_reducer_gets_typed_columns() -> None:
    """With a schema values are decoded as a channel of type arrow decodes them."""
    records: list[Given] = [{"n": 1}, b"rubbish"]
    with pytest.raises(UndecodableRecordError, match="offset 1"):
        reduce_arrow(lambda table, _: table.select(["n"]), records, schema="n INT")
    assert reduce_arrow(
        lambda table, _: table.select(["n"]), records, schema="n INT", undecodable="skip"
    ) == [{"n": 1}]


def test_whole_records_keep_their_fields() -> None:
    """Whole records have keys, headers, times, offsets and partitions of their own."""
    record = FakeRecord("flights", 3, 40, b"k", b"v", [("h", b"1")], 1_700_000_000_123)

    (row,) = records_table([record]).to_pylist()

    assert (row["topic"], row["partition"], row["offset"]) == ("flights", 3, 40)
    assert (row["key"], row["headers"]) == (b"k", [{"key": "h", "value": b"1"}])
    assert row["timestamp"].timestamp() == 1_700_000_000.123


def test_the_batch_says_which_offsets_it_has() -> None:
    """Each partition has a range, in the order of the records."""
    records = [
        FakeRecord(partition_=1),
        FakeRecord(partition_=0, offset_=7),
        FakeRecord(partition_=1),
    ]
    with pytest.raises(LookupError) as raised:
        reduce_arrow(ranges, records)
    assert raised.value.args[0] == [("events", 1, 0, 2), ("events", 0, 7, 8)]


def test_a_result_that_is_not_a_table_is_an_error() -> None:
    """The error says which type is wanted."""
    with pytest.raises(TypeError, match=r"returned a list; it must return a pyarrow\.Table"):
        reduce_arrow(lambda table, _: table.to_pylist(), [b"a"])


def test_spark_has_to_be_started() -> None:
    """Outside of a with statement there is no session."""
    with pytest.raises(RuntimeError, match="with statement"):
        LocalSpark().query("select 1", [])


def test_the_output_of_a_reducer_of_several_is_named() -> None:
    """The rows of the named output are returned; an omitted one has none."""

    def several(table: pa.Table, batch: MicroBatch) -> dict[str, pa.Table | None]:
        return {"a": sizes(table, batch), "b": None}

    assert reduce_arrow(several, [b"ab"], output="a") == [{"offset": 0, "size": 2}]
    assert reduce_arrow(several, [b"ab"], output="b") == []
    assert reduce_arrow(several, [b"ab"], output="c") == []
    with pytest.raises(TypeError, match="returned several results, and output is None"):
        reduce_arrow(several, [b"ab"])
    with pytest.raises(TypeError, match="returned one result, and output is 'a'"):
        reduce_arrow(sizes, [b"ab"], output="a")
