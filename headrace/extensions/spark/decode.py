"""Values into columns by Spark, with the undecodable found before the reducer plans anything."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import BinaryType, StringType, StructField, StructType
from pyspark.sql.utils import get_active_spark_context

from headrace.core.decoders import decoded_rows
from headrace.core.errors import ConfigError, RetryableError, UndecodableRecordError
from headrace.core.misfits import ExpectedObject, custom_reason
from headrace.core.records import TopicPartition
from headrace.core.tables import (
    FIX_UNDECODABLE,
    KAFKA_COLUMN,
    KAFKA_FIELDS,
    Decode,
    Decoding,
    OnUndecodable,
    whole,
)
from headrace.core.undecodable import UndecodableRows
from headrace.extensions.spark.json_columns import CORRUPT, JsonColumns, refusals
from headrace.extensions.spark.reducer import arrow_schema, send_by_value
from headrace.formats.json_schema import with_columns
from headrace.formats.json_values import JsonDecoder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from headrace.core.decoders import CustomDecoder
    from headrace.core.undecodable import Undecodable
    from headrace.extensions.spark.reducer import Task

_IS_CORRUPT = f"value is not null and (_decoded is null or _decoded.{CORRUPT} is not null)"
#: Characters of a decoder's own words that are told.
_REASON_LENGTH = 500

_PLACE = tuple(f"{KAFKA_COLUMN}.{name}" for name in ("topic", "partition", "offset"))

#: The columns that every record is parsed to: what its value was decoded to, why it could not be,
#: null for what could, and the value of what could not.
_DECODED, _WHY, _VALUE = "_decoded", "_why", "_value"

#: What is told of an undecodable record, under the names of a batch's table.
_DETAILS = (*(f"{KAFKA_COLUMN}.{name}" for name in KAFKA_FIELDS), f"{_VALUE} as value", _WHY)


@dataclass(frozen=True, slots=True)
class DecodedFrame:
    """The decoded frame for the reducer, and what it leaves out.

    These are offsets, or records for the dead-letter topic.
    """

    frame: DataFrame
    skipped: Mapping[TopicPartition, Sequence[int]] = field(default_factory=dict)
    rejected: Undecodable = field(default_factory=dict)


class Decoder:
    """Applies a :class:`Decode` to each micro-batch's DataFrame.

    Needs a running session, because Spark reads the schema.

    Raises:
        ConfigError: the schema is missing, cannot be read, or uses a reserved name.
        ImportPathError: the decoder that it names cannot be made.
    """

    def __init__(self, decode: Decode) -> None:
        self._treating = decode.on_undecodable
        self._kind, self._custom = decode.kind, decode.custom
        self._json: JsonColumns | None = None
        self._columns = StructType()
        self._values: JsonDecoder | None = None
        if decode.kind is Decoding.JSON_SCHEMA and decode.custom is not None:
            self._columns = _columns(decode.kind, decode.schema)
            kind = pa.struct(list(arrow_schema(self._columns)))
            self._custom = with_columns(decode.custom, kind, decode.timestamps)
        if self._custom is not None:
            self._custom.load()
            send_by_value(self._custom.factory)
        own = None if self._custom is None or decode.schema else self._custom.kind
        if own is not None:
            self._columns = _own_columns(own)
        elif decode.kind in {Decoding.JSON, Decoding.CUSTOM}:
            self._columns = _columns(decode.kind, decode.schema)
        if decode.kind is Decoding.JSON:
            self._json = JsonColumns(self._columns, decode.schema or "", decode.timestamps)
            with suppress(PySparkException, pa.ArrowException):  # of types that Arrow has not
                kind = pa.struct(list(arrow_schema(self._columns)))
                self._values = JsonDecoder(kind, decode.timestamps)

    def treating(self, undecodable: OnUndecodable) -> Decoder:
        """Return one with the same schema that treats undecodable records so. Any thread."""
        other = copy(self)
        other._treating = undecodable  # noqa: SLF001 - one of our own
        return other

    def apply(self, frame: DataFrame) -> DataFrame:
        """Return the frame the reducer would get. Plans only, runs nothing.

        A tombstone is a row whose columns are null.
        """
        return frame if self._kind is Decoding.NONE else self._readable(self._parsed(frame))

    @contextmanager
    def decoded(
        self, frame: DataFrame, tables: Sequence[pa.Table] | None = None
    ) -> Iterator[DecodedFrame]:
        """Decode every record, and give the block what could be decoded. Blocks for a job.

        ``tables`` have the same records, those of a batch each, where the daemon has them: then
        Spark is not asked for them again.

        Each value is parsed once, in a job of its own, and kept for the block. So whatever plan the
        reducer makes of the frame, whether it filters, counts, or reads a part or nothing of it, no
        record is left out of the check, and none is parsed again.

        Raises:
            UndecodableRecordError: a value does not fit the schema, and is not to be skipped. It
                names the first of the partition.
        """
        if self._kind is Decoding.NONE:
            yield DecodedFrame(frame)
            return
        parsed = self._parsed(frame).persist()
        try:
            yield self._check_records(parsed, parsed.where(f"{_WHY} is not null"), tables)
        finally:
            # a JVM that is gone keeps nothing
            with suppress(Py4JError, OSError):
                parsed.unpersist()

    def _check_records(
        self, parsed: DataFrame, bad: DataFrame, tables: Sequence[pa.Table] | None
    ) -> DecodedFrame:
        """Run the job that parses all records and finds the bad ones among them."""
        readable = self._readable(parsed)
        if self._treating is OnUndecodable.SKIP:
            return DecodedFrame(readable, _offsets(bad.selectExpr(*_PLACE).collect()))
        if self._treating is OnUndecodable.DEAD_LETTER:
            return DecodedFrame(readable, rejected=self._rejected(bad, tables))
        first = bad.orderBy(*_PLACE).limit(1).selectExpr(*_PLACE, _VALUE, _WHY).collect()
        for topic, partition, offset, value, said in first:
            raise UndecodableRecordError(
                TopicPartition(topic, partition),
                offset,
                f"{self._reason_of(_bytes(value), said)}; {FIX_UNDECODABLE}",
            )
        return DecodedFrame(readable)

    def _rejected(self, bad: DataFrame, tables: Sequence[pa.Table] | None) -> Undecodable:
        """Return the records that are bad."""
        if tables is None:
            # rows of Python's take twice the processor time, while no job runs
            rows = bad.selectExpr(*_DETAILS).toArrow()
            said = rows.column(_WHY).to_pylist()
        else:
            why: dict[TopicPartition, dict[int, str]] = {}
            for topic, partition, offset, found in bad.selectExpr(*_PLACE, _WHY).collect():
                why.setdefault(TopicPartition(topic, partition), {})[offset] = found
            rows, said = _rows_at(tables, why)
        if self._values is not None:
            said = self._values.where_bad(whole(rows.column("value")))
        return UndecodableRows(rows, said, self._reason)

    def _reason_of(self, value: bytes | None, said: str) -> str:
        """Return the reason of one record."""
        if self._values is not None:
            (said,) = self._values.where_bad(pa.array([value], pa.binary()))
        return self._reason(value, said)

    def _reason(self, value: bytes | None, said: str) -> str:
        if self._custom is not None:
            return custom_reason(said)
        if self._values is None:
            return ExpectedObject(None).why_undecodable(value)
        return self._values.why_bad(value, said)

    def _readable(self, parsed: DataFrame) -> DataFrame:
        columns = f"{_DECODED}.*"
        if self._json is not None:
            columns += f" except ({CORRUPT})"
        return parsed.where(f"{_WHY} is null").selectExpr(columns, KAFKA_COLUMN)

    def _parsed(self, frame: DataFrame) -> DataFrame:
        """Return a row for each record: what it was decoded to, its own fields, and why not."""
        own = StructType([frame.schema[name] for name in KAFKA_FIELDS])
        if self._json is not None:
            fields = f"struct({', '.join(KAFKA_FIELDS)}) as {KAFKA_COLUMN}"
            first, *later = self._json.steps
            read = frame.selectExpr("value", fields, *first)
            for columns in later:
                read = read.selectExpr("*", *columns)
            return read.selectExpr(
                _DECODED,
                KAFKA_COLUMN,
                f"if({_IS_CORRUPT}, '', null) as {_WHY}",
                f"if({_IS_CORRUPT}, value, null) as {_VALUE}",
            )
        kind = StructType(
            [
                StructField(_DECODED, self._columns),
                StructField(KAFKA_COLUMN, own),
                StructField(_WHY, StringType()),
                StructField(_VALUE, BinaryType()),
            ]
        )
        assert self._custom is not None, "there are two kinds"
        task: Any = _task(self._custom, arrow_schema(kind))
        return frame.mapInArrow(task, kind)


def _task(custom: CustomDecoder, schema: pa.Schema) -> Task:
    """Return what a worker does with records: ``schema`` is what Spark was told.

    One's tasks decode the same as the daemon's own does.
    """
    kind = schema.field(_DECODED).type

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            try:
                rows, bad = decoded_rows(
                    custom, batch.column("value"), kind, batch.column("headers")
                )
            except RetryableError as error:
                # by this very name the daemon knows it in what Spark says of the job
                raise RetryableError(str(error)) from error
            reasons = [
                " ".join(bad[place].split())[:_REASON_LENGTH] if place in bad else None
                for place in range(len(rows))
            ]
            own = [batch.column(name) for name in KAFKA_FIELDS]
            fields = pa.StructArray.from_arrays(own, names=list(KAFKA_FIELDS))
            why = pa.array(reasons, pa.string())
            values = pc.if_else(
                pc.is_valid(why), batch.column("value"), pa.scalar(None, pa.binary())
            )
            found = pa.table([rows, fields, why, values], names=schema.names)
            yield from found.cast(schema).to_batches()

    return run


def _rows_at(
    tables: Sequence[pa.Table], why: Mapping[TopicPartition, Mapping[int, str]]
) -> tuple[pa.Table, list[str]]:
    """Return the rows of batches that have these offsets, and what is said of each."""
    parts, said = [], []
    for table in tables:
        if not table.num_rows:
            continue
        topic, partition = (table.column(name)[0].as_py() for name in ("topic", "partition"))
        known = why.get(TopicPartition(topic, partition), {})
        offsets = table.column("offset")
        part = table.filter(pc.is_in(offsets, value_set=pa.array([*known], pa.int64())))
        parts.append(part)
        said += [known[offset] for offset in part.column("offset").to_pylist()]
    return pa.concat_tables(parts), said


def _offsets(places: Iterable[Any]) -> dict[TopicPartition, list[int]]:
    offsets: dict[TopicPartition, list[int]] = {}
    for topic, partition, offset in sorted(places):
        offsets.setdefault(TopicPartition(topic, partition), []).append(offset)
    return offsets


def _bytes(data: bytearray | None) -> bytes | None:
    return None if data is None else bytes(data)


def _own_columns(kind: pa.StructType) -> StructType:
    """Return the columns that a decoder says by itself that it makes."""
    columns = StructType()
    for each in kind:
        try:
            columns.add(each.name, from_arrow_type(each.type, prefer_timestamp_ntz=True))
        except (PySparkException, TypeError) as error:
            raise ConfigError(
                [f"field {each.name} is {each.type}, of which Spark has no column; leave it out"]
            ) from error
    return columns


def _columns(kind: Decoding, ddl: str | None) -> StructType:
    """Return the columns that values are decoded to."""
    if ddl is None or not ddl.strip():
        raise ConfigError([f"decode: {kind.value} needs a schema, as in 'id LONG, name STRING'"])
    try:
        found = cast("StructType", StructType.fromDDL(ddl))
        fields = found.names
    except (PySparkException, ValueError, AttributeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError([f"decode schema {ddl!r} is not a list of columns: {reason}"]) from error
    reserved = sorted({KAFKA_COLUMN, CORRUPT}.intersection(map(str.lower, fields)))
    if reserved:
        raise ConfigError([f"decode schema {ddl!r} uses the reserved name {reserved[0]!r}"])
    by_case = get_active_spark_context().getConf().get("spark.sql.caseSensitive") == "true"
    for problem in refusals(found, in_json=kind is Decoding.JSON, by_case=by_case):
        raise ConfigError([f"decode schema {ddl!r} {problem}"])
    return found
