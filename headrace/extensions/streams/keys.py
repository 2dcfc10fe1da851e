"""Keys of records: the bytes of one value, or of several as an array in JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from headrace.extensions.streams.columns import evaluate
from headrace.extensions.streams.encode import json_texts
from headrace.extensions.streams.expressions import CallNode, Part, PartNode
from headrace.extensions.streams.fitted import fit
from headrace.extensions.streams.types import LEAST_INT, MOST_INT, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.extensions.streams.types import Type

_KEY = PartNode(Part.KEY)
_TEXT = CallNode("cast", (_KEY,), (("to", "str"),))
_INT = CallNode("cast", (_TEXT,), (("to", "int"),))


@dataclass(frozen=True, slots=True)
class Keys:
    """The parts of keys in columns, null where a record has none, and what is no key."""

    parts: tuple[pa.Array, ...]
    faults: Mapping[int, str] = field(default_factory=dict)


def encode_keys(parts: Sequence[pa.Array], types: Sequence[Type]) -> pa.Array:
    """Return the bytes of keys; null where a part is.

    One text is UTF-8, a number its digits, true and false words, and bytes are as they are. What
    makes keys by the same types makes the same bytes, so the same partition. Any thread.
    """
    if len(parts) > 1:
        texts: list[pa.Array] = []
        for part, kind in zip(parts, types, strict=True):
            text = pc.if_else(pc.is_valid(part), json_texts(part, kind, "key", {}), None)
            texts += [pa.scalar("," if texts else "["), text]
        return pc.binary_join_element_wise(*texts, "]", "", null_handling="emit_null").cast(
            pa.binary()
        )
    (values,) = parts
    if types[0].kind in {Kind.INT, Kind.BOOL}:
        values = values.cast(pa.string())
    return values.cast(pa.binary())


def parse_key(text: str, types: Sequence[Type]) -> bytes:
    """Return the bytes of a key as people write it: its text, digits, or an array in JSON.

    Bytes are written in hexadecimal digits. Any thread.

    Raises:
        ValueError: it is no such key; the text says what it has to be.
    """
    if len(types) > 1:
        return _parse_several(text, types)
    match types[0].kind:
        case Kind.INT:
            if not text.removeprefix("-").isdecimal() or not LEAST_INT <= int(text) <= MOST_INT:
                raise ValueError("a whole number of 64 bits")
            return str(int(text)).encode()
        case Kind.BOOL:
            if text not in {"true", "false"}:
                raise ValueError("true or false")
        case Kind.BYTES:
            try:
                return bytes.fromhex(text)
            except ValueError:
                raise ValueError("hexadecimal digits, two for each byte") from None
    return text.encode("utf-8", "surrogateescape")


def _parse_several(text: str, types: Sequence[Type]) -> bytes:
    wanted = f"an array in JSON of {', '.join(map(str, types))}"
    try:
        parts = json.loads(text)
        if not isinstance(parts, list):
            raise TypeError(text)  # noqa: TRY301 - told as those of fit
        pairs = list(zip(parts, types, strict=True))
        values = [pa.array([fit(part, kind)], kind.arrow()) for part, kind in pairs]
    except (TypeError, ValueError, RecursionError):
        raise ValueError(wanted) from None
    key = encode_keys(values, types)[0].as_py()
    if key is None:
        raise ValueError(wanted)
    return bytes(key)


def decode_keys(keys: pa.Array, types: Sequence[Type]) -> Keys:
    """Return the parts of keys in bytes. Any thread."""
    if len(types) > 1:
        return _decode_several(keys, types)
    kind = types[0].kind
    if kind is Kind.BYTES:
        return Keys((keys,))
    if kind is Kind.BOOL:
        return Keys((pc.equal(keys, b"true"),))
    found = evaluate(_TEXT if kind is Kind.TEXT else _INT, {_KEY: keys}, len(keys))
    reasons = dict.fromkeys(found.faults, f"the key is no {kind.value}")
    return Keys((found.values,), reasons)


def _decode_several(keys: pa.Array, types: Sequence[Type]) -> Keys:
    different = keys.dictionary_encode()
    rows = [json.loads(each) for each in different.dictionary.to_pylist()]
    parts = [
        pa.array([row[place] for row in rows], kind.arrow()).take(different.indices)
        for place, kind in enumerate(types)
    ]
    return Keys(tuple(parts))
