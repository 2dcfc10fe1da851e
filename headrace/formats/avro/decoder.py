"""Values in Avro into columns, each by the schema whose id is in its frame."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headrace.core.columns import POOL
from headrace.core.errors import RetryableError
from headrace.formats.avro.defaults import check_defaults
from headrace.formats.avro.layout import Column, Shape, columns_of
from headrace.formats.avro.library import (
    BadStruct,
    ColumnStruct,
    ProgramStruct,
    functions,
    values_of,
)
from headrace.formats.avro.program import WIDTHS, Program, compiled
from headrace.formats.avro.schema import AvroType, parse_schema
from headrace.formats.bodies import NOT_FRAMED, asked_together
from headrace.formats.errors import AvroSchemaError, UnknownSchemaError
from headrace.formats.framing import FIRST, FRAME, HEADER, HeaderFrames

if TYPE_CHECKING:
    from typing import Protocol

    from headrace.formats.registry import RegisteredSchema

    class SchemasById(Protocol):
        """A source of writers' schemas, as :class:`headrace.formats.registry.SchemaRegistry`."""

        def schema(self, number: int | str) -> RegisteredSchema:
            """Return the schema of this id, or of this GUID.

            Raises:
                RetryableError: it cannot be said now.
                UnknownSchemaError: there is none.
            """


#: How many ids of schemas are looked for in a batch at once.
_MOST_IDS = 4096

#: The longest column of characters or of items, by Arrow's offsets of 32 bits.
_LONGEST = (1 << 31) - 1

#: Bytes of the columns of a batch at the most: 64 MiB of the smallest numbers are 512 MiB of them.
#: Defaults may make any number of bytes of each item, so values say little about their columns.
MOST_BYTES = 1 << 30

#: What is wrong with values, by the status that the part in C gives.
_WRONG = {
    4: "the value ends too early",
    5: "bytes are left over after the value",
    6: "the text is not UTF-8",
    7: "it has a branch of a union that is not in the schema, or not in the reader's",
    8: "the number is out of range",
    9: "the symbol is not in the reader's schema, which has no default for it",
}
_NO_FRAME, _NO_PROGRAM = 2, 3


