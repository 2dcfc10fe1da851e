"""Made-up processes, for the page to show: what the API would answer, built of its own models."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from math import sin
from typing import TYPE_CHECKING, Any

from headrace.admin import documents as d
from headrace.admin.ports import Phase
from headrace.channel.lifecycle import ChannelState
from headrace.channel.pauses import PauseMode, PauseReason
from headrace.channel.states import PartitionState
from headrace.config import Delivery
from headrace.coordinators.member_states import MemberState
from headrace.coordinators.members import Mode
from headrace.logs import Subject
from headrace.thread_time import Activity, Role
from headrace.zookeeper.protocol import SessionState

if TYPE_CHECKING:
    from collections.abc import Callable

S = PartitionState

#: The members of the group; the first one is the process that is looked at.
MEMBERS = ("mill-1", "mill-2", "mill-3")


def ago(seconds: float) -> datetime:
    """Return the time so many seconds before now."""
    return datetime.now(timezone.utc) - timedelta(seconds=seconds)


@dataclass(frozen=True)
class Trouble:
    """What is wrong with some partitions. ``every`` n-th one has it."""

    every: int
    state: PartitionState
    attempts: int = 0
    error: str | None = None


@dataclass(frozen=True)
class Made:
    """One channel to make up."""

    name: str
    topics: dict[str, int]
    records_per_s: float
    state: ChannelState = ChannelState.RUNNING
    failure: str | None = None
    sink: str = "delta"
    troubles: tuple[Trouble, ...] = ()
    pauses: tuple[d.PauseStatus, ...] = ()
    lag: int = 40
    growing: bool = False
    unowned: int = 0


@dataclass
class Process:
    """One process to make up."""

    channels: list[Made]
    session: SessionState = SessionState.CONNECTED
    spark: bool = True
    events: list[tuple[float, str, str, Subject, int, dict[str, Any]]] = field(default_factory=list)
    config: dict[str, Any] | None = None

    def answers(self) -> dict[str, Callable[[], Any]]:
        """Return what each path answers."""
        return {
            "/api/v1/status": self.status,
            "/api/v1/history": self.history,
            "/api/v1/events": self.recent,
            "/api/v1/members": self.members,
            "/api/v1/config": lambda: {"file": "/etc/headrace.yaml", "applied": {"channels": {}}},
        }

    def status(self) -> Any:
        """Return the status."""
        connected = self.session is SessionState.CONNECTED
        reasons = [] if connected else [f"the ZooKeeper session is {self.session.value}"]
        document = d.Status(
            at=ago(0),
            process=d.ProcessStatus(
                instance_id=MEMBERS[0],
                phase=Phase.RUNNING,
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
            channels=[_channel(each) for each in self.channels],
        )
        return {**document.model_dump(mode="json"), "config": self.config}

    def history(self) -> Any:
        """Return an hour."""
        channels = {each.name: [_point(each, n) for n in range(720)] for each in self.channels}
        return d.History(interval_s=5, channels=channels).model_dump(mode="json")

    def recent(self) -> Any:
        """Return the events."""
        events = [
            d.EventStatus(
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
        return d.Events(at=ago(0), pid=4711, events=events).model_dump(mode="json")

    def members(self) -> Any:
        """Return the groups."""
        groups = [_group(each) for each in self.channels]
        return d.Members(at=ago(0), groups=groups).model_dump(mode="json")


def _owner(made: Made, number: int) -> str | None:
    if number < made.unowned:
        return None
    return MEMBERS[number % 3] if sum(made.topics.values()) > 8 else MEMBERS[0]


def _own(made: Made) -> list[tuple[str, int]]:
    drained = any(p.mode is PauseMode.DRAIN for p in made.pauses)
    if drained or made.state is ChannelState.FAILED:
        return []
    return [
        (topic, number)
        for topic, count in made.topics.items()
        for number in range(count)
        if _owner(made, number) == MEMBERS[0]
    ]


def _partition(made: Made, topic: str, number: int, index: int) -> d.PartitionStatus:
    trouble = next((t for t in made.troubles if index % t.every == t.every // 2), None)
    paused = any(p.topic is None for p in made.pauses)
    usual = S.PAUSED if paused else S.RUNNING if index % 5 == 0 else S.WAITING
    state = trouble.state if trouble else usual
    lag = made.lag * (60 if trouble else 1) + (index * 37) % 23
    position = 18_240_031 + index * 1237
    failing = trouble is not None and trouble.attempts > 0
    return d.PartitionStatus(
        topic=topic,
        partition=number,
        state=state,
        epoch=3 + index % 4,
        position=position,
        committed=position - (0 if state is S.WAITING else 20),
        end=position + lag,
        lag=lag,
        lag_s=round(0.1 + lag / 200, 3),
        sink_age_s=round(0.4 + (index % 7) / 10 + (600 if paused else 0), 3),
        records_per_s=0 if paused or trouble else round(made.records_per_s / 40 + index % 9, 1),
        buffered_records=lag % 500,
        held_bytes=lag * 420,
        outstanding_batches=1 if state is S.RUNNING else 0,
        attempts=trouble.attempts if trouble else 0,
        held_back_until=ago(-24) if failing else None,
        callback_s=0.12 if state is S.RUNNING else None,
        last_error=trouble.error if trouble else None,
    )


def _channel(made: Made) -> d.ChannelStatus:
    partitions = [_partition(made, *each, index) for index, each in enumerate(_own(made))]
    states = dict.fromkeys((p.state for p in partitions), 0)
    for each in partitions:
        states[each.state] += 1
    rests = any(p.topic is None for p in made.pauses) or made.state is ChannelState.FAILED
    return d.ChannelStatus(
        name=made.name,
        state=made.state,
        failure=made.failure,
        group=f"mill.{made.name}",
        topics=made.topics,
        processor="spark",
        sink=made.sink,
        delivery=Delivery.EXACTLY_ONCE if made.sink == "delta" else Delivery.AT_LEAST_ONCE,
        member=d.MemberStatus(
            state=MemberState.AWAY if not partitions and made.pauses else MemberState.ACTIVE,
            epoch=7,
            claims=len(partitions),
            lease_s=8.2,
        ),
        paused=any(p.topic is None for p in made.pauses),
        pauses=list(made.pauses),
        totals=d.Totals(
            records=812_334_120,
            records_per_s=0 if rests else made.records_per_s,
            skipped_records=2,
            errors=sum(each.attempts for each in partitions) + 3,
            commit_failures=0,
            rebalances=4,
            lag=sum(each.lag or 0 for each in partitions),
            held_bytes=sum(each.held_bytes for each in partitions),
            partitions=states,
        ),
        stages=[
            d.StageStatus(
                stage=stage,
                per_s=0 if rests else per,
                mean_s=None if rests else mean,
                busy=0 if rests else round(per * mean, 4),
            )
            for stage, per, mean in (
                ("on_next_batch", 41, 0.0008),
                ("arrow", 6.2, 0.0041),
                ("reduce", 6.2, 0.0713),
                ("sink_commit", 6.2, 0.0244),
                ("commit", 1.0, 0.0031),
            )
        ],
        threads=[
            d.ThreadsStatus(role=role, parts=parts)
            for role, parts in (
                (Role.FETCHER, {Activity.FETCH: 0.11, Activity.IDLE: 0.89}),
                (Role.WORKER, {Activity.PROCESS: 0.04, Activity.WAIT: 0.01, Activity.IDLE: 0.95}),
                (Role.LANE, {Activity.SPARK: 0.44, Activity.COMMIT: 0.15, Activity.IDLE: 0.41}),
                (Role.COMMITTER, {Activity.COMMIT: 0.01, Activity.IDLE: 0.99}),
            )
        ],
        conditions={"unowned": made.unowned} if made.unowned else {},
        partitions=partitions,
    )


def _point(made: Made, number: int) -> d.HistoryPoint:
    wave = 1 + 0.12 * sin(number / 34) + 0.05 * sin(number / 5.3) + 0.03 * sin(number * 1.9)
    rests = (made.pauses and number > 600) or (made.state is ChannelState.FAILED and number > 690)
    rate = 0.0 if rests else made.records_per_s * wave
    lag = made.lag * 20 * (wave + 0.6 * max(0, sin(number / 61)) ** 6)
    if made.growing or rests:
        lag += max(0, number - 600) ** 1.6 * 3
    share = rate / made.records_per_s
    return d.HistoryPoint(
        at=ago(5 * (719 - number)),
        records_per_s=round(rate, 2),
        lag=int(lag),
        batches_per_s=round(41 * share, 2),
        busy={
            stage: round(value * share * (1 + 0.2 * sin(number / 9 + i)), 4)
            for i, (stage, value) in enumerate(
                {
                    "on_next_batch": 0.03,
                    "arrow": 0.025,
                    "reduce": 0.44,
                    "sink_commit": 0.15,
                    "commit": 0.003,
                }.items()
            )
        },
    )


def _group(made: Made) -> d.Group:
    owners = {
        f"{topic}-{number}": owner
        for topic, count in made.topics.items()
        for number in range(count)
        if (owner := _owner(made, number)) is not None
    }
    members = [
        d.GroupMember(
            name=name,
            this=name == MEMBERS[0],
            host=f"{name}.example.org",
            pid=4711 + index,
            software="0.1.0",
            since=ago(266_000 - index * 900),
            mode=Mode.DYNAMIC,
            draining=False,
            owned=sum(1 for owner in owners.values() if owner == name),
            problem=None,
        )
        for index, name in enumerate(MEMBERS)
        if name == MEMBERS[0] or name in owners.values()
    ]
    return d.Group(channel=made.name, group=f"mill.{made.name}", members=members, owners=owners)


_STARTED = [
    (3400.0, "zookeeper_session_started", "info", Subject.GROUP, 1, {"session_timeout": 10}),
]
_USUAL: list[tuple[float, str, str, Subject, int, dict[str, Any]]] = [
    (5400, "member_joined", "info", Subject.GROUP, 1, {"member": "mill-1", "member_epoch": 7}),
    (
        5399,
        "group_changed",
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
_SETTLED: dict[str, Any] = {"pending": [], "problems": [], "last_at": None, "last_outcome": None}


def healthy() -> Process:
    """Two channels that do what they should."""
    return Process([_CLICKS, _FLIGHTS], events=list(_USUAL), config=_SETTLED)


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
    pending = {
        "path": "channels.flights.topics",
        "reason": "the channel is paused",
        "since": ago(120).isoformat(),
    }
    config = {
        "pending": [pending],
        "problems": [],
        "last_at": ago(120).isoformat(),
        "last_outcome": "partly",
    }
    return Process([_CLICKS, replace(_FLIGHTS, pauses=(whole,))], events=events, config=config)


def failing() -> Process:
    """A poison record, a channel that has failed, and partitions that nobody owns."""
    error = "ValueError: invalid literal for int() with base 10: 'N/A' (column dep_delay)"
    flights = replace(
        _FLIGHTS, troubles=(Trouble(8, S.BACKING_OFF, 14, error),), growing=True, unowned=2
    )
    clicks = replace(
        _CLICKS,
        state=ChannelState.FAILED,
        failure="the sink views is gone: /data/clicks cannot be written (No space left on device)",
    )
    events = [
        *_USUAL,
        (
            62,
            "channel_failed",
            "error",
            Subject.LIFE,
            1,
            {"channel": "clicks", "error": clicks.failure},
        ),
        (
            41,
            "partitions_unowned",
            "warning",
            Subject.GROUP,
            1,
            {"channel": "flights", "partitions": "flights-0, flights-1"},
        ),
        (
            4,
            "processor_error",
            "warning",
            Subject.WORK,
            14,
            {
                "channel": "flights",
                "topic": "flights",
                "partition": 12,
                "epoch": 3,
                "error": error,
                "attempts": 14,
            },
        ),
    ]
    problem = "channels.clicks.batch.max_record: unknown key; did you mean max_records?"
    config = {
        "pending": [],
        "problems": [problem],
        "last_at": ago(200).isoformat(),
        "last_outcome": "rejected",
    }
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
    return Process([many], events=list(_USUAL), config=_SETTLED)


SCENES = {"healthy": healthy, "paused": paused, "failing": failing, "large": large}
