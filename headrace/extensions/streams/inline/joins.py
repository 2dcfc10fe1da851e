"""Joins of two streams by key and time, on micro-batches in columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.extensions.streams.columns import evaluate
from headrace.extensions.streams.encode import encode_structs
from headrace.extensions.streams.expressions import FieldNode, Part, PartNode
from headrace.extensions.streams.inline.batch import Batch, key_columns, mask_of
from headrace.extensions.streams.kernels.joins import JoinBuffer, JoinKernel, JoinKind
from headrace.extensions.streams.kernels.records import NO_TIME, Records
from headrace.extensions.streams.keys import decode_keys
from headrace.extensions.streams.operators import Join

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.extensions.streams.expressions import Node
    from headrace.extensions.streams.inline.batch import Poison
    from headrace.extensions.streams.kernels.joins import Joined
    from headrace.extensions.streams.operators import Output, StreamJoin
    from headrace.extensions.streams.types import Type

_KINDS = {Join.INNER: JoinKind.INNER, Join.LEFT: JoinKind.LEFT, Join.OUTER: JoinKind.OUTER}


def side_type(output: Output, names: Sequence[str]) -> pa.DataType:
    """Return the type of a buffered row: the fields that are read of it."""
    fields = output.row.__fields__
    return pa.struct([pa.field(name, fields[name].type.arrow()) for name in names])


class StreamJoinState:
    """Joins two streams as their records come. A deletion moves the time only.

    ``names`` are the fields that are read of both sides, ``buffer`` has their records, ``time`` is
    the operator time. With ``is_stored`` a row is poison that JSON cannot have: one with a number
    that is not finite.
    """

    def __init__(
        self,
        operator: StreamJoin,
        outputs: tuple[Output, Output],
        names: tuple[Sequence[str], Sequence[str]],
        *,
        buffer: JoinBuffer | None = None,
        time: int = NO_TIME,
        is_stored: bool = False,
    ) -> None:
        assert operator.output is not None, "rows come out"
        self._operator, self._outputs, self._names = operator, outputs, names
        self._output = operator.output
        self._is_stored = is_stored
        #: How many records of the last micro-batch were late, and how many rows came out alone.
        self.late = self.alone = 0
        self.buffer = buffer or JoinBuffer(*map(side_type, outputs, names))
        self._kernel = JoinKernel(operator.windows, _KINDS[operator.join], self.buffer, time)

    @property
    def time(self) -> int:
        """Return the operator time."""
        return self._kernel.time

    def process(self, batches: tuple[Batch, Batch], poison: Poison) -> Batch:
        """Return the pairs, and what is alone."""
        label = self._operator.label
        sides = [
            _with_keys(self._storable(side, batch, poison), output.key, label, poison)
            for side, (batch, output) in enumerate(zip(batches, self._outputs, strict=True))
        ]
        at = np.concatenate([batch.at for batch, _ in sides])
        right = np.repeat([False, True], [len(batch) for batch, _ in sides])
        # of one record the left row comes first
        order = np.argsort(at * 2 + right, kind="stable")
        keys = pa.concat_arrays([keys for _, keys in sides]).take(pa.array(order))
        times = np.concatenate([batch.times for batch, _ in sides])[order]
        rows = [
            _structs(batch, output, names)
            for (batch, _), output, names in zip(sides, self._outputs, self._names, strict=True)
        ]
        # a deletion without a key joins nothing
        records = Records.of(pc.fill_null(keys, b""), times)
        joined = self._kernel.process(records, right[order], *rows)
        self.late, self.alone = joined.late, joined.alone
        return self._made(joined, at[order], label, poison)

    def _storable(self, side: int, batch: Batch, poison: Poison) -> Batch:
        """Return the rows that the state can have."""
        faults: dict[int, str] = {}
        if self._is_stored:
            output, names = self._outputs[side], self._names[side]
            encode_structs(_structs(batch, output, names), output.row, faults)
        return batch.without(faults, poison, self._operator.label)

    def _made(self, joined: Joined, at: np.ndarray[Any, Any], label: str, poison: Poison) -> Batch:
        """Return the rows of pairs, without those at fault."""
        size = len(joined)
        names = joined.names.take(pa.array(joined.codes, pa.int64()))
        parts = decode_keys(names, self._output.key).parts
        columns: dict[Node, pa.Array] = {
            **key_columns(parts),
            PartNode(Part.TIME): pa.array(joined.times, pa.int64()),
            **_fields(self._outputs[0], self._names[0], joined.left),
            **_fields(self._outputs[1], self._names[1], joined.right),
        }
        found = {
            name: evaluate(node, columns, size) for name, node in self._operator.fields.items()
        }
        faults = {at: text for each in reversed(found.values()) for at, text in each.faults.items()}
        batch = Batch(
            self._output.row,
            {name: each.values for name, each in found.items()},
            parts,
            joined.times,
            at[joined.at] if size else joined.at,
            np.ones(size, np.bool_),
        )
        return batch.without(faults, poison, label)

    def buffered(self) -> Iterator[tuple[bytes, int, Mapping[str, Any]]]:
        """Yield the records in both buffers by key: key, time, fields."""
        rows = self.buffer.dump()
        for side in (0, 1):
            own = [row for row in rows if row[0] == side]
            for _, key, time, _, _, value in sorted(own, key=lambda row: row[1:4]):
                yield key, time, value


def _with_keys(
    batch: Batch, types: Sequence[Type], label: str, poison: Poison
) -> tuple[Batch, pa.Array]:
    """Return the rows that have a key, and deletions, which move the time; and their keys."""
    keys = batch.keys(types)
    missing = mask_of(keys.is_null()) & batch.present
    faults = dict.fromkeys(np.flatnonzero(missing).tolist(), "the row has no key")
    batch = batch.without(faults, poison, label)
    return batch, batch.keys(types) if faults else keys


def _structs(batch: Batch, output: Output, names: Sequence[str]) -> pa.Array:
    """Return rows as values of a buffer, null for a deletion."""
    kind = side_type(output, names)
    if not names:
        # arrays of structs without fields have no length of their own
        places = pa.array(np.zeros(len(batch), np.int64), mask=~batch.present)
        return pa.array([{}], kind).take(places)
    mask = pa.array(~batch.present)
    arrays = [batch.fields[name].cast(field.type) for name, field in zip(names, kind, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=mask)


def _fields(output: Output, names: Sequence[str], rows: pa.Array) -> dict[Node, pa.Array]:
    """Return the fields of a side, null where the other one is alone."""
    return {
        FieldNode(output.row, name): pc.struct_field(rows, [place])
        for place, name in enumerate(names)
    }
