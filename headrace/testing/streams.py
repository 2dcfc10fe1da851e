"""Topologies as channels run them, in memory: micro-batches on a state, dropped and restored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from headrace.core.letter_headers import LetterHeaders
from headrace.core.records import TopicPartition
from headrace.core.tables import SCHEMA
from headrace.extensions.keyed.sink import staged_state
from headrace.extensions.keyed.state import LayeredState, Progress
from headrace.extensions.keyed.tables import in_this_thread
from headrace.extensions.streams.inline.streams_test import bytes_of
from headrace.extensions.streams.inline.times import in_task_order
from headrace.extensions.streams.kernels.rows import Emit
from headrace.extensions.streams.operators import Emitted, KeyBy, Sink
from headrace.extensions.streams.runtime.fold import TopologyFold
from headrace.extensions.streams.runtime.shared import SharedTables
from headrace.extensions.streams.runtime.tasks import RejectRules
from headrace.sinks.micro_batch import MicroBatch, OffsetRange
from headrace.testing.keyed import MemoryStore
from headrace.testing.records import FakeRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from headrace.core.records import Record
    from headrace.extensions.keyed.sink import KeyedCounts
    from headrace.extensions.streams.plan import Channel, Plan
    from headrace.extensions.streams.rows import Row
    from headrace.extensions.streams.topology import Topology

#: The row limit of channels by default.
_MAX_ROW = 512 * 1024

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

#: Bytes of windows' rows that no test has.
_ALL_ROWS = 64 << 20


class TopicRecord(NamedTuple):
    """A record of a topic, in bytes; its time is in milliseconds."""

    topic: str
    key: bytes | None
    value: bytes | None
    time: int


class InMemoryPart:
    """A part of a topology on one partition, whose state outlives restarts. One thread.

    ``written`` has what was committed, by topic and in its order. ``chunks`` is in how many parts a
    micro-batch goes through the operators without state, as on Spark; None: as without it.
    ``shared`` are the tables that it has whole, with what was loaded into them. ``cache_bytes`` are
    the bytes of windows' rows that stay in memory, about; the others are read when they are needed.
    ``store`` has rows that it begins with, of partition 0.
    """

    def __init__(
        self,
        plan: Plan,
        part: Channel,
        rules: RejectRules | None = None,
        *,
        chunks: int | None = None,
        cache_bytes: int = _ALL_ROWS,
        store: MemoryStore | None = None,
    ) -> None:
        self.shared = SharedTables(plan, part)
        self.plan, self.part, self.chunks = plan, part, chunks
        self._cache_bytes = cache_bytes
        self.rules = rules or RejectRules(LetterHeaders("headrace", plan.group))
        self.written: dict[str, list[TopicRecord]] = {}
        self.counts: list[KeyedCounts] = []
        self._store = store or MemoryStore()
        self._offset = self._number = 0
        self.restart()

    def restart(self) -> None:
        """Start again with the rows that were committed."""
        self.state = LayeredState(self._store)
        self.state.begin(0, Progress({"in": self._offset}, self._number, None))
        self.state.admit(0)
        self.fold = TopologyFold(
            self.plan,
            self.part,
            self.state,
            self.rules,
            _MAX_ROW,
            shared=self.shared.by_place,
            cache_bytes=self._cache_bytes,
        )

    def load(self, topic: str, records: Sequence[TopicRecord]) -> None:
        """Apply records to the shared tables of a topic."""
        fake: list[Record] = [
            FakeRecord(key_=each.key, value_=each.value, timestamp_=each.time) for each in records
        ]
        if fake:
            self.shared.apply(TopicPartition(topic, 0), fake, self.part.name)

    def run(self, records: Sequence[TopicRecord], *, commits: bool = True) -> None:
        """Run a micro-batch in the order of the records; commit what came of it, or drop it.

        Raises:
            PoisonRecordError: a record cannot be processed, and the rules say ``fail``.
        """
        self._number += 1
        end, size = self._offset + len(records), len(records)
        batch = MicroBatch(
            f"m{self._number}", "c", (OffsetRange("in", 0, self._offset, end, size),)
        )
        staged = staged_state(batch, self._fold(self._table(records), batch), self.state, str)
        self.state.stage(staged.layer)
        if not commits:
            self.state.drop(batch.id)
            return
        self._offset = end
        self.state.apply([staged.layer], {0: Progress({"in": end}, self._number, None)})
        self.counts.append(staged.counts)
        for each in staged.outputs:
            record = TopicRecord(each.topic, each.key, each.value, each.timestamp or 0)
            self.written.setdefault(each.topic, []).append(record)

    def _fold(self, table: pa.Table, batch: MicroBatch) -> pa.Table:
        if self.chunks is None:
            return self.fold(table, batch)
        return self.fold.reduce(table, batch, in_this_thread, self.chunks)

    def rows(self, prefix: bytes = b"") -> dict[bytes, bytes | None]:
        """Return the rows of the state whose keys begin so."""
        return {key: row.state for key, row in self.state.rows_of(0, prefix).items()}

    def _table(self, records: Sequence[TopicRecord]) -> pa.Table:
        rows = [
            {
                "topic": each.topic,
                "partition": 0,
                "offset": self._offset + at,
                "timestamp": _EPOCH + timedelta(milliseconds=each.time),
                "key": each.key,
                "value": each.value,
            }
            for at, each in enumerate(records)
        ]
        return pa.Table.from_pylist(rows, schema=SCHEMA)


#: A record as a program has it: topic, key, value and time.
Given = tuple[str, "str | bytes | int | None", "Row | Mapping[str, Any] | str | bytes | None", int]


def check_topology(
    topology: Callable[[], Topology], records: Iterable[Given], *, runs: int = 20, seed: int = 1
) -> None:
    """Run a topology over random cuts of the same records, with failures and restarts, and compare.

    Each part runs on one partition, as a channel would run it. Some micro-batches are dropped and
    delivered again, and some parts start again with their stored rows; some run as on Spark. The
    records of ``each`` and ``final`` are compared one by one, and so are the rows at the end.
    Updates depend on cuts, and so does all that is made of them: it is left out. Shared tables have
    their last rows from the beginning. Of a join by a
    foreign key the last value of each key is compared, as the steps before it depend on when the
    sides hear of each other.

    Raises:
        AssertionError: two runs differ; the message says in which topic or row.
        ConfigError: the topology does not fit together.
        PoisonRecordError: a record cannot be processed.
    """
    given = [TopicRecord(t, bytes_of(key), bytes_of(value), at) for t, key, value, at in records]
    plan = topology().plan("topology")
    random = Random(seed)  # noqa: S311 - for tests
    expected = _run(plan, given, None)
    for number in range(runs):
        # made again: functions of another object may remember things
        found = _run(topology().plan("topology"), given, random)
        for name, wanted in expected.items():
            if found[name] != wanted:
                at, (one, other) = _first_difference(wanted, found[name])
                raise AssertionError(
                    f"{name}, place {at}: {one} in one micro-batch, {other} in run {number} of "
                    f"seed {seed}: a function is not pure, or remembers something"
                )


def _run(plan: Plan, given: Sequence[TopicRecord], random: Random | None) -> dict[str, list[Any]]:
    """Return what was written to topics, and the rows of parts, that depend on no cuts."""
    topics: dict[str, list[TopicRecord]] = {}
    for record in given:
        topics.setdefault(record.topic, []).append(record)
    found: dict[str, list[Any]] = {}
    cut, settled = _cut_topics(plan), _settled_topics(plan)
    for circle in plan.circles_in_order:
        runs = [
            InMemoryPart(plan, part, chunks=_chunks(random), cache_bytes=_cache(random))
            for part in circle
        ]
        for run in runs:
            for topic in run.part.shared:
                run.load(topic, topics.get(topic, []))
        _run_circle(runs, topics, random)
        for run in runs:
            for topic, written in run.written.items():
                if topic in settled:
                    last = {each.key: each.value for each in written}
                    found[f"the last records of topic {topic}"] = sorted(last.items())
                elif topic not in cut:
                    found[f"topic {topic}"] = list(written)
            if not cut.intersection(run.part.topics):
                found[f"the rows of {run.part.name}"] = sorted(run.rows().items())
    return found


def _run_circle(
    runs: Sequence[InMemoryPart], topics: dict[str, list[TopicRecord]], random: Random | None
) -> None:
    """Run parts that answer each other until none has records, and put what they write to topics.

    Each part has its topics in the order of the task, as far as they were written by then.
    """
    read = [dict.fromkeys(run.part.topics, 0) for run in runs]
    while True:
        worked = False
        for run, positions in zip(runs, read, strict=True):
            new = {topic: topics.get(topic, [])[at:] for topic, at in positions.items()}
            if not any(new.values()):
                continue
            worked = True
            _feed(run, in_task_order(run.plan, run.part, new), random)
            for topic, records in new.items():
                positions[topic] += len(records)
            for topic in run.part.writes:
                topics[topic] = run.written.get(topic, [])
        if not worked:
            return


def _chunks(random: Random | None) -> int | None:
    return None if random is None else random.choice([None, 1, 3])


def _cache(random: Random | None) -> int:
    """Return how many bytes of windows' rows are in memory: all, some or none."""
    return _ALL_ROWS if random is None else random.choice([_ALL_ROWS, 1_000, 0])


