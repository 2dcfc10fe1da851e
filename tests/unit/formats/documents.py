"""Documents in JSON near those of a schema: some fit, others nearly do."""

from __future__ import annotations

import json
import math
from random import Random
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from headrace.core.tables import Timestamps

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_T = TypeVar("_T")

_LEAVES = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
    pa.string(), pa.date32(), pa.timestamp("us", tz="UTC"), pa.timestamp("us"),
    pa.decimal128(5, 2), pa.decimal128(12, 2), pa.decimal128(38, 18), pa.decimal128(3, 0),
    pa.decimal128(38, 0),
]  # fmt: skip
_NAMES = ["n", "s", "a b", "ü", "x", "value", "a_name_of_more_than_thirty_two_bytes", "", 'q"\\t']

_WHOLE = [
    "0", "-0", "1", "-1", "127", "128", "-128", "-129", "32767", "32768", "2147483647",
    "2147483648", "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808",
    "-9223372036854775808", "-9223372036854775809", "18446744073709551615",
    "18446744073709551616", "99999", "999", "01", "+1", "1.0", "1e2", "-", "", "0x10", "1_0",
]  # fmt: skip
_NUMBERS = [
    "NaN", "Infinity", "-Infinity", "Inf", "-Inf", "-NaN", "nan", "inf", "Infin", "1e400",
    "-1e400", "1e308", "1.8e308", "1e-400", "5e-324", "2.2250738585072011e-308", "1e309", "0e400",
    "0e309", f"1.{'0' * 30}e320", f"0.{'0' * 25}1e330", "1e0000000308", "1e", "1e+", "1.", "-.5",
    ".5", "1e39", "3.4028235e38", "3.4028236e38", "16777217", "9007199254740993", f"1{'0' * 400}",
    "0.1", "0.30000000000000004", "123456789012345678901234567890", f"1e-{'9' * 12}",
]  # fmt: skip
_DECIMALS = [
    "5.", ".5", "007", "1E+2", "1e5", "0e50", "0e38", "0e-38", "0e-39", "1e-2", "1.10000",
    f"1.1{'0' * 37}", ".", "", " 5", "5 ", "+5", "1e", "e5", "1,5",
]  # fmt: skip
#: Arrow's reader looks behind its table of powers of ten for smaller decimals.
_MOST_TENS = 30

_DATES = [
    "2024-02-29", "2026-02-29", "0001-01-01", "9999-12-31", "0000-01-01", "1582-10-10",
    "1969-12-31", "2026-13-01", "2026-00-01", "2026-01-00", "2026-1-01", "20260101",
    "2026-01-01 ", "1900-02-29", "2000-02-29",
]  # fmt: skip
_ZONES = [
    "", "Z", "+02:00", "-0230", "+02", "+23:59", "-23:59", "+24:00", "+1:00", "z", "-00:00",
    "+02:60", "+2", " Z", "+02:", "+020",
]  # fmt: skip
_OTHERS = [
    "null", "true", "false", "{}", "[]", "1", '"x"', '[1,{"a":[null]}]', '{"n":1}', "nul", "tru",
    "False", "[1,]", "[,1]", '{"a"}', '{"a":}', "{a:1}", "[", "]", "{", "1 2", "{} {}",
    "[[[[[[]]]]]]", "[}", "{]", '{"x":1e400}', '{"x":NaN}',
]  # fmt: skip
_ESCAPES = [
    '\\"', "\\\\", "\\/", "\\b", "\\f", "\\n", "\\r", "\\t", "\\u00fc", "\\u20ac",
    "\\ud83d\\ude00", "\\u0000", "\\uFFFF",
]  # fmt: skip
_NO_TEXTS = [
    "\\ud800", "\\udc00", "\\ud800\\ud800", "\\x", "\\u12", "\\uzzzz", "\n", "\t", "\0", "\x1f",
    "\\ud83d\\u0041", "\\",
]  # fmt: skip
_WHOLE_VALUES = [None, b"", b" ", b"null", b"1", b"[]", b"\xef\xbb\xbf{}", b'{"x":' + b"[" * 99]
_SIGNS = b'{}[]",:\\0e.-+ tfn\n\x00\xff\xc3'
_ENDS = [b" ", b"{}", b",", b"}", b"x", b"\x00", b',"w":1', b'}\n{"v":{}']


