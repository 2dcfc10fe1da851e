"""Records that Spark reads from Kafka itself, beside the same ones handed over."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Event
from time import time
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.clock import Deadline
from headrace.kafka import KafkaRangeSource, KafkaRecordSource
from headrace.local.waiting import wait_for
from headrace.processors.spark import SparkProcessor
from headrace.records import Batch, TopicPartition
from headrace.spark.engine import SparkEngine
from headrace.spark.handover import HandOver
from headrace.spark.inputs import ByReference, ByValue
from headrace.spark.sinks.delta import DeltaSink
from headrace.testing.records import FakeAssignment, FakeRecord
from tests.brokers import Broker
from tests.integration.channel.rig import CHANNEL, Group, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame

    from headrace.controller import KafkaController
    from headrace.kafka.ports import RecordSource
    from headrace.references import Run
    from headrace.spark.inputs import Input
    from headrace.spark.micro_batch import MicroBatch
    from headrace.spark.reducer import Reducer
    from headrace.spark.runtime import SparkRuntime
    from tests.integration.seen import Log

WAIT = 60.0
NUMBERS = (0, 1)

#: Records as the two clients may see them differently: nulls, empty ones, bytes of any kind.
_BYTES = st.one_of(st.none(), st.binary(max_size=20))
_RECORDS = st.builds(
    FakeRecord,
    key_=_BYTES,
    value_=_BYTES,
    headers_=st.one_of(st.none(), st.lists(st.tuples(st.text("abé", max_size=3), _BYTES))),
    # young enough for the broker's retention, and not of the future, which it refuses
    timestamp_=st.integers(0, 3_600_000).map(lambda age: int(time() * 1000) - age),
)

#: What happens to a log: plain records, and transactions that are committed or not.
_STEPS = st.tuples(
    st.sampled_from(NUMBERS),
    st.sampled_from(["plain", "committed", "aborted"]),
    st.lists(_RECORDS, min_size=1, max_size=5),
)


@pytest.fixture(scope="module")
def broker(bootstrap_servers: str) -> Broker:
    """An operator's hand on the shared broker."""
    return Broker(bootstrap_servers)


def read_to(ends: Mapping[int, int], source: RecordSource, topic: str) -> dict[int, list[Run]]:
    """Return what a source brings of both partitions until it stands at these ends.

    The markers of a transaction may come a moment after its commit.
    """
    found: dict[int, list[Run]] = {number: [] for number in NUMBERS}
    stands: dict[int, int] = {}
    source.assign({TopicPartition(topic, number): 0 for number in NUMBERS})
    deadline = Deadline.after(WAIT)
    while stands != ends:
        assert not deadline.expired, f"it stands at {stands}, and not at {ends}"
        fetched = source.fetch(0.05)
        for (_, number), records in fetched.chunks:
            found[number].append(records)
        stands |= {number: end for (_, number), end in fetched.ends}
    source.close()
    return found


def batches(topic: str, found: Mapping[int, list[Run]]) -> Iterator[Batch]:
    """Make one batch of each chunk, one following the other."""
    for number, chunks in found.items():
        assignment, start = FakeAssignment(TopicPartition(topic, number)), 0
        for records in chunks:
            end = records[-1].offset()
            assert end is not None
            yield Batch(assignment, start, records, end + 1, 0)
            start = end + 1


def rows(runtime: SparkRuntime, way: Input, found: list[Batch]) -> list[Any]:
    """Return the rows that the reducer would see."""
    hand_over = HandOver(runtime.new_session())
    prepared = [way.prepare(batch) for batch in found]
    frame = way.frame(hand_over, prepared, 2) if found else hand_over.nothing()
    return sorted(map(tuple, frame.collect()), key=lambda row: row[3:5])


@pytest.mark.slow
@pytest.mark.timeout(300)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(_STEPS, max_size=6))
def test_the_same_records_either_way(
    steps: list[tuple[int, str, list[FakeRecord]]], broker: Broker, spark_runtime: SparkRuntime
) -> None:
    """Whatever is in the logs, both ways give the same rows and stand at the same offsets."""
    topic = broker.create_topic(len(NUMBERS))
    ends = dict.fromkeys(NUMBERS, 0)
    for number, how, records in steps:
        where = TopicPartition(topic, number)
        ends[number] += len(records) + (how != "plain")
        if how == "plain":
            broker.produce(where, *records)
        else:
            broker.transact(where, *records, commit=how == "committed")
    kafka = {"bootstrap.servers": broker.address}

    fetched = read_to(ends, KafkaRecordSource(kafka, "group", 1 << 20), topic)
    planned = read_to(ends, KafkaRangeSource(kafka, "group"), topic)

    by_value = rows(spark_runtime, ByValue(), list(batches(topic, fetched)))
    by_reference = rows(
        spark_runtime, ByReference(kafka, "group", 1_000), list(batches(topic, planned))
    )
    assert by_reference == by_value
    assert len(by_value) == sum(len(r) for _, how, r in steps if how != "aborted")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_same_records_of_a_compacted_topic(broker: Broker, spark_runtime: SparkRuntime) -> None:
    """Where compaction has left gaps, both ways give what is left."""
    topic = broker.create_compacted_topic(len(NUMBERS))
    kafka = {"bootstrap.servers": broker.address}
    produced = 0
    deadline = Deadline.after(200)
    while True:
        # what is written now closes the segment before, which then is compacted
        for number in NUMBERS:
            updates = [FakeRecord(key_=b"%d" % (n % 7), value_=b"%d" % n) for n in range(100)]
            broker.produce(TopicPartition(topic, number), *updates)
        produced += 100
        ends = dict.fromkeys(NUMBERS, produced)
        before, planned, after = (
            rows(spark_runtime, way, list(batches(topic, read_to(ends, source, topic))))
            for way, source in (
                (ByValue(), KafkaRecordSource(kafka, "group", 1 << 20)),
                (ByReference(kafka, "group", 1_000), KafkaRangeSource(kafka, "group")),
                (ByValue(), KafkaRecordSource(kafka, "group", 1 << 20)),
            )
        )
        if before == after and len(after) < produced * len(NUMBERS) - 200:
            break
        assert not deadline.expired, "nothing is compacted"
    assert planned == after


