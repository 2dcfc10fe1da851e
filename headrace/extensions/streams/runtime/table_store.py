"""Tables of rows by key, as rows of a channel's state.

A row's key is the store's name and the key; its value has the row's time and its fields.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from headrace.extensions.streams.decode import decode_values
from headrace.extensions.streams.encode import encode_structs
from headrace.extensions.streams.expressions import FieldNode
from headrace.extensions.streams.inline.batch import column_of
from headrace.extensions.streams.inline.tables import Held, TableState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from headrace.extensions.streams.inline.batch import Change
    from headrace.extensions.streams.rows import Row
    from headrace.extensions.streams.runtime.stores import ChangedRow


class StoredTable(TableState):
    """The rows of a table, in memory, which tells what of them changed. One thread."""

    def __init__(self, store: str, row: type[Row]) -> None:
        super().__init__()
        self._prefix = f"{store}/".encode()
        self._row = row
        self._changed: dict[bytes, None] = {}

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Load the rows of the state, by their keys without the store's prefix."""
        found = [(key, json.loads(value)) for key, value in rows]
        texts = [json.dumps(each["row"]).encode() for _, each in found]
        names = list(self._row.__fields__)
        columns = decode_values(pa.array(texts, pa.binary()), self._row, names).columns
        lists = {name: columns[FieldNode(self._row, name)].to_pylist() for name in names}
        for place, (key, each) in enumerate(found):
            row = {name: values[place] for name, values in lists.items()}
            self.rows[key] = Held(row, each["time"])

    @override
    def put(
        self,
        at: int,
        key: bytes,
        row: Mapping[str, Any] | None,
        time: int,
        row_time: int | None = None,
    ) -> Change:
        self._changed[key] = None
        return super().put(at, key, row, time, row_time)

    def take_changes(self) -> Iterator[ChangedRow]:
        """Yield the rows that changed since the last call."""
        changed, self._changed = list(self._changed), {}
        there = [(key, self.rows[key]) for key in changed if key in self.rows]
        yield from ((self._prefix + key, None) for key in changed if key not in self.rows)
        if there:
            texts = self._texts([held for _, held in there])
            yield from (
                (self._prefix + key, text) for (key, _), text in zip(there, texts, strict=True)
            )

    def _texts(self, held: Sequence[Held]) -> list[bytes]:
        """Return the values of rows, in JSON."""
        faults: dict[int, str] = {}
        rows = encode_structs(structs_of([each.row for each in held], self._row), self._row, faults)
        assert not faults, "rows with such numbers were left out"
        times = pa.array([each.time for each in held], pa.int64()).cast(pa.string())
        texts = pc.binary_join_element_wise('{"time":', times, ',"row":', rows, "}", "")
        return [each.encode() for each in texts.to_pylist()]


def structs_of(rows: Sequence[Mapping[str, Any]], row: type[Row]) -> pa.Array:
    """Return rows of a class as structs, by the attributes' names."""
    fields = row.__fields__
    kinds = [pa.field(name, each.type.arrow()) for name, each in fields.items()]
    columns = [column_of(rows, name, each.type) for name, each in fields.items()]
    return pa.StructArray.from_arrays(columns, fields=kinds)