class Documents:
    """Draws schemas, and documents near them, by a seed."""

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)
        self._unit = Timestamps.ISO

    def timestamps(self) -> Timestamps:
        """Draw how moments are written."""
        self._unit = self._one_of([Timestamps.ISO] * 3 + list(Timestamps))
        return self._unit

    def schema(self, depth: int = 0) -> pa.StructType:
        """Draw a type of structs."""
        names = self._chance.sample(_NAMES, self._chance.randint(1, 6))
        return pa.struct([(name, self._kind(depth)) for name in names])

    def value(self, kind: pa.StructType) -> bytes | None:
        """Draw a value for the schema that was drawn last."""
        if self._is(0.02):
            return self._one_of(_WHOLE_VALUES)
        value = self._object(kind).encode("utf-8", "surrogatepass")
        return self._mutated(value) if self._is(0.1) else value

    def _is(self, share: float) -> bool:
        return self._chance.random() < share

    def _one_of(self, found: Sequence[_T]) -> _T:
        return self._chance.choice(found)

    def _kind(self, depth: int) -> pa.DataType:
        if depth < 3 and self._is(0.12):
            return pa.list_(self._kind(depth + 1))
        if depth < 3 and self._is(0.15):
            return self.schema(depth + 1)
        return self._one_of(_LEAVES)

    def _digits(self, least: int, most: int) -> str:
        return "".join(self._chance.choices("0123456789", k=self._chance.randint(least, most)))

    def _number(self, most: int = 330) -> str:
        """Draw a number whose exponent has at most that many tens."""
        if self._is(0.1):
            return self._one_of(self._one_of([_WHOLE, _NUMBERS]) if most > 30 else _WHOLE)
        whole = str(self._chance.randint(1, 9)) + self._digits(0, self._one_of([2, 5, 17, 20, 40]))
        text = self._one_of(["", "", "-"]) + self._one_of(["0", whole])
        if self._is(0.6):
            text += "." + self._digits(1, self._one_of([2, 3, 7, 17, 20, 40]))
        if self._is(0.3):
            exponent = str(self._chance.randint(0, self._one_of([3, 30, most])))
            text += self._one_of("eE") + self._one_of(["", "+", "-"]) + exponent
        return text

    def _text(self) -> str:
        pieces = []
        for _ in range(self._one_of([0, 1, 3, 8, 20, 60])):
            chance = self._chance.random()
            if chance < 0.7:
                pieces.append(self._one_of("abcxyz 0123456789{}[],:"))
            elif chance < 0.8:
                pieces.append(self._one_of("ü€😀\u0800\uffff\x7f"))
            elif chance < 0.9:
                pieces.append(self._one_of(_ESCAPES))
            elif chance < 0.901:
                pieces.append(self._one_of(_NO_TEXTS))
            else:
                pieces.append(self._one_of("xyz") * self._chance.randint(1, 20))
        return f'"{"".join(pieces)}"'

    def _date(self) -> str:
        if self._is(0.1):
            return self._one_of(_DATES)
        year = self._chance.randint(0, 9999) if self._is(0.1) else 2026
        month, day = self._chance.randint(1, 12), self._chance.randint(1, 29)
        return f"{year:04}-{month:02}-{day:02}"

    def _moment(self, has_zone: bool) -> str:
        text = self._date()
        if self._is(0.1):
            return text
        most = self._one_of([59] * 9 + [60])
        text += self._one_of("TTTT ") + f"{self._chance.randint(0, 23 + most // 60):02}"
        if self._is(0.9):
            text += f":{self._chance.randint(0, most):02}"
            if self._is(0.9):
                text += f":{self._chance.randint(0, most):02}"
                if self._is(0.5):
                    text += "." + self._digits(not self._is(0.02), self._one_of([6] * 9 + [9]))
        if self._is(0.1):
            return text + self._one_of(_ZONES)
        return text + self._one_of(["", "Z", "+01:00"]) if has_zone else text

    def _epoch(self) -> str:
        """Draw a number that may be a moment's."""
        seconds, micros = self._chance.randint(0, 2 * 10**9), self._chance.randint(0, 10**18)
        drawn = [
            self._number(_MOST_TENS),
            str(self._chance.randint(-62135596801, 253402300800)),
            str(self._chance.uniform(-6e10, 2e11)),
            str(micros),
            f"{seconds}.{self._digits(1, 14)}",
        ]
        text = self._one_of(drawn)
        return text if self._is(0.6) else json.dumps(text)

    def _decimal(self) -> str:
        number = str(round(self._chance.uniform(-999, 999), self._chance.randint(0, 2)))
        if self._is(0.1):
            number = self._number(_MOST_TENS)
        if self._is(0.8):
            return number
        return json.dumps(self._one_of(_DECIMALS) if self._is(0.3) else number)

    def _of(self, kind: pa.DataType, depth: int) -> str:
        """Draw what may be a value of the type."""
        if self._is(0.07):
            return self._one_of(_OTHERS) if self._is(0.1) else "null"
        if pa.types.is_list(kind):
            count = self._one_of([0, 1, 2, 5])
            items = [self._of(kind.value_type, depth + 1) for _ in range(count)]
            return f"[{self._blank()}{self._joined(items)}]"
        if pa.types.is_struct(kind):
            return self._object(kind, depth + 1)
        return self._leaf(kind)

    def _leaf(self, kind: pa.DataType) -> str:
        draws: list[tuple[Callable[[pa.DataType], bool], Callable[[], str]]] = [
            (pa.types.is_boolean, lambda: self._one_of(["true", "false"] * 20 + ["TRUE", "1"])),
            (pa.types.is_integer, lambda: self._whole(kind.bit_width - 1)),
            (pa.types.is_floating, self._double),
            (pa.types.is_string, self._text),
            (pa.types.is_decimal, self._decimal),
            (pa.types.is_date, lambda: json.dumps(self._date())),
        ]
        for is_kind, draw in draws:
            if is_kind(kind):
                return draw()
        if kind.tz is not None and self._unit is not Timestamps.ISO:
            return self._epoch()
        return json.dumps(self._moment(kind.tz is not None))

    def _whole(self, bits: int) -> str:
        if self._is(0.1):
            return self._one_of(_WHOLE)
        return str(self._chance.randint(-(2**bits), 2**bits - 1))

    def _double(self) -> str:
        return self._number() if self._is(0.5) else repr(self._chance.uniform(-1e3, 1e3))

    def _blank(self) -> str:
        return self._one_of([" ", "\n", "\t", "\r", "  \n"]) if self._is(0.15) else ""

    def _name(self, name: str) -> str:
        if self._is(0.05):
            escaped = [f"\\u{ord(sign):04x}" for sign in name]
            return f'"{"".join(escaped)}"'
        return json.dumps(name, ensure_ascii=self._is(0.5))

    def _any(self) -> str:
        return self._one_of([self._number(), self._text(), self._one_of(_OTHERS)])

    def _object(self, kind: pa.StructType, depth: int = 0) -> str:
        members = [
            self._name(field.name)
            + self._blank()
            + ":"
            + self._blank()
            + self._of(field.type, depth)
            for field in kind
            if self._is(0.8)
        ]
        if self._is(0.1):
            members.append(f"{self._name(self._one_of([*_NAMES, 'unknown']))}:{self._any()}")
        if self._is(0.3):
            members.append(f'"more{self._chance.randint(0, 3)}":{self._any()}')
        if self._is(0.5):
            self._chance.shuffle(members)
        return f"{{{self._blank()}{self._joined(members)}}}"

    def _joined(self, parts: Sequence[str]) -> str:
        return f"{self._blank()},{self._blank()}".join(parts) + self._blank()

    def _mutated(self, value: bytes) -> bytes:
        made = bytearray(value)
        for _ in range(self._one_of([1, 1, 2, 5])):
            place, how = self._chance.randrange(len(made) + 1), self._chance.randrange(5)
            if how == 0:
                made[place : place + 1] = bytes([self._one_of(_SIGNS)])
            elif how == 1:
                made[place : place + 1] = b""
            elif how == 2:
                made[place:place] = bytes([self._chance.randrange(256)])
            elif how == 3:
                made += self._one_of(_ENDS)
            elif self._is(0.3):
                made = made[:place]
        return bytes(made)


def is_same(one: object, other: object) -> bool:
    """Return whether values are the same, as those that are no number are, and zeros by sign."""
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(is_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return type(one) is type(other) and one == other
