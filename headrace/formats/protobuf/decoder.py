"""Values in Protobuf into columns, each by the message that its frame names."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from headrace.core.columns import POOL
from headrace.formats.bodies import NOT_FRAMED, Framed, Reasons, looked_up, only, without
from headrace.formats.errors import ProtobufSchemaError
from headrace.formats.framing import FRAME
from headrace.formats.native.library import ExportedType, ExportedValues, Made, load
from headrace.formats.protobuf.descriptors import file_of, name_at
from headrace.formats.protobuf.plan import plan_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from google.protobuf.descriptor import Descriptor

    from headrace.formats.registry import RegisteredSchema, SchemaRegistry

#: Bytes of values that are read at once: a column of text has no more.
_MOST_BYTES = 1 << 30

#: Bytes that the items of lists may take in the columns of a batch, beside their texts. An empty
#: message has two, and makes an item of each of its fields.
MOST_ITEMS = 1 << 30

#: The place of a value that is no row, why, at which byte, and in which field.
_BAD = struct.Struct("=qqqq")

#: Why a value is no row, by the status that the part in C gives.
_WRONG = {
    1: "the value ends too early",
    2: "the bytes are no message",
    3: "the text is not UTF-8",
    4: "the time is of no year from 1 to 9999, or its nanoseconds are none",
    5: "it takes more memory in columns than a batch may",
}
_TOO_LARGE = 5

#: The most indexes of a message, each in another, that are looked for.
_MOST_INDEXES = 32

#: Frames with other indexes that are looked for among all values at once: a topic has few.
_MOST_HEADS = 16


class MessageReader:
    """Makes rows of bodies of one type of message. Any thread.

    Raises:
        ProtobufSchemaError: the message has what columns cannot hold.
        StartError: the part in C cannot be used.
    """

    def __init__(self, message: Descriptor, most_items: int = MOST_ITEMS) -> None:
        self._plan = plan_of(message)
        self.kind = self._plan.kind
        self._class = GetMessageClass(message)
        self._exported = ExportedType(self.kind)
        self._most_items = most_items
        self._library = load()

    def read(self, values: pa.Array) -> tuple[pa.StructArray, dict[int, str]]:
        """Return a row for each value, null where there is none, and why bad ones have none."""
        if len(values) > 1 and values.nbytes > _MOST_BYTES:
            return self._in_halves(values)
        rows, bad = self._read_in_c(values)
        if not bad:
            return rows, {}
        if len(values) > 1 and any(status == _TOO_LARGE for _, status, _, _ in bad):
            return self._in_halves(values)
        return self._judged(values, rows, bad)

    def _in_halves(self, values: pa.Array) -> tuple[pa.StructArray, dict[int, str]]:
        half = len(values) // 2
        first, bad = self.read(values[:half])
        second, more = self.read(values[half:])
        bad |= {half + place: reason for place, reason in more.items()}
        return pa.concat_arrays([first, second], memory_pool=POOL), bad

    def _read_in_c(
        self, values: pa.Array
    ) -> tuple[pa.StructArray, list[tuple[int, int, int, int]]]:
        given, made, plan = ExportedValues(values), Made(), self._plan
        bad = pa.allocate_buffer(_BAD.size * max(1, len(values)), memory_pool=POOL)
        count = self._library.headrace_read_protobuf(
            self._exported.address,
            given.address,
            given.is_large,
            plan.fields,
            plan.messages,
            plan.names,
            plan.text,
            self._most_items,
            made.address,
            bad.address,
        )
        assert count >= 0, "the plan has types that are known"
        return made.array(self.kind), list(_BAD.iter_unpack(bad.slice(0, count * _BAD.size)))

    def _judged(
        self, values: pa.Array, rows: pa.StructArray, bad: Sequence[tuple[int, int, int, int]]
    ) -> tuple[pa.StructArray, dict[int, str]]:
        """Return rows with those that Google's reader makes of values that are not plain."""
        plain: dict[int, bytes] = {}
        reasons: dict[int, str] = {}
        for place, status, byte, field in bad:
            written = None if status == _TOO_LARGE else self._plainly(values[place].as_py())
            if written is None:
                reasons[place] = self._reason(status, field, byte)
            else:
                plain[place] = written
        if not plain:
            return rows, reasons
        again, still_bad = self._read_in_c(pa.array(plain.values(), pa.large_binary()))
        places = list(plain)
        for at, status, _, field in still_bad:
            reasons[places[at]] = self._reason(status, field, None)
        order = pa.array(range(len(rows)), pa.int64())
        moved = dict(zip(places, range(len(rows), len(rows) + len(again)), strict=True))
        order = pc.replace_with_mask(
            order,
            pc.is_in(order, value_set=pa.array(sorted(moved), pa.int64())),
            pa.array([moved[place] for place in sorted(moved)], pa.int64()),
        )
        return pa.concat_arrays([rows, again], memory_pool=POOL).take(order), reasons

    def _plainly(self, value: bytes) -> bytes | None:
        """Return a value as Google's writer writes it, None where its reader refuses it."""
        message = self._class()
        try:
            message.MergeFromString(value)
        except (DecodeError, UnicodeDecodeError):
            return None
        message.DiscardUnknownFields()
        return bytes(message.SerializePartialToString())

    def _reason(self, status: int, field: int, byte: int | None) -> str:
        where = f"field {self._plan.places[field]}: " if field >= 0 else ""
        at = "" if byte is None else f", at byte {byte} of the message"
        return f"{where}{_WRONG[status]}{at}"


