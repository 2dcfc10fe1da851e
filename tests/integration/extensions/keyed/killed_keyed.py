"""Processes with state by key, each killed STEP lines later than the one before.

    python -m tests.integration.extensions.keyed.killed_keyed FIRST STEP SERVERS FOLDER

Each restores the state of two partitions, commits two micro-batches in one transaction, then a tick
in another. Then it writes what was committed to its store, in pieces, and every other one notes how
far that is: so there is more to be written, and to be restored. Whoever comes next looks at what is
left, and goes on.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import structlog

import headrace.extensions.keyed.restore
import headrace.extensions.keyed.sink
import headrace.extensions.keyed.state
import headrace.extensions.keyed.store
import headrace.extensions.keyed.unwritten
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.records import TopicPartition, identity_of
from headrace.core.tables import SCHEMA
from headrace.extensions.keyed.changelog import row_of
from headrace.extensions.keyed.fold import Fold
from headrace.extensions.keyed.function import KeyedFunction
from headrace.extensions.keyed.names import changelog_name
from headrace.extensions.keyed.restore import Restorer
from headrace.extensions.keyed.rows import RowSettings
from headrace.extensions.keyed.settings import FoldSettings
from headrace.extensions.keyed.sink import KeyedSink, SinkTopics, StagedState
from headrace.extensions.keyed.state import LayeredState
from headrace.extensions.keyed.store import RocksStore, timers_of
from headrace.extensions.keyed.topics import Changelog, open_changelog
from headrace.kafka import KafkaRecordSource, KafkaTopicCatalog, ResultTransactions
from headrace.kafka.columnar.producer import ColumnProducer
from headrace.kafka.fencing import fence_producers
from headrace.kafka.ports import StoredOffset
from headrace.keyed import Fired, Output, at_clock, at_event
from headrace.sinks.contract import PartitionCommit
from headrace.sinks.micro_batch import MicroBatch, OffsetRange
from headrace.testing.keyed import KeyedTest, Sent
from headrace.testing.kills import killed_at_every_line
from headrace.testing.records import FakeAssignment
from tests.kafka_sinks import committed_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.core.records import Assignment
    from headrace.extensions.keyed.errors import CorruptStoreError
    from headrace.extensions.keyed.row import KeyRow
    from tests.brokers import Broker

MODULES = (
    headrace.extensions.keyed.restore,
    headrace.extensions.keyed.sink,
    headrace.extensions.keyed.state,
    headrace.extensions.keyed.store,
    headrace.extensions.keyed.unwritten,
)
PARTITIONS = range(2)
WAIT = 60.0

#: Micro-batches in a transaction, and the records of each partition in a micro-batch.
TOGETHER, RECORDS = 2, 2

#: Each so many-th process finds no store.
NO_STORE = 3

#: Each so many-th process notes how far its store is; others write what they have at their end.
NOTED = 2

#: Entries that a store is written at a time, and entries that it may be without before a commit.
PIECE, MOST_UNWRITTEN = 3, 8

#: The file with the names of the topics.
NAMES = "names"

SETTINGS = FoldSettings(outputs=("out",))


def tally(key: str, state: Any, facts: list[Any], now: int) -> Any:
    """Count a key's facts; its clock strikes in the next micro-batch, and quiet closes it."""
    (fact,) = facts
    if isinstance(fact, Fired):
        if fact.name == "quiet":
            return None, [Output([key, "closed", fact.due])], {}
        return state, [Output([key, "struck", state["n"]])], {"quiet": at_event(state["at"] + 6)}
    state = {"n": (state or {"n": 0})["n"] + 1, "at": fact.ts}
    timers = {"struck": at_clock(now + 1), "quiet": at_event(fact.ts + 6)}
    return state, [Output([key, state["n"], fact.value])], timers


