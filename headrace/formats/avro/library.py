"""The functions of ``avro.c``, and what they take."""

from __future__ import annotations

import ctypes as c
from functools import cache
from typing import Any

import pyarrow as pa

from headrace.formats.native.library import load


class ValuesStruct(c.Structure):
    """Values of an array of binary or large_binary: ``values_t``."""

    _fields_ = (
        ("valid", c.c_void_p),
        ("offsets", c.c_void_p),
        ("data", c.c_void_p),
        ("first", c.c_int64),
        ("count", c.c_int64),
        ("is_large", c.c_int64),
    )


class ProgramStruct(c.Structure):
    """The program of the values of one schema's id: ``program_t``."""

    _fields_ = (
        ("id", c.c_int64),
        ("ops", c.c_char_p),
        ("count", c.c_int64),
        ("constants", c.c_char_p),
    )


class BadStruct(c.Structure):
    """A value that is bad, and where: ``bad_t``."""

    _fields_ = (
        ("place", c.c_int64),
        ("id", c.c_int64),
        ("status", c.c_int32),
        ("op", c.c_int32),
        ("byte", c.c_int64),
    )


class ColumnStruct(c.Structure):
    """The buffers of a column, and how far they are filled: ``column_t``."""

    _fields_ = (
        ("values", c.c_void_p),
        ("offsets", c.c_void_p),
        ("valid", c.c_void_p),
        ("rows", c.c_int64),
        ("used", c.c_int64),
        ("shape", c.c_int32),
        ("span", c.c_int32),
    )


_VALUES, _PROGRAMS = c.POINTER(ValuesStruct), c.POINTER(ProgramStruct)

_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ids": (c.c_int64, (_VALUES, c.POINTER(c.c_int64), c.c_int64)),
    "check": (
        c.c_int64,
        (
            _VALUES,
            _PROGRAMS,
            c.c_int64,
            c.c_void_p,
            c.c_void_p,
            c.POINTER(c.c_int64),
            c.POINTER(c.c_int64),
        ),
    ),
    "fill": (None, (_VALUES, _PROGRAMS, c.c_int64, c.c_void_p, c.POINTER(ColumnStruct))),
}


@cache
def functions() -> Any:
    """Return the library with its functions for Avro typed. Any thread.

    Raises:
        StartError: it was not built, or is of another version.
    """
    library = load()
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, f"headrace_avro_{name}")
        function.restype, function.argtypes = result, arguments
    return library


def values_of(values: pa.Array) -> ValuesStruct:
    """Return values as the library reads them, for as long as the array lives."""
    valid, offsets, data = (None if b is None else b.address for b in values.buffers())
    is_large = pa.types.is_large_binary(values.type)
    return ValuesStruct(valid, offsets, data, values.offset, len(values), is_large)
