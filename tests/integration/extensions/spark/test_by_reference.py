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
from py4j.protocol import Py4JJavaError

from headrace.core.clock import Deadline
from headrace.core.errors import UndecodableRecordError
from headrace.core.record_runs import OffsetRun
from headrace.core.records import Batch, TopicPartition
from headrace.core.tables import Decode, Decoding, OnUndecodable
from headrace.devstack.wait import wait_for
from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.spark.arrow_to_spark import ArrowToSpark, ByReference, ByValue
from headrace.extensions.spark.decode import Decoder
from headrace.extensions.spark.engine import SparkEngine
from headrace.extensions.spark.settings import Share
from headrace.kafka import KafkaRangeSource, KafkaRecordSource
from headrace.processors.micro_batch_processor import MicroBatchProcessor
from headrace.testing.records import FakeAssignment, FakeRecord
from tests.brokers import Broker
from tests.integration.channel.rig import CHANNEL, Group, eventually
from tests.metrics import value_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import DataFrame

    from headrace.controller.controller import KafkaController
    from headrace.core.record_runs import Run
    from headrace.extensions.spark.arrow_to_spark import SparkInput
    from headrace.extensions.spark.reducer import Reducer
    from headrace.extensions.spark.runtime import SparkRuntime
    from headrace.kafka.ports import RecordSource
    from headrace.sinks.micro_batch import MicroBatch
    from tests.integration.seen import Log

    Step = tuple[int, str, list[FakeRecord]]

WAIT = 60.0
NUMBERS = (0, 1)

#: Bytes as the two clients may see them differently: none, empty ones, any.
_BYTES = st.one_of(st.none(), st.binary(max_size=20))

#: Of these compaction keeps the last record each; what has none it does not take.
_FEW_KEYS = st.sampled_from([b"", b"a", b"\xff"])


def _steps(keys: st.SearchStrategy[bytes | None]) -> st.SearchStrategy[list[Step]]:
    """Draw what happens to a log: plain records, and transactions that are committed or not."""
    records = st.builds(
        FakeRecord,
        key_=keys,
        value_=_BYTES,
        headers_=st.one_of(st.none(), st.lists(st.tuples(st.text("abé", max_size=3), _BYTES))),
        # young enough for the broker's retention, and not of the future, which it refuses
        timestamp_=st.integers(0, 3_600_000).map(lambda age: int(time() * 1000) - age),
    )
    step = st.tuples(
        st.sampled_from(NUMBERS),
        st.sampled_from(["plain", "committed", "aborted"]),
        st.lists(records, min_size=1, max_size=5),
    )
    return st.lists(step, max_size=6)


@pytest.fixture(scope="module")
def broker(bootstrap_servers: str) -> Broker:
    """An operator's hand on the shared broker."""
    return Broker(bootstrap_servers)


@pytest.fixture(scope="module")
def often_compacting(broker: Broker) -> Iterator[Broker]:
    """Make the broker look for something to compact ten times a second, not every 15 s."""
    with broker.configured("log.cleaner.backoff.ms", "100"):
        yield broker


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


def rows(runtime: SparkRuntime, way: SparkInput, found: list[Batch]) -> list[Any]:
    """Return the rows that the reducer would see."""
    to_spark = ArrowToSpark(runtime.new_session())
    prepared = [way.prepare(batch) for batch in found]
    frame = way.frame(to_spark, prepared, Share(2)) if found else to_spark.nothing()
    return sorted(map(tuple, frame.collect()), key=lambda row: row[3:5])


def write(broker: Broker, topic: str, steps: list[Step]) -> dict[int, int]:
    """Carry the steps out, and return where the partitions end."""
    ends = dict.fromkeys(NUMBERS, 0)
    for number, how, records in steps:
        where = TopicPartition(topic, number)
        ends[number] += len(records) + (how != "plain")
        if how == "plain":
            broker.produce(where, *records)
        else:
            broker.transact(where, *records, commit=how == "committed")
    return ends


