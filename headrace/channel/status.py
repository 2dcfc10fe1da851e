"""The status of a partition, a member and a group, as logs, metrics and the API report it."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

import structlog

from headrace.core.records import made_at
from headrace.core.stacks import stack_of
from headrace.telemetry.metrics import PartitionSnapshot

if TYPE_CHECKING:
    from headrace.channel.partition import OwnedPartition
    from headrace.coordinators.claims import Claim, LossReason
    from headrace.coordinators.coordinator import Coordinator
    from headrace.coordinators.member_info import AssignmentState, MemberState
    from headrace.coordinators.rebalance import RebalanceSummary
    from headrace.core.clock import Clock
    from headrace.core.records import Record
    from headrace.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """The state of the channel's member in its group at this moment.

    ``epoch`` and ``lease_seconds`` (for how long it may act on its claims) are None without one.
    """

    state: MemberState
    assignment: AssignmentState
    claims: int
    epoch: int | None
    lease_seconds: float | None


def member_reading(coordinator: Coordinator) -> MemberSnapshot:
    """Return a snapshot of a member; any thread."""
    claims = coordinator.claims
    return MemberSnapshot(
        state=coordinator.state,
        assignment=coordinator.assignment,
        claims=len(claims),
        epoch=claims[0].member_epoch if claims else None,
        lease_seconds=claims[0].lease.remaining() if claims else None,
    )


def snapshot_of(channel: str, owned: OwnedPartition, clock: Clock) -> PartitionSnapshot:
    """Return a snapshot of a partition; any thread."""
    now, time, callback = clock.monotonic(), clock.time(), owned.hold.callback
    held_back = owned.retries.not_before - now
    first, end = owned.batch or (None, None)
    return PartitionSnapshot(
        channel=channel,
        topic=owned.partition.topic,
        partition=owned.partition.partition,
        epoch=owned.epoch,
        state=owned.life.state.value,
        position=owned.position,
        batch_offset=first,
        batch_end=end,
        committed=owned.committed,
        high_watermark=owned.high_watermark,
        buffered_records=owned.progress.buffer.records,
        held_bytes=owned.held_bytes(),
        outstanding_batches=len(owned.progress.outstanding),
        attempts=owned.retries.attempts,
        suspect_records=owned.progress.suspect_records,
        dead_letters=owned.letters.count + owned.undecodable.count,
        held_back_seconds=round(held_back, 3) if 0 < held_back < inf else None,
        # it may have begun after ``now``
        callback_seconds=None if callback is None else round(max(0.0, now - callback.since), 3),
        calls=() if callback is None else tuple(stack_of(callback.thread)),
        last_error=owned.retries.last_error,
        lag_seconds=_age(_waiting_since(owned), time),
        sink_seconds=_age(owned.progress.newest, time),
    )


def _age(since: float | None, now: float) -> float | None:
    """Return whole milliseconds; clocks of other machines may be ahead of ours."""
    return None if since is None else max(0.0, round(now - since, 3))


def _waiting_since(owned: OwnedPartition) -> float | None:
    """Return since when the oldest record has been waiting that is not answered yet.

    The record's own timestamp says so where it was fetched. Where it was not, it is younger than
    the last one that was answered and than the moment at which everything had been fetched: the
    later of both is the longest it can have waited. None if neither is known; inf if nothing waits.
    """
    record = _oldest(owned)
    if record is not None:
        return made_at(record)
    if owned.high_watermark is None:
        return None
    if owned.progress.buffer.fetch_offset >= owned.high_watermark:
        return inf
    return max(
        (at for at in (owned.progress.newest, owned.progress.caught_up_at) if at is not None),
        default=None,
    )


def _oldest(owned: OwnedPartition) -> Record | None:
    """Return the oldest buffered record that is not answered, None if there is none."""
    cuts = owned.progress.unanswered()
    return cuts[0].records[0] if cuts else owned.progress.buffer.first()


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
        """Log and count a claim that ended without a release."""
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
        """Log that ZooKeeper does not answer."""
        self._lost = 0
        self._metrics.suspended.labels(self._channel).set(1)
        log.warning("coordination_suspended", channel=self._channel)

    def resumed(self, kept: int) -> None:
        """Log that ZooKeeper answers again and how many partitions (``kept``) continue."""
        self._metrics.suspended.labels(self._channel).set(0)
        event = "coordination_resumed" if kept or not self._lost else "coordination_restarted"
        log.info(event, channel=self._channel, kept=kept, lost=self._lost)

    def report(self, summary: RebalanceSummary) -> None:
        """Log the group's assignment, and warn of what is newly wrong with it."""
        before, self._last = self._last, summary
        if summary.mine != (frozenset() if before is None else before.mine):
            self._metrics.rebalances.labels(self._channel).inc()
        log.info(
            "group_rebalanced",
            channel=self._channel,
            members=list(summary.members),
            mine=sorted(map(str, summary.mine)),
        )
        known = {} if before is None else _conditions_of(before)
        for event, details in _conditions_of(summary).items():
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


def _conditions_of(summary: RebalanceSummary) -> dict[str, dict[str, Any]]:
    """Return by event what an operator has to look at."""
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
    if summary.without_tasks:
        found["members_without_tasks"] = {"members": list(summary.without_tasks)}
    if summary.without_warm:
        found["members_without_warm"] = {"members": list(summary.without_warm)}
    if summary.problems:
        found["members_unreadable"] = {"problems": dict(summary.problems)}
    return found
