"""The records that a join of streams remembers, as rows of a channel's state.

A row's key is the store's name, the side, and the number of the record in the order of the task.
Its value has the record's key, its time, whether it is still alone, and the fields in use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.extensions.streams.decode import decode_values
from headrace.extensions.streams.encode import encode_structs, json_texts
from headrace.extensions.streams.expressions import FieldNode
from headrace.extensions.streams.inline.joins import side_type
from headrace.extensions.streams.kernels.groups import sort_pairs
from headrace.extensions.streams.kernels.joins import JoinBuffer, Side
from headrace.extensions.streams.row_documents import key_of, split_row
from headrace.extensions.streams.runtime.stores import Changes
from headrace.extensions.streams.types import TEXT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace.extensions.streams.kernels.records import Array
    from headrace.extensions.streams.operators import Output

#: The sides in the keys of rows: left and right.
SIDES = "lr"

#: Digits of a record's number: as many as 64 bits have.
_DIGITS = 19


class StoredJoin(JoinBuffer):
    """The buffer of a join, which tells what of its records changed. One thread.

    ``names`` are the fields in use of both sides.
    """

    def __init__(
        self, store: str, outputs: tuple[Output, Output], names: tuple[Sequence[str], Sequence[str]]
    ) -> None:
        super().__init__(*map(side_type, outputs, names))
        self._store = store
        self._outputs, self._names_in_use = outputs, names
        # of each side the numbers of the records that the state has, ascending, and which are alone
        self._known = [(np.empty(0, np.int64), np.empty(0, np.bool_)) for _ in SIDES]

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Load the rows of the state, by their keys without the store's prefix."""
        sides: tuple[list[tuple[int, dict[str, Any], bytes]], ...] = ([], [])
        for key, value in rows:
            side = SIDES.index(chr(key[0]))
            sides[side].append((int(key[2:]), *split_row(value)))
        highest = -1
        for side, found in enumerate(sides):
            found.sort(key=lambda row: row[0])
            orders = np.array([order for order, _, _ in found], np.int64)
            names = [key_of(each) for _, each, _ in found]
            keys = self.number_keys(pa.array(names, pa.binary()))
            times = np.array([each["time"] for _, each, _ in found], np.int64)
            alone = np.array([each["alone"] for _, each, _ in found], np.bool_)
            values = self._values(side, [row for _, _, row in found])
            read = Side(keys, times, orders, alone, np.arange(len(found)), values)
            self.sides[side] = read.take(sort_pairs(keys, times))
            self._known[side] = (orders, alone)
            highest = max(highest, int(orders.max(initial=-1)))
        self.order = highest + 1

    def _values(self, side: int, rows: Sequence[bytes]) -> pa.Array:
        output, names = self._outputs[side], self._names_in_use[side]
        kind = side_type(output, names)
        if not names:
            return pa.array([{}] * len(rows), kind)
        columns = decode_values(pa.array(rows, pa.binary()), output.row, names).columns
        arrays = [
            columns[FieldNode(output.row, name)].cast(kind.field(name).type) for name in names
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(kind))

    def take_changes(self) -> Iterator[Changes]:
        """Yield the rows that changed since the last call."""
        for side, own in enumerate(self.sides):
            by_order = np.argsort(own.orders)
            orders, alone = own.orders[by_order], own.alone[by_order]
            former, former_alone = self._known[side]
            prefix = f"{self._store}/{SIDES[side]}/"
            gone = former[~np.isin(former, orders, assume_unique=True)]
            if len(gone):
                yield Changes.of(dict.fromkeys(_keys_of(prefix, gone)))
            at = np.searchsorted(former, orders)
            known = np.zeros(len(orders), np.bool_)
            inside = at < len(former)
            known[inside] = former[at[inside]] == orders[inside]
            same = np.zeros(len(orders), np.bool_)
            same[known] = former_alone[at[known]] == alone[known]
            changed = by_order[~same]
            if len(changed):
                keys = _keys_of(prefix, own.orders[changed])
                yield Changes.of(dict(zip(keys, self._texts(side, changed), strict=True)))
            self._known[side] = (orders, alone.copy())

    def _texts(self, side: int, at: Array) -> list[bytes]:
        """Return the values of records at places of a side, in JSON."""
        own = self.sides[side].take(at)
        structs = own.values.take(pa.array(own.rows))
        faults: dict[int, str] = {}
        rows = encode_structs(structs, self._outputs[side].row, faults)
        assert not faults, "rows with such numbers were left out"
        texts = pc.binary_join_element_wise(
            "{",
            _keys_in_json(self.name_keys(own.keys)),
            ',"time":',
            pa.array(own.times, pa.int64()).cast(pa.string()),
            ',"alone":',
            pa.array(own.alone).cast(pa.string()),
            ',"row":',
            rows,
            "}",
            "",
        )
        return [each.encode() for each in texts.to_pylist()]


def _keys_of(prefix: str, orders: Array) -> list[bytes]:
    return [f"{prefix}{order:0{_DIGITS}d}".encode() for order in orders.tolist()]


def _keys_in_json(names: Sequence[bytes]) -> pa.Array:
    """Return keys as members of an object: in hexadecimal digits where one is no UTF-8."""
    faults: dict[int, str] = {}
    try:
        texts = pa.array(names, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([f'"hex":"{name.hex()}"' for name in names], pa.string())
    return pc.binary_join_element_wise('"key":', json_texts(texts, TEXT, "key", faults), "")
