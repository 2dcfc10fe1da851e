"""The local store of a channel's state: what is committed, and how far it follows the changelog.

It is written after the brokers have committed, so that it is never ahead of them: what a crash took
from it is read again from the changelog. What is committed stays in memory at first, and is written
once however often it changed.
"""

from __future__ import annotations

import json
import re
import struct
import time
from bisect import bisect_left
from collections import OrderedDict, deque
from contextlib import suppress
from heapq import merge
from itertools import chain, compress, repeat, takewhile
from math import ceil
from operator import itemgetter
from threading import Condition, Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

import pyarrow.compute as pc
import structlog
from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    SliceTransform,
    WriteBatch,
    WriteOptions,
)
from typing_extensions import override

from headrace.core.errors import StartError
from headrace.extensions.keyed.api import TimerClock
from headrace.extensions.keyed.changed_rows import AFTER, rows_of
from headrace.extensions.keyed.errors import CorruptStoreError, StateStoreError
from headrace.extensions.keyed.phases import PhaseTotals, Tally, summed, totals_of
from headrace.extensions.keyed.row import KeyRow, LoadedRows, PartitionKey, RowChange
from headrace.extensions.keyed.row_groups import NO_ROWS, GroupSize, RowGroups, summed_groups
from headrace.extensions.keyed.store_folder import StoreFolder
from headrace.extensions.keyed.unwritten import ABSENT, Unwritten, UnwrittenTable

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Generator,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from pathlib import Path

    from headrace.extensions.keyed.changed_rows import ChangedRows
    from headrace.extensions.keyed.phases import PhaseReader
    from headrace.extensions.keyed.row_groups import Growth


log = structlog.get_logger(__name__)


#: What RocksDB says of files that are not what it wrote.
_CORRUPTION = re.compile(r"corrupt|checksum|bad (table magic|block)", re.IGNORECASE)


class Position(NamedTuple):
    """A state's position in its changelog partition. ``at`` is in seconds since the epoch.

    ``leader_epoch`` is one under which the log was seen to lead there, None: it is not known.
    """

    topic_id: str
    offset: int
    at: float
    leader_epoch: int | None = None


class StoredCommit(NamedTuple):
    """Identifies the commit that rows are of: by the input's offset, and the commits' number.

    Of several inputs ``offset`` is the sum of their offsets.
    """

    offset: int
    number: int


class DueTimer(NamedTuple):
    """An entry of the index of timers."""

    due: int
    key: bytes
    name: str
    clock: TimerClock


class StoreSize(NamedTuple):
    """The size of a partition's state. ``bytes`` are those of keys and rows, as they are stored."""

    rows: int = 0
    bytes: int = 0
    timers: int = 0
    quarantined: int = 0


class StateStore(Protocol):
    """Rows by partition and key, and an index of their timers. Any thread; every call blocks.

    Raises:
        StateStoreError: it cannot be read or written.
    """

    def get_many(self, keys: Sequence[PartitionKey]) -> list[KeyRow | None]:
        """Return the rows, None for each key that has none."""
        ...

    def peek_many(self, keys: Sequence[PartitionKey]) -> list[KeyRow | None]:
        """Return what :meth:`get_many` does, for few keys and while nothing is put.

        It does not wait for another thread's reads and writes where all rows are in memory.
        """
        return self.get_many(keys)

    def prepare(
        self,
        changes: Sequence[ChangedRows],
        commits: Mapping[int, StoredCommit] | None = None,
        stale: Iterable[tuple[int, DueTimer]] = (),
    ) -> Callable[[], None]:
        """Encode rows, and return the call that adds them, all or none, and takes little time.

        Reads see them from then on, and :meth:`flush` writes them. Of a row that several change
        the last one counts. ``commits`` has of which commit the rows of partitions are with that;
        ``stale`` leave the index of timers.
        """
        ...

    def put(
        self,
        changes: Sequence[ChangedRows],
        commits: Mapping[int, StoredCommit] | None = None,
        stale: Iterable[tuple[int, DueTimer]] = (),
    ) -> None:
        """Add rows at once, as :meth:`prepare` has them."""
        self.prepare(changes, commits, stale)()

    def flush(self) -> None:
        """Write what was put before the call to the disk.

        What cannot be written stays, and is written with the next call.
        """
        ...

    def unwritten(self) -> Unwritten:
        """Return how much was put and is not on the disk. Does not block."""
        ...

    def note(self, positions: Mapping[int, Position]) -> None:
        """Flush, and write how far partitions follow the changelog."""
        ...

    def due(self, partition: int, clock: TimerClock, until: int) -> Iterator[DueTimer]:
        """Yield timers that are due at ``until`` (ms) or before, the earliest first.

        One may be stale: its row has it no longer.
        """
        ...

    def rows(self, partition: int, first: bytes = b"") -> Iterator[tuple[bytes, KeyRow]]:
        """Yield the rows of a partition from a key on, in the order of their keys' bytes.

        They are as they were at the first one, whatever is put meanwhile.
        """
        ...

    def heads(self, partition: int, prefix: bytes, length: int) -> set[bytes]:
        """Return what follows ``prefix`` in the keys of rows, as far as ``length`` bytes.

        There may be some whose rows are deleted, and that is not written.
        """
        ...

    def position(self, partition: int) -> Position | None:
        """Return how far a partition follows the changelog, None where nothing is known of it."""
        ...

    def commit_of(self, partition: int) -> StoredCommit | None:
        """Return of which commit the rows of a partition are, None where that is not known."""
        ...

    def drop(self, partition: int) -> None:
        """Delete all there is of a partition."""
        ...

    def close(self) -> None:
        """Flush if that is possible, and release the files, after the last call."""
        ...


_ROW, _TIMER, _POSITION, _EPOCH, _COMMIT = b"r", b"t", b"m", b"e", b"c"

_PARTITION = struct.Struct(">cH")
_LENGTH = struct.Struct(">I")
_INDEX = struct.Struct(">cHBQI")
_CLOCKS = (TimerClock.EVENT, TimerClock.CLOCK)

