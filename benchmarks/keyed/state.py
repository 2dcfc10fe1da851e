"""What state costs as it grows, to be restored, and to be taken up again after a crash."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from dataclasses import dataclass
from datetime import datetime
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from benchmarks import stack
from benchmarks.first_output import FirstOutput
from benchmarks.keyed.topics import last_values
from benchmarks.lifecycle.daemon import Daemon, Settings
from benchmarks.peer_sides.keyed_work import touch
from benchmarks.report import say
from benchmarks.rounds import alternate
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.memory import relax
from headrace.core.records import TopicPartition, identity_of
from headrace.core.tables import SCHEMA
from headrace.extensions.keyed.changed_rows import ChangedRows
from headrace.extensions.keyed.fold import fold_of
from headrace.extensions.keyed.function import KeyedFunction
from headrace.extensions.keyed.names import changelog_name
from headrace.extensions.keyed.row import KeyRow, PartitionKey, RowChange
from headrace.extensions.keyed.rows import RowSettings
from headrace.extensions.keyed.settings import FoldSettings
from headrace.extensions.keyed.sink import staged_state
from headrace.extensions.keyed.state import LayeredState, Progress
from headrace.extensions.keyed.store import RocksStore
from headrace.extensions.keyed.topics import open_changelog
from headrace.kafka import KafkaTopicCatalog, ResultTransactions
from headrace.kafka.result_transactions import CountedMove
from headrace.kafka.topic_producer import TopicProducer
from headrace.sinks.micro_batch import MicroBatch, OffsetRange

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from benchmarks.rounds import Measured, Rounds
    from headrace.devstack import LocalStack

#: Rows of one write, of one fill.
_WRITTEN = 100_000

#: Micro-batches of one round of the comparison of sizes.
_MICRO_BATCHES = 10

#: Seconds that filling a changelog, and restoring it, may take.
_FILL_TIMEOUT = 600.0
_RESTORE_TIMEOUT = 600.0

#: Seconds after which a daemon has noted how far its store is, whatever it was given.
_NOTED = 3.0

_CHANGELOG_PRODUCER = {"compression.type": "lz4", "partitioner": "murmur2_random"}


@dataclass(frozen=True, slots=True)
class StatePlan:
    """How much state there is. ``rows`` are keys and states of so many bytes.

    ``few`` and ``many`` keys are compared, of which ``touched`` are in a micro-batch. A changelog
    of ``restored`` bytes is restored for each length of a row; of the last one the daemon is
    killed so many times.
    """

    few: int = 10_000
    many: int = 10_000_000
    touched: int = 1_000
    rounds: int = 15
    rows: tuple[int, ...] = (150, 1024)
    restored: tuple[int, ...] = (450_000_000, 1_000_000_000)
    partitions: int = 4
    kills: int = 3


def _key(number: int) -> bytes:
    return b"customer-%09d" % number


def _padding(size: int) -> Iterator[str]:
    """Yield texts of so many characters that do not compress to nothing."""
    random = Random(size)  # noqa: S311 - data, not secrets
    pool = b64encode(random.randbytes(1 << 20)).decode()
    while True:
        start = random.randrange(len(pool) - size)
        yield pool[start : start + size]


def rows(count: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and states that have ``size`` bytes together."""
    bare = len(_key(0)) + len(json.dumps({"n": 7, "pad": ""}))
    padding = _padding(max(1, size - bare))
    for number in range(count):
        yield _key(number), json.dumps({"n": 7, "pad": next(padding)}).encode()


# --- growth -------------------------------------------------------------------------------------