class AvroDecoder:
    """Makes rows of values by the reader's schema. Any thread; blocks where an id is not known yet.

    ``schemas`` has the writers' schemas by their ids. Each is resolved to the reader's once.
    ``most_bytes`` are those that the columns of a batch may take. A value whose record has the
    header that names its schema needs no frame.

    Raises:
        AvroSchemaError: the reader's schema has what columns cannot hold.
        StartError: the part in C cannot be used.
    """

    def __init__(
        self, reader: AvroType, schemas: SchemasById, most_bytes: int = MOST_BYTES
    ) -> None:
        self.reads_headers = True
        self._frames = HeaderFrames()
        self._row = columns_of(reader)
        check_defaults(reader)
        compiled(reader, self._row)
        self.kind: pa.StructType = self._row.kind
        self._columns = list(self._row.all())
        self._schemas = schemas
        self._most_bytes = most_bytes
        self._programs: dict[int, Program | str] = {}
        self._library = functions()

    def columns(
        self, values: pa.Array, headers: pa.Array | None = None
    ) -> tuple[pa.StructArray, Mapping[int, str]]:
        """Return a row for each value, and by their places why others have none.

        Raises:
            RetryableError: the registry does not say now what a schema is, or the columns take
                more memory than they may.
        """
        if headers is not None:
            values = self._frames.framed(values, headers)
        given = values_of(values)
        ids = (c.c_int64 * _MOST_IDS)()
        found = self._library.headrace_avro_ids(given, ids, _MOST_IDS)
        if found == _MOST_IDS:
            return self._in_halves(values)
        known = self._programs_of(ids[:found])
        programs = _structs(known)
        status = (c.c_uint8 * len(values))()
        bad = _room(BadStruct, len(values))
        sizes, tombstones = (c.c_int64 * len(self._columns))(), c.c_int64()
        bads = self._library.headrace_avro_check(
            given, programs, found, status, bad.address, sizes, c.byref(tombstones)
        )
        if max(sizes) > _LONGEST or _bytes_of(self._columns, len(values), sizes) > self._most_bytes:
            if len(values) == 1:
                return self._too_large(known)
            return self._in_halves(values)
        filling = _Filling(self._columns, len(values), sizes)
        if bads or tombstones.value:
            filling.allow_null_rows()
        self._library.headrace_avro_fill(given, programs, found, status, filling.structs)
        return filling.rows(self._row), _Reasons(bad, bads, known, self._frames)

    def _in_halves(self, values: pa.Array) -> tuple[pa.StructArray, Mapping[int, str]]:
        """Return what :meth:`columns` does, of values that are too much at once."""
        half = len(values) // 2
        first, bad = self.columns(values.slice(0, half))
        second, also_bad = self.columns(values.slice(half))
        if first.nbytes + second.nbytes > self._most_bytes:
            raise RetryableError(
                f"{len(values)} values take more than {self._most_bytes >> 20} MiB in columns; set "
                "batch.max_records to less"
            )
        reasons = {**bad, **{half + place: reason for place, reason in also_bad.items()}}
        return pa.concat_arrays([first, second], memory_pool=POOL), reasons

    def _too_large(
        self, known: Mapping[int, Program | str]
    ) -> tuple[pa.StructArray, Mapping[int, str]]:
        """Return the row and the reason of one value that takes too much memory."""
        (number,) = known
        reason = f"it takes more than {self._most_bytes >> 20} MiB in columns"
        return pa.nulls(1, self.kind), {0: f"{self._frames.named(number)}: {reason}"}

    def _programs_of(self, ids: Sequence[int]) -> dict[int, Program | str]:
        """Return the programs of schemas, or why there is none, by their ids.

        All that the registry does not know are asked for before one is waited for: their half
        minutes are the same.
        """
        return asked_together(ids, self._program)

    def _program(self, number: int) -> Program | str:
        """Return the program of the schema of this id, or why there is none."""
        found = self._programs.get(number)
        if found is None:
            wanted = number if number < FIRST else self._frames.guid(number)
            if wanted is None:
                return f"the header {HEADER} has neither an id nor a GUID"
            try:
                registered = self._schemas.schema(wanted)
            except UnknownSchemaError as error:
                return str(error)  # asked again later: it may be registered by then
            found = self._programs[number] = self._resolved(registered)
        return found

    def _resolved(self, registered: RegisteredSchema) -> Program | str:
        if registered.kind != "AVRO":
            return f"it is of type {registered.kind}, not AVRO"
        try:
            return compiled(parse_schema(registered.text, registered.references), self._row)
        except (AvroSchemaError, ArithmeticError, RecursionError) as error:
            return f"it does not resolve to the reader's: {error}"


def _room(struct: Any, count: int) -> Any:
    """Return memory for so many structs, of which none is written yet."""
    return pa.allocate_buffer(c.sizeof(struct) * max(1, count), memory_pool=POOL)


def _structs(known: Mapping[int, Program | str]) -> Any:
    programs = (ProgramStruct * max(1, len(known)))()
    for struct, (number, program) in zip(programs, known.items(), strict=False):
        struct.id = number
        if isinstance(program, Program):
            # the bytes live as long as the program does
            struct.ops, struct.constants = program.ops, program.constants
            struct.count = program.count
    return programs


def _extents(
    columns: Sequence[Column], rows: int, sizes: Iterable[int]
) -> Iterator[tuple[Column, int, int]]:
    """Yield each column, how many values it has, and how many characters or items these have."""
    lengths = {0: rows}
    for column, size in zip(columns, sizes, strict=True):
        length = lengths[column.index]
        inside = size if column.shape is Shape.ITEMS else length
        lengths.update((each.index, inside) for each in column.inner)
        yield column, length, size


def _bytes_of(columns: Sequence[Column], rows: int, sizes: Iterable[int]) -> int:
    """Return how many bytes columns take, without the bits for what is null."""
    taken = 0
    for column, length, size in _extents(columns, rows, sizes):
        taken += WIDTHS.get(column.shape, 0) * length
        if column.shape in (Shape.TEXT, Shape.ITEMS):
            taken += 4 * length
        if column.shape is Shape.TEXT:
            taken += size
    return taken


