"""The value of a text or a number in JSON for each type, with Spark and without it."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headrace.core.tables import Decode, Decoding, OnUndecodable, Timestamps
from headrace.extensions.arrow.reducer import dry_run as rehearse_inline
from headrace.extensions.spark.dryrun import dry_run
from headrace.testing import records_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.extensions.spark.runtime import SparkRuntime
    from headrace.sinks.micro_batch import DryRunBatch


@dataclass(frozen=True, slots=True)
class OnSpark:
    """A value that Spark decodes and the arrow decoder refuses; ``docs`` has the reason."""

    value: object


@dataclass(frozen=True, slots=True)
class OnArrow:
    """A value that the arrow decoder decodes and Spark refuses; ``docs`` has the reason."""

    value: object


class Refused:
    """A value that is undecodable in both."""


REFUSED = Refused()

#: The types, by the name of their column.
TYPES = {
    "byte": "TINYINT",
    "short": "SMALLINT",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
    "text": "STRING",
    "day": "DATE",
    "at": "TIMESTAMP",
    "local": "TIMESTAMP_NTZ",
    "money": "DECIMAL(12, 2)",
    "whole": "DECIMAL(5)",
    "fine": "DECIMAL(38, 18)",
    "in_struct": "STRUCT<x: DECIMAL(12, 2), at: TIMESTAMP, `odd 'name\\`: DATE, b: TINYINT>",
    "in_list": "ARRAY<DECIMAL(12, 2)>",
    "days": "ARRAY<STRUCT<d: ARRAY<DATE>>>",
    "times": "ARRAY<TIMESTAMP_NTZ>",
    "deep": "ARRAY<ARRAY<ARRAY<DECIMAL(5, 1)>>>",
    "deeper": "ARRAY<ARRAY<ARRAY<DATE>>>",
}
SCHEMA = ", ".join(f"`{name}` {kind}" for name, kind in TYPES.items())


def utc(*moment: int) -> datetime:
    """Return a moment."""
    return datetime(*moment, tzinfo=UTC)  # type: ignore[misc, arg-type]


def local(*moment: int) -> datetime:
    """Return a local time."""
    return utc(*moment).replace(tzinfo=None)


def money(text: str) -> Decimal:
    """Return an amount with two digits behind the point."""
    return Decimal(text).quantize(Decimal("0.01"))


LONG = Decimal("12345678901234567890.123456789012345678")
DAY = date(2026, 3, 29)

#: Column, what is there in JSON, and what it is.
TABLE: list[tuple[str, str, Any]] = [
    # decimals, as numbers and as text
    ("money", "19.99", money("19.99")),
    ("money", '"19.99"', money("19.99")),
    ("money", '"19,99"', REFUSED),
    ("money", '"1.234,50"', REFUSED),
    ("money", '"1,234.50"', REFUSED),
    ("money", '"19\\u002c99"', REFUSED),
    ("money", '",5"', REFUSED),
    ("money", '"\uff15"', REFUSED),
    ("money", '"\\uff15"', REFUSED),
    ("money", '"\\u0035"', money("5")),
    ("money", '"1_000"', REFUSED),
    ("money", '"1\u2019234.50"', REFUSED),
    ("money", '"0x10"', REFUSED),
    ("money", '"€5"', REFUSED),
    ("money", "1e2", money("100")),
    ("money", '"1E+2"', money("100")),
    ("money", '"+5"', money("5")),
    ("money", '"-0"', money("0")),
    ("money", '"5."', money("5")),
    ("money", '".5"', money("0.5")),
    ("money", '"007"', money("7")),
    ("money", '" 5"', REFUSED),
    ("money", '"5 "', REFUSED),
    ("money", '"5\\n"', REFUSED),
    ("money", '""', REFUSED),
    ("money", '"NaN"', REFUSED),
    ("money", "Infinity", REFUSED),
    ("money", "true", REFUSED),
    ("money", "[1]", REFUSED),
    ("money", "null", None),
    ("money", "1.100", money("1.1")),
    ("money", "1.255", OnSpark(money("1.26"))),
    ("money", '"1.255"', OnSpark(money("1.26"))),
    ("money", "9999999999.99", money("9999999999.99")),
    ("money", "10000000000", REFUSED),
    ("money", "1e400", REFUSED),
    ("money", "0e50", OnSpark(money("0"))),
    ("money", f'"1.1{"0" * 40}"', OnSpark(money("1.1"))),
    ("money", f'"{"0" * 50}7"', money("7")),
    ("whole", "1.0", Decimal(1)),
    ("whole", '"99999"', Decimal(99999)),
    ("whole", "100000", REFUSED),
    ("whole", "0.5", OnSpark(Decimal(1))),
    ("fine", "12345678901234567890.123456789012345678", LONG),
    ("fine", "123456789012345678901", REFUSED),
    # moments
    ("at", '"2026-03-29T10:00:00Z"', utc(2026, 3, 29, 10)),
    ("at", '"2026-03-29T10:00:00"', utc(2026, 3, 29, 10)),
    ("at", '"2026-03-29 10:00:00"', utc(2026, 3, 29, 10)),
    ("at", '"2026-03-29T10:00:00+02:00"', utc(2026, 3, 29, 8)),
    ("at", '"2026-03-29T10:00:00-0230"', utc(2026, 3, 29, 12, 30)),
    ("at", '"2026-03-29T10:00:00+02"', utc(2026, 3, 29, 8)),
    ("at", '"2026-03-29T10:00:00-00:00"', utc(2026, 3, 29, 10)),
    ("at", '"2026-03-29T10:00:00.5Z"', utc(2026, 3, 29, 10, 0, 0, 500000)),
    ("at", '"2026-03-29T10:00:00.123456Z"', utc(2026, 3, 29, 10, 0, 0, 123456)),
    ("at", '"2026-03-29T10:00:00.123456789Z"', OnSpark(utc(2026, 3, 29, 10, 0, 0, 123456))),
    ("at", '"2026-03-29T10:00:00.Z"', REFUSED),
    ("at", '"2026-03-29T10:00:00,5Z"', REFUSED),
    ("at", '"2026-03-29"', utc(2026, 3, 29)),
    ("at", '"2026-03-29T10:00"', utc(2026, 3, 29, 10)),
    ("at", '"2026-03-29T10"', utc(2026, 3, 29, 10)),
    ("at", '"2026-03"', REFUSED),
    ("at", '"2026"', REFUSED),
    ("at", '"01:30:00"', REFUSED),
    ("at", '"T01:30"', REFUSED),
    ("at", "1774778400", REFUSED),
    ("at", "1774778400000", REFUSED),
    ("at", "-1", REFUSED),
    ("at", '"1774778400"', REFUSED),
    ("at", '" 2026-03-29T10:00:00Z"', REFUSED),
    ("at", '"2026-03-29T10:00:00Z "', REFUSED),
    ("at", '"2026-03-29T10:00:00Z\\n"', REFUSED),
    ("at", '"2026-03-29T24:00:00Z"', REFUSED),
    ("at", '"2026-06-30T23:59:60Z"', REFUSED),
    ("at", '"2026-02-29T10:00:00Z"', REFUSED),
    ("at", '"2026-3-9T1:2:3Z"', REFUSED),
    ("at", '"2026-03-29T10:00:00 Europe/Berlin"', REFUSED),
    ("at", '"2026-03-29T10:00:00UTC"', REFUSED),
    ("at", '"2026-03-29T10:00:00+02:00:30"', REFUSED),
    ("at", '"2026-03-29T10:00:00+25:00"', REFUSED),
    ("at", '"2026-03-29T10:00:00-18:00"', utc(2026, 3, 30, 4)),
    ("at", '"2026-03-29T10:00:00+18:01"', OnArrow(utc(2026, 3, 28, 15, 59))),
    ("at", '"2026-03-29T10:00:00-23:59"', OnArrow(utc(2026, 3, 30, 9, 59))),
    ("at", '"2026-03-29t10:00:00z"', REFUSED),
    ("at", '"29.03.2026 10:00"', REFUSED),
    ("at", '"Sun, 29 Mar 2026 10:00:00 GMT"', REFUSED),
    ("at", '"now"', REFUSED),
    ("at", '""', REFUSED),
    ("at", "true", REFUSED),
    ("at", '"0000-01-01T00:00:00Z"', REFUSED),
    ("at", '"0001-01-01T00:00:00+01:00"', REFUSED),
    ("at", '"0001-01-01T00:00:00Z"', utc(1, 1, 1)),
    ("at", '"9999-12-31T23:59:59.999999Z"', utc(9999, 12, 31, 23, 59, 59, 999999)),
    ("at", '"9999-12-31T23:59:59-01:00"', REFUSED),
    ("at", '"10000-01-01T00:00:00Z"', REFUSED),
    ("at", '"+10000-01-01T00:00:00Z"', REFUSED),
    ("at", '"-0001-01-01T00:00:00Z"', REFUSED),
    # local times
    ("local", '"2026-03-29T01:30:00"', local(2026, 3, 29, 1, 30)),
    ("local", '"2026-03-29 01:30:00.25"', local(2026, 3, 29, 1, 30, 0, 250000)),
    ("local", '"2026-03-29"', local(2026, 3, 29)),
    ("local", '"2026-03-29T01:30:00+02:00"', REFUSED),
    ("local", '"2026-07-01T00:30:00+0900"', REFUSED),
    ("local", '"2026-03-29T01:30:00Z"', REFUSED),
    ("local", '"2026-03"', REFUSED),
    ("local", "1774778400", REFUSED),
    ("local", '"01:30:00"', REFUSED),
    ("local", '"0000-01-01T00:00:00"', REFUSED),
    # dates
    ("day", '"2026-03-29"', date(2026, 3, 29)),
    ("day", '"2026-3-9"', REFUSED),
    ("day", '"2026-03-29T23:30:00-05:00"', REFUSED),
    ("day", '"2026-03-29 10:00:00"', REFUSED),
    ("day", '"2026"', REFUSED),
    ("day", '"2026-03"', REFUSED),
    ("day", '"20260329"', REFUSED),
    ("day", '"123"', REFUSED),
    ("day", "20000", REFUSED),
    ("day", '"29.03.2026"', REFUSED),
    ("day", '"03/29/2026"', REFUSED),
    ("day", '" 2026-03-29"', REFUSED),
    ("day", '"2026-02-29"', REFUSED),
    ("day", '"1582-10-10"', date(1582, 10, 10)),
    ("day", '"0000-01-01"', REFUSED),
    ("day", '"0001-01-01"', date(1, 1, 1)),
    ("day", '"9999-12-31"', date(9999, 12, 31)),
    ("day", '"10000-01-01"', REFUSED),
    ("day", '"now"', REFUSED),
    # whole numbers
    ("byte", "127", 127),
    ("byte", "-128", -128),
    ("byte", "128", REFUSED),
    ("byte", "255", REFUSED),
    ("short", "32767", 32767),
    ("short", "32768", REFUSED),
    ("int", "1", 1),
    ("int", "1.0", REFUSED),
    ("int", "1e2", REFUSED),
    ("int", '"1"', REFUSED),
    ("int", "true", REFUSED),
    ("int", "+1", REFUSED),
    ("int", "-2147483648", -2147483648),
    ("int", "2147483648", REFUSED),
    ("long", "9007199254740993", 9007199254740993),
    ("long", "9223372036854775807", 9223372036854775807),
    ("long", "9223372036854775808", REFUSED),
    # fractions
    ("double", "1", 1.0),
    ("double", "0.1", 0.1),
    ("double", "1e-400", 0.0),
    ("double", "1e400", OnSpark(math.inf)),
    ("double", '"1.5"', REFUSED),
    ("double", '"1,5"', REFUSED),
    ("double", "Infinity", math.inf),
    ("double", '"Infinity"', OnSpark(math.inf)),
    ("double", '"INF"', REFUSED),
    ("float", "16777217", 16777216.0),
    ("float", "1e39", math.inf),
    # the rest
    ("bool", "true", True),
    ("bool", '"true"', REFUSED),
    ("bool", "1", REFUSED),
    ("bool", "TRUE", REFUSED),
    ("text", '"x"', "x"),
    ("text", '""', ""),
    ("text", '"\\u0000"', "\0"),
    ("text", '"\\ud83d\\ude00"', "😀"),
    ("text", '"\\ud800"', OnSpark("?")),
    ("text", "5", OnSpark("5")),
    ("text", "true", OnSpark("true")),
    ("text", '{"a":1}', OnSpark('{"a":1}')),
    # inside of others
    ("in_struct", '{"x": "19.99"}', {"x": money("19.99")}),
    ("in_struct", '{"at": "2026-03-29T10:00:00Z"}', {"at": utc(2026, 3, 29, 10)}),
    ("in_struct", '{"odd \'name\\\\": "2026-03-29", "b": 127}', {"odd 'name\\": DAY, "b": 127}),
    ("in_struct", "{}", {}),
    ("in_struct", '{"x": "19,99"}', REFUSED),
    ("in_struct", '{"at": "01:30:00"}', REFUSED),
    ("in_struct", '{"odd \'name\\\\": "2026-3-29"}', REFUSED),
    ("in_struct", '{"b": 128}', REFUSED),
    ("in_list", '["19.99", null, 5]', [money("19.99"), None, money("5")]),
    ("in_list", "[]", []),
    ("in_list", '["1", "19,99"]', REFUSED),
    ("days", '[null, {"d": null}]', [None, {"d": None}]),
    ("days", '[{"d": ["2026-03-29", null]}]', [{"d": [DAY, None]}]),
    ("days", '[{"d": []}, {"d": ["2026-3-29"]}]', REFUSED),
    ("deep", '[[["1.5"], []], null]', [[[Decimal("1.5")], []], None]),
    ("deep", '[[["1"], ["1,5"]]]', REFUSED),
    ("deeper", '[[["2026-03-29"], []], null]', [[[DAY], []], None]),
    ("deeper", '[[["2026-03-29"], ["2026-3-29"]]]', REFUSED),
    ("times", '["2026-03-29T01:30:00"]', [local(2026, 3, 29, 1, 30)]),
    ("times", '["2026-03-29T01:30:00", "2026-03-29T01:30:00Z"]', REFUSED),
]  # fmt: skip


def found(batch: DryRunBatch, count: int, name: Sequence[str]) -> list[Any]:
    """Return what each of so many values became in the column of that name."""
    values: list[Any] = [REFUSED] * count
    assert batch.rows is not None
    for row in batch.rows.to_pylist():
        offset = row["_kafka"]["offset"]
        values[offset] = plain(row[name[offset]])
    assert [o for o in range(count) if values[o] is REFUSED] == [
        offset for offsets in batch.skipped.values() for offset in offsets
    ]
    return values


def plain(value: object) -> object:
    """Return a value without the fields that have none."""
    if isinstance(value, dict):
        return {
            name: plain(each) for name, each in value.items() if each is not None or name == "d"
        }
    return [plain(each) for each in value] if isinstance(value, list) else value


def both(
    runtime: SparkRuntime, values: Sequence[tuple[str, str]], decode: Decode
) -> tuple[list[Any], list[Any]]:
    """Return what the values of columns become, without Spark and with it."""
    table = records_table([f'{{"{name}": {text}}}'.encode() for name, text in values])
    names = [name for name, _ in values]
    inline = rehearse_inline(lambda rows, _: rows, table, decode)
    spark = dry_run(runtime.session, lambda df, _: df, table, decode)
    return found(inline, len(values), names), found(spark, len(values), names)


def test_each_value_of_each_type_is_as_in_the_table(spark_runtime: SparkRuntime) -> None:
    """In both decoders it is the same, or it is refused, or the documentation has the reason."""
    decode = Decode(Decoding.JSON, SCHEMA, OnUndecodable.SKIP)

    inline, spark = both(spark_runtime, [(name, text) for name, text, _ in TABLE], decode)

    on_spark = [of_one(OnSpark, value) for *_, value in TABLE]
    without = [of_one(OnArrow, value) for *_, value in TABLE]
    assert list(zip(TABLE, inline, strict=True)) == list(zip(TABLE, without, strict=True))
    assert list(zip(TABLE, spark, strict=True)) == list(zip(TABLE, on_spark, strict=True))


def of_one(decoder: type[OnSpark | OnArrow], value: Any) -> Any:
    """Return what a value of the table is to one of the decoders."""
    if isinstance(value, OnSpark | OnArrow):
        return value.value if isinstance(value, decoder) else REFUSED
    return value


#: What the number is for the second, with each unit.
MOMENT = utc(2026, 3, 29, 10)
EPOCHS: dict[Timestamps, list[tuple[str, Any]]] = {
    Timestamps.SECONDS: [
        ("1774778400", MOMENT),
        ('"1774778400"', MOMENT),
        ("1774778400.25", MOMENT.replace(microsecond=250000)),
        ("1774778400.1234567", MOMENT.replace(microsecond=123456)),
        ("1.7747784e9", MOMENT),
        ("-62135596800", utc(1, 1, 1)),
        ("-62135596801", REFUSED),
        ("253402300799.999999", utc(9999, 12, 31, 23, 59, 59, 999999)),
        ("253402300800", REFUSED),
        ("1774778400000", REFUSED),
    ],
    Timestamps.MILLIS: [
        ("1774778400000", MOMENT),
        ('"1774778400000"', MOMENT),
        ("1774778400000.5", MOMENT.replace(microsecond=500)),
        ("-1", utc(1969, 12, 31, 23, 59, 59, 999000)),
        ("1774778400000000", REFUSED),
    ],
    Timestamps.MICROS: [
        ("1774778400000000", MOMENT),
        ("1774778400000000.9", MOMENT),
        ("253402300799999999", utc(9999, 12, 31, 23, 59, 59, 999999)),
        ("253402300800000000", REFUSED),
    ],
}
NO_EPOCHS = [
    '"2026-03-29T10:00:00Z"',
    "true",
    '"1,774,778,400"',
    '""',
    '" 5"',
    "1e30",
    "1e400",
    "{}",
]


@pytest.mark.parametrize("unit", EPOCHS)
def test_moments_as_numbers_are_of_the_unit_that_is_said(
    spark_runtime: SparkRuntime, unit: Timestamps
) -> None:
    """Numbers are moments, wherever they are; a text of ISO 8601 is none, and dates stay text."""
    values = [*EPOCHS[unit], *((text, REFUSED) for text in NO_EPOCHS)]
    schema = "at TIMESTAMP, s STRUCT<at: TIMESTAMP>, l ARRAY<TIMESTAMP>, n TIMESTAMP_NTZ, d DATE"
    decode = Decode(Decoding.JSON, schema, OnUndecodable.SKIP, timestamps=unit)
    given = [
        *(("at", text) for text, _ in values),
        *(("s", f'{{"at": {text}}}') for text, _ in values),
        *(("l", f"[null, {text}]") for text, _ in values),
        ("n", values[0][0]),
        ("n", '"2026-03-29T10:00:00"'),
        ("d", '"2026-03-29"'),
    ]
    expected = [
        *(value for _, value in values),
        *(value if value is REFUSED else {"at": value} for _, value in values),
        *(value if value is REFUSED else [None, value] for _, value in values),
        REFUSED,
        local(2026, 3, 29, 10),
        date(2026, 3, 29),
    ]

    inline, spark = both(spark_runtime, given, decode)

    assert list(zip(given, inline, strict=True)) == list(zip(given, expected, strict=True))
    assert list(zip(given, spark, strict=True)) == list(zip(given, expected, strict=True))


_PIECES = {
    "money": ["1", "23", ".", ",", "-", "+", "e", "E", "1", "0", " ", "5", "_", "\uff10", "x"],
    "at": [
        "2026-03-29",
        "T",
        " ",
        "10",
        ":",
        "00",
        "30",
        ".5",
        "Z",
        "+",
        "-",
        "02:00",
        "0130",
        "24",
    ],
    "day": ["2026", "-", "03", "29", "0001", "3", "/", ".", "T10", " ", "9999"],
    "int": ["1", "0", "-", "23", "2147483647", ".0", "e1", "+"],
}


def texts(chance: random.Random, name: str) -> str:
    """Return something in JSON that may be a value of the column's type, or is near one."""
    joined = "".join(chance.choices(_PIECES[name], k=chance.randint(1, 7)))
    if name in {"money", "int"} and chance.random() < 0.3:
        return json.dumps(chance.choice([5, -5, 0.25, 1e3, 12345, True, joined]))
    return json.dumps(joined, ensure_ascii=chance.random() < 0.5)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_texts_near_values_are_decoded_alike(spark_runtime: SparkRuntime, seed: int) -> None:
    """Both decoders make the same of each text, or nothing, whatever it is made of."""
    chance = random.Random(seed)
    name_of = {"local": "at"}
    values = []
    for name in ("money", "at", "local", "day", "int"):
        values += [(name, texts(chance, name_of.get(name, name))) for _ in range(1500)]
    schema = SCHEMA.replace("DECIMAL(12, 2)", "DECIMAL(38, 16)")  # nothing has to be rounded
    decode = Decode(Decoding.JSON, schema, OnUndecodable.SKIP)

    inline, spark = both(spark_runtime, values, decode)

    different = [(value, a, b) for value, a, b in zip(values, inline, spark, strict=True) if a != b]
    assert different == []
    assert 100 < sum(value is not REFUSED for value in spark) < len(values) - 100


def test_the_sessions_time_zone_is_for_times_without_an_offset(
    spark_runtime: SparkRuntime,
) -> None:
    """One with an offset, and a number, is the same moment in any session."""
    session = spark_runtime.new_session()
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    values = [b'{"at": "2026-07-01T10:00:00"}', b'{"at": "2026-07-01T10:00:00Z"}']
    moments = []
    for decode, table in (
        (Decode(Decoding.JSON, "at TIMESTAMP"), records_table(values)),
        (
            Decode(Decoding.JSON, "at TIMESTAMP", timestamps=Timestamps.SECONDS),
            records_table([b'{"at": 1782900000}']),
        ),
    ):
        rows = dry_run(session, lambda df, _: df, table, decode).rows
        assert rows is not None
        moments += rows.column("at").cast(pa.timestamp("us", tz="UTC")).to_pylist()

    assert moments == [utc(2026, 7, 1, 8), utc(2026, 7, 1, 10), utc(2026, 7, 1, 10)]
