"""The state of a channel's keys: what is committed, and above it what is staged and not yet."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, compress, islice, takewhile
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import structlog

from headrace.core.user_text import describe_error
from headrace.extensions.keyed.api import TimerClock
from headrace.extensions.keyed.changed_rows import NO_CHANGES, ChangedRows
from headrace.extensions.keyed.errors import StateStoreError
from headrace.extensions.keyed.row import PartitionKey
from headrace.extensions.keyed.store import StoredCommit, timers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.extensions.keyed.row import KeyRow
    from headrace.extensions.keyed.standby_reader import StandbyProgress
    from headrace.extensions.keyed.store import DueTimer, Position, StateStore, StoreView
    from headrace.extensions.keyed.unwritten import Unwritten

log = structlog.get_logger(__name__)


#: Timers of the index whose rows are read together.
_AT_A_TIME = 100


class Progress(NamedTuple):
    """A task's position after its commits, as the brokers store it with its inputs' offsets.

    A task is one partition of each topic that the channel reads, with the same number; ``offsets``
    has those by the partitions' identities. ``number`` counts the commits, so that one without
    records can be told from none, and is stored with each offset. ``fewer`` has what is stored of
    partitions that missed commits, because the channel did not read their topic. ``time`` is the
    stream time in milliseconds, None before the first record.
    """

    offsets: Mapping[str, int] = MappingProxyType({})
    number: int = 0
    time: int | None = None
    fewer: Mapping[str, int] = MappingProxyType({})

    @property
    def offset(self) -> int | None:
        """Return the sum of the offsets, of one topic that is its offset; None without any."""
        return sum(self.offsets.values()) if self.offsets else None

    def number_of(self, identity: str) -> int:
        """Return how many commits are stored with a partition's offset."""
        return self.fewer.get(identity, self.number)

    def moved(self, identity: str, offset: int, number: int, time: int | None) -> Progress:
        """Return the progress after a commit that moves a partition's offset."""
        fewer = {name: known for name, known in self.fewer.items() if name != identity}
        return Progress({**self.offsets, identity: offset}, number, time, fewer)


@dataclass(frozen=True)
class Layer:
    """The changes that one micro-batch made to the keys that it touched, before the commit.

    ``times`` has the stream time that each of its partitions came to.
    """

    name: str
    changes: ChangedRows = field(default_factory=lambda: NO_CHANGES)
    times: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def timers(self) -> Mapping[PartitionKey, frozenset[DueTimer]]:
        """Return the timers of the changed keys that have any after it."""
        if not self.changes.has_extras:
            return {}
        return {
            key: timers
            for key, (_, after) in self.changes.items()
            if after is not None and after[1] and (timers := timers_of(key.key, after))
        }


