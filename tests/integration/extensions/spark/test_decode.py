from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Any

import pytest
from pyspark import SparkConf

from headrace.core.errors import ConfigError, UndecodableRecordError
from headrace.core.records import TopicPartition
from headrace.core.tables import Decode, Decoding, OnUndecodable, merge, table_of
from headrace.extensions.spark.arrow_to_spark import ArrowToSpark
from headrace.extensions.spark.decode import Decoder
from headrace.extensions.spark.dryrun import dry_run
from headrace.testing import records_table
from headrace.testing.records import FakeAssignment, FakeRecord, make_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from headrace.extensions.spark.runtime import SparkRuntime

SCHEMA = "id INT, name STRING, at TIMESTAMP, tags ARRAY<STRING>"
WHERE = TopicPartition("a.topic", 3)

BAD: dict[str, bytes] = {
    "not JSON": b"not json",
    "truncated": b'{"id": 1, "name": "a',
    "a wrong type": b'{"id": "one"}',
    "a fraction for an integer": b'{"id": 1.5}',
    "a number too large": b'{"id": 99999999999}',
    "an empty value": b"",
    "blanks": b"   ",
    "a list": b"[1, 2]",
    "a list of objects": b'[{"id": 1}]',
    "a number": b"5",
    "a string": b'"text"',
    "null": b"null",
    "not UTF-8": b'\xff\xfe{"id": 1}',
    "a megabyte of rubbish": b"x" * (1 << 20),
}

GOOD: dict[str, tuple[bytes | None, int | None]] = {
    "a whole object": (b'{"id": 1, "name": "a", "at": "2013-01-01T05:00:00Z", "tags": ["x"]}', 1),
    "a missing field": (b'{"name": "a"}', None),
    "a null field": (b'{"id": null}', None),
    "an unknown field": (b'{"id": 1, "other": {"a": 1}}', 1),
    "an empty object": (b"{}", None),
    "a tombstone": (None, None),
    "bytes in a string that are not UTF-8": (b'{"id": 1, "name": "\xff"}', 1),
    "a megabyte": (b'{"id": 1, "name": "' + b"x" * (1 << 20) + b'"}', 1),
}


@pytest.fixture
def to_spark(spark_runtime: SparkRuntime) -> ArrowToSpark:
    """A way into a session of its own."""
    return ArrowToSpark(spark_runtime.new_session())


def frame_of(
    to_spark: ArrowToSpark, values: Sequence[bytes | FakeRecord | None], start: int = 0
) -> DataFrame:
    """Hand values over as one partition's records."""
    batch = make_batch(values, assignment=FakeAssignment(WHERE), start=start)
    return to_spark.data_frame(merge([table_of(batch)], 2))


def rows_of(frame: DataFrame) -> list[dict[str, Any]]:
    """Collect a frame in a way that leaves no socket to the garbage collector."""
    rows: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return rows


def json(on_undecodable: OnUndecodable = OnUndecodable.FAIL) -> Decoder:
    """Return a decoder of the test's schema."""
    return Decoder(Decode(Decoding.JSON, SCHEMA, on_undecodable))


def test_none_leaves_the_columns_of_the_kafka_source(to_spark: ArrowToSpark) -> None:
    """Without decoding the reducer gets the records as they are."""
    frame = Decoder(Decode()).apply(frame_of(to_spark, [b"\x00\xff", None], start=4))

    assert frame.columns == [
        "key", "value", "topic", "partition", "offset", "timestamp", "headers",
    ]  # fmt: skip
    rows = rows_of(frame)
    assert [(row["value"], row["offset"]) for row in rows] == [(b"\x00\xff", 4), (None, 5)]


def test_types_match_sparks_own_kafka_source(to_spark: ArrowToSpark) -> None:
    """The types are those that Spark's Kafka source documents."""
    types = dict(frame_of(to_spark, [b"v"]).dtypes)

    assert types == {
        "key": "binary",
        "value": "binary",
        "topic": "string",
        "partition": "int",
        "offset": "bigint",
        "timestamp": "timestamp",
        "headers": "array<struct<key:string,value:binary>>",
    }


def test_headers_survive_the_hand_over_in_chunks(to_spark: ArrowToSpark) -> None:
    """Records with and without headers arrive with them, however the table is cut."""
    values = [
        FakeRecord(value_=b"v", headers_=[("n", b"%d" % number)] if number % 2 else None)
        for number in range(5)
    ]

    headers = [row["headers"] for row in rows_of(frame_of(to_spark, values))]

    assert headers == [
        [{"key": "n", "value": b"%d" % number}] if number % 2 else None for number in range(5)
    ]


def test_json_becomes_columns_beside_the_records_own(to_spark: ArrowToSpark) -> None:
    """The schema's columns come first, and ``_kafka`` has the record's key, place and time."""
    record = FakeRecord(key_=None, value_=GOOD["a whole object"][0], headers_=[("h", b"1")])

    frame = json().apply(frame_of(to_spark, [record], start=7))

    assert frame.columns == ["id", "name", "at", "tags", "_kafka"]
    (row,) = rows_of(frame)
    assert (row["id"], row["name"], row["tags"]) == (1, "a", ["x"])
    assert row["at"].isoformat() == "2013-01-01T05:00:00+00:00"
    kafka = row["_kafka"]
    assert (kafka["topic"], kafka["partition"], kafka["offset"]) == ("a.topic", 3, 7)
    assert (kafka["key"], kafka["headers"]) == (None, [{"key": "h", "value": b"1"}])