def sent(partition: int, offset: int) -> Sent:
    """Return the record at an offset: three keys of a partition, of which two are quiet."""
    return Sent(f"{partition}/{offset // 4 % 3}", offset, offset)


def now_at(number: int) -> int:
    """Return the wall clock (ms) of the commit that so many are before."""
    return 1_000_000 + 1_000 * number


class Standing:
    """A clock that stands."""

    def __init__(self, now: int) -> None:
        self._now = now

    def monotonic(self) -> float:
        """Return the same again."""
        return self._now / 1000

    def time(self) -> float:
        """Return the same again."""
        return self._now / 1000


def expected(partition: int, commits: int) -> KeyedTest:
    """Return what so many commits make of a partition: groups and ticks in turn, none twice."""
    test = KeyedTest(tally, SETTINGS)
    offset = 0
    for number in range(commits):
        if number % 2:
            test.tick(now_at(number))
            continue
        for _ in range(TOGETHER):
            facts = [sent(partition, offset + behind) for behind in range(RECORDS)]
            test.send(*facts, now=now_at(number))
            offset += RECORDS
    return test


def offset_of(commits: int) -> int:
    """Return the offset that goes with so many commits."""
    return (commits + 1) // 2 * TOGETHER * RECORDS


def create(broker: Broker, folder: Path) -> None:
    """Create topics, and write down in the folder what they are called. For another process."""
    # outputs are of 1970, and killing takes longer than a broker keeps such
    source, output = broker.create_topic(len(PARTITIONS)), broker.create_lasting_topic(2)
    group = f"group.{source}"
    with closing(KafkaTopicCatalog({"bootstrap.servers": broker.address}, group)) as catalog:
        made = open_changelog(catalog, group, source, Deadline.after(WAIT))
        topic_id = catalog.describe([source], Deadline.after(WAIT))[source].topic_id
    names = [group, source, output, topic_id, made.topic_id, str(made.delete_retention)]
    (folder / NAMES).write_text("\n".join(names), encoding="utf-8")


