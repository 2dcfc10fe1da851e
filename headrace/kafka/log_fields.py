"""The fields of records that the brokers keep in topics of their own."""

from __future__ import annotations

import struct


class Fields:
    """Reads the fields of a record, one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        """Return a number of a fixed size."""
        (found,) = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(form)
        return int(found)

    def varint(self) -> int:
        """Return a number of as many bytes as it needs, without a sign."""
        value = shift = 0
        while True:
            byte = self.number("B")
            value |= (byte & 0x7F) << shift
            if byte < 0x80:  # noqa: PLR2004 - the bit that says that another byte follows
                return value
            shift += 7

    def text(self, *, compact: bool) -> str:
        """Return a text."""
        length = self.varint() - 1 if compact else self.number("h")
        found = self._data[self._at : self._at + length]
        self._at += length
        return found.decode()

    def count(self, *, compact: bool) -> int:
        """Return how many items follow; none where there is no list."""
        return max(0, self.varint() - 1 if compact else self.number("i"))

    def skip_tags(self) -> None:
        """Pass over fields that only some versions know."""
        for _ in range(self.varint()):
            self.varint()
            length = self.varint()
            self._at += length
