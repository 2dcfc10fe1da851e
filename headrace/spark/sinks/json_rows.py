"""Rows of an Arrow table as JSON, spelt as Spark's ``to_json`` spells its own."""

from __future__ import annotations

import math
from base64 import b64encode
from datetime import timezone
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from typing import TypeAlias

    #: Spells one value of a column, which is not null.
    Speller: TypeAlias = Callable[[Any], str]


class UnspeakableTypeError(HeadraceError):
    """A column has a type that JSON has no spelling for here."""


def json_lines(table: pa.Table) -> Iterator[str]:
    """Yield one object for each row, null fields included, without line ends.

    Raises:
        UnspeakableTypeError: a column is none of the types that Spark knows as well.
    """
    names = [encode_basestring(name) + ":" for name in table.column_names]
    columns = (_spelt(field, table.column(at)) for at, field in enumerate(table.schema))
    for row in zip(*columns, strict=True):
        yield "{" + ",".join(map(str.__add__, names, row)) + "}"


def _spelt(field: pa.Field, column: pa.ChunkedArray) -> list[str]:
    try:
        spell = _speller(field.type)
    except KeyError as error:
        raise UnspeakableTypeError(
            f"column {field.name!r} is of type {field.type}, which JSON lines cannot hold; have "
            "the reducer cast it"
        ) from error
    return ["null" if value is None else spell(value) for value in column.to_pylist()]


def _speller(kind: pa.DataType) -> Speller:
    """Return what spells the values of a type.

    Raises:
        KeyError: nothing does.
    """
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


def _moment(value: datetime) -> str:
    """Spell a moment in UTC, and what has no time zone without one; to the millisecond."""
    if value.tzinfo is None:
        return f'"{value.isoformat(timespec="milliseconds")}"'
    moment = value.astimezone(timezone.utc).replace(tzinfo=None)
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
    pa.types.is_timestamp: _moment,
    pa.types.is_date: lambda value: f'"{value.isoformat()}"',
    pa.types.is_null: str,
}
