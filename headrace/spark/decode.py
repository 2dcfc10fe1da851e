"""Values into columns by Spark, with the undecodable found inside the plan."""

from __future__ import annotations

import re
from copy import copy
from typing import TYPE_CHECKING, cast

from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from headrace.core.errors import ConfigError, UndecodableRecordError
from headrace.core.records import TopicPartition
from headrace.core.tables import KAFKA_COLUMN, Decode, Decoding, OnUndecodable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CORRUPT = "_corrupt_record"
_IS_CORRUPT = f"value is not null and (_decoded is null or _decoded.{_CORRUPT} is not null)"
_SIGN = "headrace:undecodable"
_SIGNED = re.compile(rf"{_SIGN} topic=(\S+) partition=(\d+) offset=(\d+)")
_RAISE = (
    f"raise_error(format_string('{_SIGN} topic=%s partition=%d offset=%d', "
    "_kafka.topic, _kafka.partition, _kafka.offset))"
)


class Decoder:
    """Applies a :class:`Decode` to each micro-batch's DataFrame.

    Needs a running session, because Spark reads the schema.

    Raises:
        ConfigError: the schema is missing, cannot be read, or uses a reserved name.
    """

    def __init__(self, decode: Decode) -> None:
        self._skips = decode.on_undecodable is OnUndecodable.SKIP
        self._is_json = decode.kind is Decoding.JSON
        self._parse = _parse_expression(decode.schema) if self._is_json else ""

    def treating(self, undecodable: OnUndecodable) -> Decoder:
        """Return one with the same schema that treats undecodable records so. Any thread."""
        other = copy(self)
        other._skips = undecodable is OnUndecodable.SKIP  # noqa: SLF001 - one of our own
        return other

    @property
    def counts_skipped(self) -> bool:
        """Whether :meth:`skipped` has to be asked after each micro-batch."""
        return self._is_json and self._skips

    def apply(self, frame: DataFrame) -> DataFrame:
        """Return the frame the reducer gets. Plans only, runs nothing.

        A tombstone is a row whose columns are null. The unused id keeps the optimizer from
        pushing the filter below the projection, which would parse every value twice.
        """
        if not self._is_json:
            return frame
        rejected = "false" if self._skips else _RAISE
        return (
            self._parsed(frame, "monotonically_increasing_id() as _row")
            .where(f"if({_IS_CORRUPT}, {rejected}, _row >= 0)")
            .selectExpr(f"_decoded.* except ({_CORRUPT})", KAFKA_COLUMN)
        )

    def skipped(self, frame: DataFrame) -> dict[TopicPartition, list[int]]:
        """Run a small job of its own: the offsets left out, in order, by partition."""
        found = (
            self._parsed(frame)
            .where(_IS_CORRUPT)
            .selectExpr("_kafka.topic", "_kafka.partition", "_kafka.offset")
            .collect()
        )
        offsets: dict[TopicPartition, list[int]] = {}
        for topic, partition, offset in sorted(found):
            offsets.setdefault(TopicPartition(topic, partition), []).append(offset)
        return offsets

    def _parsed(self, frame: DataFrame, *more: str) -> DataFrame:
        meta = "struct(key, topic, partition, offset, timestamp, headers) as _kafka"
        return frame.selectExpr("value", meta, f"{self._parse} as _decoded", *more)


def _parse_expression(ddl: str | None) -> str:
    """Return the SQL expression that turns the value into a struct of the schema's columns."""
    if ddl is None or not ddl.strip():
        raise ConfigError(["decode: json needs a schema, as in 'id LONG, name STRING'"])
    try:
        fields = cast("StructType", StructType.fromDDL(ddl)).names
    except (PySparkException, ValueError, AttributeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError([f"decode schema {ddl!r} is not a list of columns: {reason}"]) from error
    reserved = sorted({KAFKA_COLUMN, _CORRUPT}.intersection(map(str.lower, fields)))
    if reserved:
        raise ConfigError([f"decode schema {ddl!r} uses the reserved name {reserved[0]!r}"])
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
        "the value does not fit the decode schema; fix the schema or the producer, or set the "
        "channel to skip undecodable records",
    )
