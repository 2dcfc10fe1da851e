"""The JSON lines sink: results appended to one file, at least once, for a quick look."""

from __future__ import annotations

import fcntl
import math
import os
from base64 import b64encode
from contextlib import contextmanager
from datetime import UTC
from json.encoder import encode_basestring
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.core.errors import ResultMisfitError, RowsRefusedError, StartError
from headrace.sinks.contract import Guarantee, Sink, columns_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime
    from typing import TypeAlias

    from pyspark.sql import DataFrame

    from headrace.sinks.contract import PartitionCommit, Result
    from headrace.sinks.micro_batch import MicroBatch


if TYPE_CHECKING:
    #: Spells one value of a column, which is not null.
    Speller: TypeAlias = Callable[[Any], str]


def json_lines(table: pa.Table) -> Iterator[str]:
    """Yield one object for each row, null fields included, without line ends.

    Raises:
        ResultMisfitError: a column is none of the types that Spark knows as well.
        RowsRefusedError: a value is a time of no year from 1 to 9999.
    """
    names = [encode_basestring(name) + ":" for name in table.column_names]
    columns = (_spell_column(field, table.column(at)) for at, field in enumerate(table.schema))
    for row in zip(*columns, strict=True):
        yield "{" + ",".join(map(str.__add__, names, row)) + "}"


def _spell_column(field: pa.Field, column: pa.ChunkedArray) -> list[str]:
    try:
        spell = _speller(field.type)
    except KeyError as error:
        raise ResultMisfitError(
            f"column {field.name!r} is of type {field.type}, which JSON lines cannot hold; have "
            "the reducer cast it"
        ) from error
    try:
        return ["null" if value is None else spell(value) for value in column.to_pylist()]
    except (ValueError, OverflowError) as error:
        raise RowsRefusedError(
            f"column {field.name!r}: {error}; have the reducer leave it out, or make another value"
        ) from error


def _speller(kind: pa.DataType) -> Speller:
    """Return what spells the values of a type; raises KeyError."""
    if pa.types.is_map(kind):
        return _map(_speller(kind.item_type))
    if pa.types.is_struct(kind):
        return _struct({field.name: _speller(field.type) for field in kind})
    if pa.types.is_nested(kind):
        return _list(_speller(kind.value_type))
    if pa.types.is_dictionary(kind):
        return _speller(kind.value_type)
    for is_of, spell in _SPELLERS.items():
        if is_of(kind):
            return spell
    raise KeyError(kind)


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _float(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def _bytes(value: bytes) -> str:
    return f'"{b64encode(value).decode()}"'


def _format_time(value: datetime) -> str:
    """Format a time in UTC to the millisecond; one without a time zone stays without."""
    if value.tzinfo is None:
        return f'"{value.isoformat(timespec="milliseconds")}"'
    moment = value.astimezone(UTC).replace(tzinfo=None)
    return f'"{moment.isoformat(timespec="milliseconds")}Z"'


def _list(item: Speller) -> Speller:
    return lambda values: "[" + ",".join(_or_null(item, value) for value in values) + "]"


def _map(item: Speller) -> Speller:
    return lambda pairs: (
        "{" + ",".join(f"{encode_basestring(str(k))}:{_or_null(item, v)}" for k, v in pairs) + "}"
    )


def _struct(fields: dict[str, Speller]) -> Speller:
    spelt = [(name, encode_basestring(name) + ":", spell) for name, spell in fields.items()]
    return lambda value: (
        "{" + ",".join(key + _or_null(spell, value[name]) for name, key, spell in spelt) + "}"
    )


def _or_null(spell: Speller, value: Any) -> str:
    return "null" if value is None else spell(value)


_SPELLERS: dict[Callable[[pa.DataType], bool], Speller] = {
    pa.types.is_boolean: _bool,
    pa.types.is_integer: str,
    pa.types.is_floating: _float,
    pa.types.is_decimal: "{:f}".format,
    pa.types.is_string: encode_basestring,
    pa.types.is_large_string: encode_basestring,
    pa.types.is_string_view: encode_basestring,
    pa.types.is_binary: _bytes,
    pa.types.is_large_binary: _bytes,
    pa.types.is_fixed_size_binary: _bytes,
    pa.types.is_timestamp: _format_time,
    pa.types.is_date: lambda value: f'"{value.isoformat()}"',
    pa.types.is_null: str,
}


#: Bytes read at a time when looking back for the last whole line.
_BLOCK = 64 << 10


class JsonLinesSink(Sink[bytes]):
    """Appends each row as one JSON object and forces it to disk before the batch is answered.

    Several processes may append to the same file: each append holds the file's lock. A line that
    a crash cut short was never answered; the next append removes it. The rows pass through this
    process's memory.
    """

    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).absolute()

    def open(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked():
                pass
        except OSError as error:
            raise StartError(f"{self._path} cannot be written: {error}") from error

    def stage(self, micro_batch: MicroBatch, result: Result | None) -> bytes:  # noqa: ARG002
        """Collect the rows, as Spark spells them in JSON, with null fields present."""
        if result is None or not columns_of(result):
            return b""
        lines = json_lines(result) if isinstance(result, pa.Table) else _spelt_by_spark(result)
        return "".join(f"{text}\n" for text in lines).encode()

    def commit(self, staged: bytes, offsets: Sequence[PartitionCommit]) -> None:  # noqa: ARG002
        if not staged:
            return
        with self._locked() as descriptor:
            end = _end_of_last_line(descriptor)
            os.ftruncate(descriptor, end)
            try:
                _write_all(descriptor, staged)
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, end)
                raise

    @contextmanager
    def _locked(self) -> Iterator[int]:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)


def _spelt_by_spark(result: DataFrame) -> list[str]:
    line = "to_json(struct(*), map('ignoreNullFields', 'false')) AS line"
    lines: list[str] = result.selectExpr(line).toArrow().column("line").to_pylist()
    return lines


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]


def _end_of_last_line(descriptor: int) -> int:
    """Return the offset after the last line end, 0 where there is none."""
    position = os.fstat(descriptor).st_size
    while position > 0:
        begin = max(0, position - _BLOCK)
        found = os.pread(descriptor, position - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        position = begin
    return 0