#: Bytes of an entry of the index that say of which partition and clock it is.
CLOCK_PREFIX = _PARTITION.size + 1

#: What stands before the state of a row that has nothing else.
_NO_EXTRA = _LENGTH.pack(0)

#: How names of timers are encoded that JSON can have and UTF-8 cannot: halves of surrogate pairs.
_NAMES = "surrogatepass"

#: What is added to a due time, so that those before 1970 stand in front as bytes, too.
_BIAS = 1 << 63

_MEMTABLE_BYTES = 32 << 20

#: Tables as they were written from memory, each of which a read has to look into, at which RocksDB
#: merges them: usually, and while partitions are loaded in bulk. Then it would merge the same rows
#: several times, which takes more than loading them.
_MERGED_AT = "level0_file_num_compaction_trigger"
_USUALLY, _IN_BULK = "4", "32"

#: Such tables with which RocksDB slows writes down, and with which it stops them: usually, and from
#: a load in bulk until few are left. Commits wait for no merge after it: what is slower until then
#: are reads.
_SLOWED_AT, _STOPPED_AT = "level0_slowdown_writes_trigger", "level0_stop_writes_trigger"
_FEW_TABLES, _MOST_TABLES = (20, 36), (1_000, 1_000)
_TABLES = "rocksdb.num-files-at-level0"

_BLOCK_CACHE_BYTES = 32 << 20

#: What a row costs in the cache beside its bytes, about.
_ENTRY_BYTES = 200

#: Seconds in which scans have to end that are under way when the store is closed.
_SCAN_TIMEOUT = 5.0


def _weight(rows: Mapping[bytes, bytes]) -> int:
    """Return what rows cost in the cache, all at once: this is a good part of what a read takes."""
    return _ENTRY_BYTES * len(rows) + sum(map(len, rows)) + sum(map(len, rows.values()))


def encode_row(row: KeyRow) -> bytes:
    """Return a row as the store has it."""
    state, extra = row
    head = _LENGTH.pack(len(extra)) + extra if extra else _NO_EXTRA
    return head + (state or b"")


def decode_row(data: bytes) -> KeyRow:
    """Return the row that :func:`encode_row` made of it."""
    end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    return KeyRow.read(data[end:], data[_LENGTH.size : end])


def _decoded(rows: Iterable[bytes | None]) -> list[KeyRow | None]:
    """Return rows as :func:`decode_row` does; most have nothing but a state, which is soon said."""
    new: Any = tuple.__new__
    start = len(_NO_EXTRA)
    return [
        None
        if data is None
        else new(KeyRow, (data[start:], None))
        if data.startswith(_NO_EXTRA)
        else decode_row(data)
        for data in rows
    ]


def _row_keys(keys: Sequence[PartitionKey]) -> list[bytes]:
    """Return the names of rows in the database."""
    prefixes = {number: _PARTITION.pack(_ROW, number) for number in {key[0] for key in keys}}
    return [prefixes[number] + key for number, key in keys]


def _row_entries(changes: ChangedRows) -> Iterator[tuple[bytes, bytes | None]]:
    """Return rows as the database has them by their names, None for those that are deleted."""
    names = changes.names(lambda number: _PARTITION.pack(_ROW, number)).to_pylist()
    if changes.has_extras:
        after = rows_of(*(changes.column(name).to_pylist() for name in AFTER))
        return zip(names, [None if row is None else encode_row(row) for row in after], strict=True)
    # most rows are so: nothing is called for each of them
    values = pc.binary_join_element_wise(_NO_EXTRA, changes.column(AFTER[0]), b"")
    return zip(names, values.to_pylist(), strict=True)


def timer_key(partition: int, timer: DueTimer) -> bytes:
    """Return an entry of the index of timers, as the store has it."""
    clock = _CLOCKS.index(timer.clock)
    head = _INDEX.pack(_TIMER, partition, clock, timer.due + _BIAS, len(timer.key))
    return head + timer.key + timer.name.encode(errors=_NAMES)


def timer_of(entry: bytes) -> tuple[int, DueTimer]:
    """Return the partition and the timer of an entry that :func:`timer_key` made."""
    _, partition, clock, due, length = _INDEX.unpack_from(entry)
    end = _INDEX.size + length
    name = entry[end:].decode(errors=_NAMES)
    return partition, DueTimer(due - _BIAS, entry[_INDEX.size : end], name, _CLOCKS[clock])


def _due_of(entry: bytes) -> int:
    """Return when a timer of the index is due."""
    due: int = _INDEX.unpack_from(entry)[3]
    return due - _BIAS


def _is_quarantined(row: KeyRow | None) -> bool:
    if row is None or not row.extra or b'"quarantined"' not in row.extra:
        return False
    return row.quarantined is not None


def _put_entries(batch: WriteBatch, names: Sequence[bytes], values: Sequence[bytes | None]) -> None:
    """Add writes of entries, and deletes of those that are None, to a batch."""
    if None in values:
        gone = [name for name, data in zip(names, values, strict=True) if data is None]
        deque(map(batch.delete, gone), maxlen=0)
        kept = [data is not None for data in values]
        names, values = list(compress(names, kept)), list(compress(values, kept))
    deque(map(batch.put, names, values), maxlen=0)


def _put_position(batch: WriteBatch, partition: int, position: Position) -> None:
    """Add the write of a position to a batch; earlier versions read it without leader epoch."""
    *known, epoch = position
    document = dict(zip(Position._fields, known, strict=False))
    batch.put(_PARTITION.pack(_POSITION, partition), json.dumps(document).encode())
    if epoch is None:
        batch.delete(_PARTITION.pack(_EPOCH, partition))
    else:
        noted = json.dumps([position.offset, epoch]).encode()
        batch.put(_PARTITION.pack(_EPOCH, partition), noted)