class Member:
    """One process of the group after the other, on one folder."""

    def __init__(self, servers: str, folder: Path, step: int) -> None:
        self._servers = servers
        self._folder = folder
        self._step = step
        self._properties = {"bootstrap.servers": servers, "log_level": 0}
        named = (folder / NAMES).read_text(encoding="utf-8").splitlines()
        self.group, self.source, self.output, self.topic_id, changelog_id, retention = named
        self.changelog = Changelog(
            changelog_name(self.group, self.source), changelog_id, float(retention)
        )

    def take_over(self, number: int) -> Callable[[], object]:
        """Shut out the process before, look at what it left, and return what is next."""
        if number >= self._step:
            former = self._producer(number - self._step)
            fence_producers(self._properties, [former], Deadline.after(WAIT))
        self._require_whole()
        if number % NO_STORE == 0:
            shutil.rmtree(self._folder / "store", ignore_errors=True)
        return lambda: self._work(number)

    # --- what is killed ---------------------------------------------------------------------

    def _work(self, number: int) -> None:
        store = RocksStore(self._folder / "store" / "db", 1 << 20)
        store.open()
        state = LayeredState(store)
        sink = self._sink(state)
        held = self._begin(sink)
        with closing(KafkaTopicCatalog(self._properties, self.group)) as catalog:
            self._restored(store, catalog, held, state)
            while True:
                commits = state.progress(0).number
                self._commit(sink, state, held, self._producer(number))
                if commits % 2:
                    break
            if number // self._step % NOTED == 0:
                patience = Deadline.after(WAIT)
                sink.checkpoint(self.changelog.topic_id, catalog, patience, lambda _: True)
        store.close()

    def _begin(self, sink: KeyedSink) -> list[FakeAssignment]:
        held = [self._assignment(number) for number in PARTITIONS]
        for each in held:
            each.position = sink.stored_offset(each.identity) or 0
        return held

    def _restored(
        self,
        store: RocksStore,
        catalog: KafkaTopicCatalog,
        held: list[FakeAssignment],
        state: LayeredState,
    ) -> None:
        """Bring the state of all partitions up to the changelog."""
        left, done = set(PARTITIONS), Event()

        def ready(assignment: Assignment, _: int) -> None:
            state.admit(assignment.partition.partition)
            left.discard(assignment.partition.partition)
            if not left:
                done.set()

        restorer = Restorer(
            "killed",
            self.changelog,
            store,
            source=lambda: KafkaRecordSource(
                {**self._properties, "isolation.level": "read_committed"}, self.group, 1 << 20
            ),
            catalog=catalog,
            clock=SYSTEM_CLOCK,
            is_busy=state.has_staged,
            ready=ready,
            corrupt=_refuse,
        )
        restorer.start()
        for each in held:
            restorer.begin(each, 1)
        assert done.wait(WAIT)
        assert restorer.stop(Deadline.after(WAIT))

    def _commit(
        self, sink: KeyedSink, state: LayeredState, held: list[FakeAssignment], producer: str
    ) -> None:
        """Commit a group of micro-batches, or a tick where a group was committed last."""
        commits = state.progress(0).number
        records = 0 if commits % 2 else RECORDS
        function = KeyedFunction(
            Fold(tally, SETTINGS), RowSettings(), state, Standing(now_at(commits))
        )
        starts = {each.partition.partition: each.position for each in held}
        staged: list[StagedState] = []
        for _ in range(1 if commits % 2 else TOGETHER):
            parts = [self._range(each, records) for each in held]
            micro_batch = MicroBatch(f"at-{len(staged)}", "killed", tuple(parts))
            result = function(table(parts), micro_batch)
            staged.append(sink.stage(micro_batch, result))
            for each in held:
                each.position += records
        shares = [
            PartitionCommit(
                each.identity,
                each.partition,
                starts[each.partition.partition],
                each.position,
                producer,
                is_tick=not records,
            )
            for each in held
        ]
        sink.commit_all(staged, shares)

    @staticmethod
    def _range(held: FakeAssignment, records: int) -> OffsetRange:
        start = held.position
        return OffsetRange(*held.partition, start, start + records, records, held.identity)

    def _sink(self, state: LayeredState) -> KeyedSink:
        transactions = ResultTransactions(self._properties, self.group, "m", columns=ColumnProducer)
        topics = SinkTopics(self.changelog.topic, {"out": self.output})
        return KeyedSink(transactions, state, topics, SYSTEM_CLOCK)

    def _assignment(self, number: int) -> FakeAssignment:
        identity = identity_of("cluster", self.group, self.topic_id, number)
        return FakeAssignment(TopicPartition(self.source, number), identity=identity)

    def _producer(self, number: int) -> str:
        return f"headrace.{self.group}.{number}"

    # --- what is looked at ------------------------------------------------------------------

    def _require_whole(self) -> None:
        """Require outputs, changelog, store and offsets of one number of commits, for all."""
        commits, stored = self._stored()
        found = [expected(number, commits) for number in PARTITIONS]
        assert [each.offset for each in stored] == [offset_of(commits)] * len(PARTITIONS), stored
        assert [each.stream_time for each in stored] == [each.stream_time for each in found]
        outputs = [
            json.dumps([(each.key() or b"").decode(), json.loads(each.value() or b"null")])
            for each in committed_records(self._servers, self.output)
        ]
        wanted = [output for test in found for output in outputs_of(test)]
        assert sorted(outputs) == sorted(wanted), f"after {commits} commits"
        history = self._history()
        states = [
            {key: rows[-1] for key, rows in history[number].items() if rows[-1] is not None}
            for number in PARTITIONS
        ]
        assert states == [test.states() for test in found], f"{commits} commits: {states}"
        self._require_store(history, states)
        sys.stdout.write(f"{commits}\n")
        sys.stdout.flush()

    def _stored(self) -> tuple[int, list[StoredOffset]]:
        with closing(ResultTransactions(self._properties, self.group, "m")) as transactions:
            entries = [transactions.stored_entry(self._assignment(n).identity) for n in PARTITIONS]
        if entries == [None] * len(PARTITIONS):
            return 0, [StoredOffset(0, 0)] * len(PARTITIONS)
        stored = [each for each in entries if each is not None]
        (commits,) = {each.commits for each in stored}
        assert commits is not None
        return commits, stored

    def _history(self) -> list[dict[bytes, list[KeyRow | None]]]:
        """Return what each key's rows were, one after the other."""
        history: list[dict[bytes, list[KeyRow | None]]] = [{} for _ in PARTITIONS]
        for each in committed_records(self._servers, self.changelog.topic):
            rows = history[each.partition() or 0].setdefault(each.key() or b"", [])
            rows.append(row_of(each))  # type: ignore[arg-type]
        return history

    def _require_store(
        self,
        history: list[dict[bytes, list[KeyRow | None]]],
        states: list[dict[bytes, KeyRow]],
    ) -> None:
        """Require that the store was never ahead, and is whole once it is restored: in a copy."""
        copied = self._folder / "copied"
        shutil.rmtree(copied, ignore_errors=True)
        if (self._folder / "store").exists():
            shutil.copytree(self._folder / "store", copied)
        store = RocksStore(copied / "db", 0)
        store.open()
        for number in PARTITIONS:
            rows = dict(store.rows(number))
            for key, row in rows.items():
                assert row in history[number].get(key, []), f"{key!r} is {row}: never committed"
            if (commit := store.commit_of(number)) is not None:
                assert rows == expected(number, commit.number).states(), commit
        state = LayeredState(store)
        held = [self._assignment(number) for number in PARTITIONS]
        with closing(KafkaTopicCatalog(self._properties, self.group)) as catalog:
            self._restored(store, catalog, held, state)
        for number in PARTITIONS:
            assert dict(store.rows(number)) == states[number]
            timers = {key for key, row in states[number].items() if timers_of(key, row)}
            far = now_at(1_000_000)
            assert {*state.due_keys(number, far, far, besides=set(), most=1000)} == timers
        store.close()


