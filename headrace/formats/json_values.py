"""Values in JSON into rows of the fields that a schema names, and why others are none."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import structlog

from headrace.core.errors import StartError
from headrace.core.misfits import ExpectedObject
from headrace.core.tables import Timestamps
from headrace.formats.json_by_arrow import read_by_arrow
from headrace.formats.native import library
from headrace.formats.native.library import ExportedType, ExportedValues, Made

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = structlog.get_logger(__name__)

#: How a moment is written, in the numbers of ``json.c``.
_UNITS = {
    Timestamps.ISO: -1,
    Timestamps.SECONDS: 6,
    Timestamps.MILLIS: 3,
    Timestamps.MICROS: 0,
}

#: Bytes of values that are read at once: a column of text has no more.
_MOST_BYTES = 1 << 30

#: The place of a bad value, and the byte at which that was found.
_BAD = struct.Struct("=qq")

#: The field that a reason names.
_FIELD = re.compile(r"\] field (.+?): .* is expected, found ", re.DOTALL)


class JsonDecoder:
    """Makes rows of objects in JSON: a :class:`headrace.core.decoders.ColumnDecoder`. Any thread.

    ``kind`` is a type of structs; members that it does not name are only looked at as JSON.
    """

    def __init__(self, kind: pa.StructType, timestamps: Timestamps = Timestamps.ISO) -> None:
        self.kind = kind
        self._timestamps = timestamps
        self._expected = ExpectedObject(kind, timestamps)
        self._exported = ExportedType(kind)

    def columns(self, values: pa.Array) -> tuple[pa.StructArray, Mapping[int, str]]:
        """Return a row for each value, null where there is none, and why bad ones are bad.

        A reason is found when it is asked for.
        """
        rows, bad = self.read(values)
        return rows, _Reasons(self.why_bad, values, bad)

    def why_bad(self, value: bytes | None, where: str = "") -> str:
        """Return why a value is no row: field, what is expected and found, and the byte.

        ``where`` is what :meth:`read` said of it.
        """
        said = self._expected.why_undecodable(value)
        field = _FIELD.search(said)
        if value is None or not where or field is None:
            return said
        # another field may have been bad before this one
        member = re.escape(field[1].rpartition(".")[2].encode())
        is_there = re.search(rb'"%s"[ \t\r\n]*:[ \t\r\n]*\Z' % member, value[: int(where)])
        return said if is_there is None else f"{said}, at byte {where}"

    def where_bad(self, values: pa.Array) -> list[str]:
        """Return what :meth:`read` says of values, "" where it finds nothing bad."""
        _, bad = self.read(values)
        return [bad.get(place, "") for place in range(len(values))]

    def read(self, values: pa.Array) -> tuple[pa.StructArray, dict[int, str]]:
        """Return a row for each value, null where there is none, and the places of bad ones.

        Each with the byte at which it was found, "" where that is not known.
        """
        half = len(values) // 2
        if half and values.nbytes > _MOST_BYTES:
            rows, bad = self.read(values[:half])
            later, more = self.read(values[half:])
            bad |= {half + place: byte for place, byte in more.items()}
            return pa.concat_arrays([rows, later]), bad
        native = _native()
        if native is not None:
            found = self._read_in_c(native, values)
            if found is not None:
                return found
        rows, places = read_by_arrow(values, self.kind, self._timestamps)
        return rows, dict.fromkeys(places, "")

    def _read_in_c(
        self, native: Any, values: pa.Array
    ) -> tuple[pa.StructArray, dict[int, str]] | None:
        """Return the same; None where there is a type that it does not read."""
        given, made = ExportedValues(values), Made()
        bad = pa.allocate_buffer(_BAD.size * len(values))
        count = native.headrace_read_json(
            self._exported.address,
            given.address,
            given.is_large,
            _UNITS[self._timestamps],
            made.address,
            bad.address,
        )
        if count < 0:
            return None
        found = _BAD.iter_unpack(bad.slice(0, count * _BAD.size))
        return made.array(self.kind), {place: str(byte) for place, byte in found}


def _native() -> Any:
    """Return the part in C, None where it is not there, which the log says once."""
    try:
        return library.load()
    except StartError as missing:
        _say_missing(str(missing))
        return None


@cache
def _say_missing(reason: str) -> None:
    log.info("json_decoded_without_c", reason=reason)


class _Reasons(Mapping[int, str]):
    """The reasons of bad values by their places, each found when it is asked for. Any thread."""

    def __init__(
        self,
        why_bad: Callable[[bytes | None, str], str],
        values: pa.Array,
        bad: Mapping[int, str],
    ) -> None:
        self._why_bad = why_bad
        self._values = values
        self._bad = bad

    def __getitem__(self, place: int) -> str:
        where = self._bad[place]
        return self._why_bad(self._values[place].as_py(), where)

    def __iter__(self) -> Iterator[int]:
        return iter(self._bad)

    def __len__(self) -> int:
        return len(self._bad)
