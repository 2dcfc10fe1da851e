"""Rows of an operator's store as readers have them: whose key a row has, and what it says.

Each store writes rows by keys of a form of its own. Commands that have rows of a changelog, and no
operator that runs, read these forms here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.extensions.streams.inline.aggregates import layout_of
from headrace.extensions.streams.operators import Aggregate
from headrace.extensions.streams.plan import SUBSCRIPTIONS
from headrace.extensions.streams.row_documents import key_of
from headrace.extensions.streams.runtime.join_store import SIDES
from headrace.extensions.streams.runtime.stores import rows_prefix, split_times
from headrace.extensions.streams.windows import TimeWindows

if TYPE_CHECKING:
    from headrace.extensions.streams.plan import Plan, Store


class StoredRow(NamedTuple):
    """A row of a store: its key, what tells it from the key's other rows, and its value.

    ``key`` is the one by which records come to the store, so a row lies in its partition. ``place``
    has begin and end of a window, or side and time of a record in the buffer of a join.
    """

    key: bytes
    place: tuple[tuple[str, int | str], ...]
    value: bytes


class StoredRows:
    """Reads rows of one store of a plan, as they are in the state of its channel."""

    def __init__(self, plan: Plan, store: Store) -> None:
        self._kind = store.kind
        operator = plan.operators[store.operator]
        self._aggregate = operator if isinstance(operator, Aggregate) else None
        self._has_panes = isinstance(getattr(operator, "windows", None), TimeWindows)
        #: What the keys of its rows begin with.
        self.prefix = rows_prefix(store.rows)

    def read(self, key: bytes, value: bytes) -> StoredRow:
        """Return a row by its key in the state, which begins with the store's prefix."""
        name = key[len(self.prefix) :]
        if self._kind == "join":
            said = json.loads(value)
            side = "left" if chr(name[0]) == SIDES[0] else "right"
            return StoredRow(key_of(said), (("side", side), ("time", said["time"])), value)
        if self._kind == SUBSCRIPTIONS:
            length, _, names = name.partition(b"/")
            size = int(length)
            by = names[size + 1 :].decode("utf-8", "surrogateescape")
            return StoredRow(names[:size], (("wanted_by", by),), value)
        if self._aggregate is None or self._aggregate.windows is None:
            return StoredRow(name, (), value)
        if self._has_panes:
            (begin,), group = split_times(name, 1)
            return StoredRow(group, (("begin", begin),), value)
        (end, begin), group = split_times(name, 2)
        return StoredRow(group, (("begin", begin), ("end", end)), value)

    def show(self, value: bytes) -> Any:
        """Return what a value says: of aggregates the latest time of a record and their values."""
        said = json.loads(value)
        if self._aggregate is None:
            return said
        layout = layout_of(self._aggregate)
        columns = layout.results(layout.decode([said]))
        values = (column[0].as_py() for column in columns)
        return {"time": said[0], **dict(zip(self._aggregate.aggregates, values, strict=True))}
