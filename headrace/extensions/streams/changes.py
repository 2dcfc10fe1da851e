"""Changes of a table as rows: the row before and the row after, each null where there is none."""

from __future__ import annotations

from typing import Any

from headrace.extensions.streams.rows import Field, Row

#: The fields of a change.
BEFORE, AFTER = "before", "after"

_MADE: dict[type[Row], type[Row]] = {}


def change_row(row: type[Row]) -> type[Row]:
    """Return the class of the changes of a table of these rows, one for each class."""
    if row not in _MADE:
        kind: Any = Field[row | None]  # type: ignore[valid-type]
        fields = {"__annotations__": {BEFORE: kind, AFTER: kind}, "__module__": row.__module__}
        # no class of a program has such a name
        _MADE[row] = type(f"change of {row.__name__}", (Row,), fields)
    return _MADE[row]
