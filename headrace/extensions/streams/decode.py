"""Values of records as columns of the fields in use, with what is missing found by its place."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.config.models.processor import FRAMED
from headrace.core.decoders import decoded_rows
from headrace.core.misfits import custom_reason
from headrace.extensions.streams.expressions import FieldNode
from headrace.extensions.streams.types import Kind
from headrace.formats.json_values import JsonDecoder

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.core.decoders import CustomDecoder
    from headrace.extensions.streams.expressions import Node
    from headrace.extensions.streams.rows import Field, Row
    from headrace.extensions.streams.types import Type

    Mask = np.ndarray[Any, np.dtype[np.bool_]]

#: How values of a topic are written. For the others than JSON a row has one field.
CODECS = {"json": None, "string": Kind.TEXT, "bytes": Kind.BYTES}

#: Those of values that are read by ids of a schema registry, and not written.
_READ = dict.fromkeys(FRAMED)

#: Those of them that have bytes.
_WITH_BYTES = {"avro", "protobuf"}


@dataclass(frozen=True, slots=True)
class Decoded:
    """The fields in use of each record, null where it has none, and why records have none."""

    columns: Mapping[Node, pa.Array]
    faults: Mapping[int, str] = field(default_factory=dict)


def check_codec(codec: str, row: type[Row], what: str, *, is_read: bool = False) -> None:
    """Return if rows of the class can be written so, or read; ``what`` is what an error names.

    Raises:
        TypeError: the codec is not known, or does not have such a row.
    """
    known = {**CODECS, **_READ} if is_read else CODECS
    if codec in _READ and not is_read:
        raise TypeError(
            f"{what}: codec {codec!r} is for values that are read; take {', '.join(known)}, or "
            "let a channel with a Kafka sink write them"
        )
    if codec not in known:
        raise TypeError(f"{what}: codec {codec!r} is not known; take {', '.join(known)}")
    kind = known[codec]
    fields = row.__fields__
    if codec in _WITH_BYTES:
        return
    if kind is None:
        for name, each in fields.items():
            if has_bytes(each.type):
                raise TypeError(
                    f"{what}: {row.__name__}.{name} has bytes, which JSON does not; take a row of "
                    'one field of bytes and codec="bytes", or text'
                )
    elif [each.type.required.kind for each in fields.values()] != [kind]:
        raise TypeError(
            f"{what}: codec {codec!r} needs a row of one field of {kind.value}; "
            f"{row.__name__} has {len(fields)}: {', '.join(map(str, fields)) or 'none'}"
        )


def has_bytes(kind: Type) -> bool:
    """Return whether values of a type have bytes, which JSON does not."""
    if kind.item is not None:
        return has_bytes(kind.item)
    if kind.row is not None:
        return any(has_bytes(each.type) for each in kind.row.__fields__.values())
    return kind.kind is Kind.BYTES


def decode_values(
    values: pa.Array,
    row: type[Row],
    names: Collection[str],
    codec: str = "json",
    decoder: CustomDecoder | None = None,
) -> Decoded:
    """Return fields of a row, by their attributes' names, of values in bytes. Any thread.

    What no field in use reads is not looked at. A null, or a value at fault, is null in each field.
    ``decoder`` reads values that name their schemas.

    Raises:
        RetryableError: the decoder cannot work now.
    """
    fields = {name: each for name, each in row.__fields__.items() if name in names}
    if not fields:
        return Decoded({})
    if codec in CODECS and codec != "json":
        return _decode_plain(values, row, codec)
    kind = pa.struct([_in_json(each) for each in fields.values()])
    if codec == "json":
        rows, reasons = JsonDecoder(kind).columns(values)
    else:
        assert decoder is not None, f"codec {codec} has a decoder"
        rows, said = decoded_rows(decoder, values, kind)
        reasons = {place: custom_reason(reason) for place, reason in said.items()}
    present = pc.is_valid(rows).to_numpy(zero_copy_only=False)
    columns: dict[Node, pa.Array] = {}
    faults: dict[int, str] = {}
    for place, (name, each) in enumerate(fields.items()):
        found = _completed(pc.struct_field(rows, [place]), each, present, each.name)
        columns[FieldNode(row, name)] = found.values
        faults = {**found.faults, **faults}
    return Decoded(columns, {**faults, **reasons})


def _decode_plain(values: pa.Array, row: type[Row], codec: str) -> Decoded:
    """Return the one field of a row that is the whole value."""
    (name,) = row.__fields__
    node = FieldNode(row, name)
    if codec == "bytes":
        return Decoded({node: values})
    try:
        return Decoded({node: values.cast(pa.string())})
    except pa.ArrowInvalid:
        texts, faults = [], {}
        for place, value in enumerate(values.to_pylist()):
            try:
                texts.append(None if value is None else value.decode())
            except UnicodeDecodeError as error:
                texts.append(None)
                faults[place] = f"at byte {error.start}: 0x{value[error.start]:02x} is no UTF-8"
        return Decoded({node: pa.array(texts, pa.string())}, faults)


def columns_of_row(row: type[Row]) -> pa.StructType:
    """Return the columns that values are read as: fields by their names in the values."""
    return pa.struct([_in_json(each) for each in row.__fields__.values()])


def misfits_of(row: type[Row], kind: pa.StructType) -> list[str]:
    """Return why a row cannot be made of columns of a reader's schema; nothing where it can."""
    problems = []
    for each, wanted in zip(row.__fields__.values(), columns_of_row(row), strict=True):
        if kind.get_field_index(each.name) < 0:
            if each.is_required and not each.has_default:
                problems.append(f"field {each.name} is not in the reader's schema")
            continue
        found = kind.field(each.name).type
        try:
            pa.nulls(0, found).cast(wanted.type)
        except pa.ArrowException:
            problems.append(f"field {each.name} is {found}, and the row has {each.type}")
    return problems


