"""Made-up schemas of readers and writers, values, and what fastavro makes of them."""

from __future__ import annotations

import io
import json
import struct
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import fastavro
import pyarrow as pa

from headrace.formats.avro.decoder import AvroDecoder
from headrace.formats.avro.schema import parse_schema
from headrace.formats.registry import RegisteredSchema

if TYPE_CHECKING:
    from random import Random

#: The id that values are framed with.
ID = 7

_PRIMITIVES = ("boolean", "int", "long", "float", "double", "bytes", "string")
_LOGICAL = (
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "string", "logicalType": "uuid"},
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10},
)
#: What a writer may have where the reader has this.
_NARROWER = {
    "long": ("int",),
    "float": ("int", "long"),
    "double": ("int", "long", "float"),
    "string": ("bytes",),
    "bytes": ("string",),
}
_TEXTS = ("", "a", "Tür", "日本語", "x" * 40, "🙂 and more than eight bytes", "ascii of sixteen")


class Schemas:
    """Makes a schema of a reader, and one of a writer that mostly resolves to it."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._names = 0

    def reader(self) -> dict[str, Any]:
        """Return a record."""
        return self._record(3)

    def writer(self, kind: Any) -> Any:
        """Return a type that another version of the writer might have had."""
        if isinstance(kind, list):
            return self._union_written(kind)
        if isinstance(kind, str):
            return self._random.choice((kind,) * 6 + _NARROWER.get(kind, ()))
        made = dict(kind)
        match kind["type"]:
            case "record":
                made["fields"] = self._fields_written(kind["fields"])
            case "array":
                made["items"] = self.writer(kind["items"])
            case "map":
                made["values"] = self.writer(kind["values"])
            case "enum" if self._random.random() < 0.5:
                symbols = [*kind["symbols"], "NEW"]
                self._random.shuffle(symbols)
                made["symbols"] = symbols
                made.pop("default", None)
        return made

    def _one_in(self, many: int) -> bool:
        return self._random.randrange(many) == 0

    def _name(self, word: str) -> str:
        self._names += 1
        return f"{word}{self._names}"

    def _type(self, depth: int) -> Any:
        kind = self._not_null(depth)
        if self._random.random() < 0.35:
            return self._random.choice((["null", kind], [kind, "null"]))
        return [kind] if self._one_in(25) else kind

    def _not_null(self, depth: int) -> Any:  # noqa: PLR0911 - one for each kind
        choice = self._random.random()
        if depth == 0 or choice < 0.5:
            return self._random.choice(_PRIMITIVES)
        if choice < 0.68:
            return dict(self._random.choice(_LOGICAL))
        if choice < 0.74:
            size = self._random.choice((1, 4, 16, 17))
            return {"type": "fixed", "name": self._name("Fixed"), "size": size}
        if choice < 0.8:
            made = {"type": "enum", "name": self._name("Enum"), "symbols": ["A", "BB", "CCC"]}
            return made | ({"default": "A"} if self._random.random() < 0.5 else {})
        if choice < 0.88:
            return {"type": "array", "items": self._type(depth - 1)}
        if choice < 0.93:
            return {"type": "map", "values": self._type(depth - 1)}
        return self._record(depth - 1)

    def _record(self, depth: int) -> dict[str, Any]:
        fields = [self._field(depth) for _ in range(self._random.randrange(1, 7))]
        return {"type": "record", "name": self._name("Record"), "fields": fields}

    def _field(self, depth: int) -> dict[str, Any]:
        made: dict[str, Any] = {"name": self._name("field"), "type": self._type(depth)}
        defaults = {"int": -5, "long": 1 << 40, "double": 0.5, "string": "Tür", "boolean": True}
        kind = made["type"]
        if isinstance(kind, str) and kind in defaults and self._random.random() < 0.6:
            made["default"] = defaults[kind]
        elif isinstance(kind, list) and kind[0] == "null" and self._random.random() < 0.8:
            made["default"] = None
        elif isinstance(kind, dict) and kind["type"] in {"array", "map"}:
            made["default"] = [] if kind["type"] == "array" else {}
        if self._one_in(5):
            made["aliases"] = [f"old_{made['name']}"]
        return made

    def _union_written(self, kind: list[Any]) -> Any:
        others = [self.writer(each) for each in kind if each != "null"]
        choice = self._random.random()
        if choice < 0.15:
            return others[0]
        branches = ["null", *others] if "null" in kind else others
        if choice < 0.3 and not isinstance(others[0], dict):
            spare = [each for each in ("boolean", "string") if each not in branches]
            branches = [*branches, *spare[:1]]
        if choice < 0.6:
            self._random.shuffle(branches)
        return branches

    def _fields_written(self, fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
        made = []
        for field in fields:
            missing = "default" in field and self._one_in(3)
            if missing or self._one_in(60):
                continue
            written = {"name": field["name"], "type": self.writer(field["type"])}
            if "aliases" in field and self._random.random() < 0.5:
                written["name"] = field["aliases"][0]
            made.append(written)
        more = range(self._random.choice((0, 0, 1, 2)))
        made.extend({"name": self._name("more"), "type": self._type(1)} for _ in more)
        if self._random.random() < 0.5:
            self._random.shuffle(made)
        return made


class Values:
    """Makes values of a schema, as fastavro takes them."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def of(self, kind: Any) -> Any:  # noqa: C901, PLR0911 - one for each kind
        """Return one."""
        random = self._random
        if isinstance(kind, list):
            return self.of(random.choice(kind))
        if isinstance(kind, dict):
            if "logicalType" in kind:
                return self._logical(kind)
            return self._composite(kind)
        edge = random.random() < 0.2
        match kind:
            case "null":
                return None
            case "boolean":
                return random.random() < 0.5
            case "int":
                return random.choice((-(1 << 31), (1 << 31) - 1)) if edge else self._whole(20)
            case "long":
                return random.choice((-(1 << 63), (1 << 63) - 1)) if edge else self._whole(50)
            case "float":
                return struct.unpack("<f", struct.pack("<f", random.gauss(0, 1e3)))[0]
            case "double":
                return random.gauss(0, 1e9)
            case "bytes":
                if random.random() < 0.7:
                    return random.choice(_TEXTS).encode()
                return random.randbytes(random.randrange(20))
        return random.choice(_TEXTS)

    def _whole(self, bits: int) -> int:
        return self._random.getrandbits(self._random.randrange(1, bits)) * self._random.choice(
            (-1, 1)
        )

    def _logical(self, kind: dict[str, Any]) -> Any:
        random = self._random
        name = kind["logicalType"]
        if name == "date":
            return date.fromordinal(random.randrange(1, date.max.toordinal() + 1))
        if name == "uuid":
            return UUID(int=random.getrandbits(128))
        if name == "decimal":
            digits = random.randrange(1, kind["precision"] + 1)
            whole = random.randrange(10**digits) * random.choice((-1, 1))
            return Decimal(whole).scaleb(-kind["scale"])
        parts = 1000 if name.endswith("millis") else 1
        if name.startswith("time-"):
            micros = random.randrange(86_400_000_000) // parts * parts
            return (_FIRST + timedelta(microseconds=micros)).time()
        days, micros = random.randrange(3_600_000), random.randrange(86_400_000_000)
        at = _FIRST + timedelta(days=days, microseconds=micros // parts * parts)
        return at if name.startswith("local") else at.replace(tzinfo=UTC)

    def _composite(self, kind: dict[str, Any]) -> Any:
        random = self._random
        match kind["type"]:
            case "record":
                return {each["name"]: self.of(each["type"]) for each in kind["fields"]}
            case "array":
                return [self.of(kind["items"]) for _ in range(random.choice((0, 1, 2, 5)))]
            case "map":
                count = random.choice((0, 1, 3))
                return {f"key {k}": self.of(kind["values"]) for k in range(count)}
            case "enum":
                return random.choice(kind["symbols"])
            case "fixed":
                return random.randbytes(kind["size"])
        return self.of(kind["type"])


def framed(body: bytes, number: int = ID) -> bytes:
    """Return a value as Confluent's serializers frame it."""
    return b"\0" + number.to_bytes(4, "big") + body


def written(writer: Any, value: Any) -> bytes:
    """Return what fastavro writes."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(writer), value)
    return out.getvalue()


_UTC = ZoneInfo("UTC")
_FIRST = datetime(1, 1, 1)  # noqa: DTZ001 - a local time


class Refused(Exception):  # noqa: N818 - an outcome, and no error
    """fastavro makes nothing of a value."""


def parsed(schema: Any) -> Any:
    """Return a schema as fastavro parses it; to us uuid is text of any form."""
    text = json.dumps(schema).replace(', "logicalType": "uuid"', "")
    return fastavro.parse_schema(json.loads(text))


class Whole(io.BytesIO):
    """Bytes of which none are read beyond their end.

    fastavro takes fewer bytes than it asked for, and reads on as often as a damaged count says.
    """

    def read(self, size: int | None = -1) -> bytes:
        """Return so many bytes, all of them by default; raises EOFError where there are fewer."""
        found = super().read(size)
        if size is not None and len(found) < size:
            raise EOFError(f"{size} bytes are wanted, and {len(found)} are left")
        return found


def read(body: bytes, writer: Any, reader: Any, kind: Any) -> Any:
    """Return what fastavro reads by two schemas, as Arrow would have it of this type.

    Raises:
        Refused: it reads nothing, or not to the end.
    """
    source = Whole(body)
    try:
        found = in_arrow(fastavro.schemaless_reader(source, writer, reader), kind)
    except Exception as error:
        raise Refused(repr(error)) from error
    if source.tell() != len(body):
        raise Refused("bytes are left over")
    return found


def in_arrow(value: Any, kind: Any) -> Any:  # noqa: C901, PLR0911 - one for each kind
    """Return a value of fastavro's as the column of this type has it."""
    if value is None:
        return None
    if isinstance(kind, list):
        return in_arrow(value, next(each for each in kind if each != "null"))
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(_UTC)
    name = kind if isinstance(kind, str) else kind["type"]
    if name == "record":
        return {
            each["name"]: in_arrow(value[each["name"]], each["type"]) for each in kind["fields"]
        }
    if name == "array":
        return [in_arrow(each, kind["items"]) for each in value]
    if name == "map":
        return [(key, in_arrow(each, kind["values"])) for key, each in value.items()]
    if name == "float":
        return struct.unpack("<f", struct.pack("<f", value))[0]
    if name == "double":
        return float(value)
    if name == "bytes" and isinstance(value, str):
        return value.encode()
    if name == "string" and isinstance(value, bytes):
        return value.decode()
    return value


@dataclass(frozen=True)
class Schema:
    """A source of one writer's schema, for any id."""

    writer: Any

    def schema(self, number: int | str) -> RegisteredSchema:
        """Return it."""
        return RegisteredSchema(int(number), "AVRO", json.dumps(self.writer))


#: What we refuse and fastavro takes: it wraps numbers, counts branches and symbols from the end,
#: takes any byte for a boolean, and finds out in a value alone that its schema does not resolve.
_STRICTER = ("out of range", "branch", "ends too early", "does not resolve")


def mutated(random: Random, body: bytes) -> bytes:
    """Return a value with damaged bytes."""
    choice = random.randrange(4)
    if choice == 0:
        return body[: random.randrange(len(body) + 1)]
    if choice == 1:
        return body + random.randbytes(random.randrange(1, 4))
    if choice == 2 and body:
        place = random.randrange(len(body))
        return body[:place] + random.randbytes(1) + body[place + 1 :]
    return random.randbytes(random.randrange(1, 30))


def has_empty_record(writer: Any) -> bool:
    """Return whether a writer's schema has a record without fields.

    Of an array of such records fastavro reads as many as a damaged count says, for hours.
    """
    return '"fields": []' in json.dumps(writer)


def compare(random: Random, values: int) -> Counter[str]:
    """Decode made-up values of one pair of schemas, and hold them against fastavro.

    Returns:
        how many came out as the same row, as the same refusal, and as one that is stricter.
    """
    schemas, source = Schemas(random), Values(random)
    reader = schemas.reader()
    writer = schemas.writer(reader)
    write = fastavro.parse_schema(json.loads(json.dumps(writer)))
    bodies = [written(write, source.of(writer)) for _ in range(values)]
    if not has_empty_record(writer):
        bodies = [mutated(random, each) if random.random() < 0.3 else each for each in bodies]
    decoder = AvroDecoder(parse_schema(json.dumps(reader)), Schema(writer))
    rows, bad = decoder.columns(pa.array([framed(each) for each in bodies], pa.binary()))
    rows.validate(full=True)
    assert rows.type == decoder.kind
    counts: Counter[str] = Counter()
    both = parsed(writer), parsed(reader)
    for place, (body, row) in enumerate(zip(bodies, rows.to_pylist(), strict=True)):
        said = f"{writer} to {reader}: {body!r}"
        counts[_outcome(row, bad.get(place), _expected(body, both, reader), said)] += 1
    return counts


def once(value: Any) -> Any:
    """Return a row in which each key of a map is there once: a damaged value may have it twice."""
    if isinstance(value, dict):
        return {name: once(each) for name, each in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return [(key, once(each)) for key, each in dict(value).items()]
    return [once(each) for each in value] if isinstance(value, list) else value


def _expected(body: bytes, both: tuple[Any, Any], reader: Any) -> Any:
    try:
        return read(body, *both, reader)
    except Refused as refused:
        return refused


def _outcome(row: Any, reason: str | None, expected: Any, said: str) -> str:
    """Return what came out, where it is as expected."""
    if reason is None:
        assert repr(once(row)) == repr(expected), f"{said}: {row} and {expected}"
        return "the same row"
    assert row is None, f"{said}: {row} and {reason}"
    if isinstance(expected, Refused):
        return "the same refusal"
    assert any(each in reason for each in _STRICTER), f"{said}: {reason} and {expected}"
    return "stricter"