@pytest.mark.parametrize(
    ("share", "tasks"), [(Share(1), 2), (Share(1, is_limit=True), 1), (Share(4), 4)]
)
def test_ranges_are_read_by_no_more_tasks_than_a_limit_allows(
    broker: Broker, spark_runtime: SparkRuntime, share: Share, tasks: int
) -> None:
    """Else each partition is a task of its own, and a large one several."""
    topic = broker.create_topic(len(NUMBERS))
    ends = write(broker, topic, [(number, "plain", [FakeRecord()] * 40) for number in NUMBERS])
    way = ByReference({"bootstrap.servers": broker.address}, "group", 1_000)
    found = [
        Batch(FakeAssignment(TopicPartition(topic, number)), 0, OffsetRun(0, end, 1), end, 0)
        for number, end in ends.items()
    ]

    frame = way.frame(ArrowToSpark(spark_runtime.new_session()), found, share)

    assert frame.rdd.getNumPartitions() == tasks
    assert frame.count() == 80


@pytest.mark.parametrize("plan", ["id > 0", "false"])
def test_an_empty_value_that_spark_reads_itself_is_named(
    broker: Broker, spark_runtime: SparkRuntime, plan: str
) -> None:
    """The first undecodable record fails the batch, whatever the reducer filters by."""
    topic = broker.create_topic(1)
    good, empty = FakeRecord(value_=b'{"id": 1}'), FakeRecord(value_=b"")
    records = [good] * 9 + [empty, good, empty]
    end = write(broker, topic, [(0, "plain", records)])[0]
    way = ByReference({"bootstrap.servers": broker.address}, "group", 1_000)
    batch = Batch(FakeAssignment(TopicPartition(topic, 0)), 0, OffsetRun(0, end, 1), end, 0)
    frame = way.frame(ArrowToSpark(spark_runtime.new_session()), [batch], Share(2))

    skipping = Decoder(Decode(Decoding.JSON, "id INT", OnUndecodable.SKIP))
    with skipping.decoded(frame) as decoded:
        assert decoded.frame.where(plan).limit(1).count() == (plan != "false")
        assert decoded.skipped == {TopicPartition(topic, 0): [9, 11]}
    with (
        pytest.raises(UndecodableRecordError) as raised,
        Decoder(Decode(Decoding.JSON, "id INT")).decoded(frame) as decoded,
    ):
        decoded.frame.where(plan).count()

    assert raised.value.offset == 9


class Readers:
    """Both ways to the rows of one topic."""

    def __init__(self, broker: Broker, topic: str, runtime: SparkRuntime) -> None:
        self._kafka = {"bootstrap.servers": broker.address}
        self._topic = topic
        self._spark = runtime

    def by_value(self, ends: Mapping[int, int]) -> list[Any]:
        """Return the rows of what is fetched here."""
        source = KafkaRecordSource(self._kafka, "group", 1 << 20)
        return self._rows(ByValue(), read_to(ends, source, self._topic))

    def by_reference(self, ends: Mapping[int, int]) -> list[Any]:
        """Return the rows of what Spark reads."""
        source = KafkaRangeSource(self._kafka, "group")
        way = ByReference(self._kafka, "group", 1_000)
        return self._rows(way, read_to(ends, source, self._topic))

    def _rows(self, way: SparkInput, found: dict[int, list[Run]]) -> list[Any]:
        return rows(self._spark, way, list(batches(self._topic, found)))