def _in_json(found: Field[Any]) -> pa.Field:
    return pa.field(found.name, _type_in_json(found.type))


def _type_in_json(kind: Type) -> pa.DataType:
    """Return the type to read a field as: rows within it have their names in JSON."""
    if kind.item is not None:
        return pa.list_(_type_in_json(kind.item))
    if kind.row is not None:
        return pa.struct([_in_json(each) for each in kind.row.__fields__.values()])
    return kind.arrow()


class _Completed(NamedTuple):
    """Values with defaults in place of null, and where one is missing that has none."""

    values: pa.Array
    faults: Mapping[int, str]


def _completed(values: pa.Array, found: Field[Any], present: Mask, path: str) -> _Completed:
    """Return a field of rows, which are there where ``present`` says so."""
    values, faults = _inner_completed(values, found.type, path)
    missing = pc.is_null(values).to_numpy(zero_copy_only=False) & present
    if not missing.any():
        return _Completed(values, faults)
    if found.has_default and found.default is not None:
        filled = pa.scalar(found.default, values.type)
        return _Completed(pc.if_else(pa.array(missing), filled, values), faults)
    if not found.is_required:
        return _Completed(values, faults)
    reason = f"field {path} is missing or null; declare {found.type} | None, or give a default"
    return _Completed(values, {**dict.fromkeys(np.flatnonzero(missing).tolist(), reason), **faults})


def _inner_completed(values: pa.Array, kind: Type, path: str) -> _Completed:
    """Return values whose items, and whose own fields, are complete."""
    if kind.item is not None:
        return _items_completed(values, kind.item, path)
    if kind.row is None:
        return _Completed(values, {})
    present = pc.is_valid(values).to_numpy(zero_copy_only=False)
    parts: list[pa.Array] = []
    faults: dict[int, str] = {}
    for place, each in enumerate(kind.row.__fields__.values()):
        part = _completed(pc.struct_field(values, [place]), each, present, f"{path}.{each.name}")
        parts.append(part.values)
        faults |= part.faults
    made = pa.StructArray.from_arrays(parts, fields=list(kind.arrow()), mask=pc.is_null(values))
    return _Completed(made, faults)


def _items_completed(values: pa.Array, item: Type, path: str) -> _Completed:
    flat, parents = pc.list_flatten(values), pc.list_parent_indices(values).to_numpy()
    items, inner = _inner_completed(flat, item, f"{path}[]")
    faults = {int(parents[place]): reason for place, reason in inner.items()}
    if items.null_count:
        nulls = parents[pc.is_null(items).to_numpy(zero_copy_only=False)]
        reason = f"field {path} has a null among its items; leave it out"
        faults |= dict.fromkeys(map(int, nulls), reason)
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    made = pa.ListArray.from_arrays(
        pa.array(offsets), items, type=pa.list_(items.type), mask=pc.is_null(values)
    )
    return _Completed(made, faults)
