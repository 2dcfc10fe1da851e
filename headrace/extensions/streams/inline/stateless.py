"""Operators without state, on a micro-batch in columns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.user_text import describe_error
from headrace.extensions.streams.columns import evaluate
from headrace.extensions.streams.decode import decode_values
from headrace.extensions.streams.encode import encode_rows
from headrace.extensions.streams.expressions import FieldNode
from headrace.extensions.streams.inline.batch import Batch, Written, mask_of
from headrace.extensions.streams.keys import decode_keys, encode_keys

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.extensions.streams.inline.batch import Poison, TopicRecords
    from headrace.extensions.streams.operators import (
        Apply,
        Filter,
        KeyBy,
        Output,
        Peek,
        Select,
        Sink,
        Source,
    )
    from headrace.extensions.streams.rows import Row
    from headrace.extensions.streams.types import Type

_MICROSECONDS = 1000


def read_records(
    records: TopicRecords,
    output: Output,
    names: Sequence[str],
    codec: str,
    poison: Poison,
) -> Batch:
    """Return records of a topic as rows. A value that is null is a deletion."""
    decoded = decode_values(records.values, output.row, names, codec)
    found = decode_keys(records.keys, output.key)
    fields = {
        node.name: each for node, each in decoded.columns.items() if isinstance(node, FieldNode)
    }
    batch = Batch(
        output.row,
        fields,
        found.parts,
        records.times,
        records.at,
        mask_of(pc.is_valid(records.values)),
        records.values,
    )
    return batch.without({**found.faults, **decoded.faults}, poison, records.topic)


def with_time(source: Source, batch: Batch, poison: Poison) -> Batch:
    """Return the rows of a source at the times that it takes."""
    if source.time is not None:
        batch, values = batch.compute(source.time, poison, f"time of {source.topic}")
        if pa.types.is_timestamp(values.type):
            micros = values.cast(pa.int64())
            values = pa.array(_floor_millis(micros), mask=~mask_of(pc.is_valid(micros)))
        missing = dict.fromkeys(
            np.flatnonzero(mask_of(pc.is_null(values))).tolist(), "the row has no time"
        )
        kept = np.setdiff1d(np.arange(len(batch)), list(missing))
        batch = batch.without(missing, poison, source.topic)
        batch = replace(batch, times=values.take(pa.array(kept, pa.int64())).to_numpy())
    early = dict.fromkeys(np.flatnonzero(batch.times < 0).tolist(), "the time is before 1970")
    return batch.without(early, poison, source.topic)


def _floor_millis(micros: pa.Array) -> Any:
    return np.asarray(pc.fill_null(micros, 0).to_numpy()) // _MICROSECONDS


def keep(operator: Filter, batch: Batch, poison: Poison) -> Batch:
    """Return the rows of which a condition is true; a deletion has none."""
    batch, values = batch.compute(operator.where, poison, operator.label)
    return batch.take(np.flatnonzero(mask_of(values) & batch.present))


def select(operator: Select, batch: Batch, poison: Poison) -> Batch:
    """Return rows of other fields; of a deletion that it is one."""
    assert operator.output is not None, "rows come out"
    columns, size = batch.columns(), len(batch)
    found = {name: evaluate(node, columns, size) for name, node in operator.fields.items()}
    faults = {at: text for each in reversed(found.values()) for at, text in each.faults.items()}
    fields = {name: _where(batch, each.values) for name, each in found.items()}
    made = replace(batch, row=operator.output.row, fields=fields, values=None)
    made = made.without(faults, poison, operator.label)
    return made if operator.exploded is None else _explode(made, operator.exploded)


def _where(batch: Batch, values: pa.Array) -> pa.Array:
    """Return the values of rows that are there, null of the others."""
    return values if batch.present.all() else pc.if_else(pa.array(batch.present), values, None)


def _explode(batch: Batch, name: str) -> Batch:
    lists = batch.fields[name]
    made = batch.take(pc.list_parent_indices(lists).to_numpy())
    return replace(made, fields={**made.fields, name: pc.list_flatten(lists)})


def apply(operator: Apply, batch: Batch, poison: Poison) -> Batch:
    """Return what a Python function makes of the rows; deletions are left out."""
    assert operator.output is not None, "rows come out"
    batch = batch.take(np.flatnonzero(batch.present))
    if operator.batches:
        return _apply_batches(operator, batch)
    output, places, rows = operator.output, [], []
    for place, row in enumerate(row_objects(batch)):
        try:
            made = _rows_of(operator.function(row), output.row)
        except Exception as error:  # noqa: BLE001 - the user's function
            poison.note(int(batch.at[place]), f"{operator.label}: {describe_error(error)}")
            continue
        places += [place] * len(made)
        rows += made
    taken = batch.take(np.array(places, np.int64))
    fields = {
        name: pa.array([plain_value(getattr(row, name)) for row in rows], each.type.arrow())
        for name, each in output.row.__fields__.items()
    }
    return replace(taken, row=output.row, fields=fields, values=None)


def _rows_of(found: Any, row: type[Row]) -> list[Row]:
    """Return the rows that a function returned, each with values of its fields' types.

    Raises:
        TypeError: something else was returned.
    """
    rows = [] if found is None else [found] if isinstance(found, row) else list(found)
    for each in rows:
        if type(each) is not row:
            raise TypeError(f"{each!r} was returned, and {row.__name__} is expected")
        for name, declared in row.__fields__.items():
            value = getattr(each, name)
            pa.scalar(plain_value(value), declared.type.arrow())
            if value is None and not declared.type.nullable:
                raise TypeError(f"{row.__name__}.{name} is None, and {declared.type} is expected")
    return rows


def _apply_batches(operator: Apply, batch: Batch) -> Batch:
    assert operator.output is not None, "rows come out"
    row = operator.output.row
    table = pa.RecordBatch.from_pydict(dict(batch.fields))
    made = operator.function(table)
    if not isinstance(made, pa.RecordBatch) or made.num_rows != len(batch):
        raise TypeError(f"{operator.label}: a RecordBatch of {len(batch)} rows is expected")
    fields = {
        name: made.column(name).cast(each.type.arrow()) for name, each in row.__fields__.items()
    }
    there = np.zeros(len(batch), np.bool_)
    for each in fields.values():
        there |= mask_of(pc.is_valid(each))
    return replace(batch, row=row, fields=fields, values=None).take(np.flatnonzero(there))


def show(operator: Peek, batch: Batch) -> Batch:
    """Show each row to a function."""
    for row in row_objects(batch.take(np.flatnonzero(batch.present))):
        operator.function(row)
    return batch


def row_objects(batch: Batch) -> list[Row]:
    """Return rows as instances of their class."""
    types = {name: each.type for name, each in batch.row.__fields__.items()}
    return [
        batch.row(**{name: python_value(row[name], types[name]) for name in types})
        for row in batch.to_rows()
        if row is not None
    ]


def python_value(value: Any, kind: Type) -> Any:
    """Return a value of a column as users' code has it."""
    if value is None:
        return None
    if kind.item is not None:
        return [python_value(each, kind.item) for each in value]
    if kind.row is not None:
        fields = kind.row.__fields__
        return kind.row(**{name: python_value(value[name], fields[name].type) for name in fields})
    return value


