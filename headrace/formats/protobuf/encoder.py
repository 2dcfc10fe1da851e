"""Columns into messages, by the writer's descriptor."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import FieldDescriptor

from headrace.formats import pieces
from headrace.formats.errors import ProtobufSchemaError
from headrace.formats.pieces import NOTHING, Misfits, chosen, joined, piece
from headrace.formats.protobuf.plan import TIMESTAMP, WRAPPERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from google.protobuf.descriptor import Descriptor

#: How the bytes of a value end: by themselves, after eight, after a length, after four.
_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5

_F = FieldDescriptor

_WIRE = {
    _F.TYPE_DOUBLE: _FIXED64,
    _F.TYPE_FIXED64: _FIXED64,
    _F.TYPE_SFIXED64: _FIXED64,
    _F.TYPE_FLOAT: _FIXED32,
    _F.TYPE_FIXED32: _FIXED32,
    _F.TYPE_SFIXED32: _FIXED32,
    _F.TYPE_STRING: _SIZED,
    _F.TYPE_BYTES: _SIZED,
    _F.TYPE_MESSAGE: _SIZED,
}

#: The least and the most of whole numbers, by their types.
_SIGNED32, _SIGNED64 = (-(1 << 31), (1 << 31) - 1), (-(1 << 63), (1 << 63) - 1)
_BOUNDS = {
    **dict.fromkeys((_F.TYPE_INT32, _F.TYPE_SINT32, _F.TYPE_SFIXED32), _SIGNED32),
    **dict.fromkeys((_F.TYPE_INT64, _F.TYPE_SINT64, _F.TYPE_SFIXED64), _SIGNED64),
    **dict.fromkeys((_F.TYPE_UINT32, _F.TYPE_FIXED32), (0, (1 << 32) - 1)),
    **dict.fromkeys((_F.TYPE_UINT64, _F.TYPE_FIXED64), (0, (1 << 64) - 1)),
}

_FOLDED = {_F.TYPE_SINT32, _F.TYPE_SINT64}

#: Whole numbers of any type without loss.
_WHOLE = pa.decimal128(38, 0)

#: The number of a value of an enum that has no name, of no more digits than 32 bits have.
_NUMBER = re.compile("-?[0-9]{1,10}")

#: The first and the last second of a timestamp, since 1970.
_SECONDS = (-62_135_596_800, 253_402_300_799)


class ProtobufEncoder:
    """Makes messages of rows of one type. Any thread.

    Raises:
        ProtobufSchemaError: rows of the type are no messages of this kind; the text names each
            field.
        StartError: the part in C cannot be used.
    """

    def __init__(self, message: Descriptor, kind: pa.StructType) -> None:
        problems = list(_problems(message, kind, ""))
        if problems:
            raise ProtobufSchemaError("; ".join(problems))
        self._message = message
        pieces.functions()

    def values(self, rows: pa.StructArray, misfits: Misfits) -> pa.Array:
        """Return the message of each row, without a frame; of a null row anything.

        ``misfits`` has then what the message cannot hold.
        """
        return _message(self._message, rows, pc.is_valid(rows), "", misfits)


def _inner(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


# --- which columns are written ------------------------------------------------------------------


def _problems(message: Descriptor, kind: pa.DataType, place: str) -> Iterator[str]:
    if not pa.types.is_struct(kind):
        yield _another(place, kind, f"a struct with the fields of {message.full_name}")
        return
    there = [field.name for field in kind]
    for name in dict.fromkeys(there):
        inner = _inner(place, name)
        if there.count(name) > 1:
            yield f"field {inner} is there twice"
        elif name not in message.fields_by_name:
            yield f"field {inner} is none of the message {message.full_name}"
        else:
            yield from _problems_of_field(
                message.fields_by_name[name], kind.field(name).type, inner
            )
    for field in message.fields:
        if field.is_required and field.name not in there:
            yield f"field {_inner(place, field.name)} is missing, which the message requires"


def _problems_of_field(field: FieldDescriptor, kind: pa.DataType, place: str) -> Iterator[str]:
    if pa.types.is_null(kind):
        return
    entry = _entry(field)
    if entry is not None:
        if not pa.types.is_map(kind):
            yield _another(place, kind, "a map")
            return
        key, value = (entry.fields_by_name[name] for name in ("key", "value"))
        yield from _problems_of_value(key, kind.key_type, f"{place}[key]")
        yield from _problems_of_value(value, kind.item_type, f"{place}[]")
    elif not field.is_repeated:
        yield from _problems_of_value(field, kind, place)
    elif pieces.is_list(kind):
        yield from _problems_of_value(field, kind.value_type, f"{place}[]")
    else:
        yield _another(place, kind, "a list")


def _problems_of_value(field: FieldDescriptor, kind: pa.DataType, place: str) -> Iterator[str]:
    if field.type == _F.TYPE_GROUP:
        yield f"field {place} is a group, which is not written"
    elif field.type != _F.TYPE_MESSAGE:
        wanted, fits = _scalar(field)
        if not fits(kind):
            yield _another(place, kind, wanted)
    elif field.message_type.full_name == TIMESTAMP:
        if not pa.types.is_timestamp(kind) or kind.tz is None:
            yield _another(place, kind, "a timestamp with a time zone")
    elif field.message_type.full_name in WRAPPERS:
        yield from _problems_of_value(field.message_type.fields[0], kind, place)
    else:
        yield from _problems(field.message_type, kind, place)


def _scalar(field: FieldDescriptor) -> tuple[str, Callable[[pa.DataType], bool]]:
    """Return what a field takes, in words, and whether a column's type is that."""
    if field.type in _BOUNDS:
        return "a whole number", _is_whole
    return {
        _F.TYPE_DOUBLE: ("a double", pa.types.is_floating),
        _F.TYPE_FLOAT: ("a float", _is_single),
        _F.TYPE_BOOL: ("a boolean", pa.types.is_boolean),
        _F.TYPE_BYTES: ("bytes", pieces.is_binary),
    }.get(field.type, ("text", pieces.is_text))


