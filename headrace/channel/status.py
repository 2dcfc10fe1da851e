"""The status of a partition, a member and a group, as logs, metrics and the API report it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import structlog

from headrace.core.records import made_at
from headrace.core.stacks import stack_of
from headrace.telemetry.metrics import PartitionReading

if TYPE_CHECKING:
    from headrace.channel.partition import OwnedPartition
    from headrace.coordinators.claims import Claim, LossReason
    from headrace.coordinators.coordinator import Coordinator
    from headrace.coordinators.member_info import AssignmentState, MemberState
    from headrace.coordinators.rebalance import RebalanceSummary
    from headrace.core.records import Record
    from headrace.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """One held partition. Offsets and counts as they are just now, seconds since something.

    ``batch_offset`` is the first record of the oldest batch that is out, or that failed and comes
    again, and ``batch_end`` the offset after it; None where there is no such batch.
    ``held_back_seconds`` says how long nothing is delivered yet, after an error or because the
    processor asked for it; None where nothing holds it back. ``suspects`` are the records among
    which one that fails is looked for; ``dead_letters`` went to the dead-letter topic under this
    claim. ``callback_seconds`` says for how long
    a callback has been running, ``calls`` where in it its thread is; without one they are None and
    empty.
    """

    channel: str
    topic: str
    partition: int
    epoch: int
    state: str
    position: int
    batch_offset: int | None
    batch_end: int | None
    committed: int | None
    high_watermark: int | None
    buffered_records: int
    held_bytes: int
    outstanding_batches: int
    attempts: int
    suspects: int
    dead_letters: int
    held_back_seconds: float | None
    callback_seconds: float | None
    calls: tuple[str, ...]
    last_error: str | None

    def facts(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """Where the channel's member stands with its group at this moment.

    ``epoch`` and ``lease_seconds`` (for how long it may act on its claims) are None without one.
    """

    state: MemberState
    assignment: AssignmentState
    claims: int
    epoch: int | None
    lease_seconds: float | None


def member_reading(coordinator: Coordinator) -> MemberSnapshot:
    """Look at a member; any thread."""
    claims = coordinator.claims
    return MemberSnapshot(
        state=coordinator.state,
        assignment=coordinator.assignment,
        claims=len(claims),
        epoch=claims[0].member_epoch if claims else None,
        lease_seconds=claims[0].lease.remaining() if claims else None,
    )


def activity_of(channel: str, owned: OwnedPartition, now: float) -> PartitionSnapshot:
    """Look at a partition; any thread, ``now`` in monotonic seconds."""
    callback = owned.callback
    held_back = owned.not_before - now
    first, end = owned.batch or (None, None)
    return PartitionSnapshot(
        channel=channel,
        topic=owned.partition.topic,
        partition=owned.partition.partition,
        epoch=owned.epoch,
        state=owned.state.value,
        position=owned.position,
        batch_offset=first,
        batch_end=end,
        committed=owned.committed,
        high_watermark=owned.high_watermark,
        buffered_records=owned.buffer.records,
        held_bytes=owned.held_bytes(),
        outstanding_batches=len(owned.outstanding),
        attempts=owned.attempts,
        suspects=owned.suspects,
        dead_letters=owned.letters.count,
        held_back_seconds=round(held_back, 3) if 0 < held_back < inf else None,
        # it may have begun after ``now``
        callback_seconds=None if callback is None else round(max(0.0, now - callback.since), 3),
        calls=() if callback is None else tuple(stack_of(callback.thread)),
        last_error=owned.last_error,
    )


def reading_of(channel: str, owned: OwnedPartition, now: float) -> PartitionReading:
    """Return where the partition stands. ``now`` is in seconds since the epoch. Any thread."""
    return PartitionReading(
        channel=channel,
        topic=owned.partition.topic,
        partition=owned.partition.partition,
        state=owned.state.value,
        epoch=owned.epoch,
        position=owned.position,
        committed=owned.committed,
        high_watermark=owned.high_watermark,
        lag_seconds=_lag_seconds(owned, now),
        sink_seconds=None if owned.newest is None else max(0.0, now - owned.newest),
    )


def _lag_seconds(owned: OwnedPartition, now: float) -> float | None:
    """Return for how long the oldest record has been waiting that is not answered yet.

    The record's own timestamp says so where it was fetched. Where it was not, it is younger than
    the last one that was answered and than the moment at which everything had been fetched: the
    shorter of both is the longest it can have waited. None if neither is known.
    """
    record = _oldest(owned)
    if record is not None:
        since = made_at(record)
    elif owned.high_watermark is None or owned.buffer.fetch_offset >= owned.high_watermark:
        return None if owned.high_watermark is None else 0.0
    else:
        known = [at for at in (owned.newest, owned.caught_up_at) if at is not None]
        since = max(known, default=None)
    return None if since is None else max(0.0, now - since)


def _oldest(owned: OwnedPartition) -> Record | None:
    """Return the oldest record at hand that is not answered, None if there is none."""
    out = [item.cut for item in tuple(owned.outstanding)]
    cuts = (*out, owned.handing_out, *tuple(owned.pending))
    oldest = next((cut for cut in cuts if cut is not None), None)
    return owned.buffer.first() if oldest is None else oldest.records[0]


log = structlog.get_logger(__name__)


class RebalanceReporter:
    """Used by the coordinator's thread."""

    def __init__(self, channel: str, metrics: Metrics) -> None:
        self._channel = channel
        self._metrics = metrics
        self._last: RebalanceSummary | None = None
        self._lost = 0
        metrics.suspended.labels(channel).set(0)

    def claim_lost(self, claim: Claim, reason: LossReason) -> None:
        """Tell of a claim that ended without being given back."""
        self._lost += 1
        self._metrics.claims_lost.labels(self._channel, reason.value).inc()
        log.warning(
            "claim_lost",
            channel=self._channel,
            topic=claim.partition.topic,
            partition=claim.partition.partition,
            epoch=claim.epoch,
            reason=reason.value,
        )

    def suspended(self) -> None:
        """Tell that ZooKeeper does not answer."""
        self._lost = 0
        self._metrics.suspended.labels(self._channel).set(1)
        log.warning("coordination_suspended", channel=self._channel)

    def resumed(self, kept: int) -> None:
        """Tell that it answers again, and what is left: ``kept`` partitions go on."""
        self._metrics.suspended.labels(self._channel).set(0)
        event = "coordination_resumed" if kept or not self._lost else "coordination_restarted"
        log.info(event, channel=self._channel, kept=kept, lost=self._lost)

    def say(self, summary: RebalanceSummary) -> None:
        """Tell how the group looks, and warn of what is newly wrong with it."""
        before, self._last = self._last, summary
        if summary.mine != (frozenset() if before is None else before.mine):
            self._metrics.rebalances.labels(self._channel).inc()
        log.info(
            "group_rebalanced",
            channel=self._channel,
            members=list(summary.members),
            mine=sorted(map(str, summary.mine)),
        )
        known = {} if before is None else _wrong(before)
        for event, details in _wrong(summary).items():
            if known.get(event) != details:
                log.warning(event, channel=self._channel, **details)
        self._measure(summary)

    def _measure(self, summary: RebalanceSummary) -> None:
        self._metrics.group_members.labels(self._channel).set(len(summary.members))
        for condition, count in {
            "unowned": len(summary.unowned),
            "pending": len(summary.pending),
            "contended": len(summary.contended),
            "missing": len({p for listed in summary.missing.values() for p in listed}),
            "foreign": len(summary.foreign),
        }.items():
            self._metrics.group_partitions.labels(self._channel, condition).set(count)


def _wrong(summary: RebalanceSummary) -> dict[str, dict[str, Any]]:
    """Return by event what somebody has to look at."""
    found: dict[str, dict[str, Any]] = {}
    if summary.unowned:
        found["partitions_unowned"] = {"partitions": sorted(map(str, summary.unowned))}
    if summary.contended:
        members = {str(p): list(names) for p, names in summary.contended.items()}
        found["partitions_contended"] = {"members": members}
    if summary.missing:
        listed = {name: sorted(map(str, some)) for name, some in summary.missing.items()}
        found["partitions_missing"] = {"listed": listed}
    if summary.foreign:
        owners = {str(p): owner for p, owner in summary.foreign.items()}
        found["partition_owners_unknown"] = {"owners": owners}
    if len(summary.modes) > 1:
        found["modes_differ"] = {"modes": sorted(mode.value for mode in summary.modes)}
    if summary.problems:
        found["members_unreadable"] = {"problems": dict(summary.problems)}
    return found