class Sized:
    """A store with so many keys, and what a micro-batch does to some of them, without a broker."""

    def __init__(self, folder: Path, keys: int, plan: StatePlan) -> None:
        self._plan, self._keys = plan, keys
        self._store = RocksStore(folder)
        self._store.open()
        self._fill()
        self._state = LayeredState(self._store)
        for number in range(plan.partitions):
            self._state.begin(number, Progress({f"bench/{number}": 0}, 0, 0))
            self._state.admit(number)
        chosen = FoldSettings(outputs=("out",), value="bytes")
        self._function = KeyedFunction(
            fold_of(touch, chosen), RowSettings(), self._state, SYSTEM_CLOCK
        )
        self._random = Random(keys)  # noqa: S311 - data, not secrets
        self._done = 0

    def _fill(self) -> None:
        changes: list[tuple[PartitionKey, RowChange]] = []
        for number, (key, state) in enumerate(rows(self._keys, self._plan.rows[0]), 1):
            place = PartitionKey(number % self._plan.partitions, key)
            changes.append((place, RowChange(None, KeyRow(state))))
            if len(changes) == _WRITTEN or number == self._keys:
                self._store.put([ChangedRows.of(changes)])
                self._store.flush()
                changes.clear()
        self._store.write_tables()

    def round(self) -> Measured:
        """Touch keys, micro-batch after micro-batch."""
        taken = []
        for _ in range(_MICRO_BATCHES):
            table, micro_batch = self._micro_batch()
            begun = time.perf_counter()
            result = self._function(table, micro_batch)
            staged = staged_state(micro_batch, result, self._state, str)
            self._state.stage(staged.layer)
            self._state.apply([staged.layer], {})
            taken.append(time.perf_counter() - begun)
            if staged.counts.changed != self._plan.touched:
                raise AssertionError(
                    f"{staged.counts.changed} of {self._plan.touched} keys changed"
                )
        return {"seconds": round(sum(taken), 4), "median_ms": round(median(taken) * 1e3, 3)}

    def _micro_batch(self) -> tuple[pa.Table, MicroBatch]:
        touched, partitions = self._plan.touched, self._plan.partitions
        numbers = self._random.sample(range(1, self._keys + 1), touched)
        numbers.sort(key=lambda number: number % partitions)
        offset, self._done = self._done, self._done + touched
        columns = [
            pa.array([_key(number - 1) for number in numbers], pa.binary()),
            pa.array([b""] * touched, pa.binary()),
            pa.array(["facts"] * touched),
            pa.array([number % partitions for number in numbers], pa.int32()),
            pa.array(range(offset, offset + touched), pa.int64()),
            pa.array([offset * 1000] * touched, pa.int64()).cast(SCHEMA.field("timestamp").type),
            pa.nulls(touched, SCHEMA.field("headers").type),
        ]
        ranges = tuple(
            OffsetRange("facts", each, offset, self._done, touched, f"bench/{each}")
            for each in range(partitions)
        )
        micro_batch = MicroBatch(str(offset), "bench", ranges)
        return pa.Table.from_arrays(columns, schema=SCHEMA), micro_batch

    def close(self) -> None:
        """Release the files."""
        self._store.close()


def growth(folder: Path, plan: StatePlan) -> Rounds:
    """Compare what touched keys cost among few and among many, round by round. Blocks."""
    folder.mkdir(parents=True, exist_ok=True)
    relax()  # as what reads records does in a daemon
    few = Sized(folder / "few", plan.few, plan)
    say(f"filling a store with {plan.many:,} keys")
    many = Sized(folder / "many", plan.many, plan)
    try:
        sides = {"few": few.round, "many": many.round}
        alternate(sides, 2, say=lambda line: say(f"warm-up, not counted: {line}"), shortest=0.0)
        return alternate(sides, plan.rounds, say=say, shortest=0.0)
    finally:
        few.close()
        many.close()


# --- restoring ----------------------------------------------------------------------------------


