"""Admission: what is let in, how fast, and what overflows of each batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from typing_extensions import override

from headrace.config import ChannelConfig
from headrace.core.columns import ColumnRun
from headrace.core.errors import ImportPathError
from headrace.core.letter_headers import LetterHeaders
from headrace.core.records import TopicPartition, offset_of
from headrace.processors.admission import Admission, AdmissionRules, Overflow, OverflowChoice
from headrace.processors.contract import ChannelContext
from headrace.processors.sink_commits import SkippedRecords
from headrace.telemetry.metrics import Metrics
from headrace.testing import FakeClock
from headrace.testing.records import FakeAssignment, FakeRecord, in_columns, make_batch
from tests.metrics import value_of
from tests.unit.config.support import channel
from tests.unit.processors.spark_bench import Bench, Engine, GroupingSink, error_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.core.records import Batch, ResultRecord
    from headrace.sinks.channel_sink import ChannelSink, Staged
    from headrace.sinks.contract import PartitionCommit
    from headrace.sinks.micro_batch import MicroBatch

P0 = TopicPartition("t", 0)


def batch_of(
    assignment: FakeAssignment, start: int, count: int, *, keys: int = 7, columns: bool = False
) -> Batch:
    """Return records from ``start`` on, whose keys come again after so many."""
    records = [FakeRecord(key_=b"k%d" % ((start + at) % keys)) for at in range(count)]
    batch = make_batch(records, assignment=assignment, start=start)
    if columns and batch.records:
        run = in_columns(batch.records, assignment.partition, pieces=3)
        return type(batch)(assignment, start, run, batch.next_offset, batch.size)
    return batch


def offsets(records: Sequence[Any]) -> list[int]:
    """Return the records' offsets."""
    return [offset_of(record) for record in records]


class Queue:
    """Stand for a queue with so much room, as an oracle of the newest records that overflow."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.waiting: set[int] = set()
        self.seen = 0

    def let_in(self, start: int, end: int) -> set[int]:
        """Return what waits when what is before ``start`` has left, and all up to ``end`` came."""
        self.waiting = {each for each in self.waiting if each >= start}
        for each in range(max(self.seen, start), end):
            if len(self.waiting) < self.room:
                self.waiting.add(each)
        self.seen = max(self.seen, end)
        return self.waiting


#: Batches one after the other: how many records each has, and how many more came before it.
STEPS = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 60)), min_size=1, max_size=15)


@given(STEPS, st.sampled_from(OverflowChoice), st.integers(1, 30), st.booleans())
def test_each_record_is_processed_or_overflows(
    steps: list[tuple[int, int]], choice: OverflowChoice, most: int, columns: bool
) -> None:
    """Once, in its order, for all ways to choose; with copies; offsets stay as they were."""
    assignment = FakeAssignment(P0)
    admission = Admission(AdmissionRules(None, most, choice, "to"), FakeClock())
    start = end = 0
    for count, came in steps:
        end = max(end + came, start + count)
        assignment.high_watermark = end
        batch = batch_of(assignment, start, count, columns=columns)
        kept, left_out = admission.admit(batch)
        copies = [] if left_out is None else offsets(left_out.copies)
        assert sorted([*offsets(kept.records), *copies]) == offsets(batch.records)
        assert offsets(kept.records) == sorted(offsets(kept.records))
        assert copies == sorted(copies)
        assert left_out is None or left_out.count == len(copies)
        assert (kept.start, kept.next_offset) == (batch.start, batch.next_offset)
        assert isinstance(kept.records, ColumnRun) or not (columns and kept.records)
        start = batch.next_offset


@given(STEPS, st.integers(1, 30), st.booleans())
def test_the_newest_overflow_as_a_queue_that_is_full_drops_them(
    steps: list[tuple[int, int]], most: int, columns: bool
) -> None:
    """A record that found room is processed, for any number of records after it."""
    assignment = FakeAssignment(P0)
    admission, queue = Admission(AdmissionRules(None, most), FakeClock()), Queue(most)
    start = end = 0
    for count, came in steps:
        end = max(end + came, start + count)
        assignment.high_watermark = end
        batch = batch_of(assignment, start, count, columns=columns)
        room = queue.let_in(start, end)
        kept, _ = admission.admit(batch)
        assert offsets(kept.records) == [each for each in offsets(batch.records) if each in room]
        start = batch.next_offset


@given(st.integers(0, 50), st.integers(1, 20), st.integers(1, 40))
def test_all_but_the_last_records_overflow_with_oldest(end: int, count: int, most: int) -> None:
    """Processing continues with the most recent records."""
    assignment = FakeAssignment(P0, high_watermark=max(end, count))
    admission = Admission(AdmissionRules(None, most, OverflowChoice.OLDEST), FakeClock())
    kept, _ = admission.admit(batch_of(assignment, 0, count))
    assert offsets(kept.records) == [
        each for each in range(count) if each >= max(end, count) - most
    ]


def test_a_sample_has_whole_keys_and_the_more_of_them_the_fewer_wait() -> None:
    """A key that is in a small sample is in a larger one, too."""
    samples = []
    for waiting in (4_000, 2_000, 1_000, 500):
        assignment = FakeAssignment(P0, high_watermark=waiting)
        admission = Admission(AdmissionRules(None, 500, OverflowChoice.SAMPLE, "to"), FakeClock())
        kept, left_out = admission.admit(batch_of(assignment, 0, 500, keys=100))
        own = {record.key() for record in kept.records}
        others = set() if left_out is None else {record.key() for record in left_out.copies}
        assert not own & others
        samples.append(own)
    assert samples[0] < samples[1] < samples[2] < samples[3]
    assert len(samples[3]) == 100


def test_a_sample_of_records_without_key_is_of_offsets() -> None:
    """Some are kept and some are not."""
    assignment = FakeAssignment(P0, high_watermark=1_000)
    admission = Admission(AdmissionRules(None, 500, OverflowChoice.SAMPLE), FakeClock())
    kept, _ = admission.admit(make_batch([b""] * 200, assignment=assignment))
    assert 50 < len(kept) < 150


class Urgent:
    """A policy of a user's: what has an even key is kept, however many wait."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def keep(self, record: Any, waiting: int, most: int) -> bool:
        """Return whether a record is kept."""
        self.asked.append((waiting, most))
        return record.key() in {b"k0", b"k2"}


