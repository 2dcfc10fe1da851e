"""A call of user code, as errors, logs and files name it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Call:
    """A call of user code.

    ``partition`` and ``key`` are those of a keyed reducer, None for code that takes whole batches;
    of a function that gets a record before its key counts, only ``key`` is None. ``place`` names
    the record, the timer or the batches, as far as is known. ``has_hung`` says that it was given up
    for that.
    """

    partition: int | None
    key: bytes | None
    place: str
    has_hung: bool = False

    def __str__(self) -> str:
        """Return it as a message has it."""
        parts = [self.place] if self.place else []
        if self.key is not None:
            shown = self.key[:100].decode("utf-8", "replace")
            parts.insert(0, f"key {shown!r} of partition {self.partition}")
        return ", ".join(parts)