def restoring(servers: LocalStack, plan: StatePlan) -> dict[str, Any]:
    """Return how fast changelogs are restored, and how soon a killed daemon delivers again. Blocks.

    What is restored are the bytes of keys and states, from a daemon's first ``restore_started`` to
    its last ``restore_finished``. The restart is from the start of the process to the first output,
    seen by another client, of a record that waited; the state it counts on is checked.
    """
    figures: dict[str, Any] = {}
    for size, total in zip(plan.rows, plan.restored, strict=True):
        stand = Stand(servers, plan, size, total // size)
        try:
            figures[f"restore_mb_s_{size}b"] = stand.restore()
            say(f"restored rows of {size} bytes: {figures[f'restore_mb_s_{size}b']} MB/s")
            if size == plan.rows[-1]:
                taken = [stand.restart() for _ in range(plan.kills)]
                figures["restart_first_delivery_s"] = round(median(taken), 2)
                figures["restart_first_delivery_s_rounds"] = taken
                figures["restart_state_bytes"] = total
        finally:
            stand.close()
    return figures


def fill_changelog(
    servers: LocalStack, topic: str, partitions: int, states: Iterable[tuple[bytes, bytes]]
) -> None:
    """Create the changelog of a topic's group, which has its name, with these states by key.

    They are said to be of no record yet. Blocks.
    """
    client = {"bootstrap.servers": servers.bootstrap_servers}
    catalog = KafkaTopicCatalog(client, "bench")
    try:
        soon = Deadline.after(30)
        open_changelog(catalog, topic, topic, soon)
        cluster = catalog.cluster_id(soon)
        topic_id = catalog.describe([topic], soon)[topic].topic_id
    finally:
        catalog.close()
    transactions = ResultTransactions(client, topic, "bench")
    places = [TopicPartition(topic, each) for each in range(partitions)]
    transactions.commit(
        [
            CountedMove(
                identity_of(cluster, topic, topic_id, place.partition),
                place,
                start=0,
                next_offset=0,
                transactional_id=None,
                leader_epoch=None,
                commits=0,
                stream_time=None,
            )
            for place in places
        ]
    )
    transactions.close()
    deadline = Deadline.after(_FILL_TIMEOUT)
    producer = TopicProducer({**client, **_CHANGELOG_PRODUCER}, changelog_name(topic, topic))
    producer.send(states, deadline)
    producer.flush(deadline)


class Stand:
    """A channel whose changelog was there before its daemon."""

    def __init__(self, servers: LocalStack, plan: StatePlan, size: int, count: int) -> None:
        self._servers, self._plan = servers, plan
        self._size, self._count = size, count
        self._topic = f"facts-{size}"
        self._output = f"{self._topic}.counts"
        self._sent = 0
        for name in (self._topic, self._output):
            stack.create(servers, name, plan.partitions)
        self._client = {"bootstrap.servers": servers.bootstrap_servers}
        fill_changelog(servers, self._topic, plan.partitions, rows(count, size))
        channel = {
            "topics": [self._topic],
            "group": self._topic,
            "processor": {
                "type": "keyed",
                "engine": "arrow",
                "reducer": "benchmarks.peer_sides.keyed_work:touch",
                "value": "bytes",
                "state": {"checkpoint": "1s"},
            },
            "sink": {"type": "kafka", "topic": self._output},
        }
        settings = Settings(stack.addresses(servers), {"bench": channel}, {}, {})
        self._daemon = Daemon(self._topic, servers.directory / "restoring", settings)

    def restore(self) -> float:
        """Start the daemon without a store, and return MB a second."""
        self._send()
        output = self._first_output()
        self._daemon.start()
        output.wait(_RESTORE_TIMEOUT)
        self._require_counts()
        begun, ended = [], []
        for line in self._daemon.log_file.read_text(encoding="utf-8").splitlines():
            found = json.loads(line) if line.startswith("{") else {}
            at = datetime.fromisoformat(found["timestamp"]) if found else None
            match found.get("event"):
                case "restore_started":
                    begun.append(at)
                case "restore_finished":
                    ended.append(at)
        if not len(begun) == len(ended) == self._plan.partitions:
            raise AssertionError(f"{len(begun)} partitions began to be restored, {len(ended)} were")
        seconds = (max(filter(None, ended)) - min(filter(None, begun))).total_seconds()
        return round(self._count * self._size / seconds / 1e6, 1)

    def restart(self) -> float:
        """Kill the daemon, and return the seconds from the next start to the first output."""
        time.sleep(_NOTED)
        self._daemon.kill()
        self._send()
        output = self._first_output()
        begun = SYSTEM_CLOCK.monotonic()
        self._daemon.start()
        seconds = round(output.wait(_RESTORE_TIMEOUT) - begun, 2)
        self._require_counts()
        say(f"killed and started again: {seconds} s to the first output")
        return seconds

    def _send(self) -> None:
        """Produce one fact of each of some keys."""
        producer = TopicProducer({**self._client, "partitioner": "murmur2_random"}, self._topic)
        producer.send(((_key(number), b"") for number in range(100)), Deadline.after(30))
        producer.flush(Deadline.after(30))
        self._sent += 1

    def _first_output(self) -> FirstOutput:
        servers = self._servers.bootstrap_servers
        return FirstOutput(servers, self._output, self._plan.partitions)

    def _require_counts(self) -> None:
        """Wait until each key's last output counts on from the state that was in the changelog."""
        deadline = Deadline.after(60)
        wanted = {_key(number): b"%d" % (7 + self._sent) for number in range(100)}
        while True:
            found, _ = last_values(
                self._servers.bootstrap_servers, self._output, self._plan.partitions
            )
            if found == wanted:
                return
            if deadline.expired:
                raise AssertionError(f"{self._output} has {found}; {wanted} was expected")

    def close(self) -> None:
        """End the daemon."""
        self._daemon.kill()
