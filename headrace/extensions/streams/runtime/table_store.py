"""Tables of rows by key, as rows of a channel's state.

A row's key is the store's name and the key; its value has the row's time and its fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from typing_extensions import override

from headrace.extensions.streams.decode import decode_values
from headrace.extensions.streams.encode import encode_structs
from headrace.extensions.streams.expressions import FieldNode
from headrace.extensions.streams.inline.batch import column_of
from headrace.extensions.streams.inline.tables import Held, TableState
from headrace.extensions.streams.row_documents import join_row, split_row
from headrace.extensions.streams.runtime.stores import Changes, rows_prefix

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from headrace.extensions.streams.inline.batch import Change
    from headrace.extensions.streams.rows import Row


class TableRows:
    """Writes rows of a table with their times as values of a state, and reads them."""

    def __init__(self, row: type[Row]) -> None:
        self._row = row

    def read(
        self, rows: Iterable[tuple[bytes, bytes]]
    ) -> Iterator[tuple[bytes, Held, dict[str, Any]]]:
        """Yield the rows by their keys, each with what is said beside it."""
        found = [(key, *split_row(value)) for key, value in rows]
        texts = pa.array([text for _, _, text in found], pa.binary())
        names = list(self._row.__fields__)
        columns = decode_values(texts, self._row, names).columns
        lists = {name: columns[FieldNode(self._row, name)].to_pylist() for name in names}
        for place, (key, said, _) in enumerate(found):
            row = {name: values[place] for name, values in lists.items()}
            yield key, Held(row, said["time"]), said

    def write(
        self, held: Sequence[Held], said: Sequence[Mapping[str, Any]] | None = None
    ) -> list[bytes]:
        """Return the values of rows, with what else is to be said of each."""
        if not held:
            return []
        faults: dict[int, str] = {}
        rows = encode_structs(structs_of([each.row for each in held], self._row), self._row, faults)
        assert not faults, "rows with such numbers were left out"
        found = []
        for place, (each, text) in enumerate(zip(held, rows.to_pylist(), strict=True)):
            members = {"time": each.time, **({} if said is None else said[place])}
            found.append(join_row(members, text))
        return found


class ChangingTable(TableState):
    """The rows of a table, in memory, which tells what of them changed. One thread."""

    def __init__(self, store: str, row: type[Row]) -> None:
        super().__init__()
        self._prefix = rows_prefix(store)
        self._format = TableRows(row)
        self._changed: dict[bytes, None] = {}

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

    def take_changes(self) -> Iterable[Changes]:
        """Return the rows that changed since the last call."""
        changed, self._changed = list(self._changed), {}
        there = [key for key in changed if key in self.rows]
        said = [self._describe(key) for key in there]
        texts = self._format.write([self.rows[key] for key in there], said)
        values = dict(zip(there, texts, strict=True))
        return [Changes.of({self._prefix + key: values.get(key) for key in changed})]

    def _describe(self, key: bytes) -> Mapping[str, Any]:
        """Return what is stored of a row beside its time and its fields."""
        del key
        return {}


class StoredTable(ChangingTable):
    """The rows of a table that is read from a topic."""

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Load the rows of the state, by their keys without the store's prefix."""
        self.rows.update({key: held for key, held, _ in self._format.read(rows)})


def structs_of(rows: Sequence[Mapping[str, Any]], row: type[Row]) -> pa.Array:
    """Return rows of a class as structs, by the attributes' names."""
    fields = row.__fields__
    kinds = [pa.field(name, each.type.arrow()) for name, each in fields.items()]
    columns = [column_of(rows, name, each.type) for name, each in fields.items()]
    return pa.StructArray.from_arrays(columns, fields=kinds)