class _Filling:
    """The buffers of the columns of one batch."""

    def __init__(self, columns: list[Column], rows: int, sizes: Any) -> None:
        self.structs = (ColumnStruct * len(columns))()
        self._buffers: list[list[Any]] = [[] for _ in columns]
        for column, length, size in _extents(columns, rows, sizes):
            struct = self.structs[column.index]
            struct.shape, struct.span = column.shape, column.span
            self._allocate(column, struct, length, size)
        self._rows = rows

    def _allocate(self, column: Column, struct: Any, length: int, size: int) -> None:
        buffers: list[Any] = self._buffers[column.index]
        # a column of nulls has no buffer for them
        is_null = column.shape is Shape.NONE
        valid = _bits(length, 0xFF) if column.nullable and not is_null else None
        struct.valid = None if valid is None else valid.address
        buffers.append(valid)
        if column.shape in (Shape.TEXT, Shape.ITEMS):
            offsets = pa.allocate_buffer(4 * (length + 1), memory_pool=POOL)
            c.memset(offsets.address, 0, 4)
            buffers.append(offsets)
            struct.offsets = offsets.address
        if column.shape is Shape.TEXT:
            buffers.append(pa.allocate_buffer(size, memory_pool=POOL))
        elif column.shape is Shape.BITS:
            buffers.append(_bits(length, 0))
        elif column.shape in WIDTHS:
            buffers.append(pa.allocate_buffer(WIDTHS[column.shape] * length, memory_pool=POOL))
        if column.shape not in (Shape.STRUCT, Shape.ITEMS, Shape.NONE):
            struct.values = buffers[-1].address

    def allow_null_rows(self) -> None:
        valid = _bits(self._rows, 0xFF)
        self._buffers[0][0] = valid
        self.structs[0].valid = valid.address

    def rows(self, column: Column) -> pa.Array:
        """Return what was filled, as an array of the column's type."""
        struct, buffers = self.structs[column.index], self._buffers[column.index]
        if column.shape is Shape.TEXT:
            buffers[-1] = buffers[-1].slice(0, struct.used)
        inner = [self.rows(each) for each in column.inner]
        if pa.types.is_map(column.kind):
            inner = [_entries(column.kind, *inner)]
        return pa.Array.from_buffers(column.kind, struct.rows, buffers, children=inner)


def _entries(kind: pa.MapType, keys: pa.Array, items: pa.Array) -> pa.StructArray:
    fields = [kind.key_field, kind.item_field]
    return pa.StructArray.from_arrays([keys, items], fields=fields)


def _bits(count: int, byte: int) -> pa.Buffer:
    size = (count + 7) // 8
    made = pa.allocate_buffer(size, memory_pool=POOL)
    c.memset(made.address, byte, size)
    return made


class _Reasons(Mapping[int, str]):
    """The reasons of bad values by their places, each made when it is asked for."""

    def __init__(
        self,
        bad: pa.Buffer,
        count: int,
        known: Mapping[int, Program | str],
        frames: HeaderFrames,
    ) -> None:
        self._frames = frames
        self._memory = bad
        self._structs = (BadStruct * count).from_address(bad.address)
        self._known = known
        self._places: dict[int, int] | None = None

    def __len__(self) -> int:
        return len(self._structs)

    def __iter__(self) -> Iterator[int]:
        return (struct.place for struct in self._structs)

    def __contains__(self, place: object) -> bool:
        return place in self._by_place()

    def _by_place(self) -> dict[int, int]:
        if self._places is None:
            self._places = {struct.place: k for k, struct in enumerate(self._structs)}
        return self._places

    def __getitem__(self, place: int) -> str:
        struct = self._structs[self._by_place()[place]]
        if struct.status == _NO_FRAME:
            return NOT_FRAMED
        program, named = self._known[struct.id], self._frames.named(struct.id)
        if isinstance(program, str):
            return f"{named}: {program}"
        field = f"field {program.places[struct.op]}: " if struct.op >= 0 else ""
        own = struct.byte if struct.id < FIRST else struct.byte - FRAME
        byte = f", at byte {own}" if struct.byte >= 0 else ""
        return f"{named}: {field}{_WRONG[struct.status]}{byte}"
