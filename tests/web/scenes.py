"""Made-up processes for the page to show."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headrace.channel.pauses import PauseMode, PauseReason
from headrace.channel.states import ChannelState
from headrace.channel.states import PartitionState as S
from headrace.config import ReloadEffect
from headrace.controller.reports import ReloadOutcome
from headrace.ops.admin import history, status
from headrace.ops.admin import models as d
from headrace.ops.admin.configuration import ConfigSummary, PendingStatus
from headrace.ops.admin.ports import ProcessPhase
from headrace.ops.admin.topologies import (
    PlannedOperator,
    PlannedPart,
    Topologies,
    TopologyPlan,
)
from headrace.telemetry.logs import Subject
from headrace.zookeeper.protocol import SessionState
from tests.web.made import MEMBERS, Made, Trouble, ago, channel_of, group_of, point_of

if TYPE_CHECKING:
    from collections.abc import Callable


def _summary(
    outcome: ReloadOutcome | None = None,
    *,
    pending: list[PendingStatus] | None = None,
    problems: list[str] | None = None,
) -> ConfigSummary:
    """Return how the file and what runs compare; without an outcome nothing was reloaded."""
    return ConfigSummary(
        pending=pending or [],
        problems=problems or [],
        last_at=None if outcome is None else ago(120),
        last_by=None if outcome is None else "the file",
        last_outcome=outcome,
    )


@dataclass
class Process:
    """One process to make up. ``rows`` are the answers to questions for keys of stores, by path."""

    channels: list[Made]
    session: SessionState = SessionState.CONNECTED
    spark: bool = True
    events: list[tuple[float, str, str, Subject, int, dict[str, Any]]] = field(default_factory=list)
    config: ConfigSummary = field(default_factory=_summary)
    topologies: list[TopologyPlan] = field(default_factory=list)
    rows: dict[str, tuple[int, str]] = field(default_factory=dict)

    def answers(self) -> dict[str, Callable[[], Any]]:
        """Return what each path answers."""
        return {
            "/api/v1/status": self.status,
            "/api/v1/history": self.history,
            "/api/v1/events": self.recent,
            "/api/v1/members": self.members,
            "/api/v1/topologies": self.plans,
            "/api/v1/config": lambda: {"file": "/etc/headrace.yaml", "applied": {"channels": {}}},
        }

    def plans(self) -> Any:
        """Return the plans of the topologies."""
        return Topologies(topologies=self.topologies).model_dump(mode="json")

    def status(self) -> Any:
        """Return the status."""
        connected = self.session is SessionState.CONNECTED
        reasons = [] if connected else [f"the ZooKeeper session is {self.session.value}"]
        reasons += [
            f"channel {each.name} is failed: {each.failure}"
            for each in self.channels
            if each.state is ChannelState.FAILED
        ]
        document = d.Status(
            at=ago(0),
            process=d.ProcessStatus(
                instance_id=MEMBERS[0],
                phase=ProcessPhase.RUNNING,
                version="0.1.0",
                python="3.11.2",
                host="mill-1.example.org",
                pid=4711,
                config_file="/etc/headrace/headrace.yaml",
                started_at=ago(266_400),
                uptime_s=266_400,
            ),
            zookeeper=d.ZooKeeperStatus(
                state=self.session,
                hosts=["zk-1:2181", "zk-2:2181", "zk-3:2181"],
                session_id="0x1000a3f4c2b0007" if connected else None,
                session_timeout_s=10,
            ),
            spark=d.SparkStatus(
                running=self.spark, master="local[4]", pid=4790, generation=1, cores=4
            ),
            ready=not reasons,
            not_ready_because=reasons,
            config=self.config,
            channels=[channel_of(each) for each in self.channels],
        )
        return document.model_dump(mode="json")

    def history(self) -> Any:
        """Return an hour."""
        channels = {each.name: [point_of(each, n) for n in range(720)] for each in self.channels}
        return history.History(interval_s=5, channels=channels).model_dump(mode="json")

    def recent(self) -> Any:
        """Return the events."""
        events = [
            history.EventStatus(
                number=number,
                event=name,
                level=level,
                subject=subject,
                first=ago(seconds + 2 * count),
                last=ago(seconds),
                count=count,
                fields=fields,
            )
            for number, (seconds, name, level, subject, count, fields) in enumerate(self.events, 1)
        ]
        return history.Events(at=ago(0), pid=4711, events=events).model_dump(mode="json")

    def members(self) -> Any:
        """Return the groups."""
        found = [group_of(each) for each in self.channels]
        return status.Members(at=ago(0), groups=found).model_dump(mode="json")


_USUAL: list[tuple[float, str, str, Subject, int, dict[str, Any]]] = [
    (5400, "member_joined", "info", Subject.GROUP, 1, {"member": "mill-1", "member_epoch": 7}),
    (
        5399,
        "group_rebalanced",
        "info",
        Subject.GROUP,
        1,
        {
            "channel": "flights",
            "members": "mill-1, mill-2, mill-3",
            "mine": "flights-0, flights-3, flights-6 and 5 more",
        },
    ),
    (
        5398,
        "partition_claimed",
        "info",
        Subject.GROUP,
        8,
        {"topic": "flights", "partition": 21, "epoch": 3, "clean_end": True},
    ),
    (
        2710,
        "channel_reconfigured",
        "info",
        Subject.CONFIG,
        1,
        {"channel": "flights", "changed": "batch.max_records, commit_interval"},
    ),
    (
        1830,
        "commit_failed",
        "warning",
        Subject.WORK,
        3,
        {
            "channel": "clicks",
            "topic": "clicks",
            "error": "the broker did not answer within 5 s",
            "refusal": None,
        },
    ),
    (
        900,
        "pause_expired",
        "warning",
        Subject.PAUSE,
        1,
        {"channel": "clicks", "by": "ann", "mode": "hold", "note": "table being compacted"},
    ),
]

_FLIGHTS = Made("flights", {"flights": 24}, 4120)
_CLICKS = Made("clicks", {"clicks": 12, "views": 6}, 860, sink="json_lines", lag=9)


def healthy() -> Process:
    """Two channels that do what they should."""
    return Process([_CLICKS, _FLIGHTS], events=list(_USUAL))


def paused() -> Process:
    """One channel is held by an operator, one partition by its processor."""
    whole = d.PauseStatus(
        reason=PauseReason.OPERATOR,
        mode=PauseMode.HOLD,
        by="ann",
        since=ago(590),
        until=ago(-3010),
        topic=None,
        partition=None,
        note="The table is being moved to the new bucket.",
    )
    events = [
        *_USUAL,
        (
            590,
            "channel_paused",
            "info",
            Subject.PAUSE,
            1,
            {"channel": "flights", "by": "ann", "mode": "hold", "reason": "operator"},
        ),
    ]
    pending = PendingStatus(
        path="channels.flights.topics",
        effect=ReloadEffect.TOPICS,
        reason="the channel is paused",
        since=ago(120),
    )
    config = _summary(ReloadOutcome.PARTLY, pending=[pending])
    return Process([_CLICKS, replace(_FLIGHTS, pauses=(whole,))], events=events, config=config)


def failing() -> Process:
    """Poison records, a channel that has failed, and partitions that nobody owns."""
    error = "ValueError: invalid literal for int() with base 10: 'N/A' (column dep_delay)"
    troubles = (
        Trouble(8, S.BACKING_OFF, 14, error),
        Trouble(7, S.RUNNING, suspect_records=250, dead_letters=3),
    )
    flights = replace(_FLIGHTS, troubles=troubles, growing=True, unowned=2)
    clicks = replace(
        _CLICKS,
        state=ChannelState.FAILED,
        failure="the sink views is gone: /data/clicks cannot be written (No space left on device)",
    )
    failed = {"channel": "clicks", "error": clicks.failure}
    unowned = {"channel": "flights", "partitions": "flights-0, flights-1"}
    where = {"channel": "flights", "topic": "flights", "partition": 12, "epoch": 3}
    tried = {**where, "error": error, "attempts": 14}
    events = [
        *_USUAL,
        (62, "channel_failed", "error", Subject.LIFE, 1, failed),
        (41, "partitions_unowned", "warning", Subject.GROUP, 1, unowned),
        (4, "processor_error", "warning", Subject.WORK, 14, tried),
    ]
    problem = "channels.clicks.batch.max_record: unknown key; did you mean max_records?"
    config = _summary(ReloadOutcome.REJECTED, problems=[problem])
    return Process([clicks, flights], events=events, config=config)


def large() -> Process:
    """A thousand partitions of which this process holds a third; some fail, some move."""
    many = Made(
        "events",
        {"events": 1000},
        61_000,
        troubles=(
            Trouble(97, S.BACKING_OFF, 3, "TimeoutError: the table did not answer"),
            Trouble(61, S.RELEASING),
        ),
    )
    return Process([many], events=list(_USUAL))


def late() -> Process:
    """A channel with an arrow reducer that has fallen back for an hour, ever further."""
    behind = replace(_CLICKS, processor="arrow", lag=90_000, late=3240, lag_per_s=12.0)
    return Process([behind, _FLIGHTS], events=list(_USUAL))


def catching_up() -> Process:
    """The same channel, whose lag falls: it has been late for as long."""
    behind = replace(_CLICKS, processor="arrow", lag=90_000, late=3240, lag_per_s=-900.0)
    return Process([behind, _FLIGHTS], events=list(_USUAL))


def rejecting() -> Process:
    """All is well, but for records that nobody has looked at yet."""
    rejects = replace(_FLIGHTS, rejects=(6134, 8291, 0))
    return Process([_CLICKS, rejects], events=list(_USUAL))


def ten_channels() -> Process:
    """Return as many channels as a process may well have."""
    made = [replace(_CLICKS, name=f"clicks-{n}", records_per_s=100 + n) for n in range(10)]
    return Process(made, events=list(_USUAL))


def restoring() -> Process:
    """A channel with state, of which one partition is on the way to be there."""
    state = d.StateTotals(
        rows=1_204_331,
        bytes=310_000_000,
        timers=88_120,
        quarantined=2,
        keys_touched=5_000_000,
        timers_fired=41_000,
        late=17,
        rejected=3,
        restoring=1,
        restore_remaining=66_000,
        unwritten_bytes=8_000_000,
        stream_time_lag_s=4.2,
        phases=[],
        amounts={},
        counts={},
        operators=[],
        standbys=[d.StandbyStatus(partition=3, position=70_000, lag=12, problem=None)],
    )
    progress = d.RestoreStatus(done=34_000, total=100_000, percent=34.0, left_s=12.2)
    keyed = replace(
        _CLICKS,
        name="orders",
        processor="keyed",
        sink="kafka",
        state_by_key=state,
        restoring=progress,
    )
    return Process([keyed, _FLIGHTS], events=list(_USUAL))


def workflows() -> Process:
    """A reducer of workflows, whose instances are in several phases, and a worker of its calls."""
    state = d.StateTotals(
        rows=151,
        bytes=310_000,
        timers=151,
        quarantined=0,
        keys_touched=5_000,
        timers_fired=4,
        late=0,
        rejected=0,
        restoring=0,
        restore_remaining=0,
        unwritten_bytes=0,
        stream_time_lag_s=0.2,
        phases=[
            d.PhaseStatus(name="open", keys=12, oldest_s=190.2),
            d.PhaseStatus(name="failing", keys=0, oldest_s=None),
            d.PhaseStatus(name="completed", keys=136, oldest_s=None),
            d.PhaseStatus(name="failed", keys=3, oldest_s=None),
        ],
        amounts={"calls_in_flight": 17},
        counts={"attempts": 610, "attempts_returned": 580, "attempts_timed_out": 4},
        operators=[],
        standbys=[],
    )
    reducer = replace(
        _CLICKS, name="workflow", processor="keyed", sink="several", state_by_key=state
    )
    ended = {"returned": 580, "failed": 9, "abandoned": 4, "not_needed": 2, "not_stored": 0}
    pool = d.PoolStatus(threads=8, busy=7, waiting=5, ended=ended)
    worker = replace(_FLIGHTS, name="assignments", processor="custom", pool=pool)
    return Process([reducer, worker], events=list(_USUAL))


def _planned(
    place: int,
    kind: str,
    name: str | None = None,
    inputs: tuple[int, ...] = (),
    **more: str,
) -> PlannedOperator:
    ends: dict[str, Any] = {"reads": None, "writes": None, "store": None, **more}
    return PlannedOperator(place=place, kind=kind, name=name, inputs=list(inputs), **ends)


def _operator(name: str, kind: str, **figures: Any) -> d.OperatorStatus:
    unknown: dict[str, Any] = dict.fromkeys(d.OperatorStatus.model_fields)
    return d.OperatorStatus.model_validate(
        {**unknown, "name": name, "kind": kind, "records": 61_204, **figures}
    )


def _part_state(*operators: d.OperatorStatus) -> d.StateTotals:
    counts = ("keys_touched", "timers_fired", "rejected", "restoring", "restore_remaining")
    return d.StateTotals(
        rows=1_204,
        bytes=88_000,
        timers=0,
        quarantined=0,
        late=3,
        unwritten_bytes=4_000,
        stream_time_lag_s=2.2,
        phases=[],
        amounts={},
        counts={},
        operators=list(operators),
        standbys=[],
        **dict.fromkeys(counts, 0),
    )


def topology() -> Process:
    """A topology of three parts: a join with a table, windows, and the ten largest of them."""
    settled = _part_state(
        _operator("settled", "join", late=3, alone=212, skipped=1, rows=907, bytes=61_000),
        _operator("people", "table", rows=297, bytes=27_000),
        _operator("named", "lookup", alone=4, skipped=0),
    )
    minutes = _part_state(
        _operator(
            "minutes",
            "aggregate",
            late=0,
            closed=4_120,
            skipped=0,
            rows=1_204,
            bytes=88_000,
            operator_time_lag_s=62.5,
        )
    )
    parts = [
        PlannedPart(
            channel="shop.orders",
            reads=["orders", "payments", "people"],
            writes=["shop.minutes.by-key"],
            operators=[
                _planned(0, "stream", reads="orders"),
                _planned(1, "stream", reads="payments"),
                _planned(2, "join", "settled", (0, 1), store="join"),
                _planned(3, "table", "people", reads="people", store="table"),
                _planned(4, "lookup", "named", (2, 3)),
                _planned(5, "key_by", "minutes", (4,), writes="shop.minutes.by-key"),
            ],
        ),
        PlannedPart(
            channel="shop.minutes",
            reads=["shop.minutes.by-key"],
            writes=["minutes"],
            operators=[
                _planned(6, "aggregate", "minutes", (5,), store="windows"),
                _planned(7, "emit", None, (6,)),
                _planned(8, "to", None, (7,), writes="minutes"),
            ],
        ),
    ]
    both = replace(_CLICKS, processor="streams", sink="kafka", lag=3)
    first = replace(
        both,
        name="shop.orders",
        topics={"orders": 2, "payments": 2, "people": 2},
        state_by_key=settled,
        enforced=7,
    )
    topics = {"shop.minutes.by-key": 2}
    second = replace(both, name="shop.minutes", topics=topics, state_by_key=minutes)
    plan = TopologyPlan(name="shop", group="shop", parts=parts)
    return Process([first, second, _FLIGHTS], events=list(_USUAL), topologies=[plan])


SCENES = {
    "topology": topology,
    "healthy": healthy,
    "paused": paused,
    "failing": failing,
    "large": large,
    "late": late,
    "catching up": catching_up,
    "rejecting": rejecting,
    "ten channels": ten_channels,
    "restoring": restoring,
    "workflows": workflows,
}