class KeepsNothing:
    """A policy that keeps no record."""

    def keep(self, record: Any, waiting: int, most: int) -> bool:
        """Return that a record is left out, of which more wait than may."""
        assert waiting > most, f"{record} has room"
        return False


def urgent() -> Urgent:
    """Return a policy."""
    return Urgent()


@pytest.mark.parametrize("columns", [False, True])
def test_a_policy_of_ones_own_says_of_each_record_whether_it_is_kept(columns: bool) -> None:
    """The policy is asked while too many wait, and counted and copied is what it does not keep."""
    policy = Urgent()
    rules = AdmissionRules(None, 10, OverflowChoice.OWN, "to", policy=policy)
    admission = Admission(rules, FakeClock())
    assignment = FakeAssignment(P0, high_watermark=30)
    kept, left_out = admission.admit(batch_of(assignment, 0, 6, keys=3, columns=columns))
    assert offsets(kept.records) == [0, 2, 3, 5]
    assert left_out is not None
    assert (left_out.count, left_out.choice.value, offsets(left_out.copies)) == (2, "own", [1, 4])
    assert policy.asked == [(waiting, 10) for waiting in (30, 30, 29, 29, 29, 28)]
    batch = batch_of(FakeAssignment(P0, high_watermark=30), 20, 5)
    assert admission.admit(batch) == (batch, None)


def test_a_policy_of_ones_own_leaves_out_no_more_than_are_too_many() -> None:
    """One that keeps nothing is asked until no more wait than may; the rest is processed."""
    rules = AdmissionRules(None, 4, OverflowChoice.OWN, policy=KeepsNothing())
    admission = Admission(rules, FakeClock())
    kept, left_out = admission.admit(batch_of(FakeAssignment(P0, high_watermark=6), 0, 5))
    assert (offsets(kept.records), left_out and left_out.count) == ([2, 3, 4], 2)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("urgent", None),
        ("Urgent", None),
        ("Queue", "takes"),
        ("FakeClock", "makes a FakeClock, which has no keep"),
        ("NoSuch", "has no 'NoSuch'"),
    ],
)
def test_a_policy_is_made_of_the_path_that_names_it(path: str, words: str | None) -> None:
    """A class or a function without arguments makes it; what is none is refused with its path."""
    processor = {"type": "arrow", "reducer": "a:b"}
    choice = f"tests.unit.processors.test_admission:{path}"
    rejects = {"overflow": "skip", "overflow_choice": choice}
    configured = channel(processor=processor, rejects=rejects, sink="noop")
    if words is None:
        assert isinstance(AdmissionRules.of(configured).policy, Urgent)
        return
    with pytest.raises(ImportPathError, match=words):
        AdmissionRules.of(configured)


