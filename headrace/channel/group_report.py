"""What a member says of its group: in the log when it changes, in the metrics at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from headrace.coordinators.claims import Claim, LossReason
    from headrace.coordinators.listener import RebalanceSummary
    from headrace.metrics import Metrics

log = structlog.get_logger(__name__)


class GroupReport:
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
        event = "coordination_resumed" if kept or not self._lost else "coordination_began_anew"
        log.info(event, channel=self._channel, kept=kept, lost=self._lost)

    def say(self, summary: RebalanceSummary) -> None:
        """Tell how the group looks, and warn of what is newly wrong with it."""
        before, self._last = self._last, summary
        if summary.mine != (frozenset() if before is None else before.mine):
            self._metrics.rebalances.labels(self._channel).inc()
        log.info(
            "group_changed",
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
        found["partitions_foreign"] = {"owners": owners}
    if len(summary.modes) > 1:
        found["modes_differ"] = {"modes": sorted(mode.value for mode in summary.modes)}
    if summary.problems:
        found["members_unreadable"] = {"problems": dict(summary.problems)}
    return found
