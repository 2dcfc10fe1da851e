"""Operators without state, on a micro-batch in columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import RetryableError
from headrace.core.user_text import describe_error, describe_value, kind_of
from headrace.extensions.streams.columns import evaluate
from headrace.extensions.streams.decode import decode_values
from headrace.extensions.streams.encode import encode_rows
from headrace.extensions.streams.expressions import FieldNode
from headrace.extensions.streams.fitted import fit_row, python_value
from headrace.extensions.streams.inline.batch import Batch, Written, mask_of
from headrace.extensions.streams.keys import decode_keys, encode_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.core.decoders import CustomDecoder
    from headrace.extensions.streams.inline.batch import Poison, TopicRecords, UserCalls
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

#: The last millisecond of the year 9999. What is later is a time in another unit, most likely: it
#: would end all windows, and brokers would refuse what is written with it.
LAST_TIME = 253_402_300_799_999


def read_records(  # noqa: PLR0917 - what rows are made of
    records: TopicRecords,
    output: Output,
    names: Sequence[str],
    codec: str,
    poison: Poison,
    decoder: CustomDecoder | None = None,
) -> Batch:
    """Return records of a topic as rows. A value that is null is a deletion.

    ``decoder`` reads values that name their schemas.

    Raises:
        RetryableError: the decoder cannot work now.
    """
    decoded = decode_values(records.values, output.row, names, codec, decoder)
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
    return with_valid_times(batch, source.topic, poison)


def with_valid_times(batch: Batch, topic: str, poison: Poison) -> Batch:
    """Return the rows whose times are some; others are poison."""
    faults = dict.fromkeys(np.flatnonzero(batch.times < 0).tolist(), "the time is before 1970")
    for place in np.flatnonzero(batch.times > LAST_TIME).tolist():
        faults[place] = (
            f"the time {batch.times[place]} is after the year 9999; a number is in milliseconds"
        )
    return batch.without(faults, poison, topic)


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


def apply(operator: Apply, batch: Batch, poison: Poison, calls: UserCalls) -> Batch:
    """Return what a Python function makes of the rows; deletions are left out.

    Raises:
        RetryableError: the function says that it cannot work now.
    """
    assert operator.output is not None, "rows come out"
    batch = batch.take(np.flatnonzero(batch.present))
    if operator.batches:
        with calls.job():
            return _apply_batches(operator, batch, poison, calls)
    output, places, rows = operator.output, [], []
    with calls.job():
        for place, row in enumerate(row_objects(batch)):
            try:
                calls.call(operator.label, int(batch.at[place]))
                made = _rows_of(operator.function(row), output.row)
            except RetryableError:
                raise
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's function
                poison.note(int(batch.at[place]), f"{operator.label}: {describe_error(error)}")
                continue
            places += [place] * len(made)
            rows += made
    taken = batch.take(np.array(places, np.int64))
    fields = {
        name: pa.array([row[name] for row in rows], each.type.arrow())
        for name, each in output.row.__fields__.items()
    }
    return replace(taken, row=output.row, fields=fields, values=None)


def _rows_of(found: Any, row: type[Row]) -> list[dict[str, Any]]:
    """Return the rows that a function returned, as columns take them.

    Raises:
        TypeError: something else was returned.
    """
    rows = [] if found is None else [found] if isinstance(found, (row, str, Mapping)) else found
    try:
        several = iter(rows)
    except TypeError:
        several = iter([rows])
    made = []
    for each in several:
        if type(each) is not row:
            raise TypeError(f"{describe_value(each)} was returned, and {row.__name__} is expected")
        made.append(fit_row(each))
    return made


def _apply_batches(operator: Apply, batch: Batch, poison: Poison, calls: UserCalls) -> Batch:
    """Return what the function makes of the rows; where it fails, of each half of them."""
    assert operator.output is not None, "rows come out"
    row = operator.output.row
    try:
        calls.call(operator.label, None)
        fields = _fields_of(
            operator.function(pa.RecordBatch.from_pydict(dict(batch.fields))), batch, row
        )
    except RetryableError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's function
        if len(batch) <= 1:
            for at in batch.at.tolist():
                poison.note(at, f"{operator.label}: {describe_error(error)}")
            return _no_rows(batch, row)
        middle = len(batch) // 2
        halves = (np.arange(middle), np.arange(middle, len(batch)))
        return _joined(
            [_apply_batches(operator, batch.take(half), poison, calls) for half in halves]
        )
    there = np.zeros(len(batch), np.bool_)
    for each in fields.values():
        there |= mask_of(pc.is_valid(each))
    made = replace(batch, row=row, fields=fields, values=None).take(np.flatnonzero(there))
    return made.without(_without_value(made), poison, operator.label)


def _fields_of(made: Any, batch: Batch, row: type[Row]) -> dict[str, pa.Array]:
    """Return the columns of what a function returned.

    Raises:
        TypeError, ArrowInvalid: something else was returned, or a column of another type.
    """
    if not isinstance(made, pa.RecordBatch) or made.num_rows != len(batch):
        shown = f"one of {made.num_rows}" if isinstance(made, pa.RecordBatch) else kind_of(made)
        raise TypeError(f"{shown} was returned, and a RecordBatch of {len(batch)} rows is expected")
    missing = [name for name in row.__fields__ if name not in made.schema.names]
    if missing:
        raise TypeError(f"the RecordBatch has no column {missing[0]}")
    return {
        name: made.column(name).cast(each.type.arrow()) for name, each in row.__fields__.items()
    }


def _without_value(batch: Batch) -> dict[int, str]:
    """Return the rows that lack a field that they need, with the reason."""
    faults: dict[int, str] = {}
    for name, each in batch.row.__fields__.items():
        if not each.type.nullable:
            reason = f"{batch.row.__name__}.{name} is null, and {each.type} is expected"
            places = np.flatnonzero(mask_of(pc.is_null(batch.fields[name]))).tolist()
            faults = {**dict.fromkeys(places, reason), **faults}
    return faults


def _no_rows(batch: Batch, row: type[Row]) -> Batch:
    fields = {name: pa.nulls(0, each.type.arrow()) for name, each in row.__fields__.items()}
    return replace(batch.take(np.empty(0, np.int64)), row=row, fields=fields, values=None)


def _joined(batches: Sequence[Batch]) -> Batch:
    """Return the rows of several batches, one after the other."""
    first = batches[0]
    return replace(
        first,
        fields={
            name: pa.concat_arrays([each.fields[name] for each in batches]) for name in first.fields
        },
        parts=tuple(
            pa.concat_arrays(list(parts))
            for parts in zip(*(each.parts for each in batches), strict=True)
        ),
        times=np.concatenate([each.times for each in batches]),
        at=np.concatenate([each.at for each in batches]),
        present=np.concatenate([each.present for each in batches]),
    )


def show(operator: Peek, batch: Batch, poison: Poison, calls: UserCalls) -> Batch:
    """Show each row to a function, and return those that it did not fail for.

    Raises:
        RetryableError: the function says that it cannot work now.
    """
    places = np.flatnonzero(batch.present)
    faults: dict[int, str] = {}
    with calls.job():
        for place, row in zip(places.tolist(), row_objects(batch), strict=True):
            try:
                calls.call(operator.label, int(batch.at[place]))
                operator.function(row)
            except RetryableError:
                raise
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's function
                faults[place] = describe_error(error)
    return batch.without(faults, poison, operator.label)


def row_objects(batch: Batch) -> list[Row]:
    """Return rows as instances of their class."""
    types = {name: each.type for name, each in batch.row.__fields__.items()}
    return [
        batch.row(**{name: python_value(row[name], types[name]) for name in types})
        for row in batch.to_rows()
        if row is not None
    ]


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
