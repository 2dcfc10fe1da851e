from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.inline.rehearsal import rehearse as rehearse_inline
from headrace.spark.decode import Decode, Decoding, OnUndecodable
from headrace.spark.rehearsal import rehearse
from headrace.testing import records_table

if TYPE_CHECKING:
    from headrace.spark.runtime import SparkRuntime

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


def test_values_are_decoded_alike_with_spark_and_without(spark_runtime: SparkRuntime) -> None:
    """A channel that changes its type gets the same rows of the same records."""
    decode = Decode(Decoding.JSON, SCHEMA, OnUndecodable.SKIP)
    table = records_table(ALIKE)

    inline = rehearse_inline(lambda rows, _: rows, table, decode)
    spark = rehearse(spark_runtime.session, lambda df, _: df, table, decode)

    assert inline.skipped == spark.skipped
    assert inline.rows is not None
    assert spark.rows is not None
    assert inline.rows.to_pylist() == spark.rows.to_pylist()
