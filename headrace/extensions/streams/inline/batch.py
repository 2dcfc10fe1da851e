"""Rows on their way between operators: in columns, or as changes of tables one by one."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.extensions.streams.columns import evaluate
from headrace.extensions.streams.expressions import FieldNode, KeyNode, Part, PartNode
from headrace.extensions.streams.keys import decode_keys, encode_keys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from headrace.extensions.streams.expressions import Node
    from headrace.extensions.streams.kernels.records import Array
    from headrace.extensions.streams.operators import Output
    from headrace.extensions.streams.rows import Row
    from headrace.extensions.streams.types import Type


@dataclass(frozen=True, slots=True)
class TopicRecords:
    """Records of a topic in columns, in the order of the task: bytes, and times in milliseconds.

    ``at`` are their places in the micro-batch, ``offsets`` those in the topic, as far as known.
    """

    topic: str
    at: Array
    keys: pa.Array
    values: pa.Array
    times: Array
    offsets: Array | None = None


class Poison(Protocol):
    """The records of a micro-batch that cannot be processed."""

    def note(self, at: int, reason: str) -> None:
        """Record why a record of the micro-batch is poison; the first reason counts.

        Raises:
            PoisonRecordError: poison is not left out.
        """
        ...


class _Quiet:
    def note(self, at: int, reason: str) -> None:
        """Return at once."""


#: For rows whose poison is noted at another time: when they came, or when they are processed.
QUIET: Poison = _Quiet()


class UserCalls(Protocol):
    """A watch over calls of users' functions, which interrupts one that does not return."""

    def job(self) -> AbstractContextManager[None]:
        """Allow calls in the block to be interrupted.

        Raises:
            JobTimeoutError: a call took too long.
        """
        ...

    def call(self, label: str, at: int | None) -> None:
        """Record that an operator's function is called for a record, None for all there are.

        Raises:
            ReducerError: it did not return from the call for this record before.
        """
        ...


class Unwatched:
    """No watch. A :class:`UserCalls`."""

    def job(self) -> AbstractContextManager[None]:
        """Return a block in which nothing is interrupted."""
        return nullcontext()

    def call(self, label: str, at: int | None) -> None:
        """Return at once."""


@dataclass(frozen=True, slots=True)
class Written:
    """Records that an operator writes: bytes, times, and the records that they come from."""

    keys: pa.Array
    values: pa.Array
    times: Array
    at: Array


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of a stream in columns, in the order of the task.

    ``at`` is the record of the micro-batch that a row comes from. A row that is not ``present`` is
    a deletion: its fields are null. ``values`` are the records' own, of rows as they were read.
    """

    row: type[Row]
    fields: Mapping[str, pa.Array]
    parts: tuple[pa.Array, ...]
    times: Array
    at: Array
    present: Array
    values: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.at)

    @property
    def deletions(self) -> int:
        """Return how many rows are deletions."""
        return len(self.present) - int(np.count_nonzero(self.present))

    def take(self, places: Array) -> Batch:
        """Return some of the rows."""
        indices = pa.array(places, pa.int64())
        return replace(
            self,
            fields={name: each.take(indices) for name, each in self.fields.items()},
            parts=tuple(each.take(indices) for each in self.parts),
            times=self.times[places],
            at=self.at[places],
            present=self.present[places],
            values=None if self.values is None else self.values.take(indices),
        )

    def columns(self) -> dict[Node, pa.Array]:
        """Return what expressions over the rows may name."""
        found: dict[Node, pa.Array] = {
            FieldNode(self.row, name): values for name, values in self.fields.items()
        }
        return {**found, **key_columns(self.parts), PartNode(Part.TIME): pa.array(self.times)}

    def compute(self, node: Node, poison: Poison, label: str) -> tuple[Batch, pa.Array]:
        """Return the rows that an expression has no fault of, and its values."""
        found = evaluate(node, self.columns(), len(self))
        batch = self.without(found.faults, poison, label)
        if batch is self:
            return self, found.values
        kept = np.setdiff1d(np.arange(len(self)), list(found.faults))
        return batch, found.values.take(pa.array(kept, pa.int64()))

    def without(self, faults: Mapping[int, str], poison: Poison, label: str) -> Batch:
        """Return the rows without those at fault, which are noted; a deletion has no fault."""
        if not faults:
            return self
        for place, reason in sorted(faults.items()):
            if self.present[place]:
                poison.note(int(self.at[place]), f"{label}: {reason}")
        return self.take(np.setdiff1d(np.arange(len(self)), list(faults)))

    def keys(self, types: Sequence[Type]) -> pa.Array:
        """Return the bytes of the rows' keys."""
        return encode_keys(self.parts, types)

    def to_rows(self) -> list[dict[str, Any] | None]:
        """Return the rows one by one, None for a deletion."""
        lists = {name: each.to_pylist() for name, each in self.fields.items()}
        return [
            {name: each[place] for name, each in lists.items()} if present else None
            for place, present in enumerate(self.present.tolist())
        ]


def key_columns(parts: Sequence[pa.Array]) -> dict[Node, pa.Array]:
    """Return the parts of keys as expressions name them."""
    found: dict[Node, pa.Array] = {KeyNode(place): each for place, each in enumerate(parts)}
    if len(parts) == 1:
        found[PartNode(Part.KEY)] = parts[0]
    return found


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a table's row, with the rows before and after; None where there is none.

    ``time`` is that of the change, ``row_time`` that of the row after, ``former`` that of the row
    before.
    """

    at: int
    key: bytes
    row: Mapping[str, Any] | None
    before: Mapping[str, Any] | None
    time: int
    row_time: int
    former: int = -1


def batch_of(changes: Sequence[Change], output: Output) -> Batch:
    """Return changes of a table as rows of a stream."""
    names = list(output.row.__fields__)
    rows = [each.row for each in changes]
    keys = pa.array([each.key for each in changes], pa.binary())
    return Batch(
        output.row,
        {name: column_of(rows, name, output.row.__fields__[name].type) for name in names},
        decode_keys(keys, output.key).parts,
        np.array([each.time for each in changes], np.int64),
        np.array([each.at for each in changes], np.int64),
        np.array([each.row is not None for each in changes], np.bool_),
    )


def column_of(rows: Sequence[Mapping[str, Any] | None], name: str, kind: Type) -> pa.Array:
    """Return a field of rows as a column; null where a row lacks it."""
    return pa.array([None if row is None else row.get(name) for row in rows], kind.arrow())


def merge_batches(batches: Sequence[Batch]) -> Batch:
    """Return the rows of several batches of the same row, in the order of the task.

    Workers send the fields in use only, and other operators make all: a field that a batch lacks is
    read of none of them.
    """
    first = batches[0]
    if len(batches) == 1:
        return first
    names = [name for name in first.fields if all(name in each.fields for each in batches)]
    at = np.concatenate([each.at for each in batches])
    merged = Batch(
        first.row,
        {name: _concat([each.fields[name] for each in batches]) for name in names},
        tuple(_concat(parts) for parts in zip(*(each.parts for each in batches), strict=True)),
        np.concatenate([each.times for each in batches]),
        at,
        np.concatenate([each.present for each in batches]),
    )
    return merged.take(np.argsort(at, kind="stable"))


def _concat(arrays: Sequence[pa.Array]) -> pa.Array:
    return pa.concat_arrays(list(arrays))


def mask_of(values: pa.Array) -> Array:
    """Return where a condition is true."""
    filled = pc.fill_null(values, False)
    return np.asarray(filled.to_numpy(zero_copy_only=False))
