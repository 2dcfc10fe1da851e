from __future__ import annotations

from dataclasses import replace

from structlog.testing import capture_logs

from headrace.channel.status import RebalanceReporter
from headrace.coordinators.claims import Claim, LossReason
from headrace.coordinators.lease import Lease
from headrace.coordinators.member_info import AssignmentMode
from headrace.coordinators.rebalance import RebalanceSummary
from headrace.core.records import TopicPartition
from headrace.telemetry.metrics import Metrics
from headrace.testing.channel import FakeClock

P0, P1, P2 = (TopicPartition("events", number) for number in range(3))

CLAIM = Claim(P0, 1, "a", 1, 0, Lease(10, FakeClock(), 0))

WHOLE = RebalanceSummary(
    members=("a", "b"),
    mine=frozenset({P0}),
    owners={P0: "a", P1: "b"},
    unowned=frozenset(),
    pending=frozenset(),
    contended={},
    missing={},
    foreign={},
    modes=frozenset({AssignmentMode.DYNAMIC}),
    problems={},
)

BROKEN = replace(
    WHOLE,
    unowned=frozenset({P2}),
    contended={P0: ("a", "b")},
    missing={"a": (TopicPartition("events", 9),)},
    foreign={P1: "stranger"},
    modes=frozenset({AssignmentMode.DYNAMIC, AssignmentMode.STATIC}),
    without_tasks=("d",),
    without_warm=("e",),
    problems={"c": "it is not JSON"},
)


def value(metrics: Metrics, condition: str) -> float | None:
    """Return what the gauge of one condition says."""
    labels = {"channel": "main", "condition": condition}
    return metrics.registry.get_sample_value("headrace_group_partitions", labels)


def test_each_fault_of_the_group_is_warned_of_once() -> None:
    """Each condition has an event of its own, which comes again only when it changes."""
    report = RebalanceReporter("main", Metrics())
    with capture_logs() as logs:
        report.report(WHOLE)
        report.report(BROKEN)
        report.report(replace(BROKEN, mine=frozenset({P0, P1})))
        report.report(replace(BROKEN, unowned=frozenset({P1, P2})))
    warned = {entry["event"]: entry for entry in logs if entry["log_level"] == "warning"}
    assert [entry["event"] for entry in logs].count("group_rebalanced") == 4
    assert [entry["event"] for entry in logs].count("partitions_unowned") == 2
    assert len([entry for entry in logs if entry["log_level"] == "warning"]) == 9
    assert warned["partitions_unowned"]["partitions"] == ["events-1", "events-2"]
    assert warned["partitions_contended"]["members"] == {"events-0": ["a", "b"]}
    assert warned["partitions_missing"]["listed"] == {"a": ["events-9"]}
    assert warned["partition_owners_unknown"]["owners"] == {"events-1": "stranger"}
    assert warned["modes_differ"]["modes"] == ["dynamic", "static"]
    assert warned["members_without_tasks"]["members"] == ["d"]
    assert warned["members_without_warm"]["members"] == ["e"]
    assert warned["members_unreadable"]["problems"] == {"c": "it is not JSON"}


def test_losses_and_suspensions_are_counted() -> None:
    """Claims count by why they ended; the gauge says whether ZooKeeper is waited for."""
    metrics, labels = Metrics(), {"channel": "main"}
    sample = metrics.registry.get_sample_value
    report = RebalanceReporter("main", metrics)
    assert sample("headrace_coordination_suspended", labels) == 0
    report.suspended()
    assert sample("headrace_coordination_suspended", labels) == 1
    report.claim_lost(CLAIM, LossReason.LEASE_OVER)
    report.resumed(kept=0)
    assert sample("headrace_coordination_suspended", labels) == 0
    lost = {**labels, "reason": "lease_over"}
    assert sample("headrace_claims_lost_total", lost) == 1


def test_a_group_that_lost_everything_is_not_resumed() -> None:
    """The log has whether partitions resume or restart, and how many were kept and lost."""
    report = RebalanceReporter("main", Metrics())
    with capture_logs() as logs:
        for lost, kept in ((0, 0), (1, 1), (1, 0)):
            report.suspended()
            for _ in range(lost):
                report.claim_lost(CLAIM, LossReason.LEASE_OVER)
            report.resumed(kept)
    told = [(e["event"], e["kept"], e["lost"]) for e in logs if "kept" in e]
    assert told == [
        ("coordination_resumed", 0, 0),
        ("coordination_resumed", 1, 1),
        ("coordination_restarted", 0, 1),
    ]


def test_the_metrics_say_how_the_group_is_now() -> None:
    """Conditions are counted, and go back to 0; only a change of our share is a rebalance."""
    metrics = Metrics()
    report = RebalanceReporter("main", metrics)
    report.report(BROKEN)
    assert [value(metrics, c) for c in ("unowned", "contended", "missing", "foreign")] == [1] * 4
    report.report(WHOLE)
    assert [value(metrics, c) for c in ("unowned", "contended", "missing", "foreign")] == [0] * 4
    labels = {"channel": "main"}
    assert metrics.registry.get_sample_value("headrace_group_members", labels) == 2
    assert metrics.registry.get_sample_value("headrace_rebalances_total", labels) == 1