def _feed(run: InMemoryPart, records: Sequence[TopicRecord], random: Random | None) -> None:
    """Run records through a part: all at once, or in random cuts."""
    at = 0
    while at < len(records):
        size = len(records) if random is None else random.randint(1, 1 + len(records) // 3)
        if random is not None and random.random() < 0.2:
            run.run(records[at : at + random.randint(1, size)], commits=False)
        if random is not None and random.random() < 0.2:
            run.restart()
        run.run(records[at : at + size])
        at += size


def _cut_topics(plan: Plan) -> set[str]:
    """Return the topics whose records depend on cuts: updates, and what is made of them."""
    cut: set[int] = set()
    for _ in plan.operators:
        for place, operator in enumerate(plan.operators):
            updates = isinstance(operator, Emitted) and operator.emit is Emit.UPDATES
            if updates or place in plan.answers or cut.intersection(operator.inputs):
                cut.add(place)
    named = [(place, plan.operators[place]) for place in cut]
    written = {each.topic for _, each in named if isinstance(each, Sink)}
    by_key = {plan.by_key[place] for place, each in named if isinstance(each, KeyBy)}
    return written | by_key | plan.answer_topics


def _settled_topics(plan: Plan) -> set[str]:
    """Return the topics of changes of joins by a foreign key, of which the last are the same."""
    found = set()
    for operator in plan.operators:
        if isinstance(operator, Sink):
            (source,) = operator.inputs
            emitted = plan.operators[source]
            if isinstance(emitted, Emitted) and emitted.inputs[0] in plan.answers:
                found.add(operator.topic)
    return found


def _first_difference(one: Sequence[Any], other: Sequence[Any]) -> tuple[int, tuple[Any, Any]]:
    size = min(len(one), len(other))
    at = next((place for place in range(size) if one[place] != other[place]), size)
    return at, (_at(one, at), _at(other, at))


def _at(values: Sequence[Any], at: int) -> Any:
    return values[at] if at < len(values) else "nothing"