def plain_value(value: Any) -> Any:
    """Return a value of users' code as a column takes it."""
    if hasattr(type(value), "__fields__"):
        return {name: plain_value(getattr(value, name)) for name in type(value).__fields__}
    return [plain_value(each) for each in value] if isinstance(value, list) else value


def write_by_key(operator: KeyBy, batch: Batch, poison: Poison, *, as_read: bool) -> Written:
    """Return records by another key; a deletion is left out, and a row without key is poison."""
    assert operator.output is not None, "rows come out"
    batch = batch.take(np.flatnonzero(batch.present))
    columns, size = batch.columns(), len(batch)
    found = [evaluate(node, columns, size) for node in operator.parts]
    keys = encode_keys([each.values for each in found], operator.output.key)
    faults = {at: text for each in found for at, text in each.faults.items()}
    faults |= _without_key(keys, faults)
    return _written(
        operator.output.row, batch, keys, faults, operator.label, poison, as_read=as_read
    )


def write_sink(operator: Sink, batch: Batch, types: Sequence[Type], poison: Poison) -> Written:
    """Return records for a topic; a deletion is a tombstone."""
    keys = batch.keys(types)
    return _written(
        batch.row, batch, keys, {}, operator.label, poison, as_read=False, codec=operator.codec
    )


def _without_key(keys: pa.Array, faults: Mapping[int, str]) -> dict[int, str]:
    places = np.flatnonzero(mask_of(pc.is_null(keys))).tolist()
    return {place: "the row has no key" for place in places if place not in faults}


def _written(  # noqa: PLR0917 - rows, and how they are written
    row: type[Row],
    batch: Batch,
    keys: pa.Array,
    faults: Mapping[int, str],
    label: str,
    poison: Poison,
    *,
    as_read: bool,
    codec: str = "json",
) -> Written:
    if as_read and batch.values is not None:
        values = batch.values
    else:
        found = encode_rows(row, batch.fields, len(batch), codec)
        values, faults = found.values, {**found.faults, **faults}
    keyed = replace(batch, parts=(keys,), values=values)
    keyed = keyed.without(faults, poison, label)
    assert keyed.values is not None, "these are the records' own"
    return Written(keyed.parts[0], _where(keyed, keyed.values), keyed.times, keyed.at)


def split_by_key(
    batch: Batch, types: Sequence[Type], label: str, poison: Poison
) -> tuple[Batch, pa.Array]:
    """Return the rows that have a key and are no deletions, and their keys."""
    batch = batch.take(np.flatnonzero(batch.present))
    keys = batch.keys(types)
    faults = _without_key(keys, {})
    if faults:
        batch = batch.without(faults, poison, label)
        keys = batch.keys(types)
    return batch, keys