def timer_changes(key: PartitionKey, change: RowChange) -> Iterator[tuple[bytes, bytes | None]]:
    """Yield what a change does to the index of timers: entries, None for those that go."""
    before, after = (timers_of(key.key, row) for row in change)
    for timer in before - after:
        yield timer_key(key.partition, timer), None
    for timer in after - before:
        yield timer_key(key.partition, timer), b""


def _put_loaded(
    batch: WriteBatch, partition: int, rows: LoadedRows, timers: list[bytes]
) -> list[bytes]:
    """Add writes of rows to a batch without knowing former ones; return their names.

    ``timers`` gets the entries of the index that are written.
    """
    prefix = _PARTITION.pack(_ROW, partition)
    names = [prefix + key for key in rows.keys]
    plain = [] if rows.extras else [_NO_EXTRA + value for value in rows.values if value]
    if len(plain) == len(names):
        # most rows are so: there is no call of Python's for each of them
        deque(map(batch.put, names, plain), maxlen=0)
        return names
    extras = rows.extras or repeat(None)
    for name, key, value, extra in zip(names, rows.keys, rows.values, extras, strict=False):
        if value is None:
            batch.delete(name)
            continue
        row = KeyRow(value, extra)
        batch.put(name, encode_row(row))
        if extra:
            change = RowChange(None, row)
            for entry, _ in timer_changes(PartitionKey(partition, key), change):
                batch.put(entry, b"")
                timers.append(entry)
    return names


class _Count:
    """The counts of a partition, or of what is added to it."""

    __slots__ = ("bytes", "groups", "quarantined", "rows", "tally", "timers")

    def __init__(self) -> None:
        self.rows = self.bytes = self.timers = self.quarantined = 0
        self.tally = Tally()
        self.groups: dict[str, GroupSize] = {}

    def add_change(self, key: bytes, change: RowChange, group: str | None = None) -> None:
        """Add what a change does to rows, bytes, timers and quarantine, and to a group's rows."""
        before, after = change
        rows = size = 0
        if after is not None:
            rows += 1
            size += len(key) + _LENGTH.size + len(after.value) + len(after.extra or b"")
        if before is not None:
            rows -= 1
            size -= len(key) + _LENGTH.size + len(before.value) + len(before.extra or b"")
        self.rows += rows
        self.bytes += size
        if group is not None:
            self.groups[group] = self.groups.get(group, NO_ROWS).plus(GroupSize(rows, size))
        if (after is not None and after.extra) or (before is not None and before.extra):
            self.timers += len(timers_of(key, after)) - len(timers_of(key, before))
            self.quarantined += _is_quarantined(after) - _is_quarantined(before)

    def add_growth(self, growth: Growth) -> None:
        """Add what changes of rows with nothing but a value do."""
        self.rows += growth.size.rows
        self.bytes += growth.size.bytes
        self.groups = summed_groups([self.groups, growth.groups])

    def merge(self, more: _Count) -> None:
        """Add what another one has."""
        self.groups = summed_groups([self.groups, more.groups])
        self.rows += more.rows
        self.bytes += more.bytes
        self.timers += more.timers
        self.quarantined += more.quarantined
        self.tally.merge(more.tally)

    def size(self) -> StoreSize:
        """Return what there is, without the phases."""
        return StoreSize(self.rows, self.bytes, self.timers, self.quarantined)


#: Rows that are counted at a time.
STEP = 10_000

#: Entries that are written at a time: the interpreter is held for so long, which is some ms.
PIECE = 10_000

#: Rows that are read at a time of a view.
_VIEWED = 100

#: What reads entries: it is sent the first name, what names begin with, and how many at most.
_Pieces: TypeAlias = "Generator[list[tuple[bytes, bytes]], tuple[bytes, bytes, int], None]"

_NONE: frozenset[DueTimer] = frozenset()


def timers_of(key: bytes, row: KeyRow | None) -> frozenset[DueTimer]:
    """Return a row's timers as entries of the index: those of a key in quarantine do not fire.

    Raises:
        StateStoreError: they are not what Headrace wrote.
    """
    if row is None or not row.extra:
        return _NONE
    try:
        timers, quarantined = row.read_extra()
        if quarantined is not None:
            return _NONE
        return frozenset(
            DueTimer(_indexed(due), key, name, clock) for name, (due, clock) in timers.items()
        )
    except Exception as error:
        raise StateStoreError(
            f"the headrace-timers of key {key!r} cannot be read: {type(error).__name__}: {error}; "
            "who else writes to the changelog? headrace state export shows the row"
        ) from error


def _indexed(due: float) -> int:
    """Return a due time as the index has it: what does not fit is always, or never, due."""
    return ceil(max(-_BIAS, min(_BIAS - 1, due)))


