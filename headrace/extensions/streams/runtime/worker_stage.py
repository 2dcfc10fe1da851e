"""The stage of a channel in Spark's workers: columns in use go there, rows or groups come back.

A micro-batch is cut into as many chunks as there are slots, whatever the partitions: a stage needs
no state. A chunk may have records of several tasks. Groups of rows come in place of rows where all
that reads these is aggregates that can merge them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.extensions.streams.inline.batch import Batch, Written
from headrace.extensions.streams.inline.grouped import groupers_of
from headrace.extensions.streams.inline.run import StageRun
from headrace.extensions.streams.inline.stage import StageRows, merge_stages, stage_of
from headrace.extensions.streams.runtime.tasks import TaskCalls, TaskRecords
from headrace.extensions.streams.runtime.worker_groups import (
    GroupChoice,
    decode_groups,
    encode_groups,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from headrace.core.call_watch import CallWatch
    from headrace.extensions.keyed.tables import PartsRunner
    from headrace.extensions.streams.inline.grouped import Grouper
    from headrace.extensions.streams.inline.stage import Stage
    from headrace.extensions.streams.plan import Channel, Plan

    #: What merges the groups of a task, by its number, with what is stored, and returns the
    #: aggregates that need rows in their place.
    GroupsMerger = Callable[[int, StageRows], Sequence[int]]

#: What comes of a stage in a task: a row for each operator's rows or groups, for what it writes,
#: and for the records that are poison to it.
_RESULT = pa.schema(
    [
        ("partition", pa.int32()),
        ("kind", pa.string()),
        ("operator", pa.int32()),
        ("payload", pa.binary()),
    ]
)


class _Piece(NamedTuple):
    """Records of a chunk that are of one task, from a place in it on."""

    number: int
    start: int
    table: pa.Table


class WorkerStage:
    """Runs the stage of a channel in workers.

    ``watch`` interrupts users' functions there; it is sent to the workers with the operators.
    """

    def __init__(self, plan: Plan, channel: Channel, watch: CallWatch | None = None) -> None:
        self._plan, self._channel, self._watch = plan, channel, watch
        self._stage = stage_of(plan, channel)
        readers = (each for several in self._stage.groups.values() for each in several)
        self._groupers = groupers_of(plan, readers)
        self._choice = GroupChoice(self._stage.groups)

    def run(
        self, records: Sequence[TaskRecords], run: PartsRunner, tasks: int, merge: GroupsMerger
    ) -> dict[int, StageRows]:
        """Return what comes of the records of each task that has any, by its number.

        Groups come in place of rows where that is of use, and are merged by ``merge``; rows come
        where that refuses them. ``run`` computes up to ``tasks`` chunks.
        """
        chosen = self._choice.choose()
        found = self._run(records, run, tasks, chosen)
        refused = {number: merge(number, each) for number, each in found.items()}
        for place in chosen if found else ():
            readers = self._stage.groups[place]
            is_refused = any(each in readers for several in refused.values() for each in several)
            useful = not is_refused and self._are_most_grouped(place, found.values())
            self._choice.note(place, useful=useful)
        again = [each for each in records if refused.get(each.number)]
        return found | self._run(again, run, tasks, ()) if again else found

    def _are_most_grouped(self, place: int, found: Iterable[StageRows]) -> bool:
        """Return whether groups came in place of most of the rows of a stream."""
        reader = self._stage.groups[place][0]
        rows = grouped = 0
        for each in found:
            rows += len(each.rows.get(place, ()))
            grouped += sum(chunk.records for chunk in each.groups.get(reader, ()))
        return grouped >= rows

    def _run(
        self,
        records: Sequence[TaskRecords],
        run: PartsRunner,
        tasks: int,
        grouped: Sequence[int],
    ) -> dict[int, StageRows]:
        """Return what comes of records, with groups of some streams in place of rows."""
        wanted = [each for place in grouped for each in self._stage.groups[place]]
        function = StageFunction(self._plan, self._channel, self._stage, self._watch, wanted)
        chunks = _cut(records, tasks, self._columns())
        tables = [
            pa.concat_tables(piece.table for piece in chunk).unify_dictionaries()
            for chunk in chunks
        ]
        found: dict[int, list[StageRows]] = {}
        for chunk, table in zip(chunks, run(function, tables) if tables else (), strict=True):
            results = _decode(table, self._plan, self._stage, self._groupers)
            for piece in chunk:
                found.setdefault(piece.number, []).append(results[piece.number].moved(piece.start))
        return {number: merge_stages(parts, self._groupers) for number, parts in found.items()}

    def _columns(self) -> Mapping[str, bool]:
        """Return the columns in use; those that are false matter only as null or not."""
        columns = {"partition": True, "topic": True, "timestamp": True, "key": True}
        columns["value"] = self._stage.needs_values
        if self._stage.functions:
            # a call of a user's function is known by the record that it is for
            columns["offset"] = True
        return columns


def _cut(
    records: Sequence[TaskRecords], count: int, columns: Mapping[str, bool]
) -> list[list[_Piece]]:
    """Return the records in up to ``count`` chunks of about the same size."""
    total = sum(map(len, records))
    size = max(-(-total // count), 1)
    chunks: list[list[_Piece]] = []
    room = 0
    for each in records:
        start = 0
        while start < len(each):
            if room == 0:
                chunks.append([])
                room = size
            taken = min(room, len(each) - start)
            table = _in_use(each.slice(start, taken), columns)
            chunks[-1].append(_Piece(each.number, start, table))
            start += taken
            room -= taken
    return chunks


def _in_use(table: pa.Table, columns: Mapping[str, bool]) -> pa.Table:
    """Return the columns in use, each topic's name once."""
    made = {name: table.column(name) for name in columns}
    made["topic"] = made["topic"].dictionary_encode()
    for name, is_whole in columns.items():
        if not is_whole:
            made[name] = pc.if_else(made[name].is_valid(), pa.scalar(b""), None)
    return pa.table(made)


