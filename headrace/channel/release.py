"""The two ways a partition ends: released in order, or lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from headrace.channel.commits import COMMIT_TIMEOUT
from headrace.channel.offset_stores import sink_is_fenced
from headrace.channel.states import EndReason, PartitionState

if TYPE_CHECKING:
    from headrace.channel.callbacks import Callbacks
    from headrace.channel.commits import Committer
    from headrace.channel.delivery import Delivery
    from headrace.channel.environment import ChannelEnvironment
    from headrace.channel.fetcher import Fetcher
    from headrace.channel.partition import OwnedPartition
    from headrace.channel.topics import KnownTopics
    from headrace.coordinators.coordinator import Coordinator

log = structlog.get_logger(__name__)


class Releases:
    """A worker's steps with a partition that has to end. Called by the thread that holds it."""

    def __init__(
        self,
        environment: ChannelEnvironment,
        delivery: Delivery,
        *,
        callbacks: Callbacks,
        committer: Committer,
        coordinator: Coordinator,
        fetcher: Fetcher,
        topics: KnownTopics,
        unfinished: list[str],
    ) -> None:
        self._environment = environment
        self._callbacks = callbacks
        self._committer = committer
        self._coordinator = coordinator
        self._fetcher = fetcher
        self._topics = topics
        self._unfinished = unfinished
        self._delivery = delivery

    def lose(self, owned: OwnedPartition) -> None:
        """End it at once: nothing done for it can take effect any more."""
        started = owned.life.state is not PartitionState.STARTING and not (
            owned.life.state is PartitionState.SUSPENDED and owned.committed is None
        )
        had_last_callback = owned.life.state is PartitionState.TERMINATING
        self._drop(owned)
        if started and not had_last_callback:
            processor = self._callbacks.processor
            self._callbacks.run_last(owned, lambda: processor.on_partition_lost(owned))
        owned.life.become(PartitionState.LOST)
        self._log("partition_lost", owned, reason=owned.life.ending.name.lower())
        if owned.life.ending is EndReason.ABANDONED:
            self._coordinator.abandon(owned.life.claim)

    def unstarted(self, owned: OwnedPartition) -> None:
        """Release a partition that the processor does not know yet.

        Its start position may be on the way to the broker still, and is waited for as long as a
        commit may take: after an end that is not clean the next owner may shut this member out,
        with all its other partitions. That it has to where a commit of ours under a former claim
        may be stored yet, which is decided before a start position is found.
        """
        latest = self._environment.clock.monotonic() + COMMIT_TIMEOUT
        owned.life.limit_release(latest)
        gone = self._is_gone(owned)
        if owned.pending_commits.has_pending_commit and not gone and not self._is_overdue(owned):
            return
        doubtful = owned.committed is None and owned.life.claim.follows_own_doubt
        clean = gone or not (owned.pending_commits.has_pending_commit or doubtful)
        self._drop(owned)
        owned.life.become(PartitionState.TERMINATED)
        self._coordinator.released(owned.life.claim, clean=clean)

    def begin(self, owned: OwnedPartition) -> None:
        """Stop fetching; what is out may still be answered."""
        self._fetcher.unassign(owned)
        owned.progress.discard()
        owned.life.become(PartitionState.RELEASING)
        self._committer.flush()

    def run_once(self, owned: OwnedPartition) -> None:
        """Run the next step of a release: answers, commits, the callback, its commit, the claim."""
        overdue, gone = self._is_overdue(owned), self._is_gone(owned)
        if owned.life.state is PartitionState.RELEASING:
            if (
                owned.progress.outstanding
                or (owned.pending_commits.has_pending_commit and not gone)
            ) and not overdue:
                return
            self._terminate(owned)
        if not owned.pending_commits.has_pending_commit:
            self._finish(owned)
        elif gone:
            # the last commit cannot be stored, and no owner follows: there is no producer to fence
            self._end_without_commit(owned, "commit_abandoned", clean=True)
        elif overdue:
            # the next owner must know that the last commit is not stored
            self._unfinished.append(
                f"{owned.partition}: commit of offset {owned.progress.processed_offset}"
            )
            self._end_without_commit(owned, "release_overdue", clean=False)

    def _is_overdue(self, owned: OwnedPartition) -> bool:
        return owned.life.is_overdue(self._environment.clock.monotonic())

    def _is_gone(self, owned: OwnedPartition) -> bool:
        """Return whether the topic was deleted, so that no offset of it can be stored any more."""
        return self._topics.is_gone(owned.partition.topic)

    def _terminate(self, owned: OwnedPartition) -> None:
        left = owned.progress.withdraw()
        if left:
            count = f"{len(left)} unanswered batch{'es' if len(left) > 1 else ''}"
            self._unfinished.append(f"{owned.partition}: {count} from offset {left[0].start}")
            self._log("batches_withdrawn", owned, records=sum(len(cut.records) for cut in left))
        processor = self._callbacks.processor
        response = self._callbacks.run_last(owned, lambda: processor.on_stream_termination(owned))
        owned.life.become(PartitionState.TERMINATING)
        if not left:
            self._delivery.conclude(owned, response)

    def _finish(self, owned: OwnedPartition) -> None:
        self._drop(owned)
        owned.life.become(PartitionState.TERMINATED)
        clean = not self._may_still_store(owned)
        self._log("partition_released", owned, committed=owned.committed, clean=clean)
        self._coordinator.released(owned.life.claim, clean=clean)

    def _may_still_store(self, owned: OwnedPartition) -> bool:
        """Return whether a batch that was withdrawn is just being stored, so that we are to be shut
        out.

        With it goes what this member does for other partitions; without it the next owner could
        read the sink's offset before that batch, and store it again.
        """
        processor = self._callbacks.processor
        return sink_is_fenced(self._environment.config) and processor.may_still_store(owned)

    def _end_without_commit(self, owned: OwnedPartition, event: str, *, clean: bool) -> None:
        self._drop(owned)
        owned.life.become(PartitionState.TERMINATED)
        processed = owned.progress.processed_offset
        self._log(event, owned, committed=owned.committed, processed_offset=processed)
        self._coordinator.released(owned.life.claim, clean=clean)

    def _drop(self, owned: OwnedPartition) -> None:
        self._fetcher.unassign(owned)
        self._committer.forget(owned)
        owned.progress.withdraw()
        owned.progress.discard()

    @staticmethod
    def _log(event: str, owned: OwnedPartition, **facts: object) -> None:
        log.info(event, **owned.life.log_fields, **facts)
