"""The part in C that decodes values: where it is, and what its functions take."""

from __future__ import annotations

import ctypes as c
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace.core.errors import StartError

#: Beside this file, where the build put it; see ``hatch_build.py``.
PATH = Path(__file__).with_name("libheadrace_formats.so")

#: As in ``columns.c``.
REVISION = 3

#: Bytes of an ``ArrowSchema``, two numbers and seven addresses, and of an ``ArrowArray``.
_ARROW_SCHEMA, _ARROW_ARRAY = 72, 80

#: What each function takes and returns. Other threads of Python run while one of these does.
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "formats_revision": (c.c_int, ()),
    "read_json": (
        c.c_int64,
        (c.c_void_p, c.c_void_p, c.c_int, c.c_int, c.c_void_p, c.c_void_p),
    ),
    "read_protobuf": (
        c.c_int64,
        (
            c.c_void_p,
            c.c_void_p,
            c.c_int,
            c.c_void_p,
            c.c_void_p,
            c.c_void_p,
            c.c_char_p,
            c.c_int64,
            c.c_void_p,
            c.c_void_p,
        ),
    ),
}


@cache
def load() -> Any:
    """Return the library with its functions typed. Any thread.

    Raises:
        StartError: it was not built, or is of another version.
    """
    try:
        library = c.CDLL(str(PATH))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, f"headrace_{name}")
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        raise StartError(
            f"{PATH.name} cannot be loaded: {error}; install a wheel that has it, or a C compiler "
            "and Headrace again"
        ) from error
    if library.headrace_formats_revision() != REVISION:
        raise StartError(f"{PATH.name} is of another version; install Headrace again")
    return library


class ExportedType:
    """A type as the library reads it, for as long as this object lives. Any thread."""

    def __init__(self, kind: pa.DataType) -> None:
        self._schema = c.create_string_buffer(_ARROW_SCHEMA)
        self.address = c.addressof(self._schema)
        kind._export_to_c(self.address)  # noqa: SLF001 - pyarrow documents it by this name

    def __del__(self) -> None:
        # taking it back is what releases it
        pa.DataType._import_from_c(self.address)  # noqa: SLF001 - it is documented


class ExportedValues:
    """Values as the library reads them, for as long as this object lives. One thread.

    They are those of an array of binary or large_binary, and are not copied.
    """

    def __init__(self, values: pa.Array) -> None:
        self._kind = values.type
        self._array = c.create_string_buffer(_ARROW_ARRAY)
        self.address = c.addressof(self._array)
        self.is_large = pa.types.is_large_binary(values.type)
        values._export_to_c(self.address)  # noqa: SLF001 - it is documented

    def __del__(self) -> None:
        pa.Array._import_from_c(self.address, self._kind)  # noqa: SLF001 - it is documented


class Made:
    """Room for an array that the library makes. One thread."""

    def __init__(self) -> None:
        self._array = c.create_string_buffer(_ARROW_ARRAY)
        self.address = c.addressof(self._array)

    def array(self, kind: pa.DataType) -> pa.Array:
        """Return the array, which was made of this type; once."""
        return pa.Array._import_from_c(self.address, kind)  # noqa: SLF001 - it is documented
