from __future__ import annotations

from structlog.testing import capture_logs

from headrace.core.records import TopicPartition
from headrace.processors.contract import ChannelContext
from headrace.processors.sink_commits import SkippedRecords
from headrace.telemetry.metrics import Metrics
from headrace.testing import FakeClock

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

    assert context.metrics.skipped.labels("channel", "t", "undecodable")._value.get() == 12
    told = [(log["partition"], log["records"], log["first_offsets"]) for log in logs]
    assert told == [(0, 7, [1, 2, 3, 4, 5]), (1, 1, [9]), (0, 4, [20, 21])]
