"""From a result's rows to records: which columns there may be, and what they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns import integer
from headrace.records import ResultRecord
from headrace.spark.sinks.schema import SchemaMismatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Rows that are Python objects at a time.
CHUNK = 2000

_HEADERS = "array<struct<key: string, value: binary>>"

_ADVICE = "change the reducer"


def check_columns(columns: Sequence[str], topic: str | None) -> None:
    """Compare a result's columns with those of a record, as Spark's own Kafka sink has them.

    Raises:
        SchemaMismatchError: there is another, one is there twice, or one is missing.
    """
    problems = [f"column {name!r} is there twice" for name in columns if columns.count(name) > 1]
    problems += [
        f"column {name!r} is none of a record's, which are {', '.join(_KINDS)}"
        for name in columns
        if name not in _KINDS
    ]
    if "value" not in columns:
        problems.append("column 'value' is missing, for instance to_json(struct('*')) as value")
    if topic is None and "topic" not in columns:
        problems.append("column 'topic' is missing, and the sink names no topic")
    _refuse(problems)


def prepared(rows: pa.Table, topic: str | None) -> pa.Table:
    """Return the rows as :func:`records_of` needs them: keys and values in bytes, moments in ms.

    Raises:
        SchemaMismatchError: a column has another type, or a row that no record can have.
    """
    if topic is not None and "topic" in rows.column_names:
        rows = rows.drop_columns(["topic"])
    problems = [
        f"column {field.name!r} is {field.type}, and has to be {_KINDS[field.name][1]}"
        for field in rows.schema
        if not _KINDS[field.name][0](field.type)
    ]
    _refuse(problems)
    for index, field in enumerate(rows.schema):
        if field.name in {"key", "value"}:
            rows = rows.set_column(index, field.name, rows.column(index).cast(pa.binary()))
        elif field.name == "timestamp":
            moments = rows.column(index).cast(pa.timestamp("ms", tz="UTC"), safe=False)
            rows = rows.set_column(index, field.name, moments.cast(pa.int64()))
    _refuse(list(_wrong_rows(rows)))
    return rows


def _wrong_rows(rows: pa.Table) -> Iterator[str]:
    if "topic" in rows.column_names:
        missing = rows.column("topic").null_count
        if missing:
            yield f"column 'topic' is null in {missing} rows, and the sink names no topic"
    if "partition" in rows.column_names:
        numbers = rows.column("partition")
        below = pc.sum(pc.less(numbers, integer(0, numbers.type))).as_py()
        if below:
            yield f"column 'partition' is below 0 in {below} rows; null leaves it to the key"
    if "headers" in rows.column_names:
        headers = pc.list_flatten(rows.column("headers"))
        nameless = pc.struct_field(headers, "key").null_count
        if nameless:
            yield f"column 'headers' has {nameless} headers without a key"


def records_of(rows: pa.Table, topic: str | None) -> Iterator[ResultRecord]:
    """Yield the prepared rows as records, in their order."""
    for chunk in rows.to_batches(max_chunksize=CHUNK):
        columns = {name: chunk.column(name).to_pylist() for name in rows.column_names}
        nothing = [None] * chunk.num_rows
        yield from map(
            ResultRecord,
            columns.get("topic", [topic] * chunk.num_rows),
            columns["value"],
            columns.get("key", nothing),
            map(_headers, columns.get("headers", nothing)),
            columns.get("partition", nothing),
            columns.get("timestamp", nothing),
        )


def _headers(found: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]] | None:
    return None if found is None else [(each["key"], each["value"]) for each in found]


def _refuse(problems: Sequence[str]) -> None:
    if problems:
        named = "; ".join(dict.fromkeys(problems))
        raise SchemaMismatchError(f"the result does not fit records of Kafka: {named}; {_ADVICE}")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(_is_text(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_headers(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) and pa.types.is_struct(kind.value_type)):
        return False
    fields = {field.name: field.type for field in kind.value_type}
    return (
        fields.keys() == {"key", "value"}
        and _is_text(fields["key"])
        and bool(pa.types.is_binary(fields["value"]))
    )


def _is_integer(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind))


def _is_moment(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


#: A record's columns: which types fit, and what to call them.
_KINDS: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "key": (_is_bytes, "string or binary"),
    "value": (_is_bytes, "string or binary"),
    "topic": (_is_text, "string"),
    "partition": (_is_integer, "int"),
    "headers": (_is_headers, _HEADERS),
    "timestamp": (_is_moment, "timestamp"),
}
