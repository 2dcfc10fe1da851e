"""Keyed reducers without Kafka: facts and time by hand, and a check that a reducer is pure."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import chain, count
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from typing_extensions import override

from headrace.core.tables import SCHEMA
from headrace.extensions.keyed.codecs import DECODERS, key_bytes, to_json
from headrace.extensions.keyed.fold import fold_of
from headrace.extensions.keyed.function import KeyedFunction
from headrace.extensions.keyed.row import KeyRow, PartitionKey
from headrace.extensions.keyed.rows import RowSettings, extension_of
from headrace.extensions.keyed.settings import FoldSettings
from headrace.extensions.keyed.sink import StagedState, staged_state
from headrace.extensions.keyed.state import LayeredState
from headrace.extensions.keyed.store import (
    CLOCK_PREFIX,
    DueTimer,
    StateStore,
    decode_row,
    encode_row,
    timer_changes,
    timer_key,
    timer_of,
)
from headrace.extensions.keyed.tables import DEAD_LETTERS
from headrace.extensions.keyed.unwritten import Unwritten, UnwrittenTable
from headrace.sinks.micro_batch import MicroBatch, OffsetRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from headrace.core.records import ResultRecord
    from headrace.extensions.keyed.api import KeyedReducer, Timer, TimerClock
    from headrace.extensions.keyed.changed_rows import ChangedRows
    from headrace.extensions.keyed.store import Position, StoredCommit


class MemoryStore(StateStore):
    """A :class:`headrace.extensions.keyed.store.StateStore` in this process's memory.

    It has rows and the index of timers as RocksDB has them, in bytes, so that what cannot be
    encoded fails alike. There is no disk: what is unwritten is what was put since the last flush.
    """

    def __init__(self) -> None:
        self._rows: dict[PartitionKey, bytes] = {}
        self._due: set[bytes] = set()
        self._positions: dict[int, Position] = {}
        self._commits: dict[int, StoredCommit] = {}
        self._unwritten = UnwrittenTable(CLOCK_PREFIX)

    @override
    def get_many(self, keys: Sequence[PartitionKey]) -> list[KeyRow | None]:
        found = map(self._rows.get, keys)
        return [None if data is None else decode_row(data) for data in found]

    @override
    def prepare(
        self,
        changes: Sequence[ChangedRows],
        commits: Mapping[int, StoredCommit] | None = None,
        stale: Iterable[tuple[int, DueTimer]] = (),
    ) -> Callable[[], None]:
        # all of it or nothing: what cannot be encoded fails before anything is kept
        entries: dict[bytes, bytes | None] = {timer_key(*each): None for each in stale}
        rows: dict[PartitionKey, bytes | None] = {}
        for key, change in chain.from_iterable(each.items() for each in changes):
            entries.update(timer_changes(key, change))
            rows[key] = None if change.after is None else encode_row(change.after)

        def add() -> None:
            for entry, data in entries.items():
                (self._due.discard if data is None else self._due.add)(entry)
            for key, data in rows.items():
                if data is None:
                    self._rows.pop(key, None)
                else:
                    self._rows[key] = data
            self._commits.update(commits or {})
            self._unwritten.put({b"%d %b" % key: data for key, data in rows.items()}, entries)

        return add

    @override
    def flush(self) -> None:
        self._unwritten.clear()

    @override
    def unwritten(self) -> Unwritten:
        return self._unwritten.size()

    @override
    def note(self, positions: Mapping[int, Position]) -> None:
        self.flush()
        self._positions.update(positions)

    @override
    def due(self, partition: int, clock: TimerClock, until: int) -> Iterator[DueTimer]:
        prefix = timer_key(partition, DueTimer(0, b"", "", clock))[:CLOCK_PREFIX]
        for entry in sorted(entry for entry in self._due if entry.startswith(prefix)):
            _, timer = timer_of(entry)
            if timer.due > until:
                return
            yield timer

    @override
    def rows(self, partition: int, first: bytes = b"") -> Iterator[tuple[bytes, KeyRow]]:
        rows = {each.key: row for each, row in self._rows.items() if each.partition == partition}
        keys = sorted(rows)
        for key in keys[bisect_left(keys, first) :]:
            yield key, decode_row(rows[key])

    @override
    def heads(self, partition: int, prefix: bytes, length: int) -> set[bytes]:
        end = len(prefix) + length
        return {
            key.key[len(prefix) : end]
            for key in self._rows
            if key.partition == partition and key.key.startswith(prefix)
        }

    @override
    def position(self, partition: int) -> Position | None:
        return self._positions.get(partition)

    @override
    def commit_of(self, partition: int) -> StoredCommit | None:
        return self._commits.get(partition)

    @override
    def drop(self, partition: int) -> None:
        self._rows = {key: row for key, row in self._rows.items() if key.partition != partition}
        self._due = {entry for entry in self._due if timer_of(entry)[0] != partition}
        self._positions.pop(partition, None)
        self._commits.pop(partition, None)

    @override
    def close(self) -> None:
        pass


class Sent(NamedTuple):
    """A fact for :class:`KeyedTest`: ``value`` as the reducer is to see it, ``ts`` in ms."""

    key: Any
    value: Any
    ts: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Produced(NamedTuple):
    """An output of a reducer. ``value`` is decoded from JSON where it is JSON."""

    to: str
    key: str | bytes | None
    value: Any
    ts: int
    headers: tuple[tuple[str, bytes | None], ...] = ()


class _Clock:
    """A wall clock that stands where the test puts it."""

    def __init__(self) -> None:
        self.now = 0

    def monotonic(self) -> float:
        return self.now / 1000

    def time(self) -> float:
        return self.now / 1000


@dataclass
class KeyedTest:
    """Runs a reducer on facts that a test sends, as a channel of one partition would. One thread.

    ``settings`` are those of the channel; ``outputs`` collects what the reducer produced. Each
    :meth:`send` is one micro-batch, which is committed at once.
    """

    reducer: KeyedReducer[Any, Any, Any]
    settings: FoldSettings = field(default_factory=lambda: FoldSettings(outputs=("out",)))
    key: str = "record"
    topic: str = "facts"

    def __post_init__(self) -> None:
        self._clock = _Clock()
        self._store = MemoryStore()
        self._state = LayeredState(self._store)
        self._state.admit(0)
        self._offset = 0
        self._names = count(1)
        self.reconfigure(self.settings)
        self._records: list[ResultRecord] = []
        self.counts: list[Any] = []

    def reconfigure(self, settings: FoldSettings) -> None:
        """Apply other settings to the present state, as a channel does at a reload."""
        self.settings = settings
        extend = extension_of(self.reducer)
        rows = RowSettings(self.key, None, settings.unreadable, extend=extend)
        fold = fold_of(self.reducer, settings)
        self._function = KeyedFunction(fold, rows, self._state, self._clock)

    # --- facts and time ---------------------------------------------------------------------

    def send(self, *facts: Sent | tuple[Any, Any, int], now: int | None = None) -> list[Produced]:
        """Process facts as one micro-batch at the wall clock ``now`` (ms); return its outputs."""
        if now is not None:
            self._clock.now = now
        self._clock.now = max([self._clock.now, *(Sent(*fact).ts for fact in facts)])
        before = len(self._records)
        start, self._offset = self._offset, self._offset + len(facts)
        part = OffsetRange(self.topic, 0, start, self._offset, len(facts), "test/0")
        micro_batch = MicroBatch(str(next(self._names)), "test", (part,))
        result = self._function(self._table(facts, start), micro_batch)
        self._commit(staged_state(micro_batch, result, self._state, lambda name: name))
        return self._produced(self._records[before:])

    def tick(self, now: int) -> list[Produced]:
        """Fire timers of the wall clock that are due at ``now`` (ms); return the outputs."""
        return self.send(now=now)

    def _table(self, facts: Sequence[Sent | tuple[Any, Any, int]], start: int) -> pa.Table:
        sent = [Sent(*fact) for fact in facts]
        columns = [
            pa.array([key_bytes(fact.key) for fact in sent], pa.binary()),
            pa.array([self._value(fact.value) for fact in sent], pa.binary()),
            pa.array([self.topic] * len(sent), pa.string()),
            pa.array([0] * len(sent), pa.int32()),
            pa.array(range(start, start + len(sent)), pa.int64()),
            pa.array([fact.ts * 1000 for fact in sent], pa.int64()).cast(
                pa.timestamp("us", tz="UTC")
            ),
            pa.array([_headers(fact.headers) for fact in sent], SCHEMA.field("headers").type),
        ]
        return pa.Table.from_arrays(columns, schema=SCHEMA)

    def _value(self, value: Any) -> bytes | None:
        return value if value is None or isinstance(value, bytes) else to_json(value)

    def _commit(self, staged: StagedState) -> None:
        self._state.stage(staged.layer)
        self._records += staged.outputs
        self.counts.append(staged.counts)
        known = self._state.progress(0)
        progress = known.moved("test/0", self._offset, known.number + 1, staged.layer.times.get(0))
        self._state.apply([staged.layer], {0: progress})

    # --- what became of it ------------------------------------------------------------------

    @property
    def outputs(self) -> list[Produced]:
        """Return all that was produced so far, dead letters included, in order."""
        return self._produced(self._records)

    @property
    def dead_letters(self) -> list[Produced]:
        """Return what was set aside so far, as ``undecodable`` and ``failing`` say."""
        return [each for each in self.outputs if each.to == DEAD_LETTERS]

    @property
    def stream_time(self) -> int | None:
        """Return the latest time of a fact, in milliseconds."""
        return self._state.time(0)

    def state(self, key: Any) -> Any:
        """Return a key's state, None where there is none."""
        row = self._row(key)
        return None if row.state is None else DECODERS[self.settings.state](row.state)

    def timers(self, key: Any) -> Mapping[str, Timer]:
        """Return a key's timers by name."""
        return self._row(key).timers

    def _row(self, key: Any) -> KeyRow:
        (row,) = self._state.get_many([PartitionKey(0, key_bytes(key))])
        return row or KeyRow(None)

    def states(self) -> dict[bytes, KeyRow]:
        """Return all keys' rows as they are stored."""
        return dict(self._store.rows(0))

    def _produced(self, records: Iterable[ResultRecord]) -> list[Produced]:
        return [
            Produced(
                record.topic,
                record.key if self.settings.keys == "bytes" else _text(record.key),
                _decoded(record.value),
                record.timestamp or 0,
                tuple(record.headers or ()),
            )
            for record in records
        ]


