"""The reasons why a value is undecodable: the field, what is expected and found, or the byte.

A message has a short code in brackets, by which letters are grouped.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import pyarrow as pa

from headrace.core.tables import FIRST_MICROSECOND, LAST_MICROSECOND, Timestamps

if TYPE_CHECKING:
    from collections.abc import Callable


#: How the reason of a value in JSON begins.
MISFIT = "the value does not fit the decode schema"

#: Characters of what is found that a message quotes.
_QUOTED = 40

#: Quotes what is found. ``json.dumps`` would make an encoder for each.
_QUOTE = json.JSONEncoder(ensure_ascii=False).encode

#: What JSON takes for white space.
_BLANK = b" \t\r\n"


def custom_reason(said: str) -> str:
    """Return the reason for what a decoder of users' own said, or one of ours with frames."""
    return said if MISFIT in said else f"{said} [DECODER]"


def explained(error: Exception, value: bytes) -> Exception:
    """Return the error that Python's reader of JSON or text raised for a value, saying why.

    Its message has a code, the byte, and what is expected and found there.
    """
    if isinstance(error, json.JSONDecodeError):
        before = error.doc[: error.pos].encode(json.detect_encoding(value), "surrogatepass")
        error.args = (_why_empty(value, "JSON") or _why_no_json(error, len(before), value),)
    elif isinstance(error, RecursionError):
        error.args = (_TOO_DEEP,)
    elif isinstance(error, UnicodeDecodeError):
        error.reason = f"{error.reason} [NOT_UTF8]"
    return error


_TOO_DEEP = "[NOT_JSON] the value is nested too deeply to be read"


def _why_empty(value: bytes, expected: str) -> str | None:
    if value.strip(_BLANK):
        return None
    has = "is empty" if not value else f"is {len(value)} bytes of white space"
    return f"[EMPTY] the value {has}; {expected} is expected"


def _why_no_json(error: json.JSONDecodeError, at: int, value: bytes) -> str:
    found = "the end" if at >= len(value) else _quoted_bytes(value[at : at + _QUOTED])
    return f"[NOT_JSON] at byte {at}: {_expected(error.msg)}, found {found}"


class ExpectedObject:
    """Says why a value in JSON is no object with fields of these types. Any thread.

    ``kind`` is None where its fields are of types that are not looked at.
    """

    def __init__(self, kind: pa.StructType | None, timestamps: Timestamps = Timestamps.ISO) -> None:
        self._look = _no_look if kind is None else _look_into_object(kind, timestamps, _LOOKS)
        #: For what one decoder refuses and the other takes.
        self._close_look = (
            _no_look if kind is None else _look_into_object(kind, timestamps, _CLOSE_LOOKS)
        )

    def why_undecodable(self, value: bytes | None) -> str:
        """Return why a value is no row of these fields, as far as it can be told."""
        found = self.misfit(value or b"") or self._close_misfit(value or b"")
        return f"{MISFIT}: {found or '[MISFIT] what is wrong with it cannot be told'}"

    def misfit(self, value: bytes) -> str | None:
        """Return what is wrong with a value at first sight, None where nothing is.

        A decoder may see it otherwise, in both directions.
        """
        if (empty := _why_empty(value, "a JSON object")) is not None:
            return empty
        text = value.decode("utf-8", "surrogateescape")
        try:
            document = _document(text)
        except json.JSONDecodeError as error:
            at = len(text[: error.pos].encode("utf-8", "surrogateescape"))
            return _why_no_json(error, at, value)
        except RecursionError:
            return _TOO_DEEP
        if not isinstance(document, dict):
            return f"[NOT_OBJECT] a JSON object is expected, found {_json_name(document)}"
        return self._look("", document) or _misfit_of_encoding(value)

    def _close_misfit(self, value: bytes) -> str | None:
        """Return what is wrong with a value in which nothing is wrong at first sight."""
        misfits: list[str] = []
        reader = json.JSONDecoder(
            object_pairs_hook=partial(_members, misfits), parse_float=_Float, parse_int=_integer
        )
        document = reader.decode(value.decode())
        return misfits[0] if misfits else self._close_look("", document)


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


