"""Why a value is undecodable: which field, what is expected, what is found, or at which byte.

A message has a short code in brackets, by which letters are grouped.
"""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from headrace.core.tables import Timestamps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


#: How the reason of a value in JSON begins.
MISFIT = "the value does not fit the decode schema"

#: Characters of what is found that a message quotes.
_QUOTED = 40

#: What JSON takes for white space.
_BLANK = b" \t\r\n"


def custom_reason(said: str) -> str:
    """Return the reason for what a decoder of users' own said."""
    return f"{said} [DECODER]"


def why_undecodable(value: bytes | None, kind: pa.StructType | None) -> str:
    """Return why a value is no row of ``kind``, as far as it can be told.

    ``kind`` is None where its fields are of types that are not looked at.
    """
    found = misfit(value or b"", kind)
    return f"{MISFIT}: {found or '[MISFIT] what is wrong with it cannot be told'}"


def misfit(value: bytes, kind: pa.StructType | None) -> str | None:
    """Return what is wrong with a value at first sight, None where nothing is.

    A decoder may see it otherwise, in both directions.
    """
    return next(_reasons(value, kind), None)


def as_spelt(kind: pa.DataType, timestamps: Timestamps) -> Any:
    """Return a type for :func:`why_undecodable` where moments may be spelt as numbers."""
    if timestamps is Timestamps.ISO:
        return kind
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(as_spelt(each.type, timestamps)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(as_spelt(kind.value_type, timestamps))
    is_moment = pa.types.is_timestamp(kind) and kind.tz is not None
    return pa.duration("us") if is_moment else kind


def _reasons(value: bytes, kind: pa.StructType | None) -> Iterator[str]:
    if not value.strip(_BLANK):
        has = "is empty" if not value else f"is {len(value)} bytes of white space"
        yield f"[EMPTY] the value {has}; a JSON object is expected"
        return
    text = value.decode("utf-8", "surrogateescape")
    try:
        document = json.loads(text, parse_float=_Float, parse_int=_integer)
    except json.JSONDecodeError as error:
        at = len(text[: error.pos].encode("utf-8", "surrogateescape"))
        found = "the end" if at >= len(value) else _quoted_bytes(value[at : at + _QUOTED])
        yield f"[NOT_JSON] at byte {at}: {_expected(error.msg)}, found {found}"
        return
    except RecursionError:
        yield "[NOT_JSON] the value is nested too deeply to be read"
        return
    if not isinstance(document, dict):
        yield f"[NOT_OBJECT] a JSON object is expected, found {_json_name(document)}"
        return
    if kind is not None:
        yield from _of_struct("", document, kind)
    try:
        value.decode()
    except UnicodeDecodeError as error:
        yield f"[NOT_UTF8] at byte {error.start}: 0x{value[error.start]:02x} is no UTF-8"


class _Float(float):
    """A number with a point or an exponent, and how it was written."""

    __slots__ = ("text",)

    def __new__(cls, text: str) -> Self:
        made = super().__new__(cls, text)
        made.text = text
        return made

    text: str


def _integer(text: str) -> int | _Float:
    # longer ones are more than any column takes, and Python refuses to read them
    return int(text) if len(text) <= _QUOTED else _Float(text)


def _expected(message: str) -> str:
    """Return what Python's reader says, with what it expects in front."""
    said = message.removeprefix("Expecting ")
    if said != message:
        return f"{said} is expected"
    return message[:1].lower() + message[1:]


def _of_struct(path: str, found: Mapping[str, Any], kind: pa.StructType) -> Iterator[str]:
    for each in kind:
        if found.get(each.name) is not None:
            inner = f"{path}.{each.name}" if path else each.name
            yield from _of_field(inner, found[each.name], each.type)


def _of_field(path: str, found: Any, kind: pa.DataType) -> Iterator[str]:
    if pa.types.is_struct(kind):
        if isinstance(found, dict):
            yield from _of_struct(path, found, kind)
        else:
            yield _misfit_text(path, "an object", found)
        return
    if pa.types.is_list(kind):
        if isinstance(found, list):
            for place, each in enumerate(found):
                if each is not None:
                    yield from _of_field(f"{path}[{place}]", each, kind.value_type)
        else:
            yield _misfit_text(path, "a list", found)
        return
    for is_kind, name, look in _LOOKS:
        if is_kind(kind):
            code = look(found, kind)
            if code is not None:
                yield _misfit_text(path, _sql(kind, name), found, code)
            return


def _misfit_text(path: str, expected: str, found: Any, code: str = "TYPE") -> str:
    return f"[{code}] field {path}: {expected} is expected, found {_json_name(found)}"


def _of_boolean(found: Any, _: pa.DataType) -> str | None:
    return None if isinstance(found, bool) else "TYPE"


def _of_integer(found: Any, kind: pa.DataType) -> str | None:
    if isinstance(found, _Float) and found.text.lstrip("-").isdecimal():
        return "RANGE"
    if not isinstance(found, int) or isinstance(found, bool):
        return "TYPE"
    limit = 1 << kind.bit_width - 1
    return None if -limit <= found < limit else "RANGE"


def _of_floating(found: Any, _: pa.DataType) -> str | None:
    if not isinstance(found, (int, float)) or isinstance(found, bool):
        return "TYPE"
    return "RANGE" if found in {float("inf"), float("-inf")} else None


def _of_decimal(found: Any, kind: pa.DataType) -> str | None:
    if not isinstance(found, (int, float)) or isinstance(found, bool):
        return "TYPE"
    number = Decimal(found.text if isinstance(found, _Float) else str(found))
    if not number.is_finite():
        return "TYPE"
    whole = number.adjusted() + 1
    return "RANGE" if number and whole > kind.precision - kind.scale else None


def _of_text(found: Any, _: pa.DataType) -> str | None:
    return None if isinstance(found, str) else "TYPE"


def _of_date(found: Any, _: pa.DataType) -> str | None:
    return _of_moment(found, date.fromisoformat)


def _of_timestamp(found: Any, _: pa.DataType) -> str | None:
    return _of_moment(found, datetime.fromisoformat)


def _of_number(found: Any, _: pa.DataType) -> str | None:
    is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
    return None if is_number else "TYPE"


def _of_moment(found: Any, read: Callable[[str], object]) -> str | None:
    if not isinstance(found, str):
        return "TYPE"
    try:
        read(found.strip())
    except ValueError:
        return "TYPE"
    return None


#: What tells a type, what it is called, and what returns the code of a value that does not fit.
_LOOKS: tuple[
    tuple[Callable[[pa.DataType], bool], str, Callable[[Any, pa.DataType], str | None]], ...
] = (
    (pa.types.is_boolean, "BOOLEAN", _of_boolean),
    (pa.types.is_int8, "TINYINT", _of_integer),
    (pa.types.is_int16, "SMALLINT", _of_integer),
    (pa.types.is_int32, "INT", _of_integer),
    (pa.types.is_int64, "BIGINT", _of_integer),
    (pa.types.is_float32, "FLOAT", _of_floating),
    (pa.types.is_float64, "DOUBLE", _of_floating),
    (pa.types.is_decimal, "DECIMAL", _of_decimal),
    (pa.types.is_string, "STRING", _of_text),
    (pa.types.is_date, "DATE", _of_date),
    (pa.types.is_timestamp, "TIMESTAMP", _of_timestamp),
    (pa.types.is_duration, "TIMESTAMP as a number", _of_number),
)


def _sql(kind: pa.DataType, name: str) -> str:
    if pa.types.is_decimal(kind):
        return f"{name}({kind.precision},{kind.scale})"
    return f"{name}_NTZ" if pa.types.is_timestamp(kind) and kind.tz is None else name


def _json_name(found: Any) -> str:
    """Return what a value is in JSON's words, with its beginning."""
    match found:
        case None | True | False:
            return json.dumps(found)
        case _Float():
            return f"the number {_shortened(found.text)}"
        case int() | float():
            return f"the number {_shortened(str(found))}"
        case str():
            return (
                f"the text {_shortened(json.dumps(found, ensure_ascii=False))}"
                if found
                else ("an empty text")
            )
        case list():
            return "a list"
        case _:
            return "an object"


def _quoted_bytes(data: bytes) -> str:
    return _shortened(json.dumps(data.decode("utf-8", "replace"), ensure_ascii=False))


def _shortened(text: str) -> str:
    return text if len(text) <= _QUOTED else f"{text[: _QUOTED - 1]}…"