def _headers(headers: Sequence[tuple[str, bytes | None]]) -> list[dict[str, Any]] | None:
    return [{"key": name, "value": value} for name, value in headers] or None


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "replace")


def _decoded(data: bytes | None) -> Any:
    if data is None:
        return None
    try:
        return DECODERS["json"](data)
    except (ValueError, RecursionError):
        return data


def check_reducer(
    reducer: KeyedReducer[Any, Any, Any],
    facts: Sequence[Sent | tuple[Any, Any, int]],
    *,
    settings: FoldSettings | None = None,
    runs: int = 20,
    seed: int = 1,
) -> None:
    """Run a reducer over random cuts of the same facts, twice each, and compare.

    Outputs are compared key by key, in their order, and the states at the end.

    Raises:
        AssertionError: two runs differ; the message says in which key, and with which cuts.
    """
    chosen = settings or FoldSettings(outputs=("out",))
    random = Random(seed)  # noqa: S311 - for tests
    expected = _run(reducer, chosen, facts, [len(facts)])
    for _ in range(runs):
        cuts = sorted(
            {*random.sample(range(1, len(facts) + 1), random.randint(1, len(facts))), len(facts)}
        )
        for _ in range(2):
            found = _run(reducer, chosen, facts, cuts)
            for key in sorted(expected.keys() | found.keys(), key=str):
                if expected.get(key) != found.get(key):
                    raise AssertionError(
                        f"key {key!r}: the reducer is not pure, or depends on where batches are "
                        f"cut: {expected.get(key)} in one micro-batch, {found.get(key)} with cuts "
                        f"after {cuts}"
                    )


def _run(
    reducer: KeyedReducer[Any, Any, Any],
    settings: FoldSettings,
    facts: Sequence[Sent | tuple[Any, Any, int]],
    cuts: Sequence[int],
) -> dict[Any, Any]:
    test = KeyedTest(reducer, settings)
    latest = max(Sent(*fact).ts for fact in facts)
    start = 0
    for end in cuts:
        test.send(*facts[start:end], now=latest)
        start = end
    found: dict[Any, Any] = {}
    for each in test.outputs:
        found.setdefault(("outputs", each.key), []).append(each)
    found.update((("state", key), row) for key, row in test.states().items())
    return found