@pytest.mark.slow
@pytest.mark.timeout(300)
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=_steps(_BYTES))
def test_the_same_records_either_way(
    steps: list[Step], broker: Broker, spark_runtime: SparkRuntime
) -> None:
    """Both ways give the same rows and stand at the same offsets, whatever is in the logs."""
    topic = broker.create_topic(len(NUMBERS))
    ends = write(broker, topic, steps)
    readers = Readers(broker, topic, spark_runtime)
    by_value = readers.by_value(ends)
    assert readers.by_reference(ends) == by_value
    assert len(by_value) == sum(len(r) for _, how, r in steps if how != "aborted")


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=_steps(_FEW_KEYS))
def test_the_same_records_of_a_compacted_topic(
    steps: list[Step], often_compacting: Broker, spark_runtime: SparkRuntime
) -> None:
    """Both ways give what compaction has left, across its gaps."""
    broker = often_compacting
    topic = broker.create_compacted_topic(len(NUMBERS))
    ends = write(broker, topic, steps)
    readers = Readers(broker, topic, spark_runtime)
    deadline = Deadline.after(WAIT)
    written, is_compacted = 0, False
    while True:
        if not is_compacted:
            # this closes the segment before, which then is compacted, with all above it
            for number in NUMBERS:
                updates = [FakeRecord(key_=b"later-%d" % (n % 7), value_=b"") for n in range(100)]
                broker.produce(TopicPartition(topic, number), *updates)
                ends[number] += 100
            written += 100
        before, planned, after = (
            read(ends) for read in (readers.by_value, readers.by_reference, readers.by_value)
        )
        left = [sum(_is_update(row, number) for row in after) for number in NUMBERS]
        # the last ones are in segments that are not compacted
        is_compacted = max(left) < written
        if before == after and is_compacted:
            break
        assert not deadline.expired, "nothing is compacted"
    assert planned == after


def _is_update(row: Any, number: int) -> bool:
    return bool(row[3] == number and (row[0] or b"").startswith(b"later-"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_time_beyond_the_range_of_microseconds(
    broker: Broker, spark_runtime: SparkRuntime
) -> None:
    """The time is null by value; Spark's own source fails with it, and shows no other time."""
    with broker.configured("log.message.timestamp.after.max.ms", str(2**63 - 1)):
        topic = broker.create_topic(len(NUMBERS))
        record = FakeRecord(value_=b"v", timestamp_=2**63 // 1000 + 1)
        ends = write(broker, topic, [(0, "plain", [record])])
        readers = Readers(broker, topic, spark_runtime)
        ((*_, timestamp, _),) = readers.by_value(ends)
        assert timestamp is None
        with pytest.raises(Py4JJavaError, match="ArithmeticException: long overflow"):
            readers.by_reference(ends)


def places(df: DataFrame, batch: MicroBatch) -> DataFrame:
    """Keep each record's place."""
    assert batch.records > 0
    return df.selectExpr("partition", "offset", "cast(value as string) as value")


class Site:
    """A channel by reference in this process, on the shared session, with a Delta table."""

    def __init__(self, group: Group, runtime: SparkRuntime) -> None:
        self.group = group
        self._spark = runtime
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
        engine = SparkEngine(self._spark, reducer, None, source)
        controller = self.group.start(
            document, {CHANNEL: MicroBatchProcessor(engine, DeltaSink(self._table))}
        )
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


def test_spark_reads_the_ranges_that_a_channel_plans(site: Site) -> None:
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
        """Drop records at the broker between the plan and the job."""
        if not gone.is_set():
            gone.set()
            group.broker.delete_before(group.partition(0), 60)
        return places(df, batch)

    with site.running(too_late) as controller:
        eventually(lambda: group.offsets(0) == [100])
        skipped = controller.metrics.skipped.labels(CHANNEL, group.topic, "out_of_range")

    assert site.rows() == [(0, offset) for offset in range(60, 100)]
    assert value_of(skipped) == 60
    (event,) = log.of("offset_out_of_range")
    assert (event["position"], event["target"]) == (0, 60)


@pytest.mark.slow
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

    policy = {"retry": {"attempts": 1}, "rejects": {"failing": "dead_letter", "topic": dead.topic}}
    with site.running(strict, **policy):
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