@pytest.mark.parametrize("end", [None, 10, 5])
def test_no_record_overflows_below_the_limit(end: int | None) -> None:
    """The same batch is returned, also while the end of the partition is unknown."""
    admission = Admission(AdmissionRules(None, 10), FakeClock())
    batch = batch_of(FakeAssignment(P0, high_watermark=end), 0, 5)
    assert admission.admit(batch) == (batch, None)


def test_a_partition_that_comes_back_is_decided_again() -> None:
    """The plan for a former assignment does not count."""
    assignment = FakeAssignment(P0, high_watermark=100)
    admission = Admission(AdmissionRules(None, 10), FakeClock())
    admission.admit(batch_of(assignment, 0, 5))
    admission.forget(assignment)
    assignment.high_watermark = 10
    kept, left_out = admission.admit(batch_of(assignment, 0, 10))
    assert (len(kept), left_out) == (10, None)


def test_rules_can_be_changed_while_it_runs() -> None:
    """From the next batch on."""
    assignment = FakeAssignment(P0, high_watermark=100)
    admission = Admission(AdmissionRules(), FakeClock())
    assert admission.admit(batch_of(assignment, 0, 20))[1] is None
    admission.follow(AdmissionRules(max_rate=10, max_pending=10))
    _, left_out = admission.admit(batch_of(assignment, 20, 20))
    assert left_out is not None
    assert left_out.count == 10


@given(st.lists(st.tuples(st.integers(1, 500), st.floats(0, 3)), min_size=1, max_size=20))
def test_a_rate_is_kept_over_time(taken: list[tuple[int, float]]) -> None:
    """A caller that waits as paced stays below the rate plus one batch."""
    clock = FakeClock()
    admission = Admission(AdmissionRules(max_rate=100), clock)
    begin, total = clock.monotonic(), 0
    for records, busy in taken:
        assert total <= (clock.monotonic() - begin) * 100 + 1e-6
        next_at = admission.pace(records)
        total += records
        clock.advance(busy)
        clock.advance(max(0.0, next_at - clock.monotonic()))


def test_the_rules_follow_the_configuration() -> None:
    """Records wait without rules; a rate and a number of waiting records are rules."""
    section = ChannelConfig.model_validate
    base: dict[str, Any] = {"topics": ["in"], "group": "g", "sink": {"type": "kafka", "topic": "o"}}

    def rules(rate: float | None = None, **rejects: Any) -> AdmissionRules:
        processor = {"type": "keyed", "reducer": "m:f", "max_rate": rate}
        return AdmissionRules.of(section({**base, "processor": processor, "rejects": rejects}))

    assert rules() == AdmissionRules()
    assert rules(200_000) == AdmissionRules(200_000)
    ours = LetterHeaders("headrace", "g")
    assert rules(5, overflow="skip") == AdmissionRules(5, 10_000, letters=ours)
    topic: dict[str, Any] = {"overflow": "dead_letter", "topic": "left", "headers": "connect"}
    chosen = rules(**topic, max_pending=3, overflow_choice="oldest")
    connect = LetterHeaders("connect", "g")
    assert chosen == AdmissionRules(None, 3, OverflowChoice.OLDEST, "left", connect)
    # others may go to the topic without it
    assert rules(**{**topic, "overflow": "skip", "failing": "dead_letter"}).to is None


# --- in a processor -----------------------------------------------------------------------------


class CopyingSink(GroupingSink):
    """A sink in memory that takes copies into its commits."""

    copied: tuple[ResultRecord, ...] = ()

    def commit_with(
        self,
        staged: Sequence[str],
        offsets: Sequence[PartitionCommit],
        records: Sequence[ResultRecord],
    ) -> None:
        """Store, and keep the copies of what was stored."""
        self.store(staged, offsets)
        self.copied = (*self.copied, *records)


