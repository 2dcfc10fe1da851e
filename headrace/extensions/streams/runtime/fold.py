"""The function of a topology's channel: from records to the table that the state's sink takes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.core.letter_headers import shortened
from headrace.extensions.keyed.changed_rows import FORMER
from headrace.extensions.keyed.rows import without_finishing
from headrace.extensions.keyed.sink import with_counts, with_times
from headrace.extensions.keyed.tables import OUTPUT, RESULT
from headrace.extensions.streams.runtime.tasks import Task, TaskRecords
from headrace.extensions.streams.runtime.window_room import WindowRoom
from headrace.extensions.streams.runtime.worker_stage import WorkerStage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.core.call_watch import CallWatch
    from headrace.extensions.keyed.state import LayeredState
    from headrace.extensions.keyed.tables import OutputRow, PartsRunner
    from headrace.extensions.streams.inline.batch import Written
    from headrace.extensions.streams.inline.stage import StageRows
    from headrace.extensions.streams.inline.tables import SourceTable
    from headrace.extensions.streams.plan import Channel, Plan
    from headrace.extensions.streams.runtime.stores import Changes
    from headrace.extensions.streams.runtime.tasks import RejectRules, TaskResult
    from headrace.sinks.micro_batch import MicroBatch


#: A result, with the rows before those that changed.
_RESULT = pa.schema([*RESULT, *((name, pa.binary()) for name in FORMER)])


class TopologyFold:
    """Runs the micro-batches of a channel through its operators, task by task.

    One call at a time for a task; calls of different tasks may be on different threads. ``watch``
    interrupts users' functions that do not return. ``shared`` are tables of all tasks, by their
    operators' places. ``cache_bytes`` is what rows of windows take in memory, about.
    """

    def __init__(  # noqa: PLR0917 - what operators run on
        self,
        plan: Plan,
        channel: Channel,
        state: LayeredState,
        rules: RejectRules,
        max_row: int,
        watch: CallWatch | None = None,
        watch_in_workers: CallWatch | None = None,
        shared: Mapping[int, SourceTable] | None = None,
        cache_bytes: int = 64 << 20,
    ) -> None:
        self._shared, self._room = shared, WindowRoom(cache_bytes)
        self._plan, self._channel, self._state, self._watch = plan, channel, state, watch
        self._stage = WorkerStage(plan, channel, watch_in_workers)
        self._rules = (rules, max_row)
        self._tasks: dict[int, Task] = {}

    def follow(self, rules: RejectRules, max_row: int) -> None:
        """Set the rules of the next micro-batch. Any thread."""
        self._rules = (rules, max_row)

    def forget(self, number: int) -> None:
        """Remove the states of a task that goes to another member. Any thread."""
        self._tasks.pop(number, None)

    def __call__(self, table: pa.Table, batch: MicroBatch) -> pa.Table:
        """Return what became of the records, in this thread; see :meth:`reduce`."""
        return self._process(_by_task(table, batch), {}, {}, batch)

    def reduce(self, table: pa.Table, batch: MicroBatch, run: PartsRunner, tasks: int) -> pa.Table:
        """Return what became of the records. Blocks for the state.

        ``run`` computes chunks of them, up to ``tasks``, as far as no state is needed.

        Raises:
            PoisonRecordError: a record cannot be processed, and the rules say ``fail``.
            JobTimeoutError: a user's function does not return.
            StateStoreError: the state cannot be read.
        """
        records = _by_task(table, batch)
        opened: dict[int, Task] = {}

        def merge(number: int, staged: StageRows) -> Sequence[int]:
            opened[number] = self._open(number)
            return opened[number].merge_groups(staged)

        staged = self._stage.run(records, run, tasks, merge)
        return self._process(records, opened, staged, batch)

    def _open(self, number: int) -> Task:
        """Return a task; what fails from now on leaves its states as they are of no layer."""
        task = self._task(number)
        task.last_layer = None
        return task

    def _process(
        self,
        several: Sequence[TaskRecords],
        opened: Mapping[int, Task],
        staged: Mapping[int, StageRows],
        batch: MicroBatch,
    ) -> pa.Table:
        rules, max_row = self._rules
        results = [_RESULT.empty_table()]
        outputs: list[pa.Array] = []
        times: dict[int, int] = {}
        counts: dict[str, Counter[str]] = {}
        for records in several:
            number = records.number
            known = self._state.time(number)
            time = int(records.times.max(initial=-1 if known is None else known))
            task = opened.get(number) or self._open(number)
            if len(records):
                found = task.process(records, rules, max_row, staged.get(number))
                results += _result_tables(number, found)
                outputs += (_outputs(topic, each) for topic, each in found.written)
                outputs.append(_letters(found.letters))
                for name, counted in found.counts.items():
                    counts.setdefault(name, Counter()).update(counted)
            if time >= 0:
                times[number] = time
                task.last_layer = batch.id
        if any(map(len, outputs)):
            results.append(_output_table(times, merged_by_time(outputs)))
        return with_counts(with_times(pa.concat_tables(results), times), counts)

    def _task(self, number: int) -> Task:
        """Return a task whose states are those of the rows as they are now."""
        task, last = self._tasks.get(number), self._state.last_layer(number)
        if task is None or last is None or task.last_layer != last:
            task = self._tasks[number] = Task(
                self._plan,
                self._channel,
                self._state,
                number,
                self._room,
                self._watch,
                self._shared,
            )
        return task


def _by_task(table: pa.Table, batch: MicroBatch) -> list[TaskRecords]:
    """Return the records of each task of a micro-batch."""
    table = without_finishing(table)
    partitions = table.column("partition").to_numpy()
    found = []
    for number in dict.fromkeys(part.partition for part in batch.ranges):
        own = np.flatnonzero(partitions == number)
        first, size = int(own[0]) if len(own) else 0, len(own)
        # the records of a range lie together, and are not copied
        is_one = not size or int(own[-1]) - first == size - 1
        rows = table.slice(first, size) if is_one else table.take(pa.array(own))
        found.append(TaskRecords(number, rows))
    return found


def _result_tables(number: int, found: TaskResult) -> Iterator[pa.Table]:
    """Yield what became of a task: a row with what was left out, and one for each changed row."""
    counts = {
        "late": found.late,
        "dropped": found.late,
        "rejected": found.rejected,
    }
    if any(counts.values()):
        reason = None if found.reason is None else shortened(found.reason)
        given = {"outputs": _no_outputs(1), "partition": [number], "reason": [reason]}
        yield _table(1, {**given, **_each(counts)})
    if len(found.rows.keys):
        yield _changed(number, found.rows)


def _output_table(times: Mapping[int, int], outputs: pa.Array) -> pa.Table:
    """Return a row with all that is written, which is of no key."""
    lists = pa.ListArray.from_arrays(pa.array([0, len(outputs)], pa.int32()), outputs)
    return _table(1, {"outputs": lists, "partition": [next(iter(times), 0)]})


def _no_outputs(size: int) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(np.zeros(size + 1, np.int32)), pa.array([], OUTPUT))


def merged_by_time(written: Sequence[pa.Array]) -> pa.Array:
    """Return outputs in one order by time; those that were written together keep theirs.

    Tasks that write to one partition of a topic by key would else have its times go back and forth
    by whole micro-batches, and records be late there that were in time here.
    """
    several = [each for each in written if len(each)]
    outputs = pa.concat_arrays(several)
    if len(several) == 1:
        return outputs
    reached = [np.maximum.accumulate(each.field("ts").to_numpy()) for each in several]
    order = np.argsort(np.concatenate(reached), kind="stable")
    return outputs.take(pa.array(order))


def _each(counts: dict[str, int]) -> dict[str, list[int]]:
    return {name: [count] for name, count in counts.items()}


def _changed(number: int, rows: Changes) -> pa.Table:
    size = len(rows.keys)
    return _table(
        size,
        {
            "key": rows.keys,
            "state": rows.values,
            "former_state": rows.formers,
            "partition": np.full(size, number, np.int32),
            "changed": np.ones(size, np.bool_),
            "outputs": _no_outputs(size),
        },
    )


def _table(size: int, given: dict[str, object]) -> pa.Table:
    """Return rows of a result; what is not given is null, false or 0."""
    columns = []
    for each in _RESULT:
        values = given.get(each.name)
        if isinstance(values, pa.Array):
            columns.append(values)
        elif values is not None:
            columns.append(pa.array(values, each.type))
        elif pa.types.is_boolean(each.type) or pa.types.is_integer(each.type):
            columns.append(pa.array(np.zeros(size, np.int32)).cast(each.type))
        else:
            columns.append(pa.nulls(size, each.type))
    return pa.Table.from_arrays(columns, schema=_RESULT)


def _outputs(topic: str, written: Written) -> pa.Array:
    size = len(written.times)
    columns = {
        "to": pa.repeat(pa.scalar(topic, pa.string()), size),
        "key": written.keys,
        "value": written.values,
        "ts": pa.array(written.times, pa.int64()),
    }
    arrays = [
        columns[each.name].cast(each.type) if each.name in columns else pa.nulls(size, each.type)
        for each in OUTPUT
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(OUTPUT))


def _letters(letters: Sequence[OutputRow]) -> pa.Array:
    rows = [dict(zip(OUTPUT.names, each, strict=True)) for each in letters]
    return pa.array(rows, OUTPUT)