#: Makes numbers of JSON so. ``json.loads`` would make a reader for each value.
_READER = json.JSONDecoder(parse_float=_Float, parse_int=_integer)

#: A mark of the order of bytes, which only ``json.loads`` names.
_BYTE_ORDER_MARK = "\ufeff"


def _document(text: str) -> Any:
    return json.loads(text) if text.startswith(_BYTE_ORDER_MARK) else _READER.decode(text)


def _members(misfits: list[str], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's members, with what is wrong with those that cannot be stored."""
    members: dict[str, Any] = {}
    for name, found in pairs:
        field = _shortened(name)
        if name in members:
            misfits.append(f"[TWICE] field {field} is there twice")
        if isinstance(found, _Float) and found in _INFINITE:
            misfits.append(_misfit_text(field, "a double", found, "RANGE"))
        if isinstance(found, str) and _HALVES.search(found):
            misfits.append(f"[NOT_UTF8] field {field}: half of a surrogate pair is no UTF-8")
        members[name] = found
    return members


_INFINITE = (float("inf"), float("-inf"))
_HALVES = re.compile("[\ud800-\udfff]")


def _misfit_of_encoding(value: bytes) -> str | None:
    try:
        value.decode()
    except UnicodeDecodeError as error:
        return f"[NOT_UTF8] at byte {error.start}: 0x{value[error.start]:02x} is no UTF-8"
    return None


def _expected(message: str) -> str:
    """Return what Python's reader says, with what it expects in front."""
    said = message.removeprefix("Expecting ")
    if said != message:
        return f"{said} is expected"
    return message[:1].lower() + message[1:]


#: Returns what is wrong with what is found at a path, None where nothing is.
_Look: TypeAlias = "Callable[[str, Any], str | None]"


def _no_look(path: str, found: Any) -> None:
    del path, found


def _look_into(kind: pa.DataType, timestamps: Timestamps, table: _Table) -> _Look:
    if pa.types.is_struct(kind):
        return _look_into_object(kind, timestamps, table)
    if pa.types.is_list(kind):
        return _look_into_list(kind, timestamps, table)
    if pa.types.is_timestamp(kind) and kind.tz is not None and timestamps is not Timestamps.ISO:
        return _look_at(partial(_of_number, timestamps), "TIMESTAMP as a number", kind)
    for is_kind, name, look in table:
        if is_kind(kind):
            return _look_at(look, _sql(kind, name), kind)
    return _no_look


def _look_into_object(kind: pa.StructType, timestamps: Timestamps, table: _Table) -> _Look:
    looks = [(each.name, _look_into(each.type, timestamps, table)) for each in kind]

    def look(path: str, found: Any) -> str | None:
        if not isinstance(found, dict):
            return _misfit_text(path, "an object", found)
        for name, inner in looks:
            value = found.get(name)
            if value is not None:
                said = inner(f"{path}.{name}" if path else name, value)
                if said is not None:
                    return said
        return None

    return look


def _look_into_list(kind: pa.ListType, timestamps: Timestamps, table: _Table) -> _Look:
    inner = _look_into(kind.value_type, timestamps, table)

    def look(path: str, found: Any) -> str | None:
        if not isinstance(found, list):
            return _misfit_text(path, "a list", found)
        said = (inner(f"{path}[{n}]", each) for n, each in enumerate(found) if each is not None)
        return next(filter(None, said), None)

    return look


def _look_at(
    code_of: Callable[[Any, pa.DataType], str | None], expected: str, kind: pa.DataType
) -> _Look:
    def look(path: str, found: Any) -> str | None:
        code = code_of(found, kind)
        return None if code is None else _misfit_text(path, expected, found, code)

    return look


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
    return "RANGE" if found in _INFINITE else None


#: Numbers as texts have them, with exponents that can be computed with.
_NUMBER = re.compile(r"[-+]?(?:[0-9]+[.]?[0-9]*|[.][0-9]+)(?:[eE][-+]?[0-9]{1,5})?")


def _number(found: Any) -> Decimal | None:
    """Return the number that is found, or is what a text says; None if it is none."""
    if isinstance(found, bool) or not isinstance(found, int | float | str):
        return None
    text = found.text if isinstance(found, _Float) else str(found)
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def _of_decimal(found: Any, kind: pa.DataType) -> str | None:
    number = _number(found)
    if number is None:
        return "TYPE"
    whole = number.adjusted() + 1
    return "RANGE" if number and whole > kind.precision - kind.scale else None


def _digits_of_decimal(found: Any, kind: pa.DataType) -> str | None:
    number = _number(found)
    if number is None:
        return "TYPE"
    _, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int), "a number is finite"
    zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    is_spelt_long = max(len(digits), -exponent) > _MOST_DIGITS
    return "DIGITS" if -exponent - zeros > kind.scale or is_spelt_long else None