class StageFunction:
    """The stage of a channel as a function of records in columns. Sent to workers whole.

    ``grouped`` are the aggregates for which groups come back, as far as these are few.
    """

    def __init__(
        self,
        plan: Plan,
        channel: Channel,
        stage: Stage,
        watch: CallWatch | None,
        grouped: Sequence[int] = (),
    ) -> None:
        self._plan, self._channel, self._stage, self._watch = plan, channel, stage, watch
        self._grouped = grouped

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return what comes of a chunk.

        Raises:
            JobTimeoutError: a user's function does not return.
            RetryableError: a user's function says that it cannot work now.
        """
        groupers = groupers_of(self._plan, self._grouped)
        rows: list[dict[str, Any]] = []
        numbers = table.column("partition").to_numpy()
        bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
        for start, end in pairwise(bounds):
            records = TaskRecords(int(numbers[start]), table.slice(start, end - start))
            calls = None if self._watch is None else TaskCalls(records, self._watch)
            topics = records.by_topic()
            run = StageRun(self._plan, self._channel, self._stage, topics, calls, groupers)
            rows += _encode(records.number, run.run(), groupers)
        return pa.Table.from_pylist(rows, schema=_RESULT)


def _encode(
    number: int, found: StageRows, groupers: Mapping[int, Grouper]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of what came of a stage in a task."""
    for place, chunks in found.groups.items():
        for chunk in chunks:
            yield _row(number, "groups", place, encode_groups(chunk, groupers[place].layout))
    for place, batch in found.rows.items():
        yield _row(number, "rows", place, _batch_columns(batch))
    for place, written in found.written.items():
        columns = {"key": written.keys, "value": written.values}
        yield _row(number, "written", place, {**columns, **_places(written)})
    for place, notes in found.notes.items():
        at, reasons = zip(*notes, strict=True)
        yield _row(number, "notes", place, {"at": pa.array(at), "reason": pa.array(reasons)})


def _row(number: int, kind: str, place: int, columns: Mapping[str, pa.Array]) -> dict[str, Any]:
    batch = pa.RecordBatch.from_arrays([*columns.values()], names=[*columns])
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, batch.schema) as writer:
        writer.write_batch(batch)
    payload = stream.getvalue().to_pybytes()
    return {"partition": number, "kind": kind, "operator": place, "payload": payload}


def _batch_columns(batch: Batch) -> dict[str, pa.Array]:
    """Return a batch as columns; fields and parts of the key by their places: names may be any."""
    columns = dict(_places(batch), present=pa.array(batch.present))
    columns |= {f"f{at}": each for at, each in enumerate(batch.fields.values())}
    return columns | {f"k{at}": each for at, each in enumerate(batch.parts)}


def _places(rows: Batch | Written) -> dict[str, pa.Array]:
    return {"time": pa.array(rows.times, pa.int64()), "at": pa.array(rows.at, pa.int32())}


def _decode(
    table: pa.Table, plan: Plan, stage: Stage, groupers: Mapping[int, Grouper]
) -> dict[int, StageRows]:
    """Return what came of a stage in the tasks of a chunk."""
    found: dict[int, StageRows] = {}
    for row in table.to_pylist():
        own = found.setdefault(row["partition"], StageRows(stage))
        columns = pa.ipc.open_stream(row["payload"]).read_next_batch()
        place, kind = row["operator"], row["kind"]
        if kind == "rows":
            own.rows[place] = _batch_of(columns, plan, place)
        elif kind == "groups":
            own.groups[place] = [decode_groups(columns, groupers[place].layout)]
        elif kind == "written":
            keys, values = columns.column("key"), columns.column("value")
            own.written[place] = Written(keys, values, *_read_places(columns))
        else:
            lists = (columns.column(name).to_pylist() for name in ("at", "reason"))
            own.notes[place] = list(zip(*lists, strict=True))
    return found


def _batch_of(columns: pa.RecordBatch, plan: Plan, place: int) -> Batch:
    output = plan.operators[place].output
    assert output is not None, "rows come out"
    names = [name for name in output.row.__fields__ if name in plan.fields[place]]
    parts = [name for name in columns.schema.names if name.startswith("k")]
    return Batch(
        output.row,
        {name: columns.column(f"f{at}") for at, name in enumerate(names)},
        tuple(columns.column(f"k{at}") for at in range(len(parts))),
        *_read_places(columns),
        columns.column("present").to_numpy(zero_copy_only=False),
    )


def _read_places(columns: pa.RecordBatch) -> tuple[Any, Any]:
    """Return times and places of rows."""
    times = columns.column("time").to_numpy()
    return times, columns.column("at").to_numpy().astype(np.int64)
