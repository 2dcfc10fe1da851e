"""Aggregates by key: without windows, in windows of fixed bounds, and in sessions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.extensions.streams import aggregates as declared
from headrace.extensions.streams.columns import evaluate
from headrace.extensions.streams.expressions import Part, PartNode
from headrace.extensions.streams.inprocess.batch import Batch, Change, key_columns
from headrace.extensions.streams.inprocess.stateless import row_objects, split_by_key
from headrace.extensions.streams.inprocess.tables import TableState
from headrace.extensions.streams.kernels.errors import RowError
from headrace.extensions.streams.kernels.groups import Groups
from headrace.extensions.streams.kernels.layout import Inputs, Layout, take_rows
from headrace.extensions.streams.kernels.partials import make_partial
from headrace.extensions.streams.kernels.records import Records
from headrace.extensions.streams.kernels.rows import Emit
from headrace.extensions.streams.kernels.stores import MemoryStore
from headrace.extensions.streams.kernels.time_windows import TimeWindowKernel
from headrace.extensions.streams.keys import decode_keys
from headrace.extensions.streams.windows import TimeWindows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from headrace.extensions.streams.expressions import Node
    from headrace.extensions.streams.inprocess.batch import Poison
    from headrace.extensions.streams.kernels.partials import Parts
    from headrace.extensions.streams.kernels.records import Array
    from headrace.extensions.streams.operators import Aggregate, Output
    from headrace.extensions.streams.windows import SessionWindows


def layout_of(operator: Aggregate) -> Layout:
    """Return the layout of the stored rows of an operator."""
    return Layout(
        [
            make_partial(each.aggregate, [kind.arrow() for kind in each.types], each.result.arrow())
            for each in operator.aggregates.values()
        ]
    )


class Inflow:
    """The rows of a stream as records of a kernel: keys, times, arguments of the aggregates."""

    def __init__(self, operator: Aggregate, source: Output) -> None:
        self._operator, self._source = operator, source

    def read(self, batch: Batch, poison: Poison) -> tuple[Batch, Records]:
        """Return the rows that have a key and no fault, and what is aggregated of them."""
        label = self._operator.label
        batch, _ = split_by_key(batch, self._source.key, label, poison)
        faults: dict[int, str] = {}
        for node in self._operator.expressions:
            faults |= evaluate(node, batch.columns(), len(batch)).faults
        batch = batch.without(faults, poison, label)
        found, columns = batch.columns(), []
        for each in self._operator.aggregates.values():
            if isinstance(each.aggregate, declared.Fold):
                rows = np.empty(len(batch), object)
                rows[:] = row_objects(batch)
                columns.append(rows)
            columns += [evaluate(node, found, len(batch)).values for node in each.arguments]
        return batch, Records.of(batch.keys(self._source.key), batch.times, *columns)


@dataclass(frozen=True, slots=True)
class Result:
    """Rows of a kernel: where they come from, their keys, windows and values."""

    at: Array
    keys: pa.Array
    times: Array
    values: Sequence[pa.Array]
    present: Array
    starts: Array | None = None
    ends: Array | None = None


def result_batch(operator: Aggregate, result: Result) -> Batch:
    """Return the rows of an aggregate, with the fields that are of the group."""
    output = operator.output
    assert output is not None, "rows come out"
    parts = decode_keys(result.keys, output.key).parts
    columns: dict[Node, pa.Array] = dict(key_columns(parts))
    if result.starts is not None:
        columns[PartNode(Part.WINDOW_START)] = pa.array(result.starts, pa.int64())
        columns[PartNode(Part.WINDOW_END)] = pa.array(result.ends, pa.int64())
    size = len(result.at)
    fields = {name: evaluate(node, columns, size).values for name, node in operator.fields.items()}
    made = dict(zip(operator.aggregates, result.values, strict=True))
    ordered = {name: fields.get(name, made.get(name)) for name in output.row.__fields__}
    return Batch(output.row, ordered, parts, result.times, result.at, result.present)


def retried(
    records: Records, batch: Batch, process: Callable[[Records], Any], poison: Poison, label: str
) -> tuple[Batch, Any]:
    """Return what a kernel makes of records, without those that it cannot take."""
    while True:
        try:
            return batch, process(records)
        except RowError as error:
            poison.note(int(batch.at[error.at]), f"{label}: {error}")
            kept = np.delete(np.arange(len(batch)), error.at)
            batch = batch.take(kept)
            columns = tuple(
                each.take(pa.array(kept)) if isinstance(each, pa.Array) else each[kept]
                for each in records.columns
            )
            records = Records(records.codes[kept], records.names, records.times[kept], columns)


class GroupState:
    """Aggregates by key, without windows."""

    def __init__(self, operator: Aggregate, source: Output) -> None:
        self._operator = operator
        self._inflow = Inflow(operator, source)
        self._layout = layout_of(operator)
        self._store = MemoryStore(self._layout)
        self.state = TableState()

    def process(self, batch: Batch, poison: Poison) -> list[Change]:
        """Return the change of each record."""
        batch, records = self._inflow.read(batch, poison)
        batch, ordered = retried(records, batch, self._extend, poison, self._operator.label)
        if ordered is None:
            return []
        names, rows = ordered
        result = Result(
            batch.at, names, rows[0], self._layout.results(rows), np.ones(len(batch), np.bool_)
        )
        made = result_batch(self._operator, result)
        keys = names.to_pylist()
        return [
            self.state.put(at, key, row, time)
            for at, key, row, time in zip(
                made.at.tolist(), keys, made.to_rows(), made.times.tolist(), strict=True
            )
        ]

    def _extend(self, records: Records) -> tuple[pa.Array, Parts] | None:
        """Return the key of each record, and the row of its group with it."""
        if not len(records):
            return None
        numbers = self._store.number_keys(records.names)[records.codes]
        groups = Groups(numbers, int(numbers.max()) + 1)
        before = self._store.read(0, groups.numbers)
        ordered = self._layout.extend_scan(before, groups, Inputs(self._layout, records))
        rows = tuple(np.empty_like(part) for part in ordered)
        for part, values in zip(rows, ordered, strict=True):
            part[groups.order] = values
        over = np.flatnonzero(self._layout.overflows(rows))
        if len(over):
            raise RowError(int(over[0]), "an aggregate leaves the range of its type")
        self._store.write(0, groups.numbers, take_rows(ordered, groups.starts + groups.sizes - 1))
        return records.names.take(pa.array(records.codes)), rows


class WindowState:
    """Aggregates in tumbling or hopping windows, by the kernel that the daemon has."""

    def __init__(self, operator: Aggregate, source: Output, emits: frozenset[Emit]) -> None:
        assert isinstance(operator.windows, TimeWindows), "the windows have fixed bounds"
        self._operator = operator
        self._inflow = Inflow(operator, source)
        self._layout = layout_of(operator)
        self._windows = operator.windows
        self._store = MemoryStore(self._layout)
        self._kernel = TimeWindowKernel(operator.windows, self._layout, self._store, emits)
        self.late = 0

    @property
    def time(self) -> int:
        """Return the operator time."""
        return self._kernel.time

    def process(self, batch: Batch, poison: Poison) -> dict[Emit, Batch]:
        """Return the rows to emit."""
        batch, records = self._inflow.read(batch, poison)
        label = self._operator.label
        batch, result = retried(records, batch, self._kernel.process, poison, label)
        self.late += len(result.late)
        found = {}
        for emit, rows in result.rows.items():
            keys = rows.names.take(pa.array(rows.codes, pa.int64()))
            at = batch.at[rows.at] if len(rows.at) else rows.at
            made = Result(at, keys, rows.times, rows.values, rows.present, rows.starts, rows.ends)
            found[emit] = result_batch(self._operator, made)
        return found

    def stored(self) -> Iterator[tuple[bytes, int, Mapping[str, Any]]]:
        """Yield the open windows: key, begin, row."""
        panes = self._store.list_panes()
        if not panes:
            return
        windows = self._windows
        step = windows.every // windows.pane
        first = max((self.time - windows.size - windows.grace) // windows.every + 1, 0)
        for window in range(first, panes[-1] // step + 1):
            keys: Array = np.unique(
                np.concatenate(
                    [
                        self._store.list_keys(pane)
                        for pane in range(window * step, window * step + windows.panes)
                    ]
                )
            )
            rows = self._layout.empty(len(keys))
            for pane in range(window * step, window * step + windows.panes):
                rows = self._layout.merge(rows, self._store.read(pane, keys))
            begin = window * windows.every
            found = Result(
                np.zeros(len(keys), np.int64),
                self._store.name_keys(keys),
                rows[0],
                self._layout.results(rows),
                np.ones(len(keys), np.bool_),
                np.full(len(keys), begin),
                np.full(len(keys), begin + windows.size),
            )
            for key, row in zip(
                found.keys.to_pylist(), result_batch(self._operator, found).to_rows(), strict=True
            ):
                assert row is not None, "rows of windows are there"
                yield key, begin, row


@dataclass(frozen=True, slots=True, eq=False)
class _Session:
    """Bounds and content of a session."""

    begin: int
    end: int
    rows: Parts


@dataclass(frozen=True, slots=True, eq=False)
class _Emitted:
    """A session that is emitted, or withdrawn where it has no rows."""

    at: int
    key: bytes
    begin: int
    end: int
    rows: Parts | None


class SessionState:
    """Aggregates in sessions, one record after the other."""

    def __init__(self, operator: Aggregate, windows: SessionWindows, source: Output) -> None:
        self._operator, self._windows = operator, windows
        self._inflow = Inflow(operator, source)
        self._layout = layout_of(operator)
        self._sessions: dict[bytes, list[_Session]] = {}
        self.time = -1
        self.late = 0

    def process(self, batch: Batch, poison: Poison) -> dict[Emit, Batch]:
        """Return the rows to emit, in each of the ways."""
        batch, records = self._inflow.read(batch, poison)
        each: list[_Emitted] = []
        final: list[_Emitted] = []
        names = records.names.to_pylist()
        for place, (at, time) in enumerate(
            zip(batch.at.tolist(), batch.times.tolist(), strict=True)
        ):
            self.time = max(self.time, time)
            final += self._close(at)
            try:
                each += self._add(at, names[records.codes[place]], time, records, place)
            except RowError as error:
                poison.note(at, f"{self._operator.label}: {error}")
        last = {(session.key, session.begin, session.end): session for session in each}
        updates = sorted(last.values(), key=each.index)
        return {
            Emit.EACH: self._batch(each),
            Emit.UPDATES: self._batch(updates),
            Emit.FINAL: self._batch(final),
        }

    def _is_over(self, end: int) -> bool:
        return end + self._windows.gap + self._windows.grace < self.time

    def _close(self, at: int) -> list[_Emitted]:
        """Return the sessions that are over, and forget them."""
        over = [
            _Emitted(at, key, each.begin, each.end, each.rows)
            for key, sessions in self._sessions.items()
            for each in sessions
            if self._is_over(each.end)
        ]
        for key in {session.key for session in over}:
            kept = [each for each in self._sessions[key] if not self._is_over(each.end)]
            self._sessions[key] = kept
            if not kept:
                del self._sessions[key]
        return sorted(over, key=lambda session: (session.end, session.key, session.begin))

    def _add(
        self, at: int, key: bytes, time: int, records: Records, place: int
    ) -> Iterator[_Emitted]:
        gap = self._windows.gap
        sessions = self._sessions.get(key, [])
        near = sorted(
            (each for each in sessions if each.end >= time - gap and each.begin <= time + gap),
            key=lambda each: (each.end, each.begin),
        )
        begin = min([time, *(each.begin for each in near)])
        end = max([time, *(each.end for each in near)])
        if self._is_over(end):
            self.late += 1
            return
        rows = self._layout.empty(1)
        for each in near:
            rows = self._layout.merge(rows, each.rows)
        one = records.slice(place, place + 1)
        groups = Groups(np.zeros(1, np.int64), 1)
        try:
            rows = self._layout.extend(rows, groups, Inputs(self._layout, one))
        except RowError as error:
            raise RowError(place, str(error)) from error
        if self._layout.overflows(rows).any():
            raise RowError(place, "an aggregate leaves the range of its type")
        self._sessions[key] = [each for each in sessions if each not in near]
        self._sessions[key].append(_Session(begin, end, rows))
        for each in near:
            if (each.begin, each.end) != (begin, end):
                yield _Emitted(at, key, each.begin, each.end, None)
        yield _Emitted(at, key, begin, end, rows)

    def _batch(self, session: Sequence[_Emitted]) -> Batch:
        """Return sessions as rows, at the times of their ends."""
        empty = self._layout.empty(1)
        listed = [empty if each.rows is None else each.rows for each in session]
        rows = tuple(
            np.concatenate(parts) for parts in zip(self._layout.empty(0), *listed, strict=True)
        )
        ends = np.array([each.end for each in session], np.int64)
        return result_batch(
            self._operator,
            Result(
                np.array([each.at for each in session], np.int64),
                pa.array([each.key for each in session], pa.binary()),
                ends,
                self._layout.results(rows),
                np.array([each.rows is not None for each in session], np.bool_),
                np.array([each.begin for each in session], np.int64),
                ends,
            ),
        )

    def stored(self) -> Iterator[tuple[bytes, int, Mapping[str, Any]]]:
        """Yield the open sessions: key, begin, row."""
        session = [
            _Emitted(0, key, each.begin, each.end, each.rows)
            for key, sessions in sorted(self._sessions.items())
            for each in sorted(sessions, key=lambda each: each.begin)
        ]
        for each, row in zip(session, self._batch(session).to_rows(), strict=True):
            assert row is not None, "open sessions are there"
            yield each.key, each.begin, row


def filter_windows(batch: Batch, where: Node, label: str, poison: Poison, emit: Emit) -> Batch:
    """Return rows of windows of which a condition is true; others are deletions, or left out."""
    found = evaluate(where, batch.columns(), len(batch))
    for place, reason in sorted(found.faults.items()):
        if batch.present[place]:
            poison.note(int(batch.at[place]), f"{label}: {reason}")
    kept = pc.fill_null(found.values, False).to_numpy(zero_copy_only=False)
    if emit is Emit.FINAL:
        return batch.take(np.flatnonzero(kept & batch.present))
    fields = {
        name: pc.if_else(pa.array(kept), values, None) for name, values in batch.fields.items()
    }
    return replace(batch, fields=fields, present=kept & batch.present)