def _is_whole(kind: pa.DataType) -> bool:
    if pa.types.is_decimal128(kind):
        return bool(kind.scale == 0)
    return bool(pa.types.is_integer(kind))


def _is_single(kind: pa.DataType) -> bool:
    return bool(pa.types.is_float16(kind) or pa.types.is_float32(kind))


def _another(place: str, kind: pa.DataType, wanted: str) -> str:
    named = f"field {place}" if place else "the value"
    return f"{named} is {kind}, and the message takes {wanted}"


def _entry(field: FieldDescriptor) -> Descriptor | None:
    """Return the message of a map's entries, None for a field that is no map."""
    kind = field.message_type if field.type == _F.TYPE_MESSAGE else None
    return kind if kind is not None and kind.GetOptions().map_entry else None


# --- values as bytes ----------------------------------------------------------------------------


def _message(
    message: Descriptor, rows: pa.StructArray, present: pa.Array, place: str, misfits: Misfits
) -> pa.Array:
    parts = [pa.repeat(NOTHING, len(rows))]
    for field in sorted(message.fields, key=lambda each: each.number):
        at = rows.type.get_field_index(field.name)
        if at >= 0 and not pa.types.is_null(rows.type.field(at).type):
            values = pc.struct_field(rows, [at])
            parts.append(_field(field, values, present, _inner(place, field.name), misfits))
        elif field.is_required:
            misfits.note(f"field {_inner(place, field.name)} is null", present)
    _note_oneofs(message, rows, present, place, misfits)
    return joined(*parts)


def _note_oneofs(
    message: Descriptor, rows: pa.StructArray, present: pa.Array, place: str, misfits: Misfits
) -> None:
    for each in message.oneofs:
        places = [rows.type.get_field_index(field.name) for field in each.fields]
        given = [pc.struct_field(rows, [at]) for at in places if at >= 0]
        if len(given) > 1:
            counts = [pc.is_valid(values).cast(pa.int32()) for values in given]
            count = counts[0]
            for more in counts[1:]:
                count = pc.add(count, more)
            several = pc.and_(present, pc.greater(count, 1))
            misfits.note(f"oneof {_inner(place, each.name)} has several fields", several)


