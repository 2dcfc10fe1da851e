from __future__ import annotations

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from headrace.core.tables import Decode, Decoding, OnUndecodable
from headrace.extensions.arrow.reducer import dry_run as rehearse_inline
from headrace.extensions.spark.dryrun import dry_run
from headrace.testing import records_table

if TYPE_CHECKING:
    from headrace.extensions.spark.runtime import SparkRuntime

SCHEMA = (
    "n INT, l BIGINT, d DOUBLE, b BOOLEAN, s STRING, day DATE, at TIMESTAMP, c DECIMAL(5,2), "
    "a ARRAY<INT>, o STRUCT<x: INT>"
)

#: Values that decode to the same rows, or to none, with Spark and without it.
ALIKE: list[bytes | None] = [
    b'{"n": 1, "l": 2, "d": 3.5, "b": true, "s": "x", "day": "2013-01-02"}',
    b'{"at": "2013-01-02T03:04:05.678Z", "c": 1.25, "a": [1, null], "o": {"x": 1}}',
    b'{"at": "2013-01-02T03:04:05+01:00"}',
    b'{"d": 1, "unknown": {"deep": [1]}}',
    b'{"N": 1}',
    b"{}",
    None,
    b'{"n": null, "o": null, "a": null}',
    b'{"s": "\xc3\xbc"}',
    b"rubbish",
    b"",
    b"null",
    b"[1]",
    b'{"n": 1.0}',
    b'{"c": 1000}',
    b"1",
    b'{"n": "1"}',
    b'{"n": 3000000000}',
    b'{"n": 1',
    b'{"day": "tomorrow"}',
    b'{"b": "true"}',
    b'{"a": 1}',
    b'{"o": {"x": "y"}}',
]

#: Values that Spark makes a row of, with the fields that have a value in it, and that are
#: undecodable without it: docs/reducers.md lists them.
WITH_SPARK_ONLY: list[tuple[bytes, dict[str, Any]]] = [
    (b'{"n": 1, "n": 2}', {"n": 2}),
    (b'{"o": {"x": 1, "x": 2}}', {"o": {"x": 2}}),
    (b'{"d": 1e400}', {"d": math.inf}),
    (b'{"unknown": -1e400}', {}),
    (b'{"s": "\\ud800"}', {"s": "?"}),
    (b'{"unknown": "\\udc00"}', {}),
    (b'{"n": 1},"w":{"n": 5}', {"n": 1}),
    (b'{"n": 1} {"n": 2}', {"n": 1}),
    (b'{"n": 1} rubbish', {"n": 1}),
    (b"{'n': 1}", {"n": 1}),
    (b'{"s": "\xff"}', {"s": "\ufffd"}),
    (b'{"s": 5}', {"s": "5"}),
    (b'{"s": {"x": 1}}', {"s": '{"x":1}'}),
    (b'{"d": "Infinity"}', {"d": math.inf}),
    (b'{"c": 1.255}', {"c": Decimal("1.26")}),
    (
        b'{"at": "2013-01-02T03:04:05.1234567Z"}',
        {"at": datetime(2013, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)},
    ),
]


def test_values_are_decoded_alike_with_spark_and_without(spark_runtime: SparkRuntime) -> None:
    """A channel that changes its type gets the same rows of the same records."""
    decode = Decode(Decoding.JSON, SCHEMA, OnUndecodable.SKIP)
    table = records_table(ALIKE)

    inline = rehearse_inline(lambda rows, _: rows, table, decode)
    spark = dry_run(spark_runtime.session, lambda df, _: df, table, decode)

    assert inline.skipped == spark.skipped
    assert inline.rows is not None
    assert spark.rows is not None
    assert inline.rows.to_pylist() == spark.rows.to_pylist()


def test_values_that_only_spark_accepts_are_undecodable_without_it(
    spark_runtime: SparkRuntime,
) -> None:
    """Each difference that the documentation lists is one, and is just this."""
    decode = Decode(Decoding.JSON, SCHEMA, OnUndecodable.SKIP)
    table = records_table([value for value, _ in WITH_SPARK_ONLY])

    inline = rehearse_inline(lambda rows, _: rows, table, decode)
    spark = dry_run(spark_runtime.session, lambda df, _: df, table, decode)

    assert [list(offsets) for offsets in inline.skipped.values()] == [list(range(len(table)))]
    assert spark.skipped == {}
    assert spark.rows is not None
    rows = [
        {name: value for name, value in row.items() if name != "_kafka" and value is not None}
        for row in spark.rows.to_pylist()
    ]
    assert rows == [row for _, row in WITH_SPARK_ONLY]
