"""Reading the state of a running channel: what is committed, for people and other programs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from headrace.core.clock import SYSTEM_CLOCK, Clock
from headrace.extensions.keyed.phases import UNKNOWN, named
from headrace.extensions.keyed.restore import RestoreProgress
from headrace.extensions.keyed.row import PartitionKey
from headrace.extensions.keyed.sink import KeyedCounts
from headrace.extensions.keyed.store import StoreSize
from headrace.telemetry.metrics import PhaseSnapshot, StateSnapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from headrace.extensions.keyed.api import Phases
    from headrace.extensions.keyed.phases import PhaseTotals
    from headrace.extensions.keyed.row import KeyRow
    from headrace.extensions.keyed.standby_reader import StandbyProgress
    from headrace.extensions.keyed.state import CommittedRows, LayeredState, Progress
    from headrace.extensions.keyed.store import RocksStore
    from headrace.telemetry.metrics import OperatorSnapshot


#: What reads the figures of operators over partitions, at a time in seconds since the epoch.
OperatorsReader: TypeAlias = "Callable[[Sequence[int], float], tuple[OperatorSnapshot, ...]]"


def no_operators(partitions: Sequence[int], now: float) -> tuple[OperatorSnapshot, ...]:
    """Return nothing: there are no operators. An ``OperatorsReader``."""
    del partitions, now
    return ()


class FoundKey(NamedTuple):
    """A key with its row, and where its partition is with it: ``offsets`` are by topic."""

    partition: int
    key: bytes
    row: KeyRow
    progress: Progress
    offsets: Mapping[str, int] = {}


class StatePartition(NamedTuple):
    """One held partition. ``restoring`` is None where its state is there.

    ``size`` is None while it is not counted: some moments more. ``offsets`` are by topic.
    """

    partition: int
    progress: Progress
    restoring: RestoreProgress | None = None
    size: StoreSize | None = None
    offsets: Mapping[str, int] = {}


class StandbyPartition(NamedTuple):
    """A partition of another member, of which a copy is kept here."""

    partition: int
    progress: StandbyProgress


class RowsReader(Protocol):
    """Reads rows of partitions. Any thread; blocks."""

    def reading(self, number: int) -> AbstractContextManager[CommittedRows]:
        """Yield the rows of a partition, which stay as they are until the block ends.

        Raises:
            StateStoreError: they are not there, or not to be relied on.
        """
        ...


class CopiesReader(RowsReader, Protocol):
    """Reads the copies of other members' partitions. Any thread; what reads rows blocks."""

    def progress(self) -> Mapping[int, StandbyProgress]:
        """Return how far each is."""
        ...

    def readable(self) -> Sequence[int]:
        """Return the partitions whose copies can be read at this moment, by number."""
        ...


