"""Values in JSON into columns by Spark, with nothing taken for what it does not say.

Spark's reader of JSON, ``from_json``, takes more texts than those that mean the value: ``"19,99"``
is 1999 to it, ``"01:30:00"`` this day, and 128 for a ``TINYINT`` is -128. So dates and times are
read as text here, which is looked at before it is converted, bytes are read as larger numbers, and
decimals that stand there as text are looked at beside the reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
)

from headrace.core.tables import FIRST_MICROSECOND, LAST_MICROSECOND, Timestamps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: The column of from_json that is not null where a value does not fit, and is so here.
CORRUPT = "_corrupt_record"

#: The columns on the way, and what an item inside of a container is called: one for each level.
_READ, _TEXTS, _EACH = "_read", "_texts", "e"

_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = "[0-9]{2}(?::[0-9]{2}(?::[0-9]{2}(?:[.][0-9]+)?)?)?"
_OFFSET = "(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?)"
_IS_DATE = rf"\A{_DAY}\z"
_IS_LOCAL = rf"\A{_DAY}(?:[T ]{_TIME})?\z"
_IS_MOMENT = rf"\A{_DAY}(?:[T ]{_TIME}{_OFFSET}?)?\z"
_IS_NUMBER = r"\A[-+]?(?:[0-9]+[.]?[0-9]*|[.][0-9]+)(?:[eE][-+]?[0-9]+)?\z"

#: Whether a text may be there that Spark takes for a number and others do not: digits and signs
#: with a comma, an escape or a foreign digit among them. Whether it is one, and in a column of
#: decimals, is looked at after that: this has to cost little, as all values pass it.
_MAY_HIDE = (
    r"""["'](?=[^"'\p{Nd}]*+\p{Nd})[-+.0-9a-fA-Fu]*+[,\\[\p{Nd}&&[^0-9]]]"""
    r"""[-+.,0-9a-fA-Fu\\\p{Nd}]*+["']"""
)

#: Numbers of seconds, milliseconds or microseconds since 1970, and how many microseconds one is.
_EPOCH = DecimalType(30, 12)
_MICROSECONDS = {
    Timestamps.SECONDS: 1_000_000,
    Timestamps.MILLIS: 1000,
    Timestamps.MICROS: 1,
}


class JsonColumns:
    """The reading of a schema's columns: ``steps`` of SQL, from ``value`` to a struct.

    Each step is a set of columns to select beside those that are there; the last one's is the
    struct, with the schema's columns and :data:`CORRUPT`.
    """

    def __init__(self, columns: StructType, ddl: str, timestamps: Timestamps) -> None:
        self._timestamps = timestamps
        texts = _only_texts(columns, self._is_read_as_decimal)
        if texts is None and not _has(columns, self._is_read_otherwise):
            self.steps = [[f"{_from_json(ddl)} as _decoded"]]
            return
        read = cast("StructType", _mapped(columns, self._read_as))
        reading = [f"{_from_json(_ddl(read))} as {_READ}"]
        wrong = self._misfit_of(_READ, columns) or "false"
        if texts is not None:
            parsed = _from_json(_ddl(texts))
            may_hide = f"regexp_like(cast(value as string), {_literal(_MAY_HIDE)})"
            reading.append(f"if({may_hide}, {parsed}, null) as {_TEXTS}")
            wrong = f"({wrong} or {_hidden(_TEXTS, texts)})"
        fields = [
            f"{self._value_of(_field_path(_READ, f), f.dataType)} as {_quoted(f.name)}"
            for f in columns
        ]
        corrupt = f"{_READ}.{CORRUPT}"
        fields.append(f"if({wrong}, 'wrong', {corrupt}) as {CORRUPT}")
        self.steps = [
            reading,
            [f"if({_READ} is null, null, struct({', '.join(fields)})) as _decoded"],
        ]

    def _read_as(self, kind: DataType) -> DataType:
        """Return what from_json is to read a column as, of a type that has none inside."""
        match kind:
            case ByteType():
                return ShortType()
            case TimestampType() if self._timestamps is not Timestamps.ISO:
                return _EPOCH
            case DateType() | TimestampType() | TimestampNTZType():
                return StringType()
            case _:
                return kind

    def _is_read_otherwise(self, kind: DataType) -> bool:
        return self._read_as(kind) != kind

    def _is_read_as_decimal(self, kind: DataType) -> bool:
        return isinstance(self._read_as(kind), DecimalType)

    def _value_of(self, path: str, kind: DataType) -> str:
        """Return what makes the value of what was read at ``path``."""
        if not _has(kind, self._is_read_otherwise):
            return path
        if not isinstance(kind, (ArrayType, MapType, StructType)):
            return self._leaf(path, kind)
        if isinstance(kind, ArrayType):
            name = _inner(path)
            return f"transform({path}, {name} -> {self._value_of(name, kind.elementType)})"
        if isinstance(kind, MapType):
            name = _inner(path)
            return (
                f"transform_values({path}, (k, {name}) -> {self._value_of(name, kind.valueType)})"
            )
        fields = [
            f"{self._value_of(_field_path(path, each), each.dataType)} as {_quoted(each.name)}"
            for each in kind
        ]
        return f"if({path} is null, null, struct({', '.join(fields)}))"

    def _leaf(self, path: str, kind: DataType) -> str:
        match kind:
            case ByteType():
                return f"try_cast({path} as tinyint)"
            case DateType():
                return _if_like(path, _IS_DATE, f"try_cast({path} as date)")
            case TimestampNTZType():
                return _if_like(path, _IS_LOCAL, f"try_cast({path} as timestamp_ntz)")
            case _ if self._timestamps is Timestamps.ISO:
                return _if_like(path, _IS_MOMENT, f"try_cast({path} as timestamp)")
        micros = f"{path} * {_MICROSECONDS[self._timestamps]}"
        made = f"timestamp_micros(cast({micros} as bigint))"
        bounds = f"{FIRST_MICROSECOND}bd and {LAST_MICROSECOND}.999999bd"
        return f"if({micros} between {bounds}, {made}, null)"

    def _misfit_of(self, path: str, kind: DataType) -> str | None:
        """Return what says whether something was read at ``path`` that makes no value."""
        if self._is_read_otherwise(kind):
            return f"({path} is not null and not coalesce({self._is_value(path, kind)}, false))"
        return _anywhere(path, kind, self._misfit_of)

    def _is_value(self, path: str, kind: DataType) -> str:
        made = self._leaf(path, kind)
        if isinstance(kind, ByteType):
            return f"{made} is not null"
        if isinstance(kind, DateType):
            return f"{made} between date'0001-01-01' and date'9999-12-31'"
        zone, name = (
            ("Z", "timestamp") if isinstance(kind, TimestampType) else ("", "timestamp_ntz")
        )
        first, last = f"0001-01-01 00:00:00{zone}", f"9999-12-31 23:59:59.999999{zone}"
        return f"{made} between {name}'{first}' and {name}'{last}'"


def refusals(kind: DataType, *, in_json: bool, by_case: bool) -> Iterator[str]:
    """Yield what is wrong with a schema that Spark finds with the first batch, or not at all.

    ``by_case``: names that differ by case alone are two to Spark.
    """
    inside: list[DataType] = []
    match kind:
        case ArrayType():
            inside = [kind.elementType]
        case MapType():
            if in_json and not isinstance(kind.keyType, StringType):
                yield (
                    f"has {kind.simpleString()}, and JSON has texts as names; write "
                    "MAP<STRING, ...>, and have the reducer cast them"
                )
            inside = [kind.valueType]
        case StructType():
            yield from _twins(kind.names, by_case=by_case)
            inside = [each.dataType for each in kind]
        case CharType() | VarcharType():
            yield (
                f"has {kind.simpleString()}, to which Spark decodes no JSON; write STRING, and "
                "have the reducer look at the length"
            )
    for each in inside:
        yield from refusals(each, in_json=in_json, by_case=by_case)


def _twins(names: Sequence[str], *, by_case: bool) -> Iterator[str]:
    seen: dict[str, str] = {}
    for name in names:
        twin = seen.setdefault(name if by_case else name.lower(), name)
        if twin != name:
            yield (
                f"has {twin!r} and {name!r}, which differ by case alone, and are one to Spark; "
                "leave one out"
            )
        elif names.count(name) > 1:
            yield f"has {name!r} twice"


