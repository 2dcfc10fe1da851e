from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from headrace.core.records import TopicPartition
from headrace.processors.admission import Overflow, OverflowChoice
from headrace.processors.contract import ChannelContext
from headrace.processors.sink_commits import SkippedRecords
from headrace.telemetry.metrics import Metrics
from headrace.testing import FakeClock
from headrace.testing.records import FakeAssignment, make_batch
from tests.metrics import value_of

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def test_every_record_counts_and_few_are_logged() -> None:
    """The metric has each record; the log has one event per partition and pause, with totals."""
    clock = FakeClock()
    context = ChannelContext("channel", "group", Metrics(), clock)
    skipped = SkippedRecords(context)

    with capture_logs() as logs:
        skipped.count({P0: [1, 2, 3, 4, 5, 6, 7], P1: [9]})
        skipped.count({P0: [8]})
        skipped.count({P0: [9]})
        clock.advance(11)
        skipped.count({P0: [20, 21]})
        skipped.count({})

    assert value_of(context.metrics.skipped.labels("channel", "t", "undecodable")) == 12
    said = [(log["partition"], log["records"], log["first_offsets"]) for log in logs]
    assert said == [(0, 7, [1, 2, 3, 4, 5]), (1, 1, [9]), (0, 4, [8, 9, 20, 21])]


@given(
    steps=st.lists(
        st.tuples(st.sampled_from([P0, P1]), st.integers(1, 9), st.sampled_from([0, 1, 6, 11]))
    )
)
def test_lines_of_the_log_add_up_to_the_metric(
    steps: list[tuple[TopicPartition, int, int]],
) -> None:
    """Held-back counts are logged, for any order of records and a log that ends early."""
    clock = FakeClock()
    context = ChannelContext("channel", "group", Metrics(), clock)
    skipped = SkippedRecords(context)

    with capture_logs() as logs:
        for partition, records, seconds in steps:
            skipped.count({partition: range(records)})
            clock.advance(seconds)
        skipped.report(all_of_it=True)

    counted = value_of(context.metrics.skipped.labels("channel", "t", "undecodable"))
    assert sum(log["records"] for log in logs) == counted == sum(step[1] for step in steps)


def test_held_back_records_are_logged_without_a_successor() -> None:
    """The last records of a burst are logged after the pause, once."""
    clock = FakeClock()
    overflow = Overflow(OverflowChoice.NEWEST, 4)
    skipped = SkippedRecords(ChannelContext("channel", "group", Metrics(), clock))

    with capture_logs() as logs:
        for offset in range(3):
            skipped.count({P0: [offset]})
            skipped.count_overflow(make_batch([b"v"], assignment=FakeAssignment(P0)), overflow)
        skipped.report()
        assert [(log["event"], log["records"]) for log in logs] == [
            ("undecodable_records_skipped", 1),
            ("overflow_records_skipped", 4),
        ]
        clock.advance(11)
        skipped.report()
        skipped.report(all_of_it=True)

    assert [(log["event"], log["records"]) for log in logs[2:]] == [
        ("undecodable_records_skipped", 2),
        ("overflow_records_skipped", 8),
    ]