def bench_with(
    rules: AdmissionRules, sink: CopyingSink | None = None, engine: Engine | None = None
) -> Bench:
    """Return a processor with these rules, whose partitions have 100 records."""
    bench = Bench(sink=sink, engine=engine, admission=rules)
    for assignment in bench.assignments:
        assignment.high_watermark = 100
    return bench


def overflow_count(bench: Bench, reason: str) -> float:
    """Return what the metric says."""
    return value_of(bench.metrics.overflow.labels("channel", "t", reason))


def test_a_batch_that_overflows_whole_runs_no_job_and_is_committed() -> None:
    """The offsets are stored in the order of batches."""
    bench = bench_with(AdmissionRules(None, 50, OverflowChoice.OLDEST))
    answer = bench.send(0, records=10)
    bench.run_once()
    assert answer.result(0).wait == 0.0
    assert bench.engine.jobs == []
    assert bench.sink.stored_ranges == [[(0, 0, 10)]]
    assert overflow_count(bench, "oldest") == 10
    bench.sink.require_one_end_each()


def test_a_job_has_the_admitted_records() -> None:
    """The micro-batch counts the records that it has; a batch without any is in it all the same."""
    bench = bench_with(AdmissionRules(None, 95, OverflowChoice.OLDEST))
    bench.assignments[1].high_watermark = 200
    bench.send(0, records=10)
    bench.send(1, records=10)
    bench.run_once()
    (job,) = bench.engine.jobs
    assert [(part.partition, part.records) for part in job.ranges] == [(0, 5), (1, 0)]
    assert bench.sink.stored_ranges == [[(0, 0, 10), (1, 0, 10)]]
    assert overflow_count(bench, "oldest") == 15


def test_copies_are_in_the_commit_of_their_batch() -> None:
    """With the record's key, value and time, and headers that say where it is from and why."""
    sink = CopyingSink()
    bench = bench_with(AdmissionRules(None, 98, OverflowChoice.OLDEST, "left"), sink)
    bench.send(0, records=10)
    bench.run_once()
    assert [(each.topic, each.value, each.partition) for each in sink.copied] == [
        ("left", b"v", None)
    ] * 2
    assert [dict(each.headers or ()) for each in sink.copied] == [
        {
            "headrace.topic": b"t",
            "headrace.partition": b"0",
            "headrace.offset": b"%d" % offset,
            "headrace.overflow": b"oldest",
        }
        for offset in range(2)
    ]


def test_copies_have_the_headers_that_the_letters_of_the_channel_have() -> None:
    """Under Kafka Connect's names, where these are wanted, and with the reason as the message."""
    sink = CopyingSink()
    connect = LetterHeaders("connect", "group")
    bench = bench_with(AdmissionRules(None, 98, OverflowChoice.OLDEST, "left", connect), sink)
    bench.send(0, records=10)
    bench.run_once()
    found = dict(sink.copied[0].headers or ())
    assert all(name.startswith("__connect.errors.") for name in found)
    said = {name: found[f"__connect.errors.{name}"] for name in ("topic", "partition", "offset")}
    assert said == {"topic": b"t", "partition": b"0", "offset": b"0"}
    assert found["__connect.errors.exception.message"] == b"overflow (oldest)"
    assert found["__connect.errors.connector.name"] == b"group"


def test_copies_of_a_commit_that_failed_are_in_the_next_one_only() -> None:
    """And they are counted once."""
    sink = CopyingSink(script=[RuntimeError("away")])
    bench = bench_with(AdmissionRules(None, 98, OverflowChoice.OLDEST, "left"), sink)
    first = bench.send(0, records=10)
    bench.run_once()
    assert error_of(first) is not None
    assert (sink.copied, overflow_count(bench, "oldest")) == ((), 0)
    bench.processor.on_exception(bench.assignments[0], RuntimeError("away"), None)
    bench.send(0, records=10, attempt=2)
    bench.run_once()
    assert (len(sink.copied), overflow_count(bench, "oldest")) == (2, 2)