def _refuse(error: CorruptStoreError) -> None:
    raise AssertionError("a killed process left a store that is corrupt") from error


def outputs_of(test: KeyedTest) -> list[str]:
    """Return what was produced, in a form to be compared."""
    return [json.dumps([each.key, each.value]) for each in test.outputs]


def table(parts: list[OffsetRange]) -> pa.Table:
    """Return the records of some ranges."""
    rows = [
        (part, sent(part.partition, n))
        for part in parts
        for n in range(part.start, part.next_offset)
    ]
    columns = [
        pa.array([each.key.encode() for _, each in rows], pa.binary()),
        pa.array([str(each.value).encode() for _, each in rows], pa.binary()),
        pa.array([part.topic for part, _ in rows], pa.string()),
        pa.array([part.partition for part, _ in rows], pa.int32()),
        pa.array([each.ts for _, each in rows], pa.int64()),
        pa.array([each.ts * 1000 for _, each in rows], pa.timestamp("us", tz="UTC")),
        pa.nulls(len(rows), SCHEMA.field("headers").type),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def main(arguments: list[str]) -> None:
    """Run takeovers that are killed at every line, and check what the last one left."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    headrace.extensions.keyed.store.PIECE = PIECE
    headrace.extensions.keyed.unwritten.MOST_UNWRITTEN = MOST_UNWRITTEN
    first, step, servers, folder = arguments
    member = Member(servers, Path(folder), int(step))
    last = killed_at_every_line(
        member.take_over, MODULES, first=int(first), step=int(step), passes=2
    )
    member.take_over(last + int(step))
    sys.stdout.write(f"ended {last}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
