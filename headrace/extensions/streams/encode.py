"""Rows in columns as values of records, written without a call for each row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.extensions.streams.columns import Evaluated
from headrace.extensions.streams.types import Kind
from headrace.formats.json_texts import iso_texts, quoted, text_of, with_point

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.extensions.streams.rows import Row
    from headrace.extensions.streams.types import Type


def encode_rows(
    row: type[Row], columns: Mapping[str, pa.Array], size: int, codec: str = "json"
) -> Evaluated:
    """Return the value of each row in bytes, and which have a number that JSON does not.

    ``columns`` has the fields by their attributes' names. Any thread.
    """
    if codec != "json":
        (values,) = columns.values()
        return Evaluated(values.cast(pa.binary()))
    faults: dict[int, str] = {}
    types = {name: each.type for name, each in row.__fields__.items()}
    names = [each.name for each in row.__fields__.values()]
    arrays = [columns[name] for name in types]
    text = _objects(names, arrays, list(types.values()), size, faults)
    return Evaluated(text.cast(pa.binary()), faults)


def encode_structs(values: pa.Array, row: type[Row], faults: dict[int, str]) -> pa.Array:
    """Return rows with some fields of a class, as structs by their attributes' names, in JSON."""
    fields = [row.__fields__[each.name] for each in values.type]
    columns = [pc.struct_field(values, [place]) for place in range(len(fields))]
    names, types = [each.name for each in fields], [each.type for each in fields]
    return _objects(names, columns, types, len(values), faults)


def _objects(
    names: Sequence[str],
    arrays: Sequence[pa.Array],
    types: Sequence[Type],
    size: int,
    faults: dict[int, str],
) -> pa.Array:
    """Return rows as objects in JSON, with ``names`` as their members'."""
    if not names:
        return pa.repeat(pa.scalar("{}"), size)
    parts: list[Any] = []
    for name, values, kind in zip(names, arrays, types, strict=True):
        start = "{" if not parts else ","
        parts += [f"{start}{text_of(name)}:", json_texts(values, kind, name, faults)]
    return pc.binary_join_element_wise(*parts, "}", "", null_handling="emit_null")


def json_texts(values: pa.Array, kind: Type, path: str, faults: dict[int, str]) -> pa.Array:
    """Return values as texts in JSON; a number that JSON lacks is noted in ``faults``."""
    if kind.item is not None:
        texts = _lists(values, kind.item, path, faults)
    elif kind.row is not None:
        fields = kind.row.__fields__
        inner = [pc.struct_field(values, [place]) for place in range(len(fields))]
        types = [each.type for each in fields.values()]
        texts = _objects([each.name for each in fields.values()], inner, types, len(values), faults)
    else:
        texts = _scalars(values, kind, path, faults)
    return pc.if_else(pc.is_valid(values), texts, "null")


def _scalars(values: pa.Array, kind: Type, path: str, faults: dict[int, str]) -> pa.Array:
    match kind.kind:
        case Kind.TEXT:
            return quoted(values)
        case Kind.DATETIME:
            return pc.binary_join_element_wise('"', iso_texts(values), '"', "")
        case Kind.FLOAT:
            _find_infinite(values, path, faults)
            return with_point(values)
    return values.cast(pa.string())


def _find_infinite(values: pa.Array, path: str, faults: dict[int, str]) -> None:
    finite = pc.is_finite(values)
    if pc.all(finite, min_count=0).as_py():
        return
    places = np.flatnonzero(~pc.fill_null(finite, True).to_numpy(zero_copy_only=False))
    for place in places.tolist():
        number = values[place].as_py()
        faults[place] = f"{path} is {number}, which JSON has no number for; filter such rows out"


def _lists(values: pa.Array, item: Type, path: str, faults: dict[int, str]) -> pa.Array:
    flat, parents = pc.list_flatten(values), pc.list_parent_indices(values).to_numpy()
    inner: dict[int, str] = {}
    items = json_texts(flat, item, path, inner)
    faults |= {int(parents[place]): reason for place, reason in inner.items()}
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    texts = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), items), ",")
    return pc.binary_join_element_wise("[", texts, "]", "")
