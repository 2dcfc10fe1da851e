"""Schemas that a header names, as Confluent's serializers for headers write: put into frames."""

from __future__ import annotations

import threading
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.columns import POOL

#: The header of a value's schema: a byte 1 and the sixteen of a GUID, or a byte 0 and the four of
#: an id.
HEADER = "__value_schema_id"

#: The bytes of a frame in front of a value.
FRAME = 5

#: Numbers from here on stand for GUIDs: ids of schemas have 31 bits.
FIRST = 1 << 31

_ID, _GUID = (0, FRAME), (1, 17)


class HeaderFrames:
    """Frames values whose schema a header names. Any thread.

    A GUID has a number in this process, which is in the frame in place of an id.
    """

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._guids: dict[int, str] = {}
        self._lock = threading.Lock()

    def framed(self, values: pa.Array, headers: pa.Array) -> pa.Array:
        """Return values with frames. Those without the header stay as they are.

        ``headers`` are lists of structs of ``key`` and ``value``, one list for each value. Of
        several headers of the name the first one is taken, as Confluent's deserializers do.
        """
        inside = headers.flatten()
        named = pc.equal(inside.field("key"), HEADER)
        if not pc.any(named).as_py():
            return values
        found = pa.table(
            [pc.list_parent_indices(headers).filter(named), inside.field("value").filter(named)],
            names=["row", "id"],
        )
        prefixes = [b""] * len(values)
        for row, said in reversed(
            list(zip(found["row"].to_pylist(), found["id"].to_pylist(), strict=True))
        ):
            prefixes[row] = self._frame(said)
        first = pa.array(prefixes, values.type)
        return pc.binary_join_element_wise(first, values, b"", memory_pool=POOL)

    def guid(self, number: int) -> str | None:
        """Return the GUID that a number stands for, None where the header has neither form."""
        return self._guids.get(number)

    def named(self, number: int) -> str:
        """Return how a reason names the schema of this number."""
        if number < FIRST:
            return f"schema id {number}"
        found = self.guid(number)
        return "no schema" if found is None else f"schema guid {found}"

    def _frame(self, said: bytes | None) -> bytes:
        form = (said[0], len(said)) if said else None
        if said is not None and form == _ID:
            return said
        number = FIRST
        if said is not None and form == _GUID:
            number = self._numbers.get(said) or self._number(said)
        return b"\0" + number.to_bytes(4, "big")

    def _number(self, said: bytes) -> int:
        with self._lock:
            number = self._numbers.get(said)
            if number is None:
                number = FIRST + 1 + len(self._numbers)
                self._guids[number] = str(UUID(bytes=said[1:]))
                self._numbers[said] = number
            return number