@dataclass
class NotingEngine(Engine):
    """An engine that notes which offsets are in each job."""

    offsets: dict[str, list[int]] = field(default_factory=dict)

    @override
    def prepare(self, batch: Batch) -> Any:
        return offsets(batch.records)

    @override
    def execute(
        self,
        micro_batch: MicroBatch,
        prepared: Sequence[Any],
        seconds: float | None,
        sink: ChannelSink,
    ) -> Staged:
        self.offsets[micro_batch.id] = [each for part in prepared for each in part]
        return super().execute(micro_batch, prepared, seconds, sink)


#: Whether each of the next calls of an engine, or of a sink, fails.
FAILURES = st.lists(st.booleans(), max_size=8)


def script(failures: list[bool]) -> list[Any]:
    """Return what a double is to do."""
    return [RuntimeError("scripted") if fails else None for fails in failures]


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(OverflowChoice), st.integers(5, 60), FAILURES, FAILURES, st.integers(1, 3))
def test_each_record_is_in_one_commit_after_any_failures(
    choice: OverflowChoice, most: int, jobs: list[bool], commits: list[bool], in_flight: int
) -> None:
    """A record is a result or a copy once, though batches are decided again at each attempt."""
    engine, sink = NotingEngine(script=script(jobs)), CopyingSink(script=script(commits))
    bench = bench_with(AdmissionRules(None, most, choice, "left"), sink, engine)
    held, position, attempt = bench.assignments[0], 0, 1
    while position < 100:
        assert attempt <= 1 + len(jobs) + len(commits), "more failed than was to fail"
        starts = range(position, min(100, position + 10 * in_flight), 10)
        answers = [bench.send(0, start, attempt=attempt) for start in starts]
        while not all(each.done() for each in answers):
            bench.run_once()
        advanced = [error_of(each) is None for each in answers]
        assert advanced == sorted(advanced, reverse=True)
        position += 10 * sum(advanced)
        attempt = 1 if all(advanced) else attempt + 1
        if not all(advanced):
            bench.processor.on_exception(held, RuntimeError("scripted"), None)
    done = [each for ids in sink.committed for one in ids for each in engine.offsets.get(one, ())]
    copied = [int(dict(each.headers or ())["headrace.offset"] or b"") for each in sink.copied]
    assert sorted([*done, *copied]) == list(range(100))
    assert overflow_count(bench, choice.value) == len(copied)
    sink.require_one_end_each()


def test_an_answer_says_how_long_the_next_batch_has_to_wait() -> None:
    """Each partition waits until what all have taken is within the rate."""
    bench = bench_with(AdmissionRules(max_rate=1.0))
    first, second = bench.send(0, records=10), bench.send(1, records=30)
    bench.run_once()
    assert first.result(0).wait == pytest.approx(10, abs=1)
    assert second.result(0).wait == pytest.approx(40, abs=1)
    assert sum(job.records for job in bench.engine.jobs) == 40


def test_overflow_is_logged_now_and_then() -> None:
    """One event per partition and pause, with the number since the last."""
    clock = FakeClock()
    context = ChannelContext("channel", "group", Metrics(), clock)
    skipped = SkippedRecords(context)
    batch, overflow = batch_of(FakeAssignment(P0), 5, 1), Overflow(OverflowChoice.NEWEST, 3)
    with capture_logs() as logs:
        skipped.count_overflow(batch, overflow)
        skipped.count_overflow(batch, overflow)
        clock.advance(11)
        skipped.count_overflow(batch, overflow)
    found = [(each["event"], each["records"], each["choice"], each["offset"]) for each in logs]
    assert found == [
        ("overflow_records_skipped", 3, "newest", 5),
        ("overflow_records_skipped", 6, "newest", 5),
    ]


def test_overflow_that_goes_to_a_topic_is_logged_as_dead_lettered() -> None:
    """So that a reader of the log knows which records there are copies of."""
    skipped = SkippedRecords(ChannelContext("channel", "group", Metrics(), FakeClock()))
    overflow = Overflow(OverflowChoice.OLDEST, 2, to="left")
    with capture_logs() as logs:
        skipped.count_overflow(batch_of(FakeAssignment(P0), 5, 1), overflow)
    found = [(each["event"], each["records"], each["choice"], each["offset"]) for each in logs]
    assert found == [("overflow_records_dead_lettered", 2, "oldest", 5)]
