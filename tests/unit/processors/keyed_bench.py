"""The processor of channels with state over a broker in memory, and a RocksDB store of its own."""

from __future__ import annotations

from contextlib import contextmanager
from copy import copy
from threading import Condition, Event
from typing import TYPE_CHECKING, Any

from headrace.config import ChannelConfig, KeyedRejects
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import SinkConflictError
from headrace.core.records import TopicPartition, identity_of
from headrace.core.result_columns import each_of
from headrace.devstack.wait import wait_for
from headrace.extensions.arrow.engine import ArrowEngine
from headrace.extensions.keyed.changelog import EXTRA_HEADER
from headrace.extensions.keyed.codecs import from_json
from headrace.extensions.keyed.fold import Fold
from headrace.extensions.keyed.function import KeyedFunction
from headrace.extensions.keyed.phases import PhaseReader
from headrace.extensions.keyed.row import PartitionKey
from headrace.extensions.keyed.rows import RowSettings
from headrace.extensions.keyed.runtime.parts import KeyedParts
from headrace.extensions.keyed.runtime.processor import KeyedProcessor
from headrace.extensions.keyed.settings import FoldSettings
from headrace.extensions.keyed.sink import KeyedSink, SinkTopics
from headrace.extensions.keyed.state import LayeredState
from headrace.extensions.keyed.store import RocksStore
from headrace.extensions.keyed.topics import CHANGELOG_SETTINGS
from headrace.kafka.ports import StoredOffset
from headrace.keyed import Fired, Output, Phase, Phases, at_clock
from headrace.processors.contract import ChannelContext, Request
from headrace.processors.pending import MergeLimits
from headrace.sinks.contract import PartitionCommit
from headrace.telemetry.metrics import Metrics
from headrace.testing.broker import InMemoryBroker, InMemoryCatalog, InMemorySource
from headrace.testing.records import FakeAssignment, FakeRecord, make_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from headrace.core.records import ResultRecord
    from headrace.core.result_columns import Results
    from headrace.kafka.catalog import NewTopic
    from headrace.kafka.ports import Fetched
    from headrace.kafka.result_transactions import CountedMove
    from headrace.keyed import KeyedReducer
    from headrace.processors import BatchResponse
    from headrace.processors.task_merge import MergeRules

#: Seconds for anything that happens on another thread.
PATIENCE = 20.0

#: Milliseconds after which a timer fires, without a record.
LATER = 700

INPUT, CHANGELOG = "in", "g.in.state"
PARTITIONS = 2

#: What the broker calls the first topic that is created.
INPUT_ID = "id-1"

#: Another topic, for tasks, and what the broker calls it.
OTHER, OTHER_ID = "other", "id-2"


def count(key: str, state: int | None, facts: list[Any], now: int) -> Any:
    """Count the facts of a key; one of ``later`` has a timer fire in the next micro-batch."""
    del key
    if isinstance(facts[0], Fired):
        return state, [Output("fired")], {}
    waits = facts[0].value == "later"
    total = (state or 0) + 1
    return total, [Output(total)], {"t": at_clock(now + LATER)} if waits else {}


#: What a count says of a key: how many facts it has had, and whether these are few.
PHASES = Phases(
    lambda total: Phase("few" if total < 3 else "many", None, (total,), (total,)),
    ("few", "many"),
    ("facts",),
    ("facts",),
)


def configured(**processor: Any) -> ChannelConfig:
    """Return the configuration of a channel that counts."""
    rejects = processor.pop("rejects", {})
    chosen = {"type": "keyed", "engine": "arrow", "reducer": "m:f", **processor}
    return ChannelConfig.model_validate(
        {"topics": [INPUT], "group": "g", "processor": chosen, "rejects": rejects}
    )


def folding(
    channel: ChannelConfig, reducer: KeyedReducer[Any, Any, Any] = count
) -> tuple[Fold, RowSettings]:
    """Return what counts, or reduces otherwise, as configured."""
    rejects = channel.rejects
    assert isinstance(rejects, KeyedRejects)
    policy = rejects.failing
    settings = FoldSettings(outputs=("out",), value="string", failing=policy)
    return Fold(reducer, settings), RowSettings(undecodable=policy)


