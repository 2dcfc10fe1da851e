"""Session windows in columns.

Which records make which session is found out at once for the keys whose records are within the
grace, as their order does not matter, and for the others record by record, on numbers alone. Values
are then computed for all sessions together. A session is over, and takes no record, once
``end + gap + grace`` is below the operator time.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from headrace.extensions.streams.kernels.errors import RowError
from headrace.extensions.streams.kernels.groups import (
    BITS,
    Groups,
    distinct,
    find_places,
    sort_pairs,
)
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
    """The records of each session.

    ``parents`` are the sessions that each record was merged with, by their node, the earliest one
    first; ``bounds`` are those of the session that it made. ``roots`` has the node of the session
    that each node is in at the end.
    """

    sessions: dict[int, list[_Session]] = field(default_factory=lambda: defaultdict(list))
    parents: dict[int, list[int]] = field(default_factory=dict)
    keys: dict[int, int] = field(default_factory=dict)
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
        self.keys[at] = key
        self.parents[at] = [each.node for each in near]
        self.bounds[at] = (begin, end)
        self.merged[at] = [each for each in near if (each.begin, each.end) != (begin, end)]
        if near:
            self.sessions[key] = [each for each in sessions if each not in near]
        self.sessions[key].append(_Session(begin, end, at))

    def list_members(self) -> _Members:
        """Return the sessions that records were added to, as they are at the end."""
        roots: dict[int, int] = {}
        for at in reversed(self.parents):
            root = roots.setdefault(at, at)
            for parent in self.parents[at]:
                roots[parent] = root
        ends = sorted(set(roots.values()))
        places = {root: place for place, root in enumerate(ends)}
        records = list(self.parents)
        stored = [node for node in roots if node < 0]
        bounds = [self.bounds[root] for root in ends]
        return _Members(
            np.array(records, np.int64),
            np.array([places[roots[node]] for node in records], np.int64),
            np.array([-1 - node for node in stored], np.int64),
            np.array([places[roots[node]] for node in stored], np.int64),
            np.array([self.keys[root] for root in ends], np.int64),
            np.array([begin for begin, _ in bounds], np.int64),
            np.array([end for _, end in bounds], np.int64),
        )


@dataclass(frozen=True, slots=True)
class _Members:
    """Sessions that records were added to, with the records and the stored sessions in them.

    ``at`` are records, ``of_records`` the session of each; ``stored`` are places of stored sessions
    and ``of_stored`` the session of each; ``keys``, ``begins`` and ``ends`` are those of sessions.
    """

    at: Array
    of_records: Array
    stored: Array
    of_stored: Array
    keys: Array
    begins: Array
    ends: Array

    def join(self, other: _Members) -> _Members:
        """Return the sessions of both, of which no key is the same."""
        if not len(other.at):
            return self
        at = np.concatenate([self.at, other.at])
        order = np.argsort(at)
        more = len(self.keys)
        return _Members(
            at[order],
            np.concatenate([self.of_records, other.of_records + more])[order],
            np.concatenate([self.stored, other.stored]),
            np.concatenate([self.of_stored, other.of_stored + more]),
            np.concatenate([self.keys, other.keys]),
            np.concatenate([self.begins, other.begins]),
            np.concatenate([self.ends, other.ends]),
        )


def find_clusters(keys: Array, begins: Array, ends: Array, gap: int) -> tuple[Array, Array, Array]:
    """Return which cluster each interval is in, and where each cluster begins and ends.

    Intervals of a key are in one where no more than ``gap`` is between one and the next.
    """
    order = sort_pairs(keys, begins)
    keys, begins = keys[order], begins[order]
    lowest = int(ends.min())
    step = int(ends.max()) - lowest + 1
    highest = np.maximum.accumulate(keys * step + ends[order] - lowest) - keys * step + lowest
    new = np.ones(len(keys), np.bool_)
    new[1:] = (keys[1:] != keys[:-1]) | (begins[1:] > highest[:-1] + gap)
    clusters = np.empty(len(keys), np.int64)
    clusters[order] = np.cumsum(new) - 1
    first = np.flatnonzero(new)
    return clusters, begins[first], highest[np.append(first[1:], len(keys)) - 1]


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
        batch = _Batch(records, times, names, self.store.read(names))
        if Emit.EACH in self._emits:
            structure = self._find(batch, np.ones(len(records), np.bool_))
            members = structure.list_members()
        else:
            structure, members = self._find_members(batch)
        taken = take_records(records, members.at)
        try:
            return self._result(batch, taken, members, structure)
        except RowError as error:
            raise RowError(int(members.at[error.at]), str(error)) from error.__cause__

    def _find(self, batch: _Batch, rows: Array) -> _Structure:
        """Return which of the records under ``rows`` make which session, one after the other."""
        structure = _Structure()
        stored = batch.stored
        for place, key in enumerate(batch.stored_keys.tolist()):
            session = _Session(stored.begins[place], stored.ends[place], -1 - place)
            structure.sessions[key].append(session)
        gap, records, at = self._windows.gap, batch.records, np.flatnonzero(rows)
        limits = batch.times[at] - gap - self._windows.grace
        columns = (at, records.codes[at], records.times[at], limits)
        for row, key, time, open_from in zip(*(c.tolist() for c in columns), strict=True):
            structure.add(row, key, time, gap, open_from)
        return structure

    def _find_members(self, batch: _Batch) -> tuple[_Structure, _Members]:
        """Return the sessions, found at once for keys without a record later than the grace.

        Such a record is in time, and what it meets is not over: if a session ends before it by no
        more than the gap, it ends before T by no more than gap and grace. So the order of a key's
        records does not matter, and sessions are clusters of times.
        """
        records, stored, gap = batch.records, batch.stored, self._windows.gap
        late = batch.times - records.times > self._windows.grace
        slow_keys = np.bincount(records.codes[late], minlength=len(batch.names)) > 0
        begins, ends = (np.array(each, np.int64) for each in (stored.begins, stored.ends))
        both = np.concatenate([ends, records.times])
        span = int(both.max(initial=0)) - int(both.min(initial=0))
        if span.bit_length() + len(batch.names).bit_length() > BITS:
            slow_keys[:] = True
        slow = slow_keys[records.codes]
        structure = self._find(batch, slow)
        members = structure.list_members()
        at, place = np.flatnonzero(~slow), np.flatnonzero(~slow_keys[batch.stored_keys])
        if not len(at):
            return structure, members
        keys = np.concatenate([batch.stored_keys[place], records.codes[at]])
        clusters, first, last = find_clusters(
            keys,
            np.concatenate([begins[place], records.times[at]]),
            np.concatenate([ends[place], records.times[at]]),
            gap,
        )
        of_stored, of_records = clusters[: len(place)], clusters[len(place) :]
        changed = distinct(of_records)
        kept = np.isin(of_stored, changed)
        of_records = find_places(changed, of_records)
        own = np.empty(len(changed), np.int64)
        own[of_records] = records.codes[at]
        plain = _Members(
            at,
            of_records,
            place[kept],
            np.searchsorted(changed, of_stored[kept]),
            own,
            first[changed],
            last[changed],
        )
        return structure, plain.join(members)

    def _result(
        self, batch: _Batch, taken: Records, members: _Members, structure: _Structure
    ) -> WindowResult:
        layout, inputs, times = self._layout, Inputs(self._layout, taken), batch.times
        values = self._reduce(batch.stored, members, inputs)
        rows: dict[Emit, WindowRows] = {}
        if Emit.EACH in self._emits or layout.may_overflow(values, layout.weigh(inputs)):
            if Emit.EACH not in self._emits:
                structure = self._find(batch, np.ones(len(times), np.bool_))
            chained = _Chained(batch, taken, members.at, structure)
            each = self._scan(chained, inputs)
            over = np.flatnonzero(layout.overflows(each))
            if len(over):
                raise RowError(int(over[0]), "an aggregate leaves the range of its type")
            if Emit.EACH in self._emits:
                rows[Emit.EACH] = self._each(chained, each)
        changed = StoredWindows(
            [batch.names[key] for key in members.keys.tolist()],
            members.begins.tolist(),
            members.ends.tolist(),
            values,
        )
        stored = batch.stored
        gone = [
            (stored.names[place], stored.begins[place], stored.ends[place])
            for place in members.stored.tolist()
        ]
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
        return WindowResult(rows, np.array(structure.late, np.int64), len(done))

    def _reduce(self, stored: StoredWindows, members: _Members, inputs: Inputs) -> Parts:
        """Return the row of each session that a record was added to."""
        before = self._layout.empty(len(members.keys))
        ends = np.array(stored.ends, np.int64)[members.stored]
        by_end = np.lexsort((ends, members.of_stored))
        sessions, places = members.of_stored[by_end], members.stored[by_end]
        first = np.flatnonzero(np.append(True, np.diff(sessions) != 0)[: len(sessions)])
        sizes = np.diff(np.append(first, len(sessions)))
        for number in range(int(sizes.max(initial=0))):  # one stored session of each at a time
            at = first[sizes > number] + number
            own = take_rows(stored.rows, places[at])
            merged = self._layout.merge(take_rows(before, sessions[at]), own)
            put_rows(before, sessions[at], merged)
        if not len(members.at):
            return before
        groups = Groups(members.of_records, len(members.keys))
        return self._layout.extend(before, groups, inputs)

    def _scan(self, batch: _Chained, inputs: Inputs) -> Parts:
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

    def _choose(self, batch: _Chained, at: Array) -> Inputs:
        return Inputs(self._layout, take_records(batch.taken, at))

    def _merge_parents(
        self,
        base: Parts,
        heads: list[int],
        batch: _Chained,
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
                    own = take_rows(batch.batch.stored.rows, nodes)
                else:
                    own = take_rows(rows, np.array([place[node] for _, node in pairs]))
                put_rows(base, at, self._layout.merge(take_rows(base, at), own))

    def _each(self, batch: _Chained, each: Parts) -> WindowRows:
        """Return the rows of each record: sessions that it withdraws, then the one that it made."""
        found: list[tuple[int, bytes, int, int, int]] = []
        for row, at in enumerate(batch.at.tolist()):
            name = batch.batch.names[int(batch.taken.codes[row])]
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
    """The records of a micro-batch, the operator time with each, and the sessions of their keys."""

    records: Records
    times: Array
    names: list[bytes]
    stored: StoredWindows

    @property
    def stored_keys(self) -> Array:
        """Return the number of each stored session's key in the micro-batch."""
        codes = {name: code for code, name in enumerate(self.names)}
        return np.array([codes[name] for name in self.stored.names], np.int64)


@dataclass(frozen=True, slots=True)
class _Chained:
    """The records of a micro-batch that a session took, and what each was merged with."""

    batch: _Batch
    taken: Records
    at: Array
    structure: _Structure