def _field(
    field: FieldDescriptor, values: pa.Array, present: pa.Array, place: str, misfits: Misfits
) -> pa.Array:
    """Return a field with its tag, nothing where it is not written."""
    entry = _entry(field)
    if entry is not None:
        return _map(field, entry, values, place, misfits)
    if field.is_repeated:
        return _repeated(field, values, place, misfits)
    valid = pc.is_valid(values)
    if field.is_required:
        misfits.note(f"field {place} is null", pc.and_not(present, valid))
    made = joined(_tag(field), _value(field, values, pc.and_(present, valid), place, misfits))
    if not field.has_presence:
        valid = pc.and_(valid, _is_no_zero(field, values))
    return chosen(valid, made, NOTHING)


def _tag(field: FieldDescriptor, wire: int | None = None) -> pa.Scalar:
    if wire is None:
        wire = _WIRE.get(field.type, _VARINT)
    return piece(varint(field.number << 3 | wire))


def varint(number: int) -> bytes:
    """Return a whole number without a sign as Protobuf has it."""
    made = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def _is_no_zero(field: FieldDescriptor, values: pa.Array) -> pa.Array:
    """Return whether values are others than the one that a field has that is not there."""
    if field.type in {_F.TYPE_STRING, _F.TYPE_BYTES}:
        found = pc.not_equal(pc.binary_length(pieces.as_bytes(values)), 0)
    elif field.type == _F.TYPE_BOOL:
        found = values
    elif field.type in {_F.TYPE_DOUBLE, _F.TYPE_FLOAT}:
        # a zero with a sign is written, as Google's writers do
        found = pc.not_equal(pieces.fixed(values.cast(pa.float64())), piece(bytes(8)))
    elif field.type == _F.TYPE_ENUM:
        zero = field.enum_type.values_by_number.get(0)
        names = {"0"} if zero is None else {"0", zero.name}
        zeros = pa.array([name.encode() for name in sorted(names)], pieces.PIECES)
        found = pc.invert(pc.is_in(pieces.as_bytes(values), value_set=zeros))
    else:
        found = pc.not_equal(values, pa.scalar(0, values.type))
    return pc.fill_null(found, False)


def _repeated(field: FieldDescriptor, lists: pa.Array, place: str, misfits: Misfits) -> pa.Array:
    flat, lengths = pieces.items_of(lists)
    made = _items(field, flat, f"{place}[]", misfits)
    if not field.is_packed:
        return pieces.concatenated(joined(_tag(field), made), lengths)
    packed = joined(_tag(field, _SIZED), pieces.sized(pieces.concatenated(made, lengths)))
    return chosen(pc.equal(lengths, 0), NOTHING, packed)


def _items(field: FieldDescriptor, flat: pa.Array, place: str, misfits: Misfits) -> pa.Array:
    """Return items, none of which may be null."""
    misfits.note(f"field {place} is null", pc.is_null(flat))
    if pa.types.is_null(flat.type):
        return pa.repeat(NOTHING, len(flat))
    return _value(field, flat, pc.is_valid(flat), place, misfits)


def _map(
    field: FieldDescriptor, entry: Descriptor, maps: pa.Array, place: str, misfits: Misfits
) -> pa.Array:
    flat, lengths = pieces.items_of(maps)
    key, value = (entry.fields_by_name[name] for name in ("key", "value"))
    parts = [
        _tag(key),
        _items(key, pc.struct_field(flat, [0]), f"{place}[key]", misfits),
        _tag(value),
        _items(value, pc.struct_field(flat, [1]), f"{place}[]", misfits),
    ]
    entries = joined(_tag(field), pieces.sized(joined(*parts)))
    return pieces.concatenated(entries, lengths)


def _value(  # noqa: PLR0911 - one for each kind
    field: FieldDescriptor, values: pa.Array, present: pa.Array, place: str, misfits: Misfits
) -> pa.Array:
    """Return values without their tag, anything for a null."""
    if field.type in _BOUNDS:
        return _whole(field, values, place, misfits)
    match field.type:
        case _F.TYPE_DOUBLE:
            return pieces.fixed(values.cast(pa.float64()))
        case _F.TYPE_FLOAT:
            return pieces.fixed(values.cast(pa.float32()))
        case _F.TYPE_BOOL:
            return pieces.flags(values)
        case _F.TYPE_STRING | _F.TYPE_BYTES:
            return pieces.sized(pieces.as_bytes(values))
        case _F.TYPE_ENUM:
            return _enum(field, values, place, misfits)
    message = field.message_type
    if message.full_name == TIMESTAMP:
        return pieces.sized(_timestamp(values, place, misfits))
    if message.full_name in WRAPPERS:
        return pieces.sized(_field(message.fields[0], values, present, place, misfits))
    return pieces.sized(_message(message, values, present, place, misfits))


