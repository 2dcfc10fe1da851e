"""The partitions a channel holds, as its coordinator grants and takes them."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

import structlog

from headrace.channel.commits import COMMIT_TIMEOUT
from headrace.channel.events import EpochRaised, LogReplaced, PartitionErrorEvent
from headrace.channel.partition import OwnedPartition
from headrace.channel.states import EndReason
from headrace.channel.status import RebalanceReporter, snapshot_of
from headrace.channel.tasks import TaskGate
from headrace.core.errors import CommitFailedError
from headrace.core.user_text import describe_error
from headrace.processors.contract import GroupTasks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.channel.bounds import Bounds
    from headrace.channel.environment import ChannelEnvironment
    from headrace.channel.pauses import DeliveryGate
    from headrace.channel.scheduler import Scheduler
    from headrace.channel.topics import KnownTopics
    from headrace.coordinators.claims import Claim, LossReason
    from headrace.coordinators.rebalance import RebalanceSummary
    from headrace.core.clock import Deadline
    from headrace.core.errors import HeadraceError
    from headrace.core.records import TopicPartition
    from headrace.processors import BatchProcessor
    from headrace.telemetry.metrics import PartitionSnapshot

log = structlog.get_logger(__name__)

#: The part of a stop's deadline in which partitions finish. The coordinator keeps the last fifth
#: for itself, so giving back has to end before that.
RELEASE_SHARE = 0.7


class PartitionManager:
    """A coordinator's listener: its methods only note what happened and wake a worker.

    All methods are safe on any thread and do not block.
    """

    def __init__(
        self,
        environment: ChannelEnvironment,
        *,
        bounds: Bounds,
        delivery_gate: DeliveryGate,
        processor: BatchProcessor,
        scheduler: Scheduler,
        topics: KnownTopics,
    ) -> None:
        self._environment = environment
        self._bounds = bounds
        self._delivery_gate = delivery_gate
        self._processor = processor
        self._scheduler = scheduler
        self._topics = topics
        self._lock = Lock()
        self._owned: dict[TopicPartition, OwnedPartition] = {}
        self._tasks = TaskGate(environment, delivery_gate.pauses, topics, self.held)
        self._report = RebalanceReporter(environment.name, environment.metrics)
        self._stop_by: Deadline | None = None

    def all(self) -> list[OwnedPartition]:
        """Return what is held now, final states left out."""
        with self._lock:
            return [owned for owned in self._owned.values() if not owned.life.final]

    def held(self, partition: TopicPartition) -> OwnedPartition | None:
        """Return a partition that is held now, None if it is not."""
        with self._lock:
            owned = self._owned.get(partition)
        return None if owned is None or owned.life.final else owned

    def has_outstanding(self) -> bool:
        """Return whether a batch is out whose answer is still open."""
        return any(owned.progress.outstanding for owned in self.all())

    def touch_all(self) -> None:
        """Reschedule every partition, because a gate opened or closed."""
        for owned in self.all():
            self._scheduler.touch(owned)

    def check_tasks(self) -> None:
        """Apply the channel's topics and pauses to its tasks, because there are others."""
        self._check_tasks(owned.partition for owned in self.all())

    def _check_tasks(self, partitions: Iterable[TopicPartition]) -> None:
        for owned in self._tasks.check(partitions):
            self._scheduler.touch(owned)

    def narrow_bounds(self) -> None:
        """Apply bounds that were fixed after partitions had been claimed."""
        for owned in self.all():
            owned.progress.buffer.bound = self._bounds.of(owned.partition)
        self.touch_all()

    def snapshots(self) -> list[PartitionSnapshot]:
        """Return where each partition stands and what it is doing."""
        return [
            snapshot_of(self._environment.name, owned, self._environment.clock)
            for owned in self.all()
        ]

    def log_replaced(self, topic: str) -> None:
        """Restart the partitions of a topic that was deleted and created again."""
        for owned in self.all():
            if owned.partition.topic == topic:
                owned.post(LogReplaced())
                self._scheduler.touch(owned)

    def topic_missing(self, topic: str) -> None:
        """Cancel all waiting for a deleted topic: in a bounded run, and of ending partitions."""
        self._bounds.topic_missing(topic)
        self._environment.metrics.forget_topic(self._environment.name, topic)
        for owned in self.all():
            if owned.partition.topic == topic and owned.life.ending is not EndReason.NONE:
                self._end_waiting(owned)
                self._scheduler.touch(owned)

    def _end_waiting(self, owned: OwnedPartition) -> None:
        """Wake a partition whose end waits for a commit that cannot be stored any more."""
        if owned.pending_commits.has_pending_commit and self._topics.is_gone(owned.partition.topic):
            reason = "its topic was deleted"
            owned.post(
                PartitionErrorEvent(
                    CommitFailedError(owned.partition, owned.progress.processed_offset, reason)
                )
            )

    def finish_by(self, deadline: Deadline) -> None:
        """Limit releases that are requested from now on to ``deadline``."""
        self._stop_by = deadline

    def ended(self, owned: OwnedPartition) -> None:
        """Remove a partition in a final state, and start the claim that followed it."""
        with self._lock:
            successor = self._owned.get(owned.partition)
            if successor is owned:
                del self._owned[owned.partition]
        self._check_tasks([owned.partition])
        # another member finds by itself whether it fits there
        self._delivery_gate.pauses.remove_misfit(owned.partition)
        self._delivery_gate.pauses.progress()
        if successor is not None and successor is not owned:
            self._scheduler.touch(successor)

    # --- the coordinator's listener -------------------------------------------------------------

    def claimed(self, claim: Claim) -> None:
        """Add a claimed partition; it starts once a former claim on it has ended."""
        self._environment.metrics.begin_topic(self._environment.name, claim.partition.topic)
        owned = OwnedPartition(
            claim,
            self._environment.settings,
            channel=self._environment.name,
            copies=self._processor.copies,
            delivery_gate=self._delivery_gate,
            bound=self._bounds.of(claim.partition),
        )
        with self._lock:
            before = self._owned.get(claim.partition)
            if before is not None and not before.life.final:
                owned.life.await_end_of(before.life)
            self._owned[claim.partition] = owned
        self._check_tasks([claim.partition])
        self._scheduler.touch(owned)

    def release_requested(self, claim: Claim) -> None:
        owned = self._find(claim)
        if owned is not None:
            owned.life.request_release(self._release_by())
            self._check_tasks([claim.partition])
            self._end_waiting(owned)
            self._scheduler.touch(owned)

    def claim_lost(self, claim: Claim, reason: LossReason) -> None:
        self._report.claim_lost(claim, reason)
        owned = self._find(claim)
        if owned is not None:
            owned.life.end(EndReason.LOST)
            self._check_tasks([claim.partition])
            self._scheduler.touch(owned)

    def epoch_raised(self, old: Claim, new: Claim) -> None:
        owned = self._find(old)
        if owned is not None:
            owned.post(EpochRaised(new))
            self._scheduler.touch(owned)

    def suspended(self) -> None:
        self._delivery_gate.suspended.set()
        self._report.suspended()
        self.touch_all()

    def resumed(self) -> None:
        self._delivery_gate.suspended.clear()
        self._report.resumed(sum(owned.is_current() for owned in self.all()))
        self.touch_all()

    def rebalanced(self, summary: RebalanceSummary) -> None:
        """Report the group's assignment, to the processor too, and to what bounds a run."""
        self._bounds.group_is(summary.owners, summary.unowned)
        self._report.report(summary)
        try:
            self._processor.on_rebalanced(_tasks_of(summary))
        except Exception as error:  # noqa: BLE001 - of a user's processor; the group goes on
            reason = describe_error(error)
            log.warning("rebalance_not_taken", channel=self._environment.name, error=reason)

    def failed(self, error: HeadraceError) -> None:
        self._environment.fail(error)

    def _find(self, claim: Claim) -> OwnedPartition | None:
        with self._lock:
            owned = self._owned.get(claim.partition)
        # The claim may have been raised already though the partition has not heard of it yet; what
        # is older than the partition's own claim concerns one that ended.
        return owned if owned is not None and claim.epoch >= owned.life.claim.epoch else None

    def _release_by(self) -> float:
        now = self._environment.clock.monotonic()
        config = self._environment.config
        usual = now + (config.release_timeout or config.batch_timeout) + COMMIT_TIMEOUT
        if self._stop_by is None:
            return usual
        return min(usual, now + self._stop_by.remaining * RELEASE_SHARE)


def _tasks_of(summary: RebalanceSummary) -> GroupTasks:
    """Return the group's tasks: what has the same number in all topics."""
    owners = {
        partition.partition: owner
        for partition, owner in sorted(summary.owners.items(), reverse=True)
        if owner in summary.active
    }
    goal = {p.partition: taker for p, taker in sorted(summary.goal.items(), reverse=True)}
    return GroupTasks(summary.member, summary.active, owners, goal)
