"""Keys, values and states as bytes, and the partition that a key belongs to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headrace.core.misfits import custom_reason, explained
from headrace.core.user_text import describe_error, plain_error
from headrace.extensions.keyed.exact import exact_json, exact_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: The standard library's decoder without its looks for white space, which most values have none of.
_scan: Callable[[str, int], tuple[Any, int]] = getattr(json.JSONDecoder(), "scan_once")  # noqa: B009 - typeshed does not know it
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
        text = data.decode()
        found, end = _scan(text, 0)
        if end == len(text) or not text[end:].strip(" \t\n\r"):
            return found
    except (ValueError, StopIteration):
        pass
    return json.loads(data)  # what begins with white space or a mark, or is no JSON


def why_unread(
    error: BaseException, value: bytes, *, is_own: bool, is_framed: bool = False
) -> BaseException:
    """Return the error that says why a value cannot be read, with the code that letters count by.

    ``is_own``: a decoder of the user's own raised the error; ``is_framed``: one of ours, whose
    values name their schemas.
    """
    if is_framed and isinstance(error, ValueError):
        return ValueError(custom_reason(str(error)))
    if is_own or not isinstance(error, Exception):
        return ValueError(custom_reason(describe_error(error)))
    return plain_error(explained(error, value))


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


def _from_state(value: Any) -> bytes:
    return exact_json(value, "the state")


def _from_text(value: Any) -> bytes:
    if type(value) is not str:
        kind = type(value).__name__
        raise TypeError(f"the state is of the type {kind}; encoding: string needs a plain str")
    return exact_text(value, "the state")


def _from_bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        kind = type(value).__name__
        raise TypeError(f"the state is of the type {kind}; encoding: bytes needs plain bytes")
    return value


#: What makes a state's bytes. What would come back as something else is refused.
ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "json": _from_state,
    "string": _from_text,
    "bytes": _from_bytes,
}


def output_bytes(value: Any) -> bytes | None:
    """Return an output's value as bytes: text and bytes as they are, None as a tombstone.

    Raises:
        TypeError, ValueError: it is something that JSON does not give back as it is.
    """
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return exact_text(str.__str__(value), "an output's value")
    return exact_json(value, "an output's value")


def key_bytes(key: Any) -> bytes:
    """Return a key's bytes: text as UTF-8, several parts as a compact JSON array.

    A text that begins with ``[`` is written as an array of one, so that no two keys are the same.

    Raises:
        TypeError, ValueError: a part is something that JSON does not give back as it is.
    """
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        text = str.__str__(key)
        return exact_text(text, "a key") if not key.startswith("[") else exact_json([text], "a key")
    return exact_json(list(key) if isinstance(key, tuple) else key, "a key")


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
