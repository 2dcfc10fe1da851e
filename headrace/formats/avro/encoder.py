"""Columns into values in Avro, by the writer's schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.formats import pieces
from headrace.formats.avro.defaults import encoded
from headrace.formats.avro.schema import MISSING, AvroField, AvroType
from headrace.formats.errors import AvroSchemaError
from headrace.formats.pieces import NOTHING, Misfits, chosen, joined, piece

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

_INT32 = (-(1 << 31), (1 << 31) - 1)

#: The unit of the number that a logical type is.
_UNITS = {
    "time-millis": "ms",
    "time-micros": "us",
    "timestamp-millis": "ms",
    "timestamp-micros": "us",
    "local-timestamp-millis": "ms",
    "local-timestamp-micros": "us",
}

#: The milliseconds of a day.
_DAY = 86_400_000

#: The most digits of a column of decimals that is written.
_DIGITS = 38


class AvroEncoder:
    """Makes values of rows of one type. Any thread.

    Raises:
        AvroSchemaError: rows of the type are no values of the schema; the text names each field.
        StartError: the part in C cannot be used.
    """

    def __init__(self, writer: AvroType, kind: pa.StructType) -> None:
        problems = list(_problems(writer, kind, ""))
        if problems:
            raise AvroSchemaError("; ".join(problems))
        self._writer = writer
        pieces.functions()

    def values(self, rows: pa.StructArray, misfits: Misfits) -> pa.Array:
        """Return the value of each row, without a frame; of a null row anything.

        ``misfits`` has then what the schema cannot hold.
        """
        return _pieces(self._writer, rows, pc.is_valid(rows), "", misfits)


def check_writable(writer: AvroType) -> None:
    """Return if columns can be written by a schema.

    Raises:
        AvroSchemaError: it is none of a record, is recursive, has a union of two types beside
            null, or a decimal of too many digits.
    """
    if writer.kind != "record":
        raise AvroSchemaError(f"the schema is {writer}; it must be a record")
    _check(writer, "", ())


def _check(avro: AvroType, place: str, around: tuple[AvroType, ...]) -> None:
    if any(avro is each for each in around):
        raise AvroSchemaError(f"{place} has {avro.name} in itself, which no column holds")
    inside = (*around, avro)
    if avro.kind == "union":
        others = [each for each in avro.branches if each.kind != "null"]
        if len(others) > 1:
            raise AvroSchemaError(
                f"{place} is a union of {' and '.join(map(str, others))}; a column is of one type"
            )
        for each in others:
            _check(each, place, inside)
    elif avro.items is not None:
        _check(avro.items, f"{place}[]", inside)
    elif avro.kind == "record" and not avro.fields:
        raise AvroSchemaError(f"{place or avro.name} is a record without fields")
    elif avro.logical == "decimal" and avro.precision > _DIGITS:
        raise AvroSchemaError(
            f"{place} is a decimal of {avro.precision} digits; at most {_DIGITS} are written"
        )
    for field in avro.fields:
        _check(field.type, _inner(place, field.name), inside)


def _inner(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


# --- which columns are written ------------------------------------------------------------------


def _problems(  # noqa: C901, PLR0912 - one for each kind
    avro: AvroType, kind: pa.DataType, place: str
) -> Iterator[str]:
    """Yield why a column is none of a type of the schema."""
    if avro.kind == "union":
        # one without another type holds nulls alone
        for each in [it for it in avro.branches if it.kind != "null"] or avro.branches:
            yield from _problems(each, kind, place)
    elif pa.types.is_null(kind):
        return  # each is missing, which is found in the values
    elif avro.kind == "record":
        yield from _problems_of_record(avro, kind, place)
    elif avro.kind == "array":
        if pieces.is_list(kind):
            yield from _problems(_items(avro), kind.value_type, f"{place}[]")
        else:
            yield _another(place, kind, "a list")
    elif avro.kind == "map":
        if pa.types.is_map(kind) and pieces.is_text(kind.key_type):
            yield from _problems(_items(avro), kind.item_type, f"{place}[]")
        else:
            yield _another(place, kind, "a map with texts as keys")
    else:
        wanted, fits = _SCALARS[avro.logical if avro.logical in _SCALARS else avro.kind]
        if not fits(kind):
            yield _another(place, kind, wanted)
        elif avro.logical == "decimal" and abs(avro.scale - kind.scale) > _DIGITS:
            yield _another(place, kind, f"a decimal with {avro.scale} digits after the point")


def _problems_of_record(avro: AvroType, kind: pa.DataType, place: str) -> Iterator[str]:
    if not pa.types.is_struct(kind):
        yield _another(place, kind, f"a struct with the fields of {avro.name}")
        return
    there = [field.name for field in kind]
    for name in dict.fromkeys(there):
        if there.count(name) > 1:
            yield f"field {_inner(place, name)} is there twice"
    fields = {field.name: field for field in avro.fields}
    for name in dict.fromkeys(there):
        if name not in fields:
            yield f"field {_inner(place, name)} is none of the schema's {avro.name}"
        else:
            yield from _problems(fields[name].type, kind.field(name).type, _inner(place, name))
    for name, field in fields.items():
        if name not in there and field.default is MISSING:
            yield f"field {_inner(place, name)} is missing, which has no default in the schema"


def _another(place: str, kind: pa.DataType, wanted: str) -> str:
    named = f"field {place}" if place else "the value"
    return f"{named} is {kind}, and the schema takes {wanted}"


def _items(avro: AvroType) -> AvroType:
    assert avro.items is not None, "arrays and maps have items"
    return avro.items


def _is_single(kind: pa.DataType) -> bool:
    return bool(pa.types.is_float16(kind) or pa.types.is_float32(kind))


def _is_moment(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


def _is_local(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is None)


def _is_decimal(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal128(kind))


#: What a type takes, in words, and whether a column's type is that.
_SCALARS: dict[str | None, tuple[str, Callable[[pa.DataType], bool]]] = {
    "null": ("nothing but nulls", pa.types.is_null),
    "boolean": ("a boolean", pa.types.is_boolean),
    "int": ("a whole number", pa.types.is_integer),
    "long": ("a whole number", pa.types.is_integer),
    "float": ("a float", _is_single),
    "double": ("a double", pa.types.is_floating),
    "bytes": ("bytes", pieces.is_binary),
    "fixed": ("bytes", pieces.is_binary),
    "string": ("text", pieces.is_text),
    "enum": ("text", pieces.is_text),
    "date": ("a date", pa.types.is_date),
    "time-millis": ("a time", pa.types.is_time),
    "time-micros": ("a time", pa.types.is_time),
    "timestamp-millis": ("a timestamp with a time zone", _is_moment),
    "timestamp-micros": ("a timestamp with a time zone", _is_moment),
    "local-timestamp-millis": ("a timestamp without a time zone", _is_local),
    "local-timestamp-micros": ("a timestamp without a time zone", _is_local),
    "decimal": (f"a decimal of {_DIGITS} digits at most", _is_decimal),
}


# --- values as bytes ----------------------------------------------------------------------------


def _pieces(
    avro: AvroType, values: pa.Array, present: pa.Array, place: str, misfits: Misfits
) -> pa.Array:
    """Return values as bytes, anything where they are not present."""
    valid = pc.is_valid(values)
    is_null_alone = avro.kind == "null"
    branches = avro.branches if avro.kind == "union" else (avro,)
    null = next((k for k, each in enumerate(branches) if each.kind == "null"), None)
    if null is None:
        named = f"field {place}" if place else "the value"
        misfits.note(f"{named} is null", pc.and_not(present, valid))
    other = next((k for k, each in enumerate(branches) if each.kind != "null"), None)
    if is_null_alone:
        return pa.repeat(NOTHING, len(values))
    if other is None or pa.types.is_null(values.type):
        return pa.repeat(piece(_number(null or 0)), len(values))
    made = _value_pieces(branches[other], values, pc.and_(present, valid), place, misfits)
    if avro.kind != "union":
        return made
    made = joined(piece(_number(other)), made)
    return made if null is None else chosen(valid, made, piece(_number(null)))


def _number(number: int) -> bytes:
    """Return a small number as Avro writes it."""
    return bytes([number << 1])


def _value_pieces(
    avro: AvroType, values: pa.Array, present: pa.Array, place: str, misfits: Misfits
) -> pa.Array:
    if avro.kind == "record":
        parts = [_field_pieces(each, values, present, place, misfits) for each in avro.fields]
        if all(isinstance(part, pa.Scalar) for part in parts):
            return pa.repeat(piece(b"".join(part.as_py() for part in parts)), len(values))
        return joined(*parts)
    if avro.items is not None:
        return _list_pieces(avro.items, values, place, misfits)
    if avro.logical in _LOGICAL:
        return _LOGICAL[avro.logical](avro, values, place, misfits)
    return _PLAIN[avro.kind](avro, values, place, misfits)


def _field_pieces(
    field: AvroField, rows: pa.StructArray, present: pa.Array, place: str, misfits: Misfits
) -> pa.Array | pa.Scalar:
    at = rows.type.get_field_index(field.name)
    inner = _inner(place, field.name)
    if at < 0:
        return piece(encoded(field.type, field.default, inner))
    return _pieces(field.type, pc.struct_field(rows, [at]), present, inner, misfits)


def _list_pieces(items: AvroType, lists: pa.Array, place: str, misfits: Misfits) -> pa.Array:
    """Return lists or maps: one block of items, unless there are none, and a block without any."""
    flat, lengths = pieces.items_of(lists)
    if pa.types.is_map(lists.type):
        keys = pieces.sized(pieces.as_bytes(pc.struct_field(flat, [0])), folded=True)
        flat = pc.struct_field(flat, [1])
        inside = joined(keys, _pieces(items, flat, _all(len(flat)), f"{place}[]", misfits))
    else:
        inside = _pieces(items, flat, _all(len(flat)), f"{place}[]", misfits)
    counted = joined(
        pieces.varints(lengths, folded=True), pieces.concatenated(inside, lengths), piece(b"\0")
    )
    return chosen(pc.equal(lengths, 0), piece(b"\0"), counted)


def _all(count: int) -> pa.Array:
    return pa.repeat(pa.scalar(True), count)


def _whole(avro: AvroType, values: pa.Array, place: str, misfits: Misfits) -> pa.Array:
    numbers = values.cast(pa.int64(), safe=False)
    if pa.types.is_uint64(values.type):
        misfits.note(f"field {place} is above {(1 << 63) - 1}", _where(pc.less(numbers, 0)))
    if avro.kind == "int":
        least, most = _INT32
        outside = pc.or_(pc.less(numbers, least), pc.greater(numbers, most))
        misfits.note(f"field {place} is no number of 32 bits", _where(outside))
    return pieces.varints(numbers, folded=True)


def _where(problem: pa.Array) -> pa.Array:
    return pc.fill_null(problem, False)


def _single(avro: AvroType, values: pa.Array, place: str, misfits: Misfits) -> pa.Array:
    del avro, place, misfits
    return pieces.fixed(values.cast(pa.float32()))


def _double(avro: AvroType, values: pa.Array, place: str, misfits: Misfits) -> pa.Array:
    del avro, place, misfits
    return pieces.fixed(values.cast(pa.float64()))


def _boolean(avro: AvroType, values: pa.Array, place: str, misfits: Misfits) -> pa.Array:
    del avro, place, misfits
    return pieces.flags(values)


def _sized(avro: AvroType, values: pa.Array, place: str, misfits: Misfits) -> pa.Array:
    del avro, place, misfits
    return pieces.sized(pieces.as_bytes(values), folded=True)


def _fixed(avro: AvroType, values: pa.Array, place: str, misfits: Misfits) -> pa.Array:
    found = pieces.as_bytes(values)
    others = pc.not_equal(pc.binary_length(found), avro.size)
    misfits.note(f"field {place} has not {avro.size} bytes", _where(others))
    return pc.fill_null(found, b"")


def _symbol(avro: AvroType, values: pa.Array, place: str, misfits: Misfits) -> pa.Array:
    symbols = pa.array([each.encode() for each in avro.symbols], pieces.PIECES)
    numbers = pc.index_in(pieces.as_bytes(values), value_set=symbols)
    unknown = pc.and_(pc.is_null(numbers), pc.is_valid(values))
    misfits.note(f"field {place} is none of the symbols of {avro.name}", unknown)
    return pieces.varints(numbers.cast(pa.int64()), folded=True)


def _date(avro: AvroType, values: pa.Array, place: str, misfits: Misfits) -> pa.Array:
    del avro
    if pa.types.is_date32(values.type):
        return pieces.varints(values.cast(pa.int32()).cast(pa.int64()), folded=True)
    days = _floored(values.cast(pa.int64()), _DAY)
    least, most = _INT32
    outside = pc.or_(pc.less(days, least), pc.greater(days, most))
    misfits.note(f"field {place} is a date that Avro does not have", _where(outside))
    return pieces.varints(days, folded=True)


def _time(avro: AvroType, values: pa.Array, place: str, misfits: Misfits) -> pa.Array:
    have, want = pieces.PARTS[values.type.unit], pieces.PARTS[_UNITS[avro.logical or ""]]
    is_short = pa.types.is_time32(values.type)
    numbers = (values.cast(pa.int32()) if is_short else values).cast(pa.int64())
    if want > have:
        most = ((1 << 63) - 1) // (want // have)
        outside = pc.or_(pc.less(numbers, -most), pc.greater(numbers, most))
        misfits.note(f"field {place} is a time that {avro.logical} does not have", _where(outside))
        numbers = pc.multiply(numbers, want // have)
    elif have > want:
        numbers = _floored(numbers, have // want)
    return pieces.varints(numbers, folded=True)


def _floored(numbers: pa.Array, by: int) -> pa.Array:
    """Return whole numbers divided, the next lower one where they are none."""
    cut = pc.divide(numbers, by)
    is_above = pc.greater(pc.multiply(cut, by), numbers)
    return pc.subtract(cut, pc.if_else(is_above, 1, 0))


def _decimal(avro: AvroType, values: pa.Array, place: str, misfits: Misfits) -> pa.Array:
    wanted = f"decimal({avro.precision}, {avro.scale})"
    try:
        numbers = values.cast(pa.decimal128(avro.precision, avro.scale))
    except pa.ArrowInvalid:
        numbers = _those_that_fit(values, pa.decimal128(avro.precision, avro.scale))
        outside = pc.and_(pc.is_null(numbers), pc.is_valid(values))
        misfits.note(f"field {place} is no {wanted}", outside)
    found, too_long = pieces.wide(numbers, avro.size if avro.kind == "fixed" else 0)
    if too_long:
        misfits.note(f"field {place} is no {wanted}", _all(too_long))
    return found if avro.kind == "fixed" else pieces.sized(found, folded=True)


def _those_that_fit(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return decimals as others, null where one has other digits."""
    made: list[pa.Array] = []
    for at in range(len(values)):
        try:
            made.append(values.slice(at, 1).cast(kind))
        except pa.ArrowInvalid:
            made.append(pa.nulls(1, kind))
    return pa.concat_arrays(made)


if TYPE_CHECKING:
    Write: TypeAlias = Callable[[AvroType, pa.Array, str, Misfits], pa.Array]

_PLAIN: dict[str, Write] = {
    "boolean": _boolean,
    "int": _whole,
    "long": _whole,
    "float": _single,
    "double": _double,
    "bytes": _sized,
    "string": _sized,
    "fixed": _fixed,
    "enum": _symbol,
}

_LOGICAL: dict[str | None, Write] = {
    "date": _date,
    "decimal": _decimal,
    **dict.fromkeys(_UNITS, _time),
}
