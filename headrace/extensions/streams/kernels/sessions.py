"""Session windows in columns.

Which records make which session is found out record by record, on numbers alone; values are then
computed for all sessions together. A session is over, and takes no record, once
``end + gap + grace`` is below the operator time.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from headrace.extensions.streams.kernels.errors import RowError
from headrace.extensions.streams.kernels.groups import Groups
from headrace.extensions.streams.kernels.layout import Inputs, put_rows, take_rows
from headrace.extensions.streams.kernels.records import (
    NO_TIME,
    Array,
    Records,
    operator_times,
    take_records,
)
from headrace.extensions.streams.kernels.rows import (
    Emit,
    WindowResult,
    WindowRows,
    list_window_rows,
    no_rows,
)
from headrace.extensions.streams.kernels.stores import StoredWindows

if TYPE_CHECKING:
    from headrace.extensions.streams.kernels.layout import Layout
    from headrace.extensions.streams.kernels.partials import Parts
    from headrace.extensions.streams.kernels.stores import KeyedWindowStore
    from headrace.extensions.streams.windows import SessionWindows


@dataclass(slots=True, eq=False)
class _Session:
    """A session on the way through a micro-batch.

    ``node`` is the last record in it, or below 0 a stored session that no record was added to.
    """

    begin: int
    end: int
    node: int


@dataclass(slots=True)
class _Structure:
    """Which records make which session.

    ``parents`` are the sessions that each record was merged with, by their node, the earliest one
    first; ``bounds`` are those of the session that it made. ``roots`` has the node of the session
    that each node is in at the end.
    """

    sessions: dict[int, list[_Session]] = field(default_factory=lambda: defaultdict(list))
    parents: dict[int, list[int]] = field(default_factory=dict)
    bounds: dict[int, tuple[int, int]] = field(default_factory=dict)
    merged: dict[int, list[_Session]] = field(default_factory=dict)
    late: list[int] = field(default_factory=list)

    def add(self, at: int, key: int, time: int, gap: int, open_from: int) -> None:
        """Add a record; sessions that end before ``open_from`` are over."""
        sessions = self.sessions[key]
        begin = end = time
        near = [
            each
            for each in sessions
            if each.end >= open_from and each.end >= time - gap and each.begin <= time + gap
        ]
        for each in near:
            begin, end = min(begin, each.begin), max(end, each.end)
        if end < open_from:
            self.late.append(at)
            return
        if len(near) > 1:
            near.sort(key=lambda each: (each.end, each.begin))
        self.parents[at] = [each.node for each in near]
        self.bounds[at] = (begin, end)
        self.merged[at] = [each for each in near if (each.begin, each.end) != (begin, end)]
        if near:
            self.sessions[key] = [each for each in sessions if each not in near]
        self.sessions[key].append(_Session(begin, end, at))

    def find_roots(self) -> dict[int, int]:
        """Return for each node the last one of its session."""
        roots: dict[int, int] = {}
        for at in reversed(self.parents):
            root = roots.setdefault(at, at)
            for parent in self.parents[at]:
                roots[parent] = root
        return roots


class SessionKernel:
    """Aggregates records by key in sessions. One thread.

    ``time`` is the operator time, which the owner keeps with the offsets and gives back.
    """

    def __init__(
        self,
        windows: SessionWindows,
        layout: Layout,
        store: KeyedWindowStore,
        emits: frozenset[Emit],
        time: int = NO_TIME,
    ) -> None:
        self.time, self.store = time, store
        self._windows, self._layout, self._emits = windows, layout, emits

    def process(self, records: Records) -> WindowResult:
        """Count records, and return the rows to emit.

        Raises:
            RowError: a record is poison; nothing was counted.
        """
        times = operator_times(self.time, records.times) if len(records) else no_rows()
        names = records.names.to_pylist()
        stored = self.store.read(names)
        structure = self._find(records, times, names, stored)
        at = np.fromiter(structure.parents, np.int64, len(structure.parents))
        taken = take_records(records, at)
        batch = _Batch(taken, at, names, stored, structure)
        try:
            return self._result(batch, times)
        except RowError as error:
            raise RowError(int(at[error.at]), str(error)) from error.__cause__

    def _find(
        self, records: Records, times: Array, names: list[bytes], stored: StoredWindows
    ) -> _Structure:
        structure = _Structure()
        codes = {name: code for code, name in enumerate(names)}
        for place, name in enumerate(stored.names):
            session = _Session(stored.begins[place], stored.ends[place], -1 - place)
            structure.sessions[codes[name]].append(session)
        gap = self._windows.gap
        limits = (times - gap - self._windows.grace).tolist()
        rows = zip(records.codes.tolist(), records.times.tolist(), limits, strict=True)
        for at, (code, time, open_from) in enumerate(rows):
            structure.add(at, code, time, gap, open_from)
        return structure

    def _result(self, batch: _Batch, times: Array) -> WindowResult:
        layout, inputs = self._layout, Inputs(self._layout, batch.taken)
        roots = batch.structure.find_roots()
        ends = sorted({root for root in roots.values() if root >= 0})
        values = self._reduce(batch, inputs, roots, ends)
        rows: dict[Emit, WindowRows] = {}
        if Emit.EACH in self._emits or layout.may_overflow(values, inputs):
            each = self._scan(batch, inputs)
            over = np.flatnonzero(layout.overflows(each))
            if len(over):
                raise RowError(int(over[0]), "an aggregate leaves the range of its type")
            if Emit.EACH in self._emits:
                rows[Emit.EACH] = self._each(batch, each)
        changed = batch.list_changed(ends, values)
        gone = [batch.stored_key(-1 - node) for node in roots if node < 0]
        if Emit.UPDATES in self._emits:
            rows[Emit.UPDATES] = self._updates(changed, gone, len(times) - 1)
        time = int(times[-1]) if len(times) else self.time
        over_before = time - self._windows.gap - self._windows.grace
        self.store.replace(gone, changed)
        done = self.store.read_before(over_before)
        if Emit.FINAL in self._emits:
            rows[Emit.FINAL] = self._final(done, times)
        keys = zip(done.names, done.begins, done.ends, strict=True)
        self.store.replace(keys, StoredWindows([], [], [], layout.empty(0)))
        self.time = time
        return WindowResult(rows, np.array(batch.structure.late, np.int64))

    def _reduce(
        self, batch: _Batch, inputs: Inputs, roots: dict[int, int], ends: list[int]
    ) -> Parts:
        """Return the row of each session that a record was added to, by its last record."""
        places = {root: place for place, root in enumerate(ends)}
        before = self._layout.empty(len(ends))
        stored = [(places[root], -1 - node) for node, root in roots.items() if node < 0]
        self._merge_into(before, stored, batch)
        if not ends:
            return before
        ids = np.array([places[roots[at]] for at in batch.at.tolist()], np.int64)
        return self._layout.extend(before, Groups(ids, len(ends)), inputs)

    def _merge_into(self, rows: Parts, stored: list[tuple[int, int]], batch: _Batch) -> None:
        """Merge stored sessions into rows by place, those that end first before the others."""
        ends = batch.stored.ends
        left = sorted(stored, key=lambda pair: (ends[pair[1]], batch.stored.begins[pair[1]]))
        while left:  # one session for each row at a time
            places: dict[int, int] = {}
            rest = []
            for place, session in left:
                if place in places:
                    rest.append((place, session))
                else:
                    places[place] = session
            at, sessions = np.array(list(places)), np.array(list(places.values()))
            own = take_rows(batch.stored.rows, sessions)
            put_rows(rows, at, self._layout.merge(take_rows(rows, at), own))
            left = rest

    def _scan(self, batch: _Batch, inputs: Inputs) -> Parts:
        """Return the row of its session with each record.

        Records of which each was added to the session that the one before made are a chain, which
        is computed at once; a chain begins with the merge of the sessions that it is added to.
        """
        rows = self._layout.empty(len(batch.at))
        place = {at: row for row, at in enumerate(batch.at.tolist())}
        chains: dict[int, int] = {}
        levels: dict[int, int] = {}
        by_level: dict[int, list[int]] = defaultdict(list)
        for at, parents in batch.structure.parents.items():
            if len(parents) == 1 and parents[0] >= 0:
                chains[at] = chains[parents[0]]
            else:
                above = [levels[chains[node]] for node in parents if node >= 0]
                chains[at] = at
                levels[at] = max(above, default=-1) + 1
            by_level[levels[chains[at]]].append(at)
        for level in sorted(by_level):
            members = by_level[level]
            heads = sorted({chains[at] for at in members})
            base = self._layout.empty(len(heads))
            self._merge_parents(base, heads, batch, rows, place)
            numbers = {head: number for number, head in enumerate(heads)}
            places = np.array([place[member] for member in members])
            ids = np.array([numbers[chains[member]] for member in members])
            groups = Groups(ids, len(heads))
            chosen = inputs if len(places) == len(batch.at) else self._choose(batch, places)
            try:
                ordered = self._layout.extend_scan(base, groups, chosen)
            except RowError as error:
                raise RowError(int(places[error.at]), str(error)) from error.__cause__
            put_rows(rows, places[groups.order], ordered)
        return rows

    def _choose(self, batch: _Batch, at: Array) -> Inputs:
        return Inputs(self._layout, take_records(batch.taken, at))

    def _merge_parents(
        self,
        base: Parts,
        heads: list[int],
        batch: _Batch,
        rows: Parts,
        place: dict[int, int],
    ) -> None:
        """Merge into each chain's row the sessions that its first record was added to."""
        most = max(len(batch.structure.parents[head]) for head in heads)
        for position in range(most):
            for is_stored in (True, False):
                pairs = [
                    (number, parents[position])
                    for number, head in enumerate(heads)
                    if position < len(parents := batch.structure.parents[head])
                    and (parents[position] < 0) is is_stored
                ]
                if not pairs:
                    continue
                at = np.array([number for number, _ in pairs])
                if is_stored:
                    nodes = np.array([-1 - node for _, node in pairs])
                    own = take_rows(batch.stored.rows, nodes)
                else:
                    own = take_rows(rows, np.array([place[node] for _, node in pairs]))
                put_rows(base, at, self._layout.merge(take_rows(base, at), own))

    def _each(self, batch: _Batch, each: Parts) -> WindowRows:
        """Return the rows of each record: sessions that it withdraws, then the one that it made."""
        found: list[tuple[int, bytes, int, int, int]] = []
        for row, at in enumerate(batch.at.tolist()):
            name = batch.names[int(batch.taken.codes[row])]
            merged = batch.structure.merged[at]
            found += [(at, name, session.begin, session.end, -1) for session in merged]
            begin, end = batch.structure.bounds[at]
            found.append((at, name, begin, end, row))
        return list_window_rows(self._layout, found, each)

    def _updates(
        self, changed: StoredWindows, gone: list[tuple[bytes, int, int]], at: int
    ) -> WindowRows:
        """Return the sessions that the micro-batch withdrew, then those that it changed."""
        now = list(zip(changed.names, changed.begins, changed.ends, strict=True))
        kept = set(now)
        found = [(at, *key, -1) for key in gone if key not in kept]
        found += [(at, *key, row) for row, key in enumerate(now)]
        return list_window_rows(self._layout, found, changed.rows)

    def _final(self, done: StoredWindows, times: Array) -> WindowRows:
        over = np.array(done.ends, np.int64) + self._windows.gap + self._windows.grace
        at = np.searchsorted(times, over, "right").tolist()
        rows = zip(done.ends, done.names, done.begins, at, range(len(done)), strict=True)
        found = [(at, name, begin, end, row) for end, name, begin, at, row in sorted(rows)]
        return list_window_rows(self._layout, found, done.rows)


@dataclass(frozen=True, slots=True)
class _Batch:
    """The records of a micro-batch that a session took, and what they met."""

    taken: Records
    at: Array
    names: list[bytes]
    stored: StoredWindows
    structure: _Structure

    def stored_key(self, place: int) -> tuple[bytes, int, int]:
        """Return key, begin and end of a stored session."""
        stored = self.stored
        return stored.names[place], stored.begins[place], stored.ends[place]

    def list_changed(self, ends: list[int], rows: Parts) -> StoredWindows:
        """Return the sessions that records were added to, by their last record."""
        place = np.searchsorted(self.at, ends)
        names = [self.names[code] for code in self.taken.codes[place].tolist()]
        bounds = [self.structure.bounds[end] for end in ends]
        return StoredWindows(
            names, [begin for begin, _ in bounds], [end for _, end in bounds], rows
        )
