"""The records that a join of streams remembers, as rows of a channel's state.

A row's key is the store's name, the side, and the number of the record in the order of the task.
Its value has the record's key, its time, whether it is still alone, and the fields in use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

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


class _Known(NamedTuple):
    """The records of a side that the state has, by their numbers, which ascend.

    ``texts`` are their rows, so that none has to be read when it changes or goes.
    """

    orders: Array
    alone: Array
    texts: pa.Array


_NOTHING = _Known(np.empty(0, np.int64), np.empty(0, np.bool_), pa.array([], pa.binary()))


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
        self._known = [_NOTHING for _ in SIDES]

    def restore(self, rows: Iterable[tuple[bytes, bytes]]) -> None:
        """Load the rows of the state, by their keys without the store's prefix."""
        sides: tuple[list[tuple[int, bytes, dict[str, Any], bytes]], ...] = ([], [])
        for key, value in rows:
            side = SIDES.index(chr(key[0]))
            sides[side].append((int(key[2:]), value, *split_row(value)))
        highest = -1
        for side, found in enumerate(sides):
            found.sort(key=lambda row: row[0])
            orders = np.array([order for order, _, _, _ in found], np.int64)
            texts = pa.array([text for _, text, _, _ in found], pa.binary())
            names = [key_of(each) for _, _, each, _ in found]
            keys = self.number_keys(pa.array(names, pa.binary()))
            times = np.array([each["time"] for _, _, each, _ in found], np.int64)
            alone = np.array([each["alone"] for _, _, each, _ in found], np.bool_)
            values = self._values(side, [row for _, _, _, row in found])
            read = Side(keys, times, orders, alone, np.arange(len(found)), values)
            self.sides[side] = read.take(sort_pairs(keys, times))
            self._known[side] = _Known(orders, alone, texts)
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
            former = self._known[side]
            by_order = np.argsort(own.orders)
            orders, alone = own.orders[by_order], own.alone[by_order]
            gone = np.flatnonzero(~np.isin(former.orders, orders, assume_unique=True))
            if len(gone):
                keys, texts = self._keys(side, former.orders[gone]), former.texts.take(gone)
                yield Changes(keys, pa.nulls(len(gone), pa.binary()), texts)
            at = np.minimum(np.searchsorted(former.orders, orders), max(len(former.orders) - 1, 0))
            is_known = np.zeros(len(orders), np.bool_)
            if len(former.orders):
                is_known = former.orders[at] == orders
            same = is_known.copy()
            same[is_known] = former.alone[at[is_known]] == alone[is_known]
            new = self._texts(side, by_order[~same])
            if len(new):
                before = pa.array(at[~same], mask=~is_known[~same])
                keys = self._keys(side, orders[~same])
                yield Changes(keys, new, former.texts.take(before))
            if not len(gone) and not len(new):
                continue
            at[~same] = len(former.orders) + np.arange(len(new))
            texts = pa.concat_arrays([former.texts, new]).take(at)
            self._known[side] = _Known(orders, alone.copy(), texts)

    def _keys(self, side: int, orders: Array) -> pa.Array:
        """Return the keys of records' rows, by their numbers."""
        digits = pc.utf8_lpad(pa.array(orders, pa.int64()).cast(pa.string()), _DIGITS, "0")
        prefix = f"{self._store}/{SIDES[side]}/"
        return pc.binary_join_element_wise(prefix, digits, "").cast(pa.binary())

    def _texts(self, side: int, at: Array) -> pa.Array:
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
        return texts.cast(pa.binary())


def _keys_in_json(names: Sequence[bytes]) -> pa.Array:
    """Return keys as members of an object: in hexadecimal digits where one is no UTF-8."""
    faults: dict[int, str] = {}
    try:
        texts = pa.array(names, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([f'"hex":"{name.hex()}"' for name in names], pa.string())
    return pc.binary_join_element_wise('"key":', json_texts(texts, TEXT, "key", faults), "")