class StateReader:
    """Reads committed state only, whatever is staged. Any thread; what reads rows blocks.

    ``held`` returns the partitions that the channel has, ``restoring`` how far those are whose
    state is not there, ``counts`` what was done so far. ``phases`` are those of the reducer.
    ``operators`` returns the figures of a topology's over partitions, at a time of the clock.
    ``copies`` returns what reads the copies of others' partitions, None while there are none: none
    of their rows is taken for one of a held partition.

    Raises:
        StateStoreError: the store cannot be read, or the partition was given up meanwhile.
    """

    def __init__(
        self,
        state: LayeredState,
        store: RocksStore,
        held: Callable[[], Collection[int]],
        restoring: Callable[[], Mapping[int, RestoreProgress]],
        *,
        counts: Callable[[], KeyedCounts] = KeyedCounts,
        clock: Clock = SYSTEM_CLOCK,
        phases: Phases | None = None,
        topics_of: Callable[[int], Mapping[str, str]] = lambda _: {},
        operators: OperatorsReader = no_operators,
        copies: Callable[[], CopiesReader | None] = lambda: None,
    ) -> None:
        self._copies = copies
        self._operators = operators
        self._state = state
        self._store = store
        self._held = held
        self._restoring = restoring
        self._counts = counts
        self._clock = clock
        self._phases = phases
        self._topics_of = topics_of

    def partitions(self) -> list[StatePartition]:
        """Return the partitions that are held, by number. Does not block."""
        progress, held = self._restoring(), sorted(self._held())
        return [
            StatePartition(
                number,
                found,
                None if ready else progress.get(number, RestoreProgress()),
                self._store.size(number) if ready else None,
                self.offsets(number, found),
            )
            for number in held
            for ready in [self._state.is_ready(number)]
            for found in [self._state.progress(number)]
        ]

    def has(self, number: int) -> bool:
        """Return whether a partition is held and its state is there. Does not block."""
        return number in self._held() and self._state.is_ready(number)

    def standbys(self) -> list[StandbyPartition]:
        """Return the partitions of others of which a copy is kept, by number. Does not block."""
        copies = self._copies()
        found = {} if copies is None else copies.progress()
        return [StandbyPartition(*each) for each in sorted(found.items())]

    @property
    def copies(self) -> CopiesReader | None:
        """Return what reads the copies of others' partitions, None while there are none."""
        return self._copies()

    def copy_files(self) -> Path:
        """Return a new folder with the files of the store, linked as they are now.

        It has what is committed, of partitions that are restored or followed as far as they are.
        The caller deletes it; the next copy and the next start do so as well.

        Raises:
            StateStoreError: they cannot be linked.
        """
        return self._store.copy_files()

    def offsets(self, number: int, progress: Progress) -> dict[str, int]:
        """Return the offsets that a partition's state is of, by topic."""
        topics = self._topics_of(number)
        return {topics[each]: at for each, at in progress.offsets.items() if each in topics}

    def snapshot(self) -> StateSnapshot:
        """Return all that the channel has here, in numbers.

        Blocks for no more than the operator times of a topology, which are in memory as a rule.
        """
        held, counts = self.partitions(), self._counts()
        sizes = [each.size for each in held if each.restoring is None]
        known = [size for size in sizes if size is not None]
        size = StoreSize(*map(sum, zip(*known, strict=True))) if known else StoreSize()
        times = [
            each.progress.time
            for each in held
            if each.restoring is None and each.progress.time is not None
        ]
        now = self._clock.time()
        lag = now - min(times) / 1000 if times else None
        declared, added = self._phases, self._store.added()
        ready = [each.partition for each in held if each.restoring is None]
        totals = None if declared is None else self._store.phases(ready)
        unwritten = self._state.unwritten
        under_way = [each.restoring for each in held if each.restoring is not None]
        return StateSnapshot(
            keys_touched=counts.touched,
            timers_fired=counts.fired,
            late=counts.late,
            rejected=counts.rejected,
            expired=counts.expired,
            cache_hits=self._store.cache_hits,
            cache_misses=self._store.cache_misses,
            size=None if len(known) < len(sizes) else size,
            restoring=len(under_way),
            restore_remaining=sum((each.total or 0) - each.done for each in under_way),
            unwritten_rows=unwritten.entries,
            unwritten_bytes=unwritten.bytes,
            is_refused=self._state.problem is not None,
            stream_time_lag=None if lag is None else max(0.0, round(lag, 3)),
            phases=() if declared is None or totals is None else _phases(declared, totals, now),
            amounts={}
            if declared is None or totals is None
            else named(declared.amounts, totals.amounts),
            counts={} if declared is None else named(declared.counts, added),
            operators=self._operators(ready, now),
            standby_lags={each.partition: each.progress.lag for each in self.standbys()},
        )

    def find(self, key: bytes, partition: int | None = None) -> list[FoundKey]:
        """Return a key in each partition that has it, of those whose state is there."""
        wanted = [n for n in self._ready() if partition is None or n == partition]
        rows = ((n, *self._state.committed(PartitionKey(n, key))) for n in wanted)
        return [self._found(n, key, row, progress) for n, row, progress in rows if row is not None]

    def page(
        self, prefix: bytes, after: tuple[int, bytes] | None, limit: int, partition: int | None
    ) -> list[FoundKey]:
        """Return up to ``limit`` keys that begin so, by partition and key, ``after`` one."""
        return list(self._page(prefix, after, limit, partition))

    def _page(
        self, prefix: bytes, after: tuple[int, bytes] | None, limit: int, partition: int | None
    ) -> Iterator[FoundKey]:
        for number in self._ready():
            if limit <= 0:
                return
            if (after is not None and number < after[0]) or partition not in {None, number}:
                continue
            last = after[1] if after is not None and number == after[0] else None
            rows, progress = self._state.committed_rows(number, prefix, last, limit)
            limit -= len(rows)
            yield from (self._found(number, key, row, progress) for key, row in rows)

    @contextmanager
    def reading(self, number: int) -> Iterator[CommittedRows]:
        """Yield the committed rows of a partition, as :meth:`LayeredState.reading`."""
        with self._state.reading(number) as rows:
            yield rows

    def _found(self, number: int, key: bytes, row: KeyRow, progress: Progress) -> FoundKey:
        return FoundKey(number, key, row, progress, self.offsets(number, progress))

    def _ready(self) -> list[int]:
        return [number for number in sorted(self._held()) if self._state.is_ready(number)]


def _phases(declared: Phases, totals: PhaseTotals, now: float) -> tuple[PhaseSnapshot, ...]:
    unknown = (UNKNOWN,) if totals.keys.get(UNKNOWN) else ()
    return tuple(
        PhaseSnapshot(
            name,
            totals.keys.get(name, 0),
            None if name not in totals.since else max(0.0, round(now - totals.since[name], 3)),
        )
        for name in (*declared.names, *unknown)
    )