class CommittedRows:
    """The committed rows of a partition, and where it is with them: ``progress``.

    Of a copy of another member's partition that is where the copy is in the changelog, and its rows
    are those of a view of the store.
    """

    def __init__(
        self, store: StateStore | StoreView, partition: int, progress: Progress | StandbyProgress
    ) -> None:
        self._store, self._partition = store, partition
        self.progress = progress

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the states of keys, None where there is none.

        Raises:
            StateStoreError: they cannot be read.
        """
        rows = self._store.peek_many([PartitionKey(self._partition, key) for key in keys])
        return [None if row is None else row.state for row in rows]

    def find(self, key: bytes) -> KeyRow | None:
        """Return the whole row of a key, None where there is none.

        Raises:
            StateStoreError: it cannot be read.
        """
        (row,) = self._store.peek_many([PartitionKey(self._partition, key)])
        return row

    def scan(self, first: bytes) -> Iterator[tuple[bytes, KeyRow]]:
        """Return the rows from a key on as they are now, in the order of their keys.

        They may be read later, while others are committed.

        Raises:
            StateStoreError: they cannot be read; the rest raises it as well.
        """
        rows = self._store.rows(self._partition, first)
        # with the first row the store has a view of all of them
        return chain(list(islice(rows, 1)), rows)


class LayeredState:
    """Rows as the next micro-batch has to see them. Any thread; what reads or writes blocks.

    A staged micro-batch is a layer, in the order of staging. One that is not committed is dropped;
    what shares a partition with it and was staged after it is dropped before anything else of the
    partition is staged, so that no layer stands on a dropped one.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._lock = Lock()
        # held while committed rows and the progress that belongs to them are read or changed, and
        # taken after the other: readers do not wait while a commit is encoded, nor it for many
        self._committed = Lock()
        self._layers: list[Layer] = []
        self._progress: dict[int, Progress] = {}
        self._problem: StateStoreError | None = None
        self._ready: set[int] = set()
        self._wanted_times: dict[int, int] = {}
        self._stale: set[tuple[int, DueTimer]] = set()
        self._last_applied: dict[int, str] = {}

    # --- partitions -------------------------------------------------------------------------

    def begin(self, partition: int, progress: Progress) -> None:
        """Set a partition's progress, before anything of it is staged."""
        with self._lock, self._committed:
            self._progress[partition] = progress
            self._last_applied.pop(partition, None)

    def admit(self, partition: int) -> None:
        """Mark a partition's state as complete."""
        with self._lock, self._committed:
            self._ready.add(partition)

    def release(self, partition: int) -> None:
        """Make reads of a partition fail until its state is complete again.

        Also those under way: it comes before the store is emptied.
        """
        with self._lock, self._committed:
            self._ready.discard(partition)
            self._last_applied.pop(partition, None)
            self._wanted_times.pop(partition, None)
            self._stale = {each for each in self._stale if each[0] != partition}

    def note_commit(self, partition: int) -> None:
        """Store which commit the rows of a partition with complete state belong to. Blocks.

        Raises:
            StateStoreError: it cannot be read which one is stored.
        """
        with self._lock:
            found = self._progress_of(partition)
            if found.offset is None:
                return
            commit = StoredCommit(found.offset, found.number)
            if self._store.commit_of(partition) != commit:
                self._store.put((), {partition: commit})

    def is_ready(self, partition: int) -> bool:
        """Return whether a partition's state is all there."""
        with self._committed:
            return partition in self._ready

    def _require(self, partitions: set[int]) -> None:
        with self._committed:
            self._require_ready(partitions)

    def _require_ready(self, partitions: set[int]) -> None:
        missing = sorted(partitions - self._ready)
        if missing:
            raise StateStoreError(f"the state of partition {missing[0]} is not there yet")

    def progress(self, partition: int) -> Progress:
        """Return where a partition is, as committed."""
        with self._committed:
            return self._progress_of(partition)

    def _progress_of(self, partition: int) -> Progress:
        return self._progress.get(partition, Progress())

    def time(self, partition: int) -> int | None:
        """Return the stream time of a partition with all that is staged, in milliseconds."""
        with self._lock:
            times = (layer.times.get(partition) for layer in reversed(self._layers))
            staged = next((time for time in times if time is not None), None)
            return staged if staged is not None else self._progress_of(partition).time

    def advance_time(self, partition: int, time: int) -> None:
        """Advance a quiet partition's stream time (ms) to this, at least, with a tick."""
        with self._lock:
            self._wanted_times[partition] = time

    def take_wanted_time(self, partition: int) -> int | None:
        """Return what :meth:`advance_time` said last, and forget it."""
        with self._lock:
            return self._wanted_times.pop(partition, None)

    def has_staged(self, partition: int) -> bool:
        """Return whether anything of a partition is staged and not committed."""
        with self._lock:
            return any(partition in layer.times for layer in self._layers)

    def last_layer(self, partition: int) -> str | None:
        """Return the name of the layer that a partition's rows are of, with all that is staged.

        None before the first one since its state is there. Another name than before says that rows
        were restored, or that a layer was dropped.
        """
        with self._lock:
            names = (each.name for each in reversed(self._layers) if partition in each.times)
            return next(names, self._last_applied.get(partition))

    # --- rows -------------------------------------------------------------------------------

    def get_many(self, keys: Sequence[PartitionKey]) -> list[KeyRow | None]:
        """Return the rows with all that is staged.

        Raises:
            StateStoreError: they cannot be read, or a partition's state is not there yet.
        """
        partitions = {key.partition for key in keys}
        self._require(partitions)
        with self._lock:
            layers = [layer.changes for layer in reversed(self._layers) if layer.changes]
        found: dict[PartitionKey, KeyRow | None] = {}
        left = keys
        for changes in layers:
            found.update({key: changes[key].after for key in left if key in changes})
            left = [key for key in left if key not in changes]
        stored = self._store.get_many(left)
        # the store may have been emptied meanwhile
        self._require(partitions)
        if not layers:
            return stored
        found.update(zip(left, stored, strict=True))
        return [found[key] for key in keys]

    def rows_of(self, partition: int, prefix: bytes) -> dict[bytes, KeyRow]:
        """Return the rows whose keys begin so, with all that is staged, in any order.

        Raises:
            StateStoreError: as of :meth:`get_many`.
        """
        self._require({partition})
        with self._lock:
            layers = [layer.changes for layer in self._layers if layer.changes]
        stored = self._store.rows(partition, prefix)
        found = dict(takewhile(lambda row: row[0].startswith(prefix), stored))
        for changes in layers:
            for key, (_, after) in changes.within(partition, prefix).items():
                if after is None:
                    found.pop(key.key, None)
                else:
                    found[key.key] = after
        # the store may have been emptied meanwhile
        self._require({partition})
        return found

    def heads_of(self, partition: int, prefix: bytes, length: int) -> set[bytes]:
        """Return what follows ``prefix`` in keys, as far as ``length`` bytes, each once.

        There may be some whose rows are all deleted by what is staged or not written.

        Raises:
            StateStoreError: as of :meth:`get_many`.
        """
        self._require({partition})
        with self._lock:
            layers = [layer.changes for layer in self._layers if layer.changes]
        start, end = len(prefix), len(prefix) + length
        found = {
            key.key[start:end] for changes in layers for key in changes.within(partition, prefix)
        }
        found |= self._store.heads(partition, prefix, length)
        # the store may have been emptied meanwhile
        self._require({partition})
        return found

    def due_keys(
        self, partition: int, until: int | None, now: int, *, besides: set[bytes], most: int
    ) -> list[bytes]:
        """Return keys with a timer that is due, the earliest first, and no more than ``most``.

        ``until`` is the stream time, ``now`` the wall clock, both in milliseconds.

        Raises:
            StateStoreError: as of :meth:`get_many`.
        """
        self._require({partition})
        ends = (
            {TimerClock.CLOCK: now}
            if until is None
            else {
                TimerClock.EVENT: until,
                TimerClock.CLOCK: now,
            }
        )
        with self._lock:
            layers = list(self._layers)
        staged = _timers_in(layers, partition)
        found: dict[bytes, None] = {}
        for clock, end in ends.items():
            for key, timers in staged.items():
                if key not in besides and any(t.clock is clock and t.due <= end for t in timers):
                    found[key] = None
            stored = self._stored_due(partition, clock, end, layers)
            others = (timer.key for timer in stored if timer.key not in besides)
            for key in islice(
                (key for key in others if key not in found), max(0, most - len(found))
            ):
                found[key] = None
        # the store may have been emptied meanwhile
        self._require({partition})
        return list(found)[:most]

    def _stored_due(
        self, partition: int, clock: TimerClock, until: int, layers: Sequence[Layer]
    ) -> Iterator[DueTimer]:
        """Yield the committed timers that are due, without those of keys that are staged."""
        due = self._store.due(partition, clock, until)
        while some := list(islice(due, _AT_A_TIME)):
            keys = [PartitionKey(partition, timer.key) for timer in some]
            there = [not any(key in layer.changes for layer in layers) for key in keys]
            rows = self._store.get_many(list(compress(keys, there)))
            # without rows of an emptied store each timer would be found to be of none
            self._require({partition})
            for timer, row in zip(compress(some, there), rows, strict=True):
                if timer in timers_of(timer.key, row):
                    yield timer
                else:
                    with self._lock:
                        self._stale.add((partition, timer))

    def clear_index(self) -> None:
        """Remove timers that no row has from the index, as searches found them. Blocks.

        Nothing may be applied meanwhile: one that was set again since then stays.

        Raises:
            StateStoreError: the store cannot be read or written.
        """
        with self._lock:
            found, self._stale = iter(self._stale), set()
        while some := list(islice(found, _AT_A_TIME)):
            with self._lock:
                here = [each for each in some if each[0] in self._ready]
                rows = self._store.get_many([PartitionKey(at, timer.key) for at, timer in here])
                gone = [
                    (at, timer)
                    for (at, timer), row in zip(here, rows, strict=True)
                    if timer not in timers_of(timer.key, row)
                ]
                self._store.put((), stale=gone)

    # --- for readers: what is committed, and nothing that is staged -------------------------

    def committed(self, key: PartitionKey) -> tuple[KeyRow | None, Progress]:
        """Return a key's row, and where its partition is with it.

        Raises:
            StateStoreError: as of :meth:`get_many`.
        """
        # nothing is committed meanwhile: row and offset belong together
        with self._committed:
            self._require_ready({key.partition})
            (row,) = self._store.get_many([key])
            return row, self._progress_of(key.partition)

    def committed_rows(
        self, partition: int, prefix: bytes, after: bytes | None, limit: int
    ) -> tuple[list[tuple[bytes, KeyRow]], Progress]:
        """Return rows whose keys begin so, the first ones ``after`` a key, and where they are.

        Raises:
            StateStoreError: as of :meth:`get_many`.
        """
        first = prefix if after is None else max(prefix, after + b"\0")
        with self._committed:
            self._require_ready({partition})
            progress = self._progress_of(partition)
            rows = CommittedRows(self._store, partition, progress).scan(first)
        # commits do not wait for it: the rows are those of one moment
        return list(islice(takewhile(lambda row: row[0].startswith(prefix), rows), limit)), progress

    @contextmanager
    def reading(self, partition: int) -> Iterator[CommittedRows]:
        """Yield the committed rows of a partition; no commit is applied before the block ends.

        Raises:
            StateStoreError: its state is not there yet.
        """
        with self._committed:
            self._require_ready({partition})
            yield CommittedRows(self._store, partition, self._progress_of(partition))

    # --- commits ----------------------------------------------------------------------------

    def stage(self, layer: Layer) -> None:
        """Stage a micro-batch's rows, which later stages see."""
        with self._lock:
            self._layers.append(layer)

    def drop(self, name: str) -> None:
        """Drop what a micro-batch staged, because it will not be committed."""
        with self._lock:
            self._layers = [layer for layer in self._layers if layer.name != name]

    def apply(self, layers: Sequence[Layer], progress: Mapping[int, Progress]) -> None:
        """Store in memory what was committed, until :meth:`flush`. Does not wait for the disk."""
        changes = [layer.changes for layer in layers if layer.changes]
        commits = {
            number: StoredCommit(found.offset, found.number)
            for number, found in progress.items()
            if found.offset is not None
        }
        names = {layer.name for layer in layers}
        with self._lock:
            add = self._store.prepare(changes, commits)
            with self._committed:
                add()
                self._progress.update(progress)
            for layer in layers:
                self._last_applied.update(dict.fromkeys(layer.times, layer.name))
            self._layers = [layer for layer in self._layers if layer.name not in names]

    def flush(self) -> bool:
        """Write what was committed to the store's files; return whether they have it. Blocks.

        What they do not take, of a full disk for instance, stays in memory and is written with the
        next call: the brokers have it, whatever was raised.
        """
        try:
            self._store.flush()
        except Exception as error:
            problem = error if isinstance(error, StateStoreError) else _unforeseen(error)
            self._problem = problem
            fields = {"entries": self.unwritten.entries, "error": str(problem)}
            log.error("state_not_written", **fields, exc_info=problem is not error)  # noqa: TRY400 - most say it all
            return False
        self._problem = None
        return True

    @property
    def unwritten(self) -> Unwritten:
        """Return how much is committed and not in the store's files. Does not block."""
        return self._store.unwritten()

    @property
    def problem(self) -> StateStoreError | None:
        """Return the error of the last :meth:`flush`, None where it has written all."""
        return self._problem

    def checkpoint(self, positions: Mapping[int, Position]) -> None:
        """Store how far the store follows the changelog: all that was committed is applied.

        Partitions whose state is not all there are left out.

        Raises:
            StateStoreError: the store cannot be written.
        """
        with self._lock:
            ready = {number: at for number, at in positions.items() if number in self._ready}
            if ready:
                self._store.note(ready)


def _timers_in(layers: Sequence[Layer], partition: int) -> dict[bytes, frozenset[DueTimer]]:
    """Return the timers of a partition's keys as the last layer has them that changed the key."""
    return {
        key.key: timers
        for at, layer in enumerate(layers, 1)
        for key, timers in layer.timers.items()
        if key.partition == partition and not any(key in later.changes for later in layers[at:])
    }


def _unforeseen(error: Exception) -> StateStoreError:
    return StateStoreError(describe_error(error))
