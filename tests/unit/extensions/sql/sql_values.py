"""Values of all Arrow types, put to columns of all types, on any database."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.channel.error_scope import ErrorScope, classify_error
from headrace.core.errors import ResultMisfitError, RowsRefusedError
from headrace.core.records import TopicPartition
from headrace.sinks.contract import PartitionCommit
from headrace.sinks.micro_batch import MicroBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.extensions.sql.sink import SqlSink

#: Arrow's number for the first moment of the year 10000, in microseconds.
_YEAR_10000 = 253402300800000000

_TEXTS = ["", "1", "x", "true", "null", "2020-01-01", "10:00:00", '{"a": 1}', "{bad", "{1,2}"]
_TEXTS += ["a\x00b", "NaN", "[1]", "[1", "longer than any", "ü€", '"\\ud800"', "[" * 5000, "1e999"]

VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int32(), [0, 1, 5, -(2**31)]),
    (pa.int64(), [1, 2**40, -(2**63)]),
    (pa.uint64(), [0, 2**64 - 1]),
    (pa.float64(), [0.0, -0.0, 1.5, math.nan, math.inf, 1e308]),
    (pa.decimal128(10, 2), [Decimal("0.00"), Decimal("12345678.25")]),
    (pa.string(), _TEXTS),
    (pa.large_string(), ["1", "{bad"]),
    (pa.dictionary(pa.int32(), pa.string()), ["1", "{bad"]),
    (pa.binary(), [b"1", b"\xff\x00"]),
    (pa.date32(), [date(2020, 1, 1), 2932897]),
    (pa.time64("us"), [time(1, 2)]),
    (pa.timestamp("us"), [0, _YEAR_10000]),
    (pa.timestamp("ns"), [0, 1]),
    (pa.timestamp("us", tz="UTC"), [datetime(2020, 1, 1, tzinfo=UTC), _YEAR_10000, -(2**62)]),
    (pa.duration("us"), [timedelta(1), 2**62]),
    (pa.list_(pa.int64()), [[1, 2], [], [None]]),
    (pa.list_(pa.string()), [["a"], []]),
    (pa.struct([("a", pa.int64())]), [{"a": 1}, {"a": None}]),
    (pa.struct([("a", pa.float64())]), [{"a": 1.5}, {"a": math.nan}]),
    (pa.struct([("a", pa.string())]), [{"a": "x"}, {"a": "a\x00b"}]),
    (pa.struct([("a", pa.timestamp("us"))]), [{"a": 0}]),
    (pa.map_(pa.string(), pa.int64()), [[("a", 1)], []]),
    (pa.null(), [None]),
]


def outcomes(sink: SqlSink, table: str) -> Iterator[tuple[pa.DataType, Any, str]]:
    """Write each value by itself; yield what became of it: stored, or the name of the error."""
    for number, (kind, values) in enumerate(VALUES):
        for place, value in enumerate([*values, None]):
            rows = pa.table({"v": pa.array([value], kind)})
            identity = f"{table}/{number}/{place}"
            move = PartitionCommit(identity, TopicPartition("t", 0), 0, 1)
            try:
                staged = sink.stage(MicroBatch("one", "c", ()), rows)
                sink.commit(staged, [move])
            except Exception as error:  # noqa: BLE001 - which one is what is asked
                assert sink.stored_offset(identity) is None
                yield kind, value, _named(error)
            else:
                assert sink.stored_offset(identity) == 1
                yield kind, value, "stored"


def _named(error: Exception) -> str:
    if isinstance(error, RowsRefusedError):
        assert classify_error(error) is ErrorScope.BATCH
        return "row"
    if isinstance(error, ResultMisfitError):
        assert classify_error(error) is ErrorScope.ENVIRONMENT
        assert "column 'v' of type" in str(error)
        return "type"
    return f"{type(error).__name__}: {error}"


def assert_answered_for(sink: SqlSink, table: str) -> None:
    """Assert that a refusal is the row's or the type's, and a type's for each of its values."""
    found: dict[pa.DataType, list[str]] = {}
    for kind, value, outcome in outcomes(sink, table):
        assert outcome in {"stored", "row", "type"}, (table, kind, value, outcome)
        found.setdefault(kind, []).append(outcome)
    for kind, all_of in found.items():
        assert "type" not in all_of or set(all_of) == {"type"}, (table, kind, all_of)
