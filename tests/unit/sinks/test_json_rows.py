from __future__ import annotations

import datetime as dt
import decimal
import json
from typing import Any

import pyarrow as pa
import pytest

from headrace.core.errors import ResultMisfitError, RowsRefusedError
from headrace.sinks.jsonl import json_lines

NOON = dt.datetime(2013, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001 - a time without a zone is a case
BERLIN = pa.timestamp("us", tz="Europe/Berlin")

#: One value, its type, and what Spark 4.0 writes for it.
SPELT: list[tuple[Any, pa.DataType, str]] = [
    (1, pa.uint64(), "1"),
    (True, pa.bool_(), "true"),
    (1.5, pa.float64(), "1.5"),
    (float("nan"), pa.float64(), '"NaN"'),
    (float("-inf"), pa.float64(), '"-Infinity"'),
    (decimal.Decimal("1.50"), pa.decimal128(10, 2), "1.50"),
    ('ü/"\n', pa.string(), r'"ü/\"\n"'),
    ("a", pa.dictionary(pa.int8(), pa.string()), '"a"'),
    (b"\x00ab", pa.binary(), '"AGFi"'),
    (NOON, pa.timestamp("us"), '"2013-01-02T03:04:05.678"'),
    (NOON, pa.timestamp("us", tz="UTC"), '"2013-01-02T03:04:05.678Z"'),
    (NOON.replace(tzinfo=dt.UTC), BERLIN, '"2013-01-02T03:04:05.678Z"'),
    (dt.date(2013, 1, 2), pa.date32(), '"2013-01-02"'),
    ([1, None], pa.list_(pa.int64()), "[1,null]"),
    ([("k", 1), ("n", None)], pa.map_(pa.string(), pa.int64()), '{"k":1,"n":null}'),
    ({"x": 1, "y": None}, pa.struct([("x", pa.int8()), ("y", pa.int8())]), '{"x":1,"y":null}'),
    (None, pa.null(), "null"),
    (None, pa.string(), "null"),
]


@pytest.mark.parametrize(("value", "kind", "spelt"), SPELT, ids=str)
def test_values_are_spelt_as_spark_spells_them(value: Any, kind: pa.DataType, spelt: str) -> None:
    """Every type that Spark has comes out as its own ``to_json`` would write it."""
    table = pa.table({"a b": pa.array([value], kind)})

    (line,) = json_lines(table)

    assert line == f'{{"a b":{spelt}}}'
    json.loads(line)


def test_a_type_without_a_spelling_is_named() -> None:
    """A column that JSON lines cannot hold fails with its name and type."""
    table = pa.table({"long": pa.array([dt.timedelta(seconds=1)])})
    with pytest.raises(ResultMisfitError, match=r"'long' is of type duration"):
        list(json_lines(table))


def test_a_time_of_no_year_of_python_s_is_the_row_s_fault() -> None:
    """With the column's name."""
    rows = pa.table({"at": pa.array([0, 2**62], pa.timestamp("us"))})
    with pytest.raises(RowsRefusedError, match=r"column 'at': .*have the reducer leave it out"):
        list(json_lines(rows))