@pytest.mark.parametrize("what", GOOD)
def test_values_that_fit(to_spark: ArrowToSpark, what: str) -> None:
    """JSON of the schema's types is decoded, with null for a field that is not there."""
    value, expected = GOOD[what]

    (row,) = rows_of(json().apply(frame_of(to_spark, [value])))

    assert row["id"] == expected
    assert row["_kafka"]["offset"] == 0


@pytest.mark.parametrize("what", BAD)
def test_values_that_do_not_fit_fail_with_their_offset(to_spark: ArrowToSpark, what: str) -> None:
    """The error names topic, partition and offset of the first, before the reducer is called."""
    values = [b'{"id": 1}', None, BAD[what], BAD["not JSON"]]

    with (
        pytest.raises(UndecodableRecordError) as raised,
        json().decoded(frame_of(to_spark, values, start=100)),
    ):
        raise AssertionError("the reducer was called")

    assert (raised.value.partition, raised.value.offset) == (WHERE, 102)


def test_values_that_do_not_fit_are_left_out_and_counted(to_spark: ArrowToSpark) -> None:
    """With skip the rest is decoded, and every record left out is named."""
    values: list[bytes | None] = []
    for bad, (good, _) in zip(BAD.values(), [*GOOD.values()] * 2, strict=False):
        values += [bad, good]

    with json(OnUndecodable.SKIP).decoded(frame_of(to_spark, values)) as decoded:
        offsets = [row["_kafka"]["offset"] for row in rows_of(decoded.frame)]

    assert sorted(offsets) == list(range(1, len(values), 2))
    assert decoded.skipped == {WHERE: list(range(0, len(values), 2))}


def test_nothing_is_kept_in_spark_after_a_micro_batch(to_spark: ArrowToSpark) -> None:
    """The parsed records are let go when the reducer's work is done, failed or not."""
    context: Any = to_spark.session.sparkContext
    before = set(context._jsc.getPersistentRDDs())

    with json().decoded(frame_of(to_spark, [b"{}"])) as decoded:
        assert len(rows_of(decoded.frame)) == 1
        assert len(context._jsc.getPersistentRDDs()) == len(before) + 1
    with pytest.raises(UndecodableRecordError), json().decoded(frame_of(to_spark, [b""])):
        pass

    assert set(context._jsc.getPersistentRDDs()) == before


def test_each_value_is_parsed_once(to_spark: ArrowToSpark) -> None:
    """The check for undecodable values costs no second parse, nor does a plan of the reducer's."""
    frame = json()._parsed(frame_of(to_spark, [b"{}"]))
    plan = frame._jdf.queryExecution().optimizedPlan().toString()
    assert plan.count("from_json(") == 1

    with json().decoded(frame_of(to_spark, [b"{}"])) as decoded:
        reduced = decoded.frame.select("id").where("id > 1")
        plan = reduced._jdf.queryExecution().optimizedPlan().toString()
        plans = plan.partition("InMemoryRelation")
    assert plans[1]
    assert "from_json(" not in plans[0]


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (None, "needs a schema"),
        (" ", "needs a schema"),
        ("id INTT", "is not a list of columns"),
        ("id INT name STRING", "is not a list of columns"),
        ("id INT, _kafka STRING", "uses the reserved name '_kafka'"),
        ("_Corrupt_Record STRING", "uses the reserved name '_corrupt_record'"),
        ("id VARCHAR(3)", r"has varchar\(3\), to which Spark decodes no JSON"),
        ("s STRUCT<l: ARRAY<CHAR(3)>>", r"has char\(3\), to which Spark"),
        ("id INT, id STRING", "has 'id' twice"),
        ("id INT, ID DATE", "has 'id' and 'ID', which differ by case alone"),
        ("l ARRAY<STRUCT<a: INT, A: INT>>", "has 'a' and 'A', which differ by case alone"),
        ("m MAP<STRING, MAP<DATE, INT>>", "has map<date,int>, and JSON has texts as names"),
    ],
)
@pytest.mark.usefixtures("spark_runtime")
def test_a_schema_that_cannot_be_used(schema: str | None, says: str) -> None:
    """Each way in which a schema can be wrong has a message that says so."""
    with pytest.raises(ConfigError, match=says):
        Decoder(Decode(Decoding.JSON, schema))


def test_a_schema_with_quotes_and_comments(to_spark: ArrowToSpark) -> None:
    """Names in back quotes and comments with quotes reach Spark as they are."""
    schema = "`it''s \\\\ odd` INT COMMENT 'it\\'s a comment', id INT"

    frame = Decoder(Decode(Decoding.JSON, schema)).apply(frame_of(to_spark, [b'{"id": 2}']))

    assert rows_of(frame.select("id")) == [{"id": 2}]


def test_names_that_differ_by_case_are_two_where_spark_is_told_so(
    spark_runtime: SparkRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark reads them as two columns then."""
    context: Any = spark_runtime.context
    session = spark_runtime.new_session()
    session.conf.set("spark.sql.caseSensitive", "true")
    monkeypatch.setattr(context, "_conf", SparkConf().set("spark.sql.caseSensitive", "true"))
    rows = dry_run(
        session,
        lambda df, _: df.select("id", "ID"),
        records_table([b'{"id": 1, "ID": "2026-03-29"}']),
        Decode(Decoding.JSON, "id INT, ID DATE"),
    ).rows
    assert rows is not None
    assert rows.to_pylist() == [{"id": 1, "ID": date(2026, 3, 29)}]