def _whole(field: FieldDescriptor, values: pa.Array, place: str, misfits: Misfits) -> pa.Array:
    least, most = _BOUNDS[field.type]
    kind = values.type
    if pa.types.is_decimal128(kind) or pa.types.is_uint64(kind) or least == 0:
        whole = values.cast(pa.decimal128(20, 0) if pa.types.is_integer(kind) else kind)
        whole = whole.cast(_WHOLE)
        bounds = [pa.scalar(each, pa.decimal128(20, 0)).cast(_WHOLE) for each in (least, most)]
        outside = pc.or_(pc.less(whole, bounds[0]), pc.greater(whole, bounds[1]))
        misfits.note(f"field {place} is no number from {least} to {most}", _where(outside))
        numbers = _lowest_bits(whole)
    else:
        numbers = values.cast(pa.int64())
        outside = pc.or_(pc.less(numbers, least), pc.greater(numbers, most))
        misfits.note(f"field {place} is no number from {least} to {most}", _where(outside))
    wire = _WIRE.get(field.type, _VARINT)
    if wire == _VARINT:
        return pieces.varints(numbers, folded=field.type in _FOLDED)
    found = pieces.fixed(numbers)
    return found if wire == _FIXED64 else pc.binary_slice(found, 0, 4)


def _lowest_bits(whole: pa.Array) -> pa.Array:
    """Return the lowest 64 bits of decimals, a null as zero."""
    found, _ = pieces.wide(whole, 8)
    backwards = pc.binary_reverse(found)
    data = backwards.buffers()[2]
    start = 8 * backwards.offset
    return pa.Array.from_buffers(
        pa.int64(), len(backwards), [None, data.slice(start, 8 * len(backwards))]
    )


def _where(problem: pa.Array) -> pa.Array:
    return pc.fill_null(problem, False)


def _enum(field: FieldDescriptor, values: pa.Array, place: str, misfits: Misfits) -> pa.Array:
    """Return the numbers of names. A number that has no name stands for itself, as it is read."""
    enum = field.enum_type
    different = pieces.as_bytes(values).dictionary_encode()
    numbers: list[int | None] = []
    for name in different.dictionary.to_pylist():
        text = name.decode()
        named = enum.values_by_name.get(text)
        number = named.number if named is not None else None
        if number is None and not enum.is_closed and _NUMBER.fullmatch(text):
            number = int(text) if _SIGNED32[0] <= int(text) <= _SIGNED32[1] else None
        numbers.append(number)
    found = pa.array(numbers, pa.int64()).take(different.indices)
    unknown = pc.and_(pc.is_null(found), pc.is_valid(values))
    misfits.note(f"field {place} is none of the names of {enum.full_name}", unknown)
    return pieces.varints(found)


def _timestamp(values: pa.Array, place: str, misfits: Misfits) -> pa.Array:
    """Return moments as messages of seconds and nanoseconds."""
    numbers, parts_of_second = values.cast(pa.int64()), pieces.PARTS[values.type.unit]
    seconds = _floored(numbers, parts_of_second)
    rest = pc.subtract(numbers, pc.multiply(seconds, parts_of_second))
    rest = pc.multiply(rest, 10**9 // parts_of_second)
    first, last = _SECONDS
    outside = pc.or_(pc.less(seconds, first), pc.greater(seconds, last))
    misfits.note(f"field {place} is a time of no year from 1 to 9999", _where(outside))
    parts = []
    for number, part in ((1, seconds), (2, rest)):
        written = joined(piece(varint(number << 3)), pieces.varints(part))
        parts.append(chosen(pc.fill_null(pc.not_equal(part, 0), False), written, NOTHING))
    return joined(*parts)


def _floored(numbers: pa.Array, by: int) -> pa.Array:
    cut = pc.divide(numbers, by)
    is_above = pc.greater(pc.multiply(cut, by), numbers)
    return pc.subtract(cut, pc.if_else(is_above, 1, 0))