class Catalog(InMemoryCatalog):
    """One that knows what a changelog is created with. ``others`` are its other settings."""

    def __init__(self, broker: InMemoryBroker, others: Mapping[str, str]) -> None:
        super().__init__(broker)
        self.others = others

    def create(self, wanted: NewTopic, deadline: Deadline) -> bool:
        """Create a topic."""
        del deadline
        self._broker.create_topic(wanted.name, wanted.partitions)
        return True

    def grow(self, topic: str, partitions: int, deadline: Deadline) -> None:
        """Give a topic more partitions."""
        del deadline
        self._broker.create_topic(topic, partitions)

    def settings(self, topic: str, deadline: Deadline) -> Mapping[str, str]:
        """Return what changelogs are created with, and what is other here."""
        del topic, deadline
        return {**CHANGELOG_SETTINGS, **self.others}


class Source(InMemorySource):
    """Fetches while its gate is open. A partition is assigned once, as by the client."""

    def __init__(self, broker: InMemoryBroker, gate: Event, waiting: Event) -> None:
        super().__init__(broker)
        self._gate = gate
        self._waiting = waiting

    def assign(
        self,
        starts: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Refuse what is assigned."""
        assert self._positions.keys().isdisjoint(starts), "it is assigned already"
        super().assign(starts, epochs)

    def fetch(self, timeout: float) -> Fetched:
        """Wait for the gate."""
        if not self._gate.is_set():
            self._waiting.set()
        assert self._gate.wait(PATIENCE)
        return super().fetch(timeout)


class Member:
    """One who writes to changelogs and offsets; all of a group share ``stored``."""

    def __init__(self, broker: InMemoryBroker, stored: dict[str, StoredOffset]) -> None:
        self._broker = broker
        self._stored = stored
        self.outputs: list[Any] = []
        #: Whether it is of a version that did not say where the state is.
        self.is_of_before = False

    def require(self, topic: str) -> None:
        """Know every topic."""

    def stored_entry(self, identity: str) -> StoredOffset | None:
        """Return what was committed."""
        return self._stored.get(identity)

    def last_entries(
        self, identities: Collection[str], deadline: Deadline
    ) -> dict[str, StoredOffset]:
        """Return the same of several."""
        del deadline
        return {each: self._stored[each] for each in identities if each in self._stored}

    def commit(
        self, moves: Sequence[CountedMove], records: Results = ()
    ) -> list[SinkConflictError]:
        """Compare and store, all of it or nothing."""
        conflicts = [
            SinkConflictError(move.partition, move.start, found.offset)
            for move in moves
            if (found := self._stored.get(move.identity)) is not None
            and (found.offset, found.commits) != (move.start, move.commits)
        ]
        if not conflicts:
            for each in each_of(records):
                self._store(each)
            for move in moves:
                self._stored[move.identity] = StoredOffset(
                    move.next_offset,
                    0,
                    commits=move.next_commits,
                    stream_time=move.stream_time,
                    changelog=None if self.is_of_before else move.changelog,
                )
        return conflicts

    def _store(self, record: ResultRecord) -> None:
        if record.partition is None:
            self.outputs.append((record.key, record.value))
            return
        written = FakeRecord(key_=record.key, value_=record.value, headers_=record.headers)
        self._broker.produce(TopicPartition(CHANGELOG, record.partition), written)

    def close(self) -> None:
        """Hold nothing."""


class Rests:
    """Record which partitions rest."""

    def __init__(self) -> None:
        self._changed = Condition()
        self.resting: set[int] = set()
        self.notes: list[str] = []
        self.on_pause: Callable[[int], None] = lambda _: None

    def pause(
        self, note: str, *, seconds: float | None = None, partition: TopicPartition | None = None
    ) -> None:
        """Let a partition rest."""
        del seconds
        assert partition is not None
        with self._changed:
            self.resting.add(partition.partition)
            self.notes.append(note)
        self.on_pause(partition.partition)

    def resume(self, *, partition: TopicPartition | None = None) -> None:
        """Let it go on."""
        assert partition is not None
        with self._changed:
            self.resting.discard(partition.partition)
            self._changed.notify_all()

    def wait_for_none(self) -> None:
        """Wait until no partition rests."""
        with self._changed:
            assert self._changed.wait_for(lambda: not self.resting, PATIENCE), self.resting


class Stranded:
    """Record what rests until an operator acts: by partition, None for all of them."""

    def __init__(self) -> None:
        self._changed = Condition()
        self.notes: dict[int | None, str] = {}

    def pause(
        self, note: str, *, seconds: float | None = None, partition: TopicPartition | None = None
    ) -> None:
        """Let a partition rest, or all."""
        del seconds
        with self._changed:
            self.notes[None if partition is None else partition.partition] = note
            self._changed.notify_all()

    def resume(self, *, partition: TopicPartition | None = None) -> None:
        """Let it go on."""
        with self._changed:
            self.notes.pop(None if partition is None else partition.partition, None)
            self._changed.notify_all()

    def wait_for(self, *scopes: int | None) -> str:
        """Wait until just these rest; return why the first does."""
        with self._changed:
            assert self._changed.wait_for(lambda: set(self.notes) == {*scopes}, PATIENCE), (
                self.notes
            )
            return self.notes[scopes[0]] if scopes else ""


class KeyedBench:
    """A group's broker; daemons on one store, one after the other, come from :meth:`daemon`."""

    def __init__(
        self,
        folder: Path,
        tasks: MergeRules | None = None,
        reducer: KeyedReducer[Any, Any, Any] = count,
    ) -> None:
        self.folder = folder / "db"
        self.tasks = tasks
        self.reducer = reducer
        self.broker = InMemoryBroker()
        self.broker.create_topic(INPUT, PARTITIONS)
        if tasks is not None:
            self.broker.create_topic(OTHER, PARTITIONS)
        self.stored: dict[str, StoredOffset] = {}
        self.settings: dict[str, str] = {}
        self.gate, self.waiting = Event(), Event()
        self.gate.set()

    @contextmanager
    def daemon(self, **processor: Any) -> Iterator[KeyedDaemon]:
        """Open a processor on the present brokers and files, and close it."""
        daemon = KeyedDaemon(self, **processor)
        daemon.processor.open(daemon.context)
        try:
            yield daemon
        finally:
            self.gate.set()
            daemon.processor.close(Deadline.after(PATIENCE))

    def on_machine(self, folder: Path) -> KeyedBench:
        """Return the same group, for daemons whose store is in another folder."""
        other = copy(self)
        other.folder = folder / "db"
        return other

    def written_by_another(self, number: int, key: bytes, state: bytes) -> None:
        """Count one more fact of a partition as another member."""
        row = FakeRecord(key_=key, value_=state, headers_=[(EXTRA_HEADER, b"")])
        self.broker.produce(TopicPartition(CHANGELOG, number), row)
        found = self.stored[_identity(number)]
        self.stored[_identity(number)] = StoredOffset(
            found.offset + 1,
            0,
            commits=(found.commits or 0) + 1,
            stream_time=found.stream_time,
            changelog=found.changelog,
        )


class KeyedDaemon:
    """One processor, and what its channel does with it."""

    def __init__(self, bench: KeyedBench, **processor: Any) -> None:
        self._bench = bench
        self.store = RocksStore(bench.folder, 0, PhaseReader("g", PHASES, from_json))
        self.state = LayeredState(self.store)
        self.member = Member(bench.broker, bench.stored)
        topics = SinkTopics(CHANGELOG, {"out": "results"})
        self.sink = KeyedSink(self.member, self.state, topics, SYSTEM_CLOCK)
        self.config = configured(**processor)
        made = folding(self.config, bench.reducer)
        function = KeyedFunction(*made, self.state, SYSTEM_CLOCK)
        parts = KeyedParts(
            lambda now: function.follow(*folding(now, bench.reducer)),
            self.sink,
            self.state,
            self.store,
            catalog=lambda: Catalog(bench.broker, bench.settings),  # type: ignore[arg-type,return-value]
            source=lambda: Source(bench.broker, bench.gate, bench.waiting),
            holder=lambda partition: f"{partition} is held back",
            phases=PHASES,
        )
        engine = ArrowEngine(function)
        self.processor = KeyedProcessor(
            engine,
            parts,
            self.config,
            limits=MergeLimits(),
            job_timeout=PATIENCE,
            tasks=bench.tasks,
        )
        self.rests = Rests()
        self.stranded = Stranded()
        self.warm: list[frozenset[int]] = []
        self.context = ChannelContext(
            "main",
            "g",
            Metrics(),
            restoring=self.rests,
            stranded=self.stranded,
            publish_warm=lambda tasks: self.warm.append(frozenset(tasks)),
        )

    def assign(self, number: int, *, wait: bool = True, topic_id: str = INPUT_ID) -> FakeAssignment:
        """Assign a partition, and wait until its state is restored."""
        identity = _identity(number, topic_id)
        held = FakeAssignment(TopicPartition(INPUT, number), identity=identity)
        held.position = self.processor.stored_offset(held) or 0
        self.processor.on_assigned(held)
        if wait:
            self.rests.wait_for_none()
        return held

    def assign_other(self, number: int) -> FakeAssignment:
        """Assign a partition of the other topic of a task, whose end is far away."""
        identity = _identity(number, OTHER_ID)
        held = FakeAssignment(
            TopicPartition(OTHER, number), identity=identity, high_watermark=1_000_000
        )
        held.position = self.processor.stored_offset(held) or 0
        self.processor.on_assigned(held)
        return held

    def hand_out(
        self, held: FakeAssignment, key: bytes, values: Mapping[bytes, int]
    ) -> Future[BatchResponse]:
        """Deliver facts of one key, each at its time, and return what will have the answer."""
        facts = [FakeRecord(key_=key, value_=v, timestamp_=time) for v, time in values.items()]
        batch = make_batch(facts, assignment=held, start=held.position)
        held.position = batch.next_offset
        return self.processor.on_next_batch(batch)

    def send(self, held: FakeAssignment, key: bytes, value: bytes = b"v") -> BatchResponse:
        """Deliver one fact; an error goes to the processor, as from its channel."""
        batch = make_batch(
            [FakeRecord(key_=key, value_=value)], assignment=held, start=held.position
        )
        try:
            answer = self.processor.on_next_batch(batch).result(PATIENCE)
        except Exception as error:
            self.processor.on_exception(held, error, batch)
            raise
        if answer.request is Request.ADVANCE:
            held.position += 1
        return answer

    def tick(self, held: FakeAssignment) -> PartitionCommit:
        """Return a partition's share of a commit without records, where nothing was committed."""
        return PartitionCommit(
            held.identity, held.partition, held.position, held.position, None, is_tick=True
        )

    def counted(self, number: int, key: bytes) -> int | None:
        """Return the state of a key, None where there is none."""
        (row,) = self.state.get_many([PartitionKey(number, key)])
        return None if row is None else int(row.state or b"-1")

    def stored(self, key: str, number: int = 0) -> Any:
        """Return the state of a key as it was committed."""
        row, _ = self.state.committed(PartitionKey(number, key.encode()))
        return None if row is None else from_json(row.state or b"null")

    def phases(self) -> tuple[dict[str, int], int, int]:
        """Wait until all is counted; return keys by phase, the sum of facts, and what was added."""
        reader = self.processor.state_reader()
        found = wait_for(
            lambda: now if (now := reader.snapshot()).phases else None, Deadline.after(PATIENCE)
        )
        assert found is not None
        keys = {each.name: each.keys for each in found.phases}
        return keys, found.amounts["facts"], found.counts["facts"]

    def corrupt_tables(self) -> None:
        """Overwrite every block of the store's tables."""
        self.store.write_tables()
        for table in self._bench.folder.glob("*.sst"):
            with table.open("r+b") as file:
                data = bytearray(table.read_bytes())
                # the last bytes are the footer, which is read when a table is opened
                for at in range(0, len(data) - 100, 8):
                    data[at] ^= 0xFF
                file.write(data)

    def wait_for_new_store(self) -> None:
        """Wait until the store was moved aside, once, and all partitions go on."""
        folder = self._bench.folder.parent
        moved = wait_for(lambda: list(folder.glob("db.corrupt-*")), Deadline.after(PATIENCE))
        assert moved is not None
        assert len(moved) == 1
        self.rests.wait_for_none()


def _identity(number: int, topic_id: str = INPUT_ID) -> str:
    return identity_of("in-memory", "g", topic_id, number)
