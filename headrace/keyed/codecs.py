"""Keys, values and states as bytes, and the partition that a key belongs to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_DECODER = json.JSONDecoder()
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def to_json(value: Any) -> bytes:
    """Return compact JSON in UTF-8.

    Raises:
        TypeError, ValueError: it has something that JSON does not know, or a lone surrogate.
    """
    if type(value) is int:  # as a count is; the encoder takes ten times as long to begin
        return b"%d" % value
    return _ENCODER.encode(value).encode()


def from_json(data: bytes) -> Any:
    """Return what JSON says, in whichever of its encodings.

    Raises:
        ValueError: it is no JSON.
    """
    if data.isdigit() and not data.startswith(b"0"):
        return int(data)  # as a count is, and as to_json writes it
    try:
        return _DECODER.decode(data.decode())  # loads finds out first how bytes are encoded
    except ValueError:
        return json.loads(data)


def field_of(value: Any, steps: Iterable[str]) -> Any:
    """Return what a path of member names leads to in a decoded value, None where nothing does."""
    for step in steps:
        value = value.get(step) if isinstance(value, dict) else None
    return value


def _text(data: bytes) -> str:
    return data.decode()


def _bytes(data: bytes) -> bytes:
    return data


#: What makes a value of a record's bytes, by the name that the configuration has for it.
DECODERS: dict[str, Callable[[bytes], Any]] = {"json": from_json, "string": _text, "bytes": _bytes}


def _from_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__} is no text; state: string needs a str")
    return value.encode()


def _from_bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"a {type(value).__name__} is not bytes; state: bytes needs bytes")
    return value


#: What makes a state's bytes.
ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "json": to_json,
    "string": _from_text,
    "bytes": _from_bytes,
}


def output_bytes(value: Any) -> bytes | None:
    """Return an output's value as bytes: text and bytes as they are, None as a tombstone.

    Raises:
        TypeError, ValueError: it is something that JSON does not know.
    """
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else to_json(value)


def key_bytes(key: Any) -> bytes:
    """Return a key's bytes: text as UTF-8, several parts as a compact JSON array.

    A text that begins with ``[`` is written as an array of one, so that no two keys are the same.

    Raises:
        TypeError, ValueError: a part is something that JSON does not know.
    """
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return key.encode() if not key.startswith("[") else to_json([key])
    return to_json(list(key) if isinstance(key, tuple) else key)


_MASK = 0xFFFFFFFF
_MURMUR_SEED, _MURMUR_FACTOR = 0x9747B28C, 0x5BD1E995


def murmur2(data: bytes) -> int:
    """Return the hash by which Kafka's Java producer spreads keys, without its sign: 32 bits."""
    value = (_MURMUR_SEED ^ len(data)) & _MASK
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        part = int.from_bytes(data[at : at + 4], "little") * _MURMUR_FACTOR & _MASK
        part = (part ^ part >> 24) * _MURMUR_FACTOR & _MASK
        value = (value * _MURMUR_FACTOR & _MASK) ^ part
    if whole < len(data):
        rest = int.from_bytes(data[whole:], "little")
        value = (value ^ rest) * _MURMUR_FACTOR & _MASK
    value = (value ^ value >> 13) * _MURMUR_FACTOR & _MASK
    return value ^ value >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition in which a key's records are, of a topic with so many.

    That of Java's producer, and of librdkafka's with ``partitioner=murmur2_random``, which is what
    Headrace's own have. Another producer may have another.
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions
