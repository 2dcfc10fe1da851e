"""JSON as Go's ``encoding/json`` reads and writes it, with the texts of its errors.

Numbers are 64-bit floats, names of a struct's members have no case, text is whole Unicode: half a
surrogate pair, or a byte that is no UTF-8, becomes U+FFFD.
"""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.apps.collector.errors import EventRefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    #: Makes a struct's member of a value; the text says where the member is, for errors.
    Reader: TypeAlias = Callable[[Any, str], Any]

#: Levels that a document may be nested. Go takes 10,000, and Python's stack fewer.
MAX_DEPTH = 200

_INT64 = range(-(2**63), 2**63)
_INT_DIGITS = 19

#: Between these a number is written without an exponent.
_WITHOUT_EXPONENT = (1e-6, 1e21)


class JsonNumber(float):
    """A number, with the text that it was read from."""

    __slots__ = ("text",)

    text: str

    @classmethod
    def of(cls, text: str) -> JsonNumber:
        """Return the number that ``text`` is; it is infinite if it is too large."""
        number = cls(text)
        number.text = text
        return number


class JsonObject(dict[str, Any]):
    """An object; ``pairs`` has its members as they came, also those of the same name."""

    __slots__ = ("pairs",)

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


# --- reading ------------------------------------------------------------------------------------

_ESCAPE = re.compile(
    r"\\(?:(u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
_HALVES = {0xDC00 + byte: "\ufffd" for byte in range(256)}


def _no_number(name: str) -> Any:
    raise ValueError(name)  # NaN and Infinity, which only Python knows


_DECODER = json.JSONDecoder(
    object_pairs_hook=JsonObject,
    parse_float=JsonNumber.of,
    parse_int=JsonNumber.of,
    parse_constant=_no_number,
)


def parse(data: bytes) -> Any:
    """Return what ``data`` stands for: numbers as :class:`JsonNumber`, objects as
    :class:`JsonObject`.

    Raises:
        EventRefusedError: it is no JSON.
    """
    if data.count(b"{") + data.count(b"[") > MAX_DEPTH:
        _scan(data)
    decoded = data.decode("utf-8", "surrogateescape").translate(_HALVES)
    if "\\u" in decoded:
        decoded = _ESCAPE.sub(lambda found: "\\ufffd" if found[2] else found[0], decoded)
    try:
        return _DECODER.decode(decoded)
    except ValueError:
        _scan(data)
        raise


_SPACE = re.compile(rb"[ \t\r\n]*")
_INSIDE = re.compile(rb'[^"\\\x00-\x1f]*')
_LITERALS = {b"t": b"true", b"f": b"false", b"n": b"null"}
_HEX = frozenset(b"0123456789abcdefABCDEF")
_DIGITS = frozenset(b"0123456789")


class _Scanner:
    """Finds the first byte at which a document is no JSON, as Go's scanner does."""

    def __init__(self, data: bytes) -> None:
        self._data = data + b" "  # Go ends a document so
        self._at = 0

    def run(self) -> None:
        """Raise EventRefusedError if the document is no JSON, or is nested too deeply."""
        opened: list[bytes] = []
        wanted = "value"
        while True:
            self._at = _SPACE.match(self._data, self._at).end()  # type: ignore[union-attr]
            char = self._data[self._at : self._at + 1]
            if not char:
                break
            if wanted == "value":
                wanted = self._value(char, opened)
            elif wanted == "key":
                if char != b'"':
                    self._fail("looking for beginning of object key string")
                self._string()
                wanted = "colon"
            elif wanted == "colon":
                self._expect(char, b":", "after object key")
                wanted = "value"
            else:
                wanted = self._scan_next(char, opened)
        if wanted != "next" or opened:
            raise EventRefusedError("unexpected end of JSON input")

    def _value(self, char: bytes, opened: list[bytes]) -> str:
        if char in {b"{", b"["}:
            opened.append(char)
            if len(opened) > MAX_DEPTH:
                self._fail("exceeded max depth")
            self._at = _SPACE.match(self._data, self._at + 1).end()  # type: ignore[union-attr]
            if self._data[self._at : self._at + 1] == (b"}" if char == b"{" else b"]"):
                return "next"
            return "key" if char == b"{" else "value"
        if char == b'"':
            self._string()
        elif char in _LITERALS:
            word = _LITERALS[char]
            for index in range(1, len(word)):
                self._at += 1
                expected = chr(word[index])
                self._expect(
                    self._data[self._at : self._at + 1],
                    word[index : index + 1],
                    f"in literal {word.decode()} (expecting '{expected}')",
                    step=0,
                )
            self._at += 1
        elif char == b"-" or char[0] in _DIGITS:
            self._number(char)
        else:
            self._fail("looking for beginning of value")
        return "next"

    def _scan_next(self, char: bytes, opened: list[bytes]) -> str:
        if not opened:
            self._fail("after top-level value")
        container = opened[-1]
        if char == (b"}" if container == b"{" else b"]"):
            opened.pop()
            self._at += 1
            return "next"
        where = "after object key:value pair" if container == b"{" else "after array element"
        self._expect(char, b",", where)
        return "key" if container == b"{" else "value"

    def _string(self) -> None:
        self._at += 1
        while True:
            self._at = _INSIDE.match(self._data, self._at).end()  # type: ignore[union-attr]
            char = self._data[self._at : self._at + 1]
            if not char:
                raise EventRefusedError("unexpected end of JSON input")
            if char == b'"':
                self._at += 1
                return
            if char != b"\\":
                self._fail("in string literal")
            self._at += 1
            if self._data[self._at] not in b'"\\/bfnrtu':
                self._fail("in string escape code")
            digits = 4 if self._data[self._at : self._at + 1] == b"u" else 0
            self._at += 1
            self._expect_bytes(_HEX, digits, "in \\u hexadecimal character escape")

    def _number(self, char: bytes) -> None:
        if char == b"-":
            self._at += 1
            self._expect_bytes(_DIGITS, 1, "in numeric literal")
            self._at -= 1
        zero = self._data[self._at : self._at + 1] == b"0"
        self._at += 1
        if not zero:
            self._digits()
        if self._data[self._at : self._at + 1] == b".":
            self._at += 1
            self._expect_bytes(_DIGITS, 1, "after decimal point in numeric literal")
            self._digits()
        if self._data[self._at : self._at + 1] in {b"e", b"E"}:
            self._at += 1
            if self._data[self._at : self._at + 1] in {b"+", b"-"}:
                self._at += 1
            self._expect_bytes(_DIGITS, 1, "in exponent of numeric literal")
            self._digits()

    def _digits(self) -> None:
        while self._data[self._at] in _DIGITS:
            self._at += 1

    def _expect_bytes(self, allowed: frozenset[int], count: int, where: str) -> None:
        for _ in range(count):
            if self._data[self._at] not in allowed:
                self._fail(where)
            self._at += 1

    def _expect(self, char: bytes, wanted: bytes, where: str, step: int = 1) -> None:
        if char != wanted:
            self._fail(where)
        self._at += step

    def _fail(self, where: str) -> None:
        raise EventRefusedError(f"invalid character {_quoted(self._data[self._at])} {where}")


_QUOTED = {
    0x07: r"\a",
    0x08: r"\b",
    0x09: r"\t",
    0x0A: r"\n",
    0x0B: r"\v",
    0x0C: r"\f",
    0x0D: r"\r",
    0x27: r"\'",
    0x5C: r"\\",
}


def _quoted(byte: int) -> str:
    char = chr(byte)
    if not char.isprintable():
        char = f"\\x{byte:02x}" if char.isascii() else f"\\u{byte:04x}"
    return f"'{_QUOTED.get(byte, char)}'"


def _scan(data: bytes) -> None:
    _Scanner(data).run()


# --- structs ------------------------------------------------------------------------------------

_FOLDED = str.maketrans({"\u017f": "s", "\u212a": "k"})


def unmarshal(value: Any, struct: str, readers: Mapping[str, Reader]) -> dict[str, Any]:
    """Return the members of a struct that are in ``value``, by their names in lower case.

    Others are passed over, and of those of one name the last counts, unless it is null text.

    Raises:
        EventRefusedError: ``value`` is no object, or a member is not of its type.
    """
    return {} if value is None else _members(value, f"value of type main.{struct}", struct, readers)


def _members(
    value: Any, where: str, struct: str, readers: Mapping[str, Reader], below: str = ""
) -> dict[str, Any]:
    if not isinstance(value, JsonObject):
        raise EventRefusedError(f"json: cannot unmarshal {_kind(value)} into Go {where}")
    found: dict[str, Any] = {}
    memory: dict[str, list[str]] = {}
    for name, member in value.pairs:
        field = name.translate(_FOLDED).lower()
        reader = readers.get(field)
        if reader is texts:
            given = texts(member, f"struct field {struct}.{below}{field}")
            found[field] = _in_place(given, member, memory.setdefault(field, []))
        elif reader is not None and not (member is None and reader in {text, whole}):
            found[field] = reader(member, f"struct field {struct}.{below}{field}")
    return found


def text(value: Any, where: str) -> str:
    """Read a string."""
    if isinstance(value, str):
        return value
    raise _mismatch(_kind(value), where, "string")


def whole(value: Any, where: str) -> int:
    """Read an int."""
    if not isinstance(value, JsonNumber):
        raise _mismatch(_kind(value), where, "int")
    digits = value.text.removeprefix("-")
    if not digits.isdigit() or len(digits) > _INT_DIGITS or int(value.text) not in _INT64:
        raise _mismatch(f"number {value.text}", where, "int")
    return int(value.text)


def texts(value: Any, where: str) -> list[str]:
    """Read a list of strings; null in it is an empty one, or what was there: :func:`_in_place`."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise _mismatch(_kind(value), where, "[]string")
    return ["" if each is None else text(each, where) for each in value]


def _in_place(given: list[str], value: list[Any] | None, memory: list[str]) -> list[str]:
    """Return a list as Go has it after one of the same name: null in it leaves what was there.

    ``memory`` is what Go's slice has in memory, also beyond its length; null and an empty list
    begin another.
    """
    if not value:
        memory.clear()
    for index, each in enumerate(value or ()):
        if index == len(memory):
            memory.append(given[index])
        elif each is not None:
            memory[index] = given[index]
    return memory[: len(given)]


def anything(value: Any, where: str) -> Any:
    """Read any value, as plain ones: its numbers have to be in the range of floats."""
    if isinstance(value, JsonNumber):
        if math.isinf(value):
            raise _mismatch(f"number {value.text}", where, "float64")
        return float(value)
    if isinstance(value, JsonObject):
        return {name: anything(member, where) for name, member in value.pairs}
    return [anything(each, where) for each in value] if isinstance(value, list) else value


def mapping(value: Any, where: str) -> Any:
    """Read an object of any values."""
    if value is not None and not isinstance(value, dict):
        raise _mismatch(_kind(value), where, "map[string]interface {}")
    return anything(value, where)


def structs(struct: str, readers: Mapping[str, Reader]) -> Reader:
    """Return what reads an object of structs."""

    def read(value: Any, where: str) -> dict[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, JsonObject):
            raise _mismatch(_kind(value), where, f"map[string]main.{struct}")
        below = where.rpartition(".")[2] + "."
        own = f"{where} of type main.{struct}"
        return {
            name: {} if each is None else _members(each, own, struct, readers, below)
            for name, each in value.pairs
        }

    return read


def _mismatch(kind: str, where: str, wanted: str) -> EventRefusedError:
    return EventRefusedError(f"json: cannot unmarshal {kind} into Go {where} of type {wanted}")


def _kind(value: Any) -> str:
    for kind, name in ((bool, "bool"), (str, "string"), (JsonNumber, "number"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "object"


# --- writing ------------------------------------------------------------------------------------

_UNSAFE = re.compile(r'["\\<>&\x00-\x1f\u2028\u2029]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def write(value: Any) -> str:
    """Return compact JSON: maps by the bytes of their keys, ``<``, ``>`` and ``&`` escaped."""
    match value:
        case None | bool():
            return json.dumps(value)
        case str():
            return f'"{_UNSAFE.sub(_escaped, value)}"'
        case int():
            return str(value)
        case float():
            return write_number(value)
        case dict():
            return write_struct([(name, value[name]) for name in sorted(value)])
        case _:
            return f"[{','.join(map(write, value))}]"


def write_struct(members: Iterable[tuple[str, Any]]) -> str:
    """Return an object with members in this order."""
    return "{" + ",".join(f"{write(name)}:{write(value)}" for name, value in members) + "}"


def write_number(value: float) -> str:
    """Return the shortest digits that are this number; an exponent below 1e-6 and from 1e21 on."""
    if value == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    shortest = float.__repr__(value)
    least, limit = _WITHOUT_EXPONENT
    if least <= abs(value) < limit:
        return f"{Decimal(shortest):f}".removesuffix(".0")
    digits, _, exponent = shortest.partition("e")
    return f"{digits}e{int(exponent):+d}"


def _escaped(found: re.Match[str]) -> str:
    return _SHORT.get(found[0]) or f"\\u{ord(found[0]):04x}"