def places(df: DataFrame, batch: MicroBatch) -> DataFrame:
    """Keep each record's place."""
    assert batch.records > 0
    return df.selectExpr("partition", "offset", "cast(value as string) as value")


class Site:
    """A channel by reference in this process, on the shared session, with a Delta table."""

    def __init__(self, group: Group, runtime: SparkRuntime) -> None:
        self.group = group
        self._runtime = runtime
        self._table = group.directory / "table"

    @contextmanager
    def running(self, reducer: Reducer, **channel: Any) -> Iterator[KafkaController]:
        """Run it with a reducer."""
        document = self.group.document("a", source="by_reference", **channel)
        document["spark"] = {"connector": "maven"}
        document["channels"][CHANNEL] |= {
            "processor": {"type": "spark", "reducer": "given:here"},
            "sink": {"type": "delta", "path": str(self._table)},
        }
        source = ByReference(
            {"bootstrap.servers": self.group.broker.address}, self.group.name, 1_000
        )
        engine = SparkEngine(self._runtime, reducer, DeltaSink(self._table), None, source)
        controller = self.group.start(document, {CHANNEL: SparkProcessor(engine)})
        try:
            yield controller
        finally:
            controller.stop(Deadline.after(WAIT))

    def rows(self) -> list[tuple[int, int]]:
        """Return the places of the records in the table."""
        if not DeltaTable.is_deltatable(str(self._table)):
            return []
        table = DeltaTable(self._table).to_pyarrow_table().to_pylist()
        return sorted((row["partition"], row["offset"]) for row in table)


@pytest.fixture
def site(
    broker: Broker, zookeeper_hosts: str, tmp_path: Path, spark_runtime: SparkRuntime
) -> Iterator[Site]:
    """A topic with two partitions and a group of the test's own."""
    group = Group(broker, zookeeper_hosts, tmp_path, broker.create_topic(len(NUMBERS)))
    yield Site(group, spark_runtime)
    group.close()


def test_a_channel_has_spark_read_what_it_plans(site: Site) -> None:
    """Each readable record is in the table once, a restart goes on behind, offsets pass markers."""
    group = site.group
    group.produce(250, 0)
    group.broker.transact(group.partition(1), b"kept", b"kept")
    group.broker.transact(group.partition(1), b"aborted", commit=False)
    with site.running(places):
        eventually(lambda: group.offsets(*NUMBERS) == [250, 5])
    group.produce(50, *NUMBERS)
    with site.running(places):
        eventually(lambda: group.offsets(*NUMBERS) == [300, 55])

    kept = [*range(2), *range(5, 55)]
    assert site.rows() == [(0, offset) for offset in range(300)] + [(1, n) for n in kept]


def test_records_that_are_gone_before_they_are_read(site: Site, log: Log) -> None:
    """The job's result is not stored; the channel goes on with what is left and counts the rest."""
    group = site.group
    group.produce(100, 0)
    gone = Event()

    def too_late(df: DataFrame, batch: MicroBatch) -> DataFrame:
        """Have the broker drop records between the plan and the job."""
        if not gone.is_set():
            gone.set()
            group.broker.delete_before(group.partition(0), 60)
        return places(df, batch)

    with site.running(too_late) as controller:
        eventually(lambda: group.offsets(0) == [100])
        skipped = controller.metrics.skipped.labels(CHANNEL, group.topic, "out_of_range")

    assert site.rows() == [(0, offset) for offset in range(60, 100)]
    assert skipped._value.get() == 60
    (event,) = log.of("offset_out_of_range")
    assert (event["position"], event["target"]) == (0, 60)


def test_a_record_that_fails_is_read_for_the_dead_letter_topic(site: Site) -> None:
    """It is found by its offset, also behind a gap; the letter has what the channel never read."""
    group = site.group
    dead = TopicPartition(group.broker.create_topic(), 0)
    group.produce(3, 0)
    group.broker.transact(group.partition(0), b"aborted", commit=False)
    group.broker.produce(group.partition(0), FakeRecord(key_=b"k", value_=b"poison"), b"last")

    def strict(df: DataFrame, batch: MicroBatch) -> DataFrame:
        """Fail in the job where a value says so."""
        check = "assert_true(value <> 'poison', 'this one') IS NULL"
        return places(df, batch).where(check)

    policy = {
        "policy": "dead_letter",
        "max_attempts": 1,
        "dead_letter": {"topic": dead.topic},
    }
    with site.running(strict, on_error=policy):
        # seven jobs, one after the other
        assert wait_for(lambda: group.offsets(0) == [7], Deadline.after(WAIT))

    (letter,) = group.broker.read(dead, 1)
    headers = dict(letter.headers() or [])
    assert (letter.key(), letter.value()) == (b"k", b"poison")
    assert b"this one" in (headers["headrace.message"] or b"")
    # where the transaction's marker lies among the last records is up to the broker
    failed = int(headers["headrace.offset"] or b"")
    rows = site.rows()
    assert rows[:3] == [(0, 0), (0, 1), (0, 2)]
    assert len(rows) == 4
    assert (0, failed) not in rows
