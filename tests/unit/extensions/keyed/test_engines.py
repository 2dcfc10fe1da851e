"""Both engines fold alike: in chunks that go to workers as bytes, or all keys in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from headrace.core.tables import SCHEMA
from headrace.extensions.keyed.api import TimerClock
from headrace.extensions.keyed.fold import Fold
from headrace.extensions.keyed.function import KeyedFunction
from headrace.extensions.keyed.rows import RowSettings
from headrace.extensions.keyed.settings import FoldSettings
from headrace.extensions.keyed.sink import staged_state
from headrace.extensions.keyed.state import LayeredState, Progress
from headrace.extensions.keyed.tables import in_this_thread
from headrace.extensions.spark.keyed import _result, _task, _to_bytes
from headrace.keyed import Event, Fired, Output, at_event
from headrace.sinks.micro_batch import MicroBatch, OffsetRange
from headrace.testing.channel import FakeClock
from headrace.testing.keyed import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.extensions.keyed.row import KeyRow, PartitionKey

PARTITIONS = range(2)


def tally(key: str, state: Any, facts: list[Event[Any] | Fired], now: int) -> Any:
    """Count facts, refuse sevens, and close a key that was quiet for 30 ms."""
    del now
    (fact,) = facts
    if isinstance(fact, Fired):
        return None, [Output([key, "closed"])], {}
    if fact.value == 7:
        raise ValueError("a seven")
    n = (state or 0) + 1
    return n, [Output([key, n, fact.late])], {"quiet": at_event(fact.ts + 30)}


class CountingStore(MemoryStore):
    """A store that counts what is read of it."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    @override
    def get_many(self, keys: Sequence[PartitionKey]) -> list[KeyRow | None]:
        self.reads += len(keys)
        return super().get_many(keys)


class Engine:
    """A channel's state, and its fold with so many tasks."""

    def __init__(self, tasks: int, policy: str) -> None:
        self.tasks = tasks
        self.store = CountingStore()
        self.state = LayeredState(self.store)
        for number in PARTITIONS:
            self.state.admit(number)
        fold = Fold(tally, FoldSettings(outputs=("out",), failing=policy))
        rows = RowSettings(undecodable=policy)
        self.function = KeyedFunction(fold, rows, self.state, FakeClock())

    def take(self, number: int, table: pa.Table, parts: tuple[OffsetRange, ...]) -> list[Any]:
        """Fold and commit a micro-batch; return the outputs, key by key."""
        micro_batch = MicroBatch(str(number), "c", parts)
        result = self.function.reduce(table, micro_batch, self._run, self.tasks)
        staged = staged_state(micro_batch, result, self.state, lambda name: name)
        self.state.stage(staged.layer)
        progress = {
            part.partition: Progress(
                {part.identity: part.next_offset}, number, staged.layer.times[part.partition]
            )
            for part in parts
            if part.partition in staged.layer.times
        }
        self.state.apply([staged.layer], progress)
        return sorted(map(repr, staged.outputs))

    def _run(self, fold: Any, chunks: Any) -> list[pa.Table]:
        if self.tasks == 1:
            return in_this_thread(fold, chunks)
        return [_result(_task(fold)(_to_bytes(each))) for each in chunks]


FACTS = st.lists(
    st.tuples(
        st.sampled_from(PARTITIONS), st.sampled_from("abc"), st.integers(5, 8), st.integers(0, 200)
    ),
    max_size=15,
)


@settings(deadline=None, max_examples=25)
@given(
    batches=st.lists(FACTS, max_size=4),
    tasks=st.integers(2, 5),
    policy=st.sampled_from(["dead_letter", "quarantine"]),
)
def test_chunks_in_workers_give_what_one_process_gives(
    batches: list[list[tuple[int, str, int, int]]], tasks: int, policy: str
) -> None:
    """Outputs and dead letters of each micro-batch, rows and stream times, row by row."""
    one, other = Engine(1, policy), Engine(tasks, policy)
    ends = dict.fromkeys(PARTITIONS, 0)
    for number, facts in enumerate(batches):
        starts = dict(ends)
        columns: list[list[Any]] = [[] for _ in range(6)]
        for partition, key, value, ts in facts:
            row = (f"{partition}{key}".encode(), b"%d" % value, "t", partition, ends[partition], ts)
            for column, each in zip(columns, row, strict=True):
                column.append(each)
            ends[partition] += 1
        types = [SCHEMA.field(n).type for n in range(4)]
        arrays = [pa.array(*each) for each in zip(columns, types, strict=False)]
        arrays.append(pa.array(columns[4], pa.int64()))
        arrays.append(pa.array([ts * 1000 for ts in columns[5]], pa.timestamp("us", tz="UTC")))
        arrays.append(pa.nulls(len(facts), SCHEMA.field("headers").type))
        table = pa.Table.from_arrays(arrays, schema=SCHEMA)
        parts = tuple(
            OffsetRange("t", n, starts[n], ends[n], ends[n] - starts[n], f"i/{n}")
            for n in PARTITIONS
        )
        assert one.take(number, table, parts) == other.take(number, table, parts)
    for number in PARTITIONS:
        assert list(one.store.rows(number)) == list(other.store.rows(number))
        assert one.state.time(number) == other.state.time(number)


def test_staging_reads_each_touched_key_once() -> None:
    """Poison without a key comes after the rows of keys."""
    engine = Engine(1, "dead_letter")
    for number, values in enumerate([(1, 1), (1, 7, None)]):
        rows = [
            {
                "key": None if value is None else b"k%d" % at,
                "value": b"%d" % (value or 0),
                "topic": "t",
                "partition": 0,
                "offset": 10 * number + at,
                "timestamp": number,
            }
            for at, value in enumerate(values)
        ]
        table = pa.Table.from_pylist(rows, schema=SCHEMA)
        part = OffsetRange("t", 0, 10 * number, 10 * number + 10, len(rows), "i/0")
        engine.take(number, table, (part,))
        assert engine.store.reads == 2 * (number + 1)
    found = {key: row.state for key, row in engine.store.rows(0)}
    assert found == {b"k0": b"2", b"k1": b"1"}
    assert len(list(engine.store.due(0, TimerClock.EVENT, 1000))) == 2, "no timer is left behind"