class RocksStore(StateStore):
    """A :class:`StateStore` in RocksDB, in a folder that is this process's own.

    Rows that were put are in a table until they are flushed. Those that were read are cached as
    they are stored, up to ``cache_bytes``, and stay so as they are written. What the disk took
    meanwhile is found by RocksDB's checksums. The write-ahead log is not forced to the disk: what a
    crash of the machine takes is read again from the changelog. With ``phase_of`` keys are counted
    by phase, and the rows of ``groups`` each by themselves: what their keys begin with, by their
    names.
    """

    def __init__(
        self,
        folder: Path,
        cache_bytes: int = 64 << 20,
        phase_of: PhaseReader | None = None,
        groups: Mapping[str, bytes] | None = None,
    ) -> None:
        self._folder = folder
        self._phase_of = phase_of
        self._groups = RowGroups(groups or {}, _LENGTH.size)
        self._database: Rdict | None = None
        # by the name in the database: bytes are nothing that is looked through for garbage
        self._cache: OrderedDict[bytes, bytes] = OrderedDict()
        self._room = self._cache_bytes = cache_bytes
        # a block has one row that is wanted, and that one is cached by itself
        self._point_reads = ReadOptions()
        self._point_reads.fill_cache(False)  # type: ignore[call-arg]  # its types leave that out
        self._lock = Lock()
        self._unwritten = UnwrittenTable(CLOCK_PREFIX)
        # held while the table is written, and taken before the other lock: of two writes of a row
        # the later one comes last, and none comes after what empties the database
        self._flushing = Lock()
        # each scan under way has a view, which keeps the files open
        self._scans = 0
        self._scan_ended = Condition()
        # what was counted and written since counting began, and the partitions that are counted
        self._counts: dict[int, _Count] = {}
        self._counted: set[int] = set()
        self._added: list[int] = []
        # by partition and clock, where its first timer is at the earliest: before that there are
        # only marks of deleted ones, which a scan from the beginning would pass each time
        self._first_timers: dict[bytes, bytes] = {}
        self._writes_of_timers = 0
        # whether partitions that are loaded, and not put to, have timers
        self._timed: dict[int, bool] = {}
        # partitions with writes that only the database's memory may have
        self._unlogged: set[int] = set()
        self._merged_at = _USUALLY
        self._most_tables = _MOST_TABLES
        # held while the two above are changed
        self._settling = Lock()
        self._without_log = WriteOptions()
        self._without_log.disable_wal = True  # type: ignore[method-assign, assignment]  # its types
        self.cache_hits = 0
        self.cache_misses = 0
        self.is_corrupt = False
        self._is_read_only = False

    def open(self) -> None:
        """Open the store, or make one.

        Raises:
            CorruptStoreError: the files are not what was written; see :meth:`move_aside`.
            StartError: another process has it, or the files cannot be used.
        """
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        self._open(AccessType.read_write())

    def open_to_read(self) -> None:
        """Open files that no process has, and write none. Raises as :meth:`open`."""
        # rows may be in its write-ahead log alone, as after a crash
        self._open(AccessType.read_only(error_if_log_file_exist=False))
        self._is_read_only = True

    def _open(self, access: AccessType) -> None:
        # a load may have been under way at the end
        self._merged_at, self._most_tables = _USUALLY, _MOST_TABLES
        try:
            self._database = Rdict(str(self._folder), _options(), access_type=access)
        except Exception as error:
            unusable = self._unusable("opened", error)
            if isinstance(unusable, CorruptStoreError):
                raise unusable from error
            raise StartError(
                f"the state store in {self._folder} cannot be opened: {error}; end the process "
                "that has it open. The folder may be deleted where headrace state topics finds no "
                "error: then it is made again from the changelog"
            ) from error

    def settle(self) -> None:
        """Finish what an ended process had begun with the files, before the store is opened.

        For the process that has the instance's lock.

        Raises:
            StartError: the files cannot be used.
        """
        place = StoreFolder(self._folder)
        try:
            if place.is_unsettled:
                log.info("state_store_replaced", folder=str(self._folder))
            place.settle()
        except OSError as error:
            raise StartError(
                f"{error.filename}, next to the state store in {self._folder}, cannot be renamed "
                f"or deleted: {error.strerror}; correct the rights of the folder it is in"
            ) from error

    def copy_files(self) -> Path:
        """Flush, and link the files as they are into a new folder next to the store's.

        Former copies are deleted, and the caller deletes this one. Any thread; blocks.
        Positions in it may be older than its rows, as after a crash.

        Raises:
            StateStoreError: they cannot be linked.
        """
        with self._flushing:
            self._write_all()
            try:
                copy = StoreFolder(self._folder).begin_copy()
                # linking writes tables as well, and would hold the interpreter for that
                self._files.flush()
                Checkpoint(self._files).create_checkpoint(str(copy))
            except Exception as error:
                raise self._unusable("copied", error) from error
        return copy

    def move_aside(self) -> str:
        """Restart with an empty store; return where the former one is now.

        What was not written is gone: the changelog has it, and all of it is read again. It fails
        while a read is under way, and may be called again after that.

        Raises:
            StartError: the files cannot be used.
        """
        with self._flushing, self._lock:
            self._close_database(self._take_database())
            aside = self._folder.with_name(f"{self._folder.name}.corrupt-{time.time_ns()}")
            self._folder.rename(aside)
            self._clear_cache()
            self._unwritten = UnwrittenTable(CLOCK_PREFIX)
            self._first_timers.clear()
            self._timed.clear()
            self._unlogged.clear()
            self._counts.clear()
            self._counted.clear()
            self.open()
            self.is_corrupt = False
        return str(aside)

    @property
    def _files(self) -> Rdict:
        if self._database is None:
            raise StateStoreError(f"the state store in {self._folder} is not open")
        return self._database

    @override
    def get_many(self, keys: Sequence[PartitionKey]) -> list[KeyRow | None]:
        names = _row_keys(keys)
        with self._lock:
            rows = self._unwritten.find(names)
            written = [at for at, data in enumerate(rows) if data is ABSENT]
            self.cache_hits += len(keys) - len(written)
            if len(written) == len(names):
                return _decoded(self._get_written(names))
            for at, data in zip(
                written, self._get_written([names[at] for at in written]), strict=True
            ):
                rows[at] = data
        return _decoded(rows)

    @override
    def peek_many(self, keys: Sequence[PartitionKey]) -> list[KeyRow | None]:
        found = self._unwritten.peek(_row_keys(keys), self._cache.get)
        return self.get_many(keys) if found is None else _decoded(found)

    def _get_written(self, names: Sequence[bytes]) -> list[bytes | None]:
        """Return rows of the database, from the cache where it has them."""
        rows = list(map(self._cache.get, names))
        missing = [name for name, data in zip(names, rows, strict=True) if data is None]
        self.cache_hits += len(names) - len(missing)
        self.cache_misses += len(missing)
        if not missing:
            self._touch(names)
            return rows
        self._touch(name for name, data in zip(names, rows, strict=True) if data is not None)
        read = self._read(missing)
        found = zip(names, rows, strict=True)
        return [read.get(name) if data is None else data for name, data in found]

    def _touch(self, names: Iterable[bytes]) -> None:
        """Mark these as used last, so that the cache evicts them last."""
        deque(map(self._cache.move_to_end, names), maxlen=0)

    def _read(self, names: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the rows that there are of these, which are not cached, and cache them."""
        order: list[Any] = sorted(names)
        try:
            values: Any = self._files.get(order, read_opt=self._point_reads)
        except Exception as error:
            raise self._unusable("read", error) from error
        found: dict[bytes, bytes] = {
            name: data for name, data in zip(order, values, strict=True) if data is not None
        }
        self._cache.update(found)
        self._room -= _weight(found)
        self._evict()
        return found

    def _cache_rows(self, names: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Cache those rows as they were written that were read before; None was deleted.

        Step by step for all of them: there is no call of Python's for each.
        """
        cache = self._cache
        is_cached = list(map(cache.__contains__, names))
        if True not in is_cached:
            return
        rows = dict(compress(zip(names, values, strict=True), is_cached))
        kept = {name: data for name, data in rows.items() if data is not None}
        self._room += _weight({name: cache[name] for name in rows}) - _weight(kept)
        for name in rows.keys() - kept.keys():
            del cache[name]
        cache.update(kept)
        self._touch(kept)
        self._evict()

    def _evict(self) -> None:
        while self._room < 0 and self._cache:
            oldest, freed = self._cache.popitem(last=False)
            self._room += len(freed) + len(oldest) + _ENTRY_BYTES

    @override
    def prepare(
        self,
        changes: Sequence[ChangedRows],
        commits: Mapping[int, StoredCommit] | None = None,
        stale: Iterable[tuple[int, DueTimer]] = (),
    ) -> Callable[[], None]:
        rows: dict[bytes, bytes | None] = {}
        timers: dict[bytes, bytes | None] = {timer_key(*each): None for each in stale}
        partitions = {number for each in changes for number in each.partitions}
        growth = {number: _Count() for number in partitions & self._counts.keys()}
        added: list[int] = []
        for each in changes:
            rows.update(_row_entries(each))
            timers |= self._count_changes(each, growth)
            for key, change in each.items() if self._phase_of is not None else ():
                added = summed(added, self._tally(change, growth.get(key.partition)))

        def add() -> None:
            with self._lock:
                for number in partitions:
                    self._timed.pop(number, None)
                self._unwritten.put(rows, timers)
                self._unwritten.commits.update(commits or {})
                self._grow(growth, partitions)
                self._added = summed(self._added, added)

        return add

    def _count_changes(
        self, changes: ChangedRows, growth: Mapping[int, _Count]
    ) -> dict[bytes, bytes | None]:
        """Add what changes do to counts of partitions; return what they do to the timers' index."""
        timers: dict[bytes, bytes | None] = {}
        plain, others = changes.by_extras()
        for key, change in others.items():
            timers.update(timer_changes(key, change))
            if key.partition in growth:
                growth[key.partition].add_change(key.key, change, self._groups.find(key.key))
        if plain and growth:
            for number, found in self._groups.growth(plain).items():
                if number in growth:
                    growth[number].add_growth(found)
        return timers

    @override
    def unwritten(self) -> Unwritten:
        return self._unwritten.size()

    @override
    def flush(self) -> None:
        with self._flushing:
            self._write_all()

    def _write_all(self) -> None:
        """Write the table, piece by piece; reads see all of it there until it is done."""
        with self._lock:
            entries, commits = self._unwritten.begin_writing(), dict(self._unwritten.commits)
        is_written = False
        try:
            names = sorted(entries)
            pieces = [names[start : start + PIECE] for start in range(0, len(names), PIECE)]
            for piece in pieces:
                # of which commit the rows are is said with the last ones, and not in between
                self._write_piece(piece, entries, commits, is_last=piece is pieces[-1])
            if commits and not pieces:
                self._write_piece((), entries, commits, is_last=True)
            is_written = True
            if self._most_tables != _FEW_TABLES:
                # all is written; the next flush tries it again
                with suppress(StateStoreError):
                    self._settle_merging()
        finally:
            with self._lock:
                self._unwritten.end_writing(is_written=is_written)
                if is_written:
                    self._unwritten.remove_commits(commits)

    def _write_piece(
        self,
        names: Sequence[bytes],
        entries: Mapping[bytes, bytes | None],
        commits: Mapping[int, StoredCommit],
        *,
        is_last: bool,
    ) -> None:
        """Write some entries, and the commits that they are of with the last ones."""
        batch = WriteBatch(raw_mode=True)
        values = list(map(entries.__getitem__, names))
        _put_entries(batch, names, values)
        for partition, commit in commits.items():
            name = _PARTITION.pack(_COMMIT, partition)
            if is_last:
                batch.put(name, json.dumps(commit._asdict()).encode())
            else:
                batch.delete(name)
        self._write(batch)
        # sorted: the index of timers comes after the rows
        rows = bisect_left(names, _TIMER)
        with self._lock:
            self._note_timers(names[rows:])
            self._cache_rows(names[:rows], values[:rows])

    @override
    def note(self, positions: Mapping[int, Position]) -> None:
        self.flush()
        self._write_unlogged(positions)
        batch = WriteBatch(raw_mode=True)
        for partition, position in positions.items():
            _put_position(batch, partition, position)
        self._write(batch)

    def _write_unlogged(self, partitions: Collection[int]) -> None:
        """Write to the disk what no log has of partitions, before a log has a later position."""
        if self._unlogged.isdisjoint(partitions):
            return
        try:
            self._files.flush()
        except Exception as error:
            raise self._unusable("written", error) from error
        # others may be loaded meanwhile, and keep their marks
        self._unlogged.difference_update(partitions)
        self._settle_merging()

    def end_load(self, partition: int) -> None:
        """Write what was loaded of a partition in bulk, of which no more follows.

        Raises:
            StateStoreError: it cannot be written.
        """
        self._write_unlogged([partition])

    def _settle_merging(self) -> None:
        """Set at how many tables RocksDB merges them: more while partitions are loaded in bulk."""
        wanted = _IN_BULK if self._unlogged else _USUALLY
        with self._settling:
            if wanted != self._merged_at:
                self._set_options({_MERGED_AT: wanted})
                self._merged_at = wanted
            self._settle_most_tables()

    def _settle_most_tables(self) -> None:
        """Set with how many tables writes are held up: as usual once there are few."""
        if self._unlogged:
            wanted = _MOST_TABLES
        elif self._most_tables == _FEW_TABLES:
            return
        else:
            there = int(self._files.property_value(_TABLES) or 0)
            wanted = _FEW_TABLES if there < _FEW_TABLES[0] else _MOST_TABLES
        if wanted != self._most_tables:
            slowed, stopped = wanted
            self._set_options({_SLOWED_AT: str(slowed), _STOPPED_AT: str(stopped)})
            self._most_tables = wanted

    def _set_options(self, options: dict[str, str]) -> None:
        try:
            self._files.set_options(options)
        except Exception as error:
            raise self._unusable("written", error) from error

    def load(
        self,
        partition: int,
        pieces: Iterable[LoadedRows],
        position: Position | None,
        *,
        replaces: bool = False,
        in_bulk: bool = False,
    ) -> None:
        """Write rows of a partition whose state is not all there yet, as its changelog has them.

        ``in_bulk``: without the write-ahead log, which costs as much as the rows do, and with less
        merging of tables meanwhile. A crash takes
        the last of them, with the positions that came with them; :meth:`note` and a later position
        wait until all are on the disk. For one thread of a partition.

        Nothing reads them until it is, so that they are not cached, and what was there before is
        not known. ``replaces``: timers of rows that were there leave the index, for which these
        are read; without it they are stale there, once for each load.
        """
        batch = WriteBatch(raw_mode=True)
        # rows of later commits come to those that are there
        batch.delete(_PARTITION.pack(_COMMIT, partition))
        names: list[bytes] = []
        timers: list[bytes] = []
        for piece in self._without_former_timers(partition, pieces, batch) if replaces else pieces:
            names += _put_loaded(batch, partition, piece, timers)
        if position is not None:
            _put_position(batch, partition, position)
        if in_bulk:
            self._unlogged.add(partition)
            self._settle_merging()
        elif position is not None:
            self._write_unlogged([partition])
        with self._lock:
            if timers:
                self._timed[partition] = True
            self._write(batch, self._without_log if in_bulk else None)
            self._note_timers(timers)
            self._forget_count(partition)
            self._cache_rows(names, [None] * len(names))

    def _without_former_timers(
        self, partition: int, pieces: Iterable[LoadedRows], batch: WriteBatch
    ) -> list[LoadedRows]:
        """Add deletes of timers that rows have now to a batch; return the last row of each key.

        Partitions without any timer, as most are, are not read for it.
        """
        found = [piece for piece in pieces if piece.keys]
        has_timers = any(piece.extras for piece in found)
        if not has_timers and not self._may_have_timers(partition):
            return found
        self._timed[partition] = True
        last: dict[bytes, tuple[bytes | None, bytes | None]] = {}
        for piece in found:
            extras = piece.extras or repeat(None)
            last.update(zip(piece.keys, zip(piece.values, extras, strict=False), strict=True))
        prefix = _PARTITION.pack(_ROW, partition)
        keys: list[Any] = sorted(last)
        try:
            rows: Any = self._files.get([prefix + key for key in keys], read_opt=self._point_reads)
        except Exception as error:
            raise self._unusable("read", error) from error
        for key, data in zip(keys, rows, strict=True):
            for timer in () if data is None else timers_of(key, decode_row(data)):
                batch.delete(timer_key(partition, timer))
        values, extras = zip(*last.values(), strict=True) if last else ((), ())
        return [LoadedRows(list(last), values, extras)]

    def _may_have_timers(self, partition: int) -> bool:
        """Return whether the index may have entries of a partition that only loads write to."""
        if partition not in self._timed:
            prefix = _PARTITION.pack(_TIMER, partition)
            self._timed[partition] = next(self._scan(prefix, prefix), None) is not None
        return self._timed[partition]

    def _note_timers(self, entries: Collection[bytes]) -> None:
        """Start looks for timers at these, if that is earlier: the index has or had them."""
        self._writes_of_timers += bool(entries)
        for entry in entries:
            clock = entry[:CLOCK_PREFIX]
            if clock in self._first_timers:
                self._first_timers[clock] = min(entry, self._first_timers[clock])

    def _write(self, batch: WriteBatch, options: WriteOptions | None = None) -> None:
        try:
            self._files.write(batch, options)
        except Exception as error:
            raise self._unusable("written", error) from error

    def _tally(self, change: RowChange, count: _Count | None) -> Sequence[int]:
        """Count the phases that a change goes from and to; return what its counts add."""
        assert self._phase_of is not None
        before = None if change.before is None else self._phase_of(change.before)
        after = None if change.after is None else self._phase_of(change.after)
        if count is not None:
            count.tally.add(before, -1)
            count.tally.add(after, 1)
        if after is None or before is None:
            return () if after is None else after.counts
        # one whose phase is unknown has no counts
        return [max(0, new - old) for new, old in zip(after.counts, before.counts, strict=False)]

    def _grow(self, growth: Mapping[int, _Count], written: set[int]) -> None:
        for number in written & self._counts.keys():
            if number in growth:
                self._counts[number].merge(growth[number])
            else:
                # counting began while the batch was made, and has to begin again
                self._forget_count(number)

    def _forget_count(self, partition: int) -> None:
        self._counts.pop(partition, None)
        self._counted.discard(partition)

    @override
    def due(self, partition: int, clock: TimerClock, until: int) -> Iterator[DueTimer]:
        prefix = _INDEX.pack(_TIMER, partition, _CLOCKS.index(clock), 0, 0)[:CLOCK_PREFIX]
        with self._lock:
            first, written = self._first_timers.get(prefix, prefix), self._writes_of_timers
            due = takewhile(lambda entry: _due_of(entry) <= until, self._unwritten.timers(prefix))
            unwritten = list(due)
        entries = self._scan(first, prefix)
        found = next(entries, None)
        with self._lock:
            if written == self._writes_of_timers:
                self._first_timers[prefix] = _next_prefix(prefix) if found is None else found[0]
        stored = (
            entry
            for entry, _ in chain([] if found is None else [found], entries)
            if not self._unwritten.is_deleted(entry)
        )
        last = None
        for entry in merge(unwritten, stored):
            if _due_of(entry) > until:
                return
            # one that was written meanwhile, or is written again, comes from both
            if entry != last:
                yield timer_of(entry)[1]
            last = entry

    @override
    def rows(self, partition: int, first: bytes = b"") -> Iterator[tuple[bytes, KeyRow]]:
        with self._lock:
            rows = self._rows_now(partition, first)
        for name, data in rows:
            yield name[_PARTITION.size :], decode_row(data)

    def _rows_now(self, partition: int, first: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Return the rows as they are now, whatever is put or written meanwhile."""
        prefix = _PARTITION.pack(_ROW, partition)
        unwritten = self._unwritten.find_range(prefix, prefix + first)
        entries = self._scan(prefix + first, prefix)
        found = next(entries, None)  # from here on it sees no later writes
        stored = chain([] if found is None else [found], entries)
        if not unwritten:
            return stored
        others = (each for each in stored if each[0] not in unwritten)
        put = ((name, data) for name, data in unwritten.items() if data is not None)
        return merge(put, others, key=itemgetter(0))

    @override
    def heads(self, partition: int, prefix: bytes, length: int) -> set[bytes]:
        start = _PARTITION.pack(_ROW, partition) + prefix
        end = len(start) + length
        with self._lock:
            found = {name[len(start) : end] for name in self._unwritten.names_in(start)}
            first = start
            while (row := next(self._scan(first, start), None)) is not None:
                found.add(row[0][len(start) : end])
                head = row[0][:end]
                first = _next_prefix(head) if len(head) == end else head + b"\0"
        return found

    def _scan(self, first: bytes, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        options = ReadOptions()
        options.set_total_order_seek(True)
        entries = None
        with self._scan_ended:
            self._scans += 1
        try:
            entries = self._files.iter(options)
            entries.seek(first)
            while entries.valid():
                key = entries.key()
                if not key.startswith(prefix):
                    return
                yield key, entries.value()
                entries.next()
            entries.status()
        except StateStoreError:
            raise
        except Exception as error:
            raise self._unusable("read", error) from error
        finally:
            # the error has this frame, and an iterator would keep the files open
            del entries
            with self._scan_ended:
                self._scans -= 1
                self._scan_ended.notify_all()

    def view(self) -> StoreView:
        """Return what the database has now, without what was put and is not written.

        It takes no time that grows with the store, and keeps the files open until it is dropped.

        Raises:
            StateStoreError: it cannot be read.
        """
        pieces = self._pieces()
        next(pieces)
        return StoreView(pieces)

    def _pieces(self) -> _Pieces:
        """Read entries as they are at its first step."""
        options = ReadOptions()
        options.set_total_order_seek(True)
        files = entries = None
        with self._scan_ended:
            self._scans += 1
        try:
            files = self._files
            # the client's snapshots give iterators that see later writes
            entries = files.iter(options)
            found: list[tuple[bytes, bytes]] = []
            while True:
                first, prefix, most = yield found
                found = []
                entries.seek(first)
                while len(found) < most and entries.valid():
                    key = entries.key()
                    if not key.startswith(prefix):
                        break
                    found.append((key, entries.value()))
                    entries.next()
                entries.status()
                # an iterator of closed files has no entries, and says nothing of it
                self._require_same(files)
        except StateStoreError:
            raise
        except Exception as error:
            raise self._unusable("read", error) from error
        finally:
            # the error has this frame, and an iterator would keep the files open
            del entries, files
            with self._scan_ended:
                self._scans -= 1
                self._scan_ended.notify_all()

    def _require_same(self, files: Rdict) -> None:
        if files is not self._files:
            raise StateStoreError(f"the state store in {self._folder} is another one now")

    def measure(self, partition: int) -> Iterator[None]:
        """Count what there is of a partition, in steps; :meth:`size` knows it after the last one.

        For a partition whose rows are all there. What is written meanwhile is counted as well.
        """
        counted = False
        while not counted:
            with self._lock:
                self._forget_count(partition)
                self._counts[partition] = _Count()
                rows = self._rows_now(partition)
            found = _Count()
            for count, (name, data) in enumerate(rows, 1):
                key, row = name[_PARTITION.size :], decode_row(data)
                found.add_change(key, RowChange(None, row), self._groups.find(key))
                if self._phase_of is not None:
                    found.tally.add(self._phase_of(row), 1)
                if count % STEP == 0:
                    yield
            with self._lock:
                counted = partition in self._counts
                if counted:
                    self._counts[partition].merge(found)
                    self._counted.add(partition)

    def size(self, partition: int) -> StoreSize | None:
        """Return what there is of a partition, None where it has not been counted yet."""
        with self._lock:
            return self._counts[partition].size() if partition in self._counted else None

    def group_sizes(self, partitions: Collection[int]) -> dict[str, GroupSize] | None:
        """Return the rows of partitions by group, None where one has not been counted yet.

        A group without rows is missing, or has none.
        """
        with self._lock:
            if not self._counted.issuperset(partitions):
                return None
            return summed_groups(self._counts[number].groups for number in partitions)

    def phases(self, partitions: Collection[int]) -> PhaseTotals | None:
        """Return the keys of partitions by phase, None where one has not been counted yet."""
        with self._lock:
            if not self._counted.issuperset(partitions):
                return None
            return totals_of(self._counts[number].tally for number in partitions)

    def added(self) -> list[int]:
        """Return what writes have added to the counts of all keys; none is zeros."""
        with self._lock:
            return self._added

    @override
    def position(self, partition: int) -> Position | None:
        try:
            data = self._files.get(_PARTITION.pack(_POSITION, partition))
            epoch = self._files.get(_PARTITION.pack(_EPOCH, partition))
        except Exception as error:
            raise self._unusable("read", error) from error
        if data is None:
            return None
        position = Position(**json.loads(data))
        offset, leader_epoch = (None, None) if epoch is None else json.loads(epoch)
        return position._replace(leader_epoch=leader_epoch if offset == position.offset else None)

    def positions(self) -> dict[int, Position]:
        """Return the positions of all partitions of which one is known."""
        numbers = [_PARTITION.unpack(name)[1] for name, _ in self._scan(_POSITION, _POSITION)]
        found = {number: self.position(number) for number in numbers}
        return {number: position for number, position in found.items() if position is not None}

    @override
    def commit_of(self, partition: int) -> StoredCommit | None:
        if (commit := self._unwritten.commits.get(partition)) is not None:
            return commit
        try:
            data = self._files.get(_PARTITION.pack(_COMMIT, partition))
        except Exception as error:
            raise self._unusable("read", error) from error
        return None if data is None else StoredCommit(**json.loads(data))

    def has_any(self, partition: int) -> bool:
        """Return whether there is anything of a partition: a position, or a row."""
        return self.position(partition) is not None or next(self.rows(partition), None) is not None

    @override
    def drop(self, partition: int) -> None:
        with self._flushing, self._lock:
            self._clear_cache()
            self._forget_count(partition)
            self._timed.pop(partition, None)
            self._unlogged.discard(partition)
            self._unwritten.commits.pop(partition, None)
            try:
                for name in (_POSITION, _EPOCH, _COMMIT):
                    self._files.delete(_PARTITION.pack(name, partition))
                for prefix in (_ROW, _TIMER):
                    first = _PARTITION.pack(prefix, partition)
                    self._unwritten.remove(self._unwritten.find_range(first))
                    self._files.delete_range(first, _next_prefix(first))
            except Exception as error:
                raise self._unusable("written", error) from error
            self._settle_merging()

    def write_tables(self) -> None:
        """Flush, and write what the database has in memory to tables."""
        self.flush()
        self._files.flush()

    @override
    def close(self) -> None:
        try:
            if self._database is not None and not self._is_read_only:
                self.flush()
        except StateStoreError as error:
            log.warning("state_store_not_flushed", folder=str(self._folder), error=str(error))
        with self._flushing:
            with self._lock:
                database = self._take_database()
            # no scan begins any more, and the next one to open the files needs them closed
            with self._scan_ended:
                self._scan_ended.wait_for(lambda: not self._scans, _SCAN_TIMEOUT)
            self._close_database(database)

    def _take_database(self) -> Rdict | None:
        database, self._database = self._database, None
        return database

    def _close_database(self, database: Rdict | None) -> None:
        try:
            if database is not None:
                database.close()
        except Exception as error:  # noqa: BLE001 - the files are closed all the same
            log.warning("state_store_not_flushed", folder=str(self._folder), error=str(error))

    def _clear_cache(self) -> None:
        self._cache.clear()
        self._room = self._cache_bytes

    def _unusable(self, done: str, error: Exception) -> StateStoreError:
        reason = f"the state store in {self._folder} cannot be {done}: {error}"
        if isinstance(error, StateStoreError):
            return error
        if _CORRUPTION.search(str(error)):
            self.is_corrupt = True
            return CorruptStoreError(reason)
        return StateStoreError(reason)


class StoreView:
    """The rows of a store as they were at one moment, whatever is written meanwhile.

    ``pieces`` is sent the first name of entries, what they begin with and how many at most, and
    returns those. For one thread; a read blocks.

    Raises:
        StateStoreError: they cannot be read.
    """

    def __init__(self, pieces: _Pieces) -> None:
        self._pieces = pieces

    def peek_many(self, keys: Sequence[PartitionKey]) -> list[KeyRow | None]:
        """Return the rows, None for each key that has none."""
        found: list[bytes | None] = []
        for name in _row_keys(keys):
            entry = self._pieces.send((name, name, 1))
            found.append(entry[0][1] if entry and entry[0][0] == name else None)
        return _decoded(found)

    def rows(self, partition: int, first: bytes = b"") -> Iterator[tuple[bytes, KeyRow]]:
        """Yield the rows of a partition from a key on, in the order of their keys' bytes."""
        prefix = _PARTITION.pack(_ROW, partition)
        start = prefix + first
        while piece := self._pieces.send((start, prefix, _VIEWED)):
            for name, data in piece:
                yield name[_PARTITION.size :], decode_row(data)
            start = piece[-1][0] + b"\0"


def _next_prefix(prefix: bytes) -> bytes:
    """Return the bytes that follow upon all those that begin so."""
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")


def _options() -> Options:
    """Return what makes single keys cheap to read: uncompressed files, and filters of their keys.

    Files are not mapped: RocksDB would look a key up in mapped indexes and filters whose checksums
    it does not compare again, and take what became of them on the disk for a key without state.
    """
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(_MEMTABLE_BYTES)
    options.set_max_background_jobs(2)
    slowed, stopped = _MOST_TABLES
    options.set_level_zero_slowdown_writes_trigger(slowed)
    options.set_level_zero_stop_writes_trigger(stopped)
    options.set_compression_type(DBCompressionType.none())
    options.set_keep_log_file_num(2)
    blocks = BlockBasedOptions()
    blocks.set_bloom_filter(10, False)
    blocks.set_block_cache(Cache(_BLOCK_CACHE_BYTES))
    blocks.set_index_type(BlockBasedIndexType.binary_search())
    options.set_block_based_table_factory(blocks)
    options.set_prefix_extractor(SliceTransform.create_max_len_prefix(_PARTITION.size))
    return options
