"""Values into columns by Spark, with the undecodable found inside the plan."""

from __future__ import annotations

import re
from copy import copy
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.types import StructField, StructType

from headrace.core.decoders import decoded_rows
from headrace.core.errors import ConfigError, UndecodableRecordError
from headrace.core.records import TopicPartition
from headrace.core.tables import (
    FIX_UNDECODABLE,
    KAFKA_COLUMN,
    KAFKA_FIELDS,
    MISFIT,
    Decode,
    Decoding,
    OnUndecodable,
    with_kafka_column,
)
from headrace.spark.reducer import arrow_schema, send_by_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame

    from headrace.core.decoders import CustomDecoder
    from headrace.spark.reducer import Task

_CORRUPT = "_corrupt_record"
_IS_CORRUPT = f"value is not null and (_decoded is null or _decoded.{_CORRUPT} is not null)"
_SIGN = "headrace:undecodable"
_SIGNED = re.compile(rf"{_SIGN} topic=(\S+) partition=(\d+) offset=(\d+)(?: reason=(.*))?")
#: Characters of a decoder's own words that are told.
_REASON_LENGTH = 500

_PLACE = ("topic", "partition", "offset")
_PLACE_IN_KAFKA = tuple(f"{KAFKA_COLUMN}.{name}" for name in _PLACE)

_RAISE = (
    f"raise_error(format_string('{_SIGN} topic=%s partition=%d offset=%d', "
    "_kafka.topic, _kafka.partition, _kafka.offset))"
)


class Decoder:
    """Applies a :class:`Decode` to each micro-batch's DataFrame.

    Needs a running session, because Spark reads the schema.

    Raises:
        ConfigError: the schema is missing, cannot be read, or uses a reserved name.
        ImportPathError: the decoder that it names cannot be made.
    """

    def __init__(self, decode: Decode) -> None:
        self._skips = decode.on_undecodable is OnUndecodable.SKIP
        self._kind, self._custom = decode.kind, decode.custom
        self._parse, self._columns = "", StructType()
        if decode.kind is not Decoding.NONE:
            self._columns = _columns(decode.kind, decode.schema)
        if decode.kind is Decoding.JSON:
            self._parse = _parse_expression(decode.schema or "")
        if decode.custom is not None:
            decode.custom.load()
            send_by_value(decode.custom.factory)

    def treating(self, undecodable: OnUndecodable) -> Decoder:
        """Return one with the same schema that treats undecodable records so. Any thread."""
        other = copy(self)
        other._skips = undecodable is OnUndecodable.SKIP  # noqa: SLF001 - one of our own
        return other

    @property
    def counts_skipped(self) -> bool:
        """Whether :meth:`skipped` has to be asked after each micro-batch."""
        return self._kind is not Decoding.NONE and self._skips

    def apply(self, frame: DataFrame) -> DataFrame:
        """Return the frame the reducer gets. Plans only, runs nothing.

        A tombstone is a row whose columns are null. The unused id keeps the optimizer from
        pushing the filter below the projection, which would parse every value twice.
        """
        if self._custom is not None:
            return self._decoded(frame, self._custom)
        if self._kind is Decoding.NONE:
            return frame
        rejected = "false" if self._skips else _RAISE
        return (
            self._parsed(frame, "monotonically_increasing_id() as _row")
            .where(f"if({_IS_CORRUPT}, {rejected}, _row >= 0)")
            .selectExpr(f"_decoded.* except ({_CORRUPT})", KAFKA_COLUMN)
        )

    def skipped(self, frame: DataFrame) -> dict[TopicPartition, list[int]]:
        """Run a small job of its own: the offsets left out, in order, by partition."""
        if self._custom is None:
            bad = self._parsed(frame).where(_IS_CORRUPT).selectExpr(*_PLACE_IN_KAFKA)
        else:
            place = StructType([frame.schema[name] for name in _PLACE])
            task: Any = _skipped_task(self._custom, pa.struct(list(arrow_schema(self._columns))))
            bad = frame.mapInArrow(task, place)
        found = bad.collect()
        offsets: dict[TopicPartition, list[int]] = {}
        for topic, partition, offset in sorted(found):
            offsets.setdefault(TopicPartition(topic, partition), []).append(offset)
        return offsets

    def _decoded(self, frame: DataFrame, custom: CustomDecoder) -> DataFrame:
        """Have Python workers decode. One's tasks decode the same as the daemon's own does."""
        own = StructType([frame.schema[name] for name in KAFKA_FIELDS])
        kind = StructType([*self._columns, StructField(KAFKA_COLUMN, own)])
        task: Any = _task(custom, arrow_schema(kind), skips=self._skips)
        return frame.mapInArrow(task, kind)

    def _parsed(self, frame: DataFrame, *more: str) -> DataFrame:
        meta = "struct(key, topic, partition, offset, timestamp, headers) as _kafka"
        return frame.selectExpr("value", meta, f"{self._parse} as _decoded", *more)


def _task(custom: CustomDecoder, schema: pa.Schema, *, skips: bool) -> Task:
    """Return what a worker does with records: ``schema`` is what Spark was told."""
    kind = pa.struct(list(schema)[:-1])

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            table = pa.Table.from_batches([batch])
            rows, bad = decoded_rows(custom, batch.column("value"), kind)
            if bad and not skips:
                first = min(bad)
                topic, partition, offset = (batch.column(n)[first].as_py() for n in _PLACE)
                reason = " ".join(bad[first].split())[:_REASON_LENGTH]
                raise ValueError(
                    f"{_SIGN} topic={topic} partition={partition} offset={offset} reason={reason}"
                )
            if bad:
                kept = pa.array(sorted(set(range(len(rows))) - set(bad)), pa.int64())
                rows, table = rows.take(kept), table.take(kept)
            yield from with_kafka_column(rows, table).cast(schema).to_batches()

    return run


def _skipped_task(custom: CustomDecoder, kind: pa.StructType) -> Task:
    """Return what finds the places of records that cannot be decoded."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            _, bad = decoded_rows(custom, batch.column("value"), kind)
            found = pa.Table.from_batches([batch]).select(list(_PLACE))
            yield from found.take(pa.array(sorted(bad), pa.int64())).to_batches()

    return run


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
    reserved = sorted({KAFKA_COLUMN, _CORRUPT}.intersection(map(str.lower, fields)))
    if reserved:
        raise ConfigError([f"decode schema {ddl!r} uses the reserved name {reserved[0]!r}"])
    return found


def _parse_expression(ddl: str) -> str:
    """Return the SQL expression that turns the value into a struct of the schema's columns."""
    literal = f"{ddl}, {_CORRUPT} STRING".replace("\\", "\\\\").replace("'", "\\'")
    options = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{_CORRUPT}')"
    return f"from_json(cast(value as string), '{literal}', {options})"


def undecodable_in(text: str) -> UndecodableRecordError | None:
    """Return the record that a message of Spark's names as undecodable, None if it names none."""
    match = _SIGNED.search(text)
    if match is None:
        return None
    return UndecodableRecordError(
        TopicPartition(match[1], int(match[2])),
        int(match[3]),
        f"{match[4] or MISFIT}; {FIX_UNDECODABLE}",
    )
