"""Made-up channels, as the API would describe them: built of its own models."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import sin

from headrace.channel.pauses import PauseMode
from headrace.channel.states import ChannelState, PartitionState
from headrace.config import DeliveryGuarantee
from headrace.coordinators.member_info import AssignmentMode, AssignmentState, MemberState
from headrace.ops.admin import history, status
from headrace.ops.admin import models as d
from headrace.ops.admin.rejects import RejectsStatus
from headrace.telemetry.thread_time import ThreadActivity, ThreadRole

S = PartitionState

#: The members of the group; the first one is the process that is looked at.
MEMBERS = ("mill-1", "mill-2", "mill-3")


def ago(seconds: float) -> datetime:
    """Return the time so many seconds before now."""
    return datetime.now(UTC) - timedelta(seconds=seconds)


@dataclass(frozen=True)
class Trouble:
    """The fault of some partitions. ``every`` n-th one has it."""

    every: int
    state: PartitionState
    attempts: int = 0
    error: str | None = None
    suspect_records: int = 0
    dead_letters: int = 0


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
    late: float = 0.0
    lag_per_s: float = 0.0
    rejects: tuple[int, int, int] = (0, 0, 0)
    processor: str = "spark"
    unowned: int = 0
    state_by_key: d.StateTotals | None = None
    pool: d.PoolStatus | None = None
    restoring: d.RestoreStatus | None = None
    enforced: int = 0


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
        batch_offset=position if failing else position - 20 if state is S.RUNNING else None,
        batch_end=position + 1 if failing else position if state is S.RUNNING else None,
        committed=position - (0 if state is S.WAITING else 20),
        end=position + lag,
        lag=lag,
        lag_s=round(made.late + 0.1 + lag / 200, 3),
        sink_age_s=round(0.4 + (index % 7) / 10 + (600 if paused else 0), 3),
        records_per_s=0 if paused or trouble else round(made.records_per_s / 40 + index % 9, 1),
        buffered_records=lag % 500,
        held_bytes=lag * 420,
        outstanding_batches=1 if state is S.RUNNING else 0,
        attempts=trouble.attempts if trouble else 0,
        suspect_records=trouble.suspect_records if trouble else 0,
        dead_letters=trouble.dead_letters if trouble else 0,
        held_back_until=ago(-24) if failing else None,
        callback_s=0.12 if state is S.RUNNING else None,
        last_error=trouble.error if trouble else None,
        restoring=made.restoring if index == 0 else None,
    )


#: Of each stage how often in a second, and for how many seconds on average.
_STAGES = (
    ("on_next_batch", 41, 0.0008),
    ("arrow", 6.2, 0.0041),
    ("reduce", 6.2, 0.0713),
    ("sink_commit", 6.2, 0.0244),
    ("commit", 1.0, 0.0031),
)

#: What part of the time the threads of each role spend on what.
_THREADS = {
    ThreadRole.FETCHER: {ThreadActivity.FETCH: 0.11, ThreadActivity.IDLE: 0.89},
    ThreadRole.WORKER: {
        ThreadActivity.PROCESS: 0.04,
        ThreadActivity.WAIT: 0.01,
        ThreadActivity.IDLE: 0.95,
    },
    ThreadRole.LANE: {
        ThreadActivity.SPARK: 0.44,
        ThreadActivity.COMMIT: 0.15,
        ThreadActivity.IDLE: 0.41,
    },
    ThreadRole.COMMITTER: {ThreadActivity.COMMIT: 0.01, ThreadActivity.IDLE: 0.99},
}


def channel_of(made: Made) -> d.ChannelStatus:
    """Return the channel as the status has it."""
    partitions = [_partition(made, *each, index) for index, each in enumerate(_own(made))]
    rests = any(p.topic is None for p in made.pauses) or made.state is ChannelState.FAILED
    return d.ChannelStatus(
        name=made.name,
        state=made.state,
        failure=made.failure,
        group=f"mill.{made.name}",
        topics=made.topics,
        processor=made.processor,
        sink=made.sink,
        delivery=DeliveryGuarantee.EXACTLY_ONCE
        if made.sink == "delta"
        else DeliveryGuarantee.AT_LEAST_ONCE,
        member=d.MemberStatus(
            state=MemberState.AWAY if not partitions and made.pauses else MemberState.ACTIVE,
            assignment=AssignmentState.COMPLETE if partitions else AssignmentState.NONE,
            epoch=7,
            claims=len(partitions),
            lease_s=8.2,
        ),
        paused=any(p.topic is None for p in made.pauses),
        pauses=list(made.pauses),
        skips=[],
        totals=_totals(made, partitions, 0 if rests else made.records_per_s),
        rejects=_rejects(made),
        stages=[_at_rest(each[0]) if rests else _stage(*each) for each in _STAGES],
        threads=[d.ThreadsStatus(role=role, parts=parts) for role, parts in _THREADS.items()],
        conditions={"unowned": made.unowned} if made.unowned else {},
        partitions=partitions,
        state_by_key=made.state_by_key,
        pool=made.pool,
    )


def _rejects(made: Made) -> RejectsStatus:
    letters, skipped, rejected = made.rejects
    return RejectsStatus(
        dead_letters=letters,
        skipped_records=skipped,
        rejected_facts=rejected,
        acknowledged=0,
        acknowledged_by=None,
        acknowledged_at=None,
    )


def _totals(made: Made, partitions: list[d.PartitionStatus], records_per_s: float) -> d.Totals:
    lag = sum(each.lag or 0 for each in partitions)
    falls = made.lag_per_s < 0
    return d.Totals(
        records=812_334_120,
        records_per_s=records_per_s,
        skipped_records=2,
        overflow_records=5,
        dead_letters=sum(each.dead_letters for each in partitions),
        errors=sum(each.attempts for each in partitions) + 3,
        commit_failures=0,
        enforced=made.enforced,
        rebalances=4,
        lag=lag,
        lag_per_s=made.lag_per_s,
        catch_up_s=lag / -made.lag_per_s if falls else None,
        held_bytes=sum(each.held_bytes for each in partitions),
        partitions=dict(Counter(each.state for each in partitions)),
    )


def _stage(stage: str, per_s: float, mean_s: float) -> d.StageStatus:
    return d.StageStatus(stage=stage, per_s=per_s, mean_s=mean_s, busy=round(per_s * mean_s, 4))


def _at_rest(stage: str) -> d.StageStatus:
    return d.StageStatus(stage=stage, per_s=0, mean_s=None, busy=0)


def point_of(made: Made, number: int) -> history.HistoryPoint:
    """Return the sample of this number, of the 720 of an hour."""
    wave = 1 + 0.12 * sin(number / 34) + 0.05 * sin(number / 5.3) + 0.03 * sin(number * 1.9)
    rests = (made.pauses and number > 600) or (made.state is ChannelState.FAILED and number > 690)
    rate = 0.0 if rests else made.records_per_s * wave
    lag = made.lag * 0.42 * sum(made.topics.values()) * (wave + 0.6 * max(0, sin(number / 61)) ** 6)
    if made.growing or rests:
        lag += max(0, number - 600) ** 1.6 * 3
    share = rate / made.records_per_s
    return history.HistoryPoint(
        at=ago(5 * (719 - number)),
        records_per_s=round(rate, 2),
        lag=int(lag),
        lag_s=round(0.4 + made.late * number / 719, 3),
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


def group_of(made: Made) -> status.Group:
    """Return the group and who owns what."""
    owners = {
        f"{topic}-{number}": owner
        for topic, count in made.topics.items()
        for number in range(count)
        if (owner := _owner(made, number)) is not None
    }
    members = [
        status.GroupMember(
            name=name,
            this=name == MEMBERS[0],
            host=f"{name}.example.org",
            pid=4711 + index,
            software="0.1.0",
            since=ago(266_000 - index * 900),
            mode=AssignmentMode.DYNAMIC,
            draining=False,
            owned=sum(1 for owner in owners.values() if owner == name),
            problem=None,
        )
        for index, name in enumerate(MEMBERS)
        if name == MEMBERS[0] or name in owners.values()
    ]
    return status.Group(
        channel=made.name, group=f"mill.{made.name}", members=members, owners=owners
    )
