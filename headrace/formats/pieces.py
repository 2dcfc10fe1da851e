"""Columns as bytes of a format, piece by piece, without a call for each value."""

from __future__ import annotations

import ctypes as c
from collections import Counter
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.columns import POOL, constant
from headrace.core.errors import StartError
from headrace.formats.native import library

#: The type of pieces.
PIECES = pa.large_binary()

NOTHING = constant(PIECES, b"")

#: Parts of a second, by their units.
PARTS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "varints": (c.c_void_p, c.c_int64, c.c_int, c.c_void_p, c.c_void_p),
    "wide": (c.c_void_p, c.c_int64, c.c_int64, c.c_void_p, c.c_void_p, c.c_void_p),
}


class Misfits:
    """The problems of values, and how many have each. One thread."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def note(self, problem: str, where: pa.Array) -> None:
        """Count the values that have a problem; ``where`` is true for them, and not null."""
        count = pc.sum(where, min_count=0).as_py()
        if count:
            self._counts[problem] += count

    def sentences(self) -> list[str]:
        """Return a sentence for each problem."""
        return [f"{problem} in {count} values" for problem, count in self._counts.items()]


@cache
def functions() -> Any:
    """Return the library with its functions of pieces typed. Any thread.

    Raises:
        StartError: it was not built, or is of another version.
    """
    loaded = library.load()
    try:
        for name, arguments in _FUNCTIONS.items():
            function = getattr(loaded, f"headrace_write_{name}")
            function.restype, function.argtypes = c.c_int64, arguments
    except AttributeError as error:
        raise StartError(
            f"{library.PATH.name} is of another version; install Headrace again"
        ) from error
    return loaded


def piece(data: bytes) -> pa.Scalar:
    """Return bytes that each value has."""
    return pa.scalar(data, PIECES)


def joined(*pieces: pa.Array | pa.Scalar) -> pa.Array:
    """Return pieces one after another; one of them at least is an array."""
    if len(pieces) == 1:
        return pieces[0]
    return pc.binary_join_element_wise(*pieces, NOTHING, memory_pool=POOL)


def chosen(where: pa.Array, pieces: pa.Array | pa.Scalar, others: pa.Array | pa.Scalar) -> pa.Array:
    """Return pieces where that is so, and others elsewhere."""
    return pc.if_else(where, pieces, others, memory_pool=POOL)


def varints(numbers: pa.Array, *, folded: bool = False) -> pa.Array:
    """Return whole numbers of 64 bits as varints, a null as zero.

    ``folded``: those with a sign are small where they are near zero, as in Avro.
    """
    given = _without_nulls(numbers)
    address, write = _address(given, 8), functions().headrace_write_varints

    def fill(offsets: int, out: int | None) -> int:
        return int(write(address, len(given), folded, offsets, out))

    return _written(len(given), fill)


def wide(numbers: pa.Array, size: int = 0) -> tuple[pa.Array, int]:
    """Return decimals of 128 bits as whole numbers, the highest byte first, a null as zero.

    Each has ``size`` bytes, or where that is 0 as many as it needs. Also returns how many need
    more.
    """
    given = _without_nulls(numbers)
    address, write = _address(given, 16), functions().headrace_write_wide
    misfits = c.c_int64()

    def fill(offsets: int, out: int | None) -> int:
        return int(write(address, len(given), size, offsets, out, c.addressof(misfits)))

    return _written(len(given), fill), misfits.value


def fixed(numbers: pa.Array) -> pa.Array:
    """Return numbers of 32 or 64 bits as they are in memory, which is the lowest byte first."""
    given = _without_nulls(numbers)
    width = given.type.bit_width // 8
    data = given.buffers()[1].slice(given.offset * width, len(given) * width)
    return pa.Array.from_buffers(pa.binary(width), len(given), [None, data]).cast(PIECES)


def flags(values: pa.Array) -> pa.Array:
    """Return a byte 1 where it is true, and 0 elsewhere."""
    return chosen(pc.fill_null(values, False), piece(b"\1"), piece(b"\0"))


def sized(pieces: pa.Array, *, folded: bool = False) -> pa.Array:
    """Return pieces after their lengths, a null as an empty one."""
    given = pc.fill_null(pieces, b"")
    return joined(varints(pc.binary_length(given).cast(pa.int64()), folded=folded), given)


def as_bytes(values: pa.Array) -> pa.Array:
    """Return texts or bytes as pieces."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        values = values.dictionary_decode()
        kind = values.type
    if pa.types.is_string(kind) or pa.types.is_string_view(kind):
        values = values.cast(pa.large_string())
    return values.cast(PIECES)


def is_text(kind: pa.DataType) -> bool:
    """Return whether it is a type of texts."""
    if pa.types.is_dictionary(kind):
        return is_text(kind.value_type)
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def is_binary(kind: pa.DataType) -> bool:
    """Return whether it is a type of bytes."""
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def is_list(kind: pa.DataType) -> bool:
    """Return whether it is a type of lists."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def items_of(lists: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the items of all lists, or the entries of maps, and how many each list has.

    A list that is null has none.
    """
    if pa.types.is_map(lists.type):
        # no cast, which Arrow does wrong where there is a column of type null in the entries
        entries = lists.values
        lists = pa.ListArray.from_buffers(
            pa.list_(entries.type),
            len(lists),
            lists.buffers()[:2],
            lists.null_count,
            lists.offset,
            [entries],
        )
    lengths = pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int64())
    return pc.list_flatten(lists), lengths


def concatenated(pieces: pa.Array, lengths: pa.Array) -> pa.Array:
    """Return for each length so many of the pieces, one after another."""
    ends = pc.cumulative_sum(lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), ends]).cast(pa.int32())
    return pc.binary_join(pa.ListArray.from_arrays(offsets, pieces), NOTHING, memory_pool=POOL)


def _without_nulls(numbers: pa.Array) -> pa.Array:
    return pc.fill_null(numbers, constant(numbers.type, bytes(numbers.type.bit_width // 8)))


def _address(numbers: pa.Array, width: int) -> int:
    address: int = numbers.buffers()[1].address
    return address + int(numbers.offset) * width


def _written(count: int, fill: Any) -> pa.Array:
    """Return what a function of the library writes, which is asked for its size first."""
    offsets = pa.allocate_buffer(8 * (count + 1), memory_pool=POOL)
    size = fill(offsets.address, None)
    data = pa.allocate_buffer(size, memory_pool=POOL)
    fill(offsets.address, data.address)
    return pa.Array.from_buffers(PIECES, count, [None, offsets, data])