class ProtobufDecoder:
    """Makes rows of framed messages. Any thread; blocks where an id is not known yet.

    Of a writer's schema the name of the message is looked up, which has to be the reader's. Its
    fields are read by their numbers in the reader's.

    Raises:
        ProtobufSchemaError: the reader's message has what columns cannot hold.
        StartError: the part in C cannot be used.
    """

    def __init__(self, message: Descriptor, registry: SchemaRegistry) -> None:
        self._reader = MessageReader(message)
        self.kind: pa.StructType = self._reader.kind
        self._name = message.full_name
        self._registry = registry

    def columns(self, values: pa.Array) -> tuple[pa.StructArray, Mapping[int, str]]:
        """Return a row for each value, and by their places why others have none.

        Raises:
            RetryableError: the registry does not say now what a schema is.
        """
        framed = Framed(values)
        reasons = dict.fromkeys(framed.bad, NOT_FRAMED)
        schemas = looked_up(self._registry, framed.known)
        bodies = pa.nulls(len(values), values.type)
        for head, size, places in _heads(framed):
            number = int.from_bytes(head[1:FRAME], "big")
            wrong = self._wrong(schemas[number], head, size)
            if wrong is None:
                bodies = pc.coalesce(bodies, without(only(places, values), size))
            else:
                where = pc.indices_nonzero(places).to_pylist()
                reasons.update(dict.fromkeys(where, f"schema id {number}: {wrong}"))
        rows, bad = self._reader.read(bodies)

        def why(place: int) -> str:
            if place in reasons:
                return reasons[place]
            return f"schema id {framed.ids[place].as_py()}: {bad[place]}"

        return rows, Reasons([*reasons, *bad], why)

    def _wrong(self, found: RegisteredSchema | str, head: bytes, size: int) -> str | None:
        """Return why values of a writer's message are no rows, None where they are."""
        if isinstance(found, str):
            return found
        if found.kind != "PROTOBUF":
            return f"it is of type {found.kind}, not PROTOBUF"
        if size < 0:
            return "the indexes of its message are none"
        indexes = _varints(head[FRAME:])[1:] or [0]
        try:
            name = name_at(file_of(found.text), indexes)
        except ProtobufSchemaError as error:
            return str(error)
        if name is None:
            return f"it has no message at the indexes {indexes}"
        return None if name == self._name else f"it is a {name}, and the reader's is {self._name}"


def _heads(framed: Framed) -> Iterator[tuple[bytes, int, pa.Array]]:
    """Yield each frame with its indexes, its length, -1 where it is none, and who has it.

    The indexes are how many there are and each of them, as varints; a single zero says that it is
    the first message.
    """
    values = framed.values
    rest = pc.is_valid(framed.ids)
    for _ in range(_MOST_HEADS):
        at = pc.index(rest, pa.scalar(True)).as_py()
        if at < 0:
            return
        value = values[at].as_py()
        size = _size_of(value)
        head = value[: max(size, FRAME)]
        if size < 0:
            break
        begins = pc.equal(pc.binary_slice(values, 0, size), pa.scalar(head, values.type))
        places = pc.fill_null(pc.and_(begins, rest), False)
        yield head, size, places
        rest = pc.and_not(rest, places)
    found: dict[tuple[bytes, int], list[int]] = {}
    for at in pc.indices_nonzero(rest).to_pylist():
        value = values[at].as_py()
        size = _size_of(value)
        found.setdefault((value[: max(size, FRAME)], size), []).append(at)
    everywhere = pa.array(range(len(values)), pa.int64())
    for (head, size), where in found.items():
        yield head, size, pc.is_in(everywhere, value_set=pa.array(where, pa.int64()))


def _size_of(value: bytes) -> int:
    """Return how long the frame and the indexes are, -1 where they are cut short."""
    at, wanted = FRAME, 1
    found = 0
    while found < wanted:
        end = at
        while end < len(value) and value[end] & 0x80:
            end += 1
        if end >= len(value) or end - at > _MOST_INDEXES:
            return -1
        if found == 0:
            wanted += _varints(value[at : end + 1])[0]
            if not 0 < wanted <= _MOST_INDEXES:
                return -1
        at, found = end + 1, found + 1
    return at


def _varints(data: bytes) -> list[int]:
    """Return whole numbers with a sign."""
    found, number, shift = [], 0, 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            found.append(number >> 1 ^ -(number & 1))
            number, shift = 0, 0
    return found