def _mapped(kind: DataType, leaf: Callable[[DataType], DataType]) -> DataType:
    """Return a type with what is inside of it replaced."""
    match kind:
        case ArrayType():
            return ArrayType(_mapped(kind.elementType, leaf))
        case MapType():
            return MapType(kind.keyType, _mapped(kind.valueType, leaf))
        case StructType():
            return StructType([StructField(f.name, _mapped(f.dataType, leaf)) for f in kind])
        case _:
            return leaf(kind)


def _only_texts(kind: StructType, is_one: Callable[[DataType], bool]) -> StructType | None:
    """Return the schema of these columns alone, as texts; None where there are none."""
    fields = [
        StructField(each.name, _texts_of(each.dataType, is_one))
        for each in kind
        if _has(each.dataType, is_one)
    ]
    return StructType(fields) if fields else None


def _texts_of(kind: DataType, is_one: Callable[[DataType], bool]) -> DataType:
    match kind:
        case ArrayType():
            return ArrayType(_texts_of(kind.elementType, is_one))
        case MapType():
            return MapType(kind.keyType, _texts_of(kind.valueType, is_one))
        case StructType():
            return cast("StructType", _only_texts(kind, is_one))
        case _:
            return StringType()


def _has(kind: DataType, is_one: Callable[[DataType], bool]) -> bool:
    match kind:
        case ArrayType():
            return _has(kind.elementType, is_one)
        case MapType():
            return _has(kind.valueType, is_one)
        case StructType():
            return any(_has(each.dataType, is_one) for each in kind)
        case _:
            return is_one(kind)


def _hidden(path: str, kind: DataType) -> str | None:
    """Return what says whether a text at ``path`` is none of a number; all leaves are texts."""
    if isinstance(kind, StringType):
        return f"({path} is not null and not {_like(path, _IS_NUMBER)})"
    return _anywhere(path, kind, _hidden)


def _anywhere(
    path: str, kind: DataType, condition: Callable[[str, DataType], str | None]
) -> str | None:
    """Return what says whether a condition holds for something inside; None: there is none."""
    name = _inner(path)
    match kind:
        case ArrayType():
            inside = condition(name, kind.elementType)
            return inside and f"coalesce(exists({path}, {name} -> {inside}), false)"
        case MapType():
            inside = condition(name, kind.valueType)
            return inside and f"coalesce(exists(map_values({path}), {name} -> {inside}), false)"
        case StructType():
            found: str | None = None
            for each in kind:
                found = _either(found, condition(_field_path(path, each), each.dataType))
            return found
        case _:
            return None


def _either(one: str | None, other: str | None) -> str | None:
    return f"({one} or {other})" if one and other else one or other


def _if_like(path: str, pattern: str, made: str) -> str:
    return f"if({_like(path, pattern)}, {made}, null)"


def _like(path: str, pattern: str) -> str:
    return f"regexp_like({path}, {_literal(pattern)})"


def _literal(text: str) -> str:
    """Return a text in hexadecimal digits: how a quoted one is escaped is the session's setting."""
    return f"cast(X'{text.encode().hex()}' as string)"


def _inner(path: str) -> str:
    """Return a name for what is inside of the container at ``path``, of none around it."""
    outer = path.partition(".")[0]
    return outer + _EACH if set(outer) == {_EACH} else _EACH


def _field_path(path: str, field: StructField) -> str:
    return f"{path}.{_quoted(field.name)}"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _ddl(kind: StructType) -> str:
    return ", ".join(f"{_quoted(each.name)} {_type(each.dataType)}" for each in kind)


def _type(kind: DataType) -> str:
    match kind:
        case ArrayType():
            return f"array<{_type(kind.elementType)}>"
        case MapType():
            return f"map<{_type(kind.keyType)}, {_type(kind.valueType)}>"
        case StructType():
            inside = ", ".join(f"{_quoted(each.name)}: {_type(each.dataType)}" for each in kind)
            return f"struct<{inside}>"
        case _:
            return kind.simpleString()


def _from_json(ddl: str) -> str:
    """Return the SQL expression that turns the value into a struct of the schema's columns."""
    literal = f"{ddl}, {CORRUPT} STRING".replace("\\", "\\\\").replace("'", "\\'")
    options = f"map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '{CORRUPT}')"
    return f"from_json(cast(value as string), '{literal}', {options})"
