"""Processes that reduce workflows and make their calls, each killed STEP lines after the last one.

    python -m tests.integration.apps.executor_killed FIRST STEP SERVERS FOLDER

Each restores the state of two partitions, starts an instance, and goes on with all that are open
until none is: it commits what was answered, in one transaction, makes the calls, and answers them.
Whoever comes next compares what is left with the events that count as read.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections import Counter
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import structlog
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition
from typing_extensions import override

import headrace.extensions.keyed.sink
import headrace.extensions.keyed.state
import headrace.extensions.keyed.store
from examples.workflow import turnaround
from examples.workflow.turnaround import LEDGER, Flight, Ledger, compare, flows
from headrace.apps.workflow import worker
from headrace.apps.workflow.messages import start_message
from headrace.apps.workflow.reducer import WorkflowReducer
from headrace.apps.workflow.topics import PARTITIONER, Topics, create_topics
from headrace.apps.workflow.worker import AnswerProducer, AssignmentProcessor
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.records import Batch
from headrace.core.tables import table_of
from headrace.extensions.keyed.codecs import to_json
from headrace.extensions.keyed.fold import Fold
from headrace.extensions.keyed.function import KeyedFunction
from headrace.extensions.keyed.rows import RowSettings
from headrace.extensions.keyed.settings import FoldSettings
from headrace.extensions.keyed.sink import KeyedSink, SinkTopics
from headrace.extensions.keyed.state import LayeredState
from headrace.extensions.keyed.store import RocksStore
from headrace.kafka import KafkaTopicCatalog, ResultTransactions
from headrace.kafka.columnar.producer import ColumnProducer
from headrace.kafka.topic_producer import TopicProducer
from headrace.processors.contract import ChannelContext
from headrace.sinks.contract import PartitionCommit
from headrace.sinks.micro_batch import MicroBatch, OffsetRange
from headrace.telemetry.metrics import Metrics
from headrace.testing.keyed import KeyedTest, Sent
from headrace.testing.kills import killed_at_every_line
from headrace.testing.records import FakeAssignment
from tests.integration.apps.worker_killed import Files
from tests.integration.extensions.keyed import killed_keyed
from tests.integration.extensions.keyed.killed_keyed import PARTITIONS, WAIT, Member, Standing
from tests.kafka_sinks import committed_records

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Message

    from tests.brokers import Broker

#: Their lines are those of staging, committing and applying, and of a worker before an effect,
#: between effect and answer, and after the answer.
MODULES = (
    headrace.extensions.keyed.sink,
    headrace.extensions.keyed.state,
    headrace.extensions.keyed.store,
    worker,
    turnaround,
)

#: The wall clock (ms) of all processes, beyond the times of the records: no call is late.
NOW = 4_000_000_000_000

OUTPUTS = ("assignments", "results", "outcomes")
SETTINGS = FoldSettings(outputs=OUTPUTS)


def flight(number: int) -> Flight:
    """Return the flight whose instance a process starts; some are cancelled."""
    return Flight(f"flight-{number}", 100 + number, number % 5 != 4)


def create(broker: Broker, folder: Path) -> None:
    """Create topics, and write down in the folder what they are called. For another process."""
    killed_keyed.create(broker, folder)
    source = (folder / killed_keyed.NAMES).read_text(encoding="utf-8").splitlines()[1]
    client = {"bootstrap.servers": broker.address}
    create_topics(client, Topics(source), partitions=len(PARTITIONS), assignments=1)


class Node(Member):
    """One process for workflows after the other, on one folder."""

    def __init__(self, servers: str, folder: Path, first: int, step: int) -> None:
        super().__init__(servers, folder, step)
        self._first = first
        self._topics = Topics(self.source)
        self._files = Files(folder)
        self._calls = FakeAssignment(identity="calls")
        os.environ[LEDGER] = str(self._files.ledger)
        Ledger.create(self._files.ledger).close()
        self._started = 0

    @cached_property
    def reducer(self) -> WorkflowReducer:
        """The reducer of the instances."""
        return WorkflowReducer(flows.check())

    @override
    def take_over(self, number: int) -> Callable[[], object]:
        self._started = len(range(self._first, number, self._step))
        work = super().take_over(number)
        mine = flight(number)
        producer = TopicProducer({**self._properties, **PARTITIONER}, self.source)
        message = start_message(mine.instance, "turnaround@1", mine.args)
        deadline = Deadline.after(WAIT)
        producer.send([(mine.instance.encode(), to_json(message))], deadline)
        producer.flush(deadline)
        return work

    # --- what is killed ---------------------------------------------------------------------

    @override
    def _work(self, number: int) -> None:
        store = RocksStore(self._folder / "store" / "db", 1 << 20)
        store.open()
        state = LayeredState(store)
        sink = self._sink(state)
        held = self._begin(sink)
        calls = self._worker()
        with closing(KafkaTopicCatalog(self._properties, self.group)) as catalog:
            self._restored(store, catalog, held, state)
            while self._reduce(sink, state, held, self._producer(number)) or self._call(calls):
                pass
            sink.checkpoint(self.changelog.topic_id, catalog, Deadline.after(WAIT), lambda _: True)
        calls.close(Deadline.after(WAIT))
        store.close()

    def _reduce(
        self, sink: KeyedSink, state: LayeredState, held: list[FakeAssignment], producer: str
    ) -> bool:
        """Commit all events that are there; whether there are some."""
        starts = [each.position for each in held]
        found = self._read(self.source, starts)
        if not any(found):
            return False
        parts, tables = [], []
        for each, records in zip(held, found, strict=True):
            start, each.position = each.position, each.position + len(records)
            if records:
                batch = Batch(each, start, records, each.position, 0, 1)  # type: ignore[arg-type]
                tables.append(table_of(batch))
            parts.append(
                OffsetRange(*each.partition, start, each.position, len(records), each.identity)
            )
        function = KeyedFunction(Fold(self.reducer, SETTINGS), RowSettings(), state, Standing(NOW))
        micro_batch = MicroBatch(f"at-{starts}", "killed", tuple(parts))
        staged = sink.stage(micro_batch, function(pa.concat_tables(tables), micro_batch))
        shares = [
            PartitionCommit(
                each.identity,
                each.partition,
                start,
                each.position,
                producer,
                is_tick=start == each.position,
            )
            for each, start in zip(held, starts, strict=True)
        ]
        sink.commit_all([staged], shares)
        return True

    def _call(self, calls: AssignmentProcessor) -> bool:
        """Make and answer all calls that are assigned; return whether there were any."""
        start = self._files.offset
        (records,) = self._read(self._topics.assignments, [start])
        if not records:
            return False
        end = (records[-1].offset() or 0) + 1
        batch = Batch(self._calls, start, records, end, 0, 1)  # type: ignore[arg-type]
        calls.on_next_batch(batch).result(WAIT)
        self._files.commit(end)
        return True

    def _worker(self) -> AssignmentProcessor:
        processor = AssignmentProcessor(
            flows, lambda: AnswerProducer(self._properties, self.source), 2
        )
        clock = Standing(NOW)
        processor.open(ChannelContext("assignments", "workers", Metrics(), clock))
        return processor

    def _read(self, topic: str, starts: list[int]) -> list[list[Message]]:
        """Return the committed records of each partition from an offset on."""
        found: list[list[Message]] = [[] for _ in starts]
        left, deadline = set(range(len(starts))), Deadline.after(WAIT)
        with Consumer(
            {
                **self._properties,
                "group.id": "killed",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 10,
            }
        ) as consumer:
            consumer.assign([ClientPartition(topic, n, start) for n, start in enumerate(starts)])
            while left:
                assert not deadline.expired, f"no end of partitions {left} of {topic}"
                message = consumer.poll(0.1)
                if message is None:
                    continue
                if message.error() is None:
                    found[message.partition() or 0].append(message)
                else:
                    left.discard(message.partition() or 0)
        return found

    @override
    def _sink(self, state: LayeredState) -> KeyedSink:
        transactions = ResultTransactions(self._properties, self.group, "m", columns=ColumnProducer)
        outputs = {name: f"{self.source}.{name}" for name in OUTPUTS}
        return KeyedSink(
            transactions, state, SinkTopics(self.changelog.topic, outputs), SYSTEM_CLOCK
        )

    # --- what is looked at ------------------------------------------------------------------

    @override
    def _require_whole(self) -> None:
        """Require what the events before the stored offsets lead to, and each effect once."""
        _, stored = self._stored()
        wanted: Counter[str] = Counter()
        history = self._history()
        states = [
            {key: rows[-1] for key, rows in each.items() if rows[-1] is not None}
            for each in history
        ]
        events = committed_records(self._servers, self.source)
        for number in PARTITIONS:
            test = self._reduced(events, number, stored[number].offset)
            wanted.update(_written(each.to, each.value) for each in test.outputs)
            assert states[number] == test.states(), f"partition {number}: {states[number]}"
        outputs = {
            name: [
                json.loads(each.value() or b"null")
                for each in committed_records(self._servers, f"{self.source}.{name}")
            ]
            for name in OUTPUTS
        }
        found = Counter(_written(name, each) for name in OUTPUTS for each in outputs[name])
        assert found == wanted, f"too many {found - wanted}, missing {wanted - found}"
        self._require_once(outputs["outcomes"])

    def _reduced(self, events: list[Message], number: int, end: int) -> KeyedTest:
        """Return what becomes of a partition's events before an offset."""
        test = KeyedTest(self.reducer, SETTINGS)
        facts = [
            Sent((each.key() or b"").decode(), each.value(), each.timestamp()[1])
            for each in events
            if each.partition() == number and (each.offset() or 0) < end
        ]
        if facts:
            test.send(*facts, now=NOW)
        return test

    def _require_once(self, outcomes: list[dict[str, Any]]) -> None:
        """Require that no outcome and no effect is there twice, or wrong."""
        numbers = range(self._first, self._first + self._started * self._step, self._step)
        ledger = Ledger(self._files.ledger)
        verdict = compare(map(flight, numbers), outcomes, ledger)
        assert (verdict.twice, verdict.wrong, verdict.applied_twice) == (0, 0, 0), verdict
        again = verdict.calls - len(ledger.calls())
        ledger.close()
        sys.stdout.write(f"{verdict.instances} {verdict.outcomes} {again} {verdict.not_applied}\n")
        sys.stdout.flush()


def _written(name: str, value: Any) -> str:
    """Return an output in a form to be counted."""
    return f"{name} {json.dumps(value, sort_keys=True)}"


def main(arguments: list[str]) -> None:
    """Run takeovers that are killed at every line, and check what the last one left."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    first, step, servers, folder = arguments
    node = Node(servers, Path(folder), int(first), int(step))
    last = killed_at_every_line(node.take_over, MODULES, first=int(first), step=int(step), passes=2)
    node.take_over(last + int(step))
    sys.stdout.write(f"ended {last}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