#: What Arrow has room for as it reads a decimal.
_MOST_DIGITS = 38


def _of_text(found: Any, _: pa.DataType) -> str | None:
    return None if isinstance(found, str) else "TYPE"


_DAY = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_IS_DATE = re.compile(_DAY)
_IS_MOMENT = re.compile(
    rf"{_DAY}(?:[T ](?!24)[0-9]{{2}}(?::[0-9]{{2}}(?::[0-9]{{2}}(?:[.](?P<part>[0-9]+))?)?)?"
    r"(?P<zone>Z|[+-][0-9]{2}(?::?[0-9]{2})?)?)?"
)


def _of_date(found: Any, _: pa.DataType) -> str | None:
    if not isinstance(found, str) or not _IS_DATE.fullmatch(found):
        return "TYPE"
    try:
        date.fromisoformat(found)
    except ValueError:
        return "TYPE"
    return None


def _of_timestamp(found: Any, kind: pa.DataType) -> str | None:
    match = _IS_MOMENT.fullmatch(found) if isinstance(found, str) else None
    if match is None or (kind.tz is None and match["zone"]):
        return "TYPE"
    try:
        datetime.fromisoformat(found).astimezone(UTC)
    except ValueError:
        return "TYPE"
    except OverflowError:
        return "RANGE" if match["zone"] else None
    return None


def _digits_of_timestamp(found: Any, _: pa.DataType) -> str | None:
    match = _IS_MOMENT.fullmatch(found) if isinstance(found, str) else None
    return None if match is None or len(match["part"] or "") <= _OF_SECOND else "DIGITS"


#: Digits of a second in a microsecond.
_OF_SECOND = 6

#: How many microseconds one is.
_UNITS = {Timestamps.SECONDS: 1_000_000, Timestamps.MILLIS: 1000, Timestamps.MICROS: 1}


def _of_number(timestamps: Timestamps, found: Any, _: pa.DataType) -> str | None:
    number = _number(found)
    if number is None:
        return "TYPE"
    is_moment = FIRST_MICROSECOND <= number * _UNITS[timestamps] < LAST_MICROSECOND + 1
    return None if is_moment else "RANGE"


#: What tells a type, what it is called, and what returns the code of a value that does not fit.
_Table: TypeAlias = (
    "tuple[tuple[Callable[[pa.DataType], bool], str, Callable[[Any, pa.DataType], str | None]], "
    "...]"
)

_LOOKS: _Table = (
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
)

#: Of what Spark rounds or cuts: the name is a form of words for the type's.
_CLOSE_LOOKS: _Table = (
    (pa.types.is_decimal, "DECIMAL{} without more digits", _digits_of_decimal),
    (
        pa.types.is_timestamp,
        f"TIMESTAMP{{}} with at most {_OF_SECOND} digits of a second",
        _digits_of_timestamp,
    ),
)


def _sql(kind: pa.DataType, name: str) -> str:
    more = ""
    if pa.types.is_decimal(kind):
        more = f"({kind.precision},{kind.scale})"
    elif pa.types.is_timestamp(kind) and kind.tz is None:
        more = "_NTZ"
    return name.format(more) if "{}" in name else name + more


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
            return f"the text {_shortened(_QUOTE(found))}" if found else ("an empty text")
        case list():
            return "a list"
        case _:
            return "an object"


def _quoted_bytes(data: bytes) -> str:
    return _shortened(_QUOTE(data.decode("utf-8", "replace")))


def _shortened(text: str) -> str:
    return text if len(text) <= _QUOTED else f"{text[: _QUOTED - 1]}…"
