"""The life of one claim in this member: its state, and whether and how it has to end."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

import structlog

from headrace.channel.states import FINAL, TRANSITIONS, EndReason, PartitionState
from headrace.core.errors import FatalError

if TYPE_CHECKING:
    from headrace.coordinators.claims import Claim
    from headrace.core.records import TopicPartition

log = structlog.get_logger(__name__)


class Life:
    """State, claim, topic and ending of an owned partition.

    ``end`` and ``request_release`` may be called on any thread, and everything may be read on any;
    the rest is for the thread that holds the partition.
    """

    def __init__(self, claim: Claim, channel: str) -> None:
        self.claim = claim
        # how the sink and the broker know it; told before anybody is asked
        self.identity = ""
        self.topic_id: str | None = None
        self.state = PartitionState.STARTING
        self._channel = channel
        self._resting = PartitionState.WAITING
        self._ending = EndReason.NONE
        self._ending_lock = Lock()
        self._release_by: float | None = None
        self._predecessor: Life | None = None

    @property
    def partition(self) -> TopicPartition:
        """Return the partition held."""
        return self.claim.partition

    @property
    def log_fields(self) -> dict[str, str | int]:
        """Return the fields by which a line of the log says that it is about this claim."""
        topic, number = self.claim.partition
        return {
            "channel": self._channel,
            "topic": topic,
            "partition": number,
            "epoch": self.claim.epoch,
        }

    @property
    def ending(self) -> EndReason:
        """Return whether and how the partition has to end."""
        return self._ending

    @property
    def is_lost(self) -> bool:
        """Return whether it has to end at once, because nothing done for it can take effect any
        more.
        """
        return self._ending.value >= EndReason.LOST.value

    @property
    def final(self) -> bool:
        """Return whether nothing more will happen to it."""
        return self.state in FINAL

    @property
    def is_to_start(self) -> bool:
        """Return whether its start is still to come, and nothing asks it to end."""
        return self.state is PartitionState.STARTING and self._ending is EndReason.NONE

    @property
    def release_by(self) -> float | None:
        """Return when a release has to be over (monotonic), None if there is no such time."""
        return self._release_by

    def is_overdue(self, now: float) -> bool:
        """Return whether a release has used up its time."""
        return self._release_by is not None and now >= self._release_by

    # --- on any thread --------------------------------------------------------------------------

    def end(self, ending: EndReason) -> None:
        """Request an ending; one weaker than an ending already requested changes nothing."""
        with self._ending_lock:
            if ending.value > self._ending.value:
                self._ending = ending

    def request_release(self, by: float) -> None:
        """Request an orderly release until ``by`` (monotonic)."""
        self._release_by = by
        self.end(EndReason.RELEASE)

    # --- the scheduler only ---------------------------------------------------------------------

    def await_end_of(self, predecessor: Life) -> None:
        """Delay the start until a former claim on the partition has ended. Before the first run."""
        self._predecessor = predecessor

    @property
    def awaits_predecessor(self) -> bool:
        """Return whether a former claim on the same partition has not ended yet."""
        return self._predecessor is not None and not self._predecessor.final

    def forget_predecessor(self) -> None:
        """Drop the reference to a former claim that has ended, which would keep its predecessor."""
        if not self.awaits_predecessor:
            self._predecessor = None

    # --- the holder only ------------------------------------------------------------------------

    def renew_claim(self, claim: Claim) -> None:
        """Replace the claim by one with another epoch, or with other former owners to fence."""
        self.claim = claim

    def bind_topic(self, topic_id: str, identity: str) -> None:
        """Bind the log to this topic; ``identity`` is its name in a sink."""
        self.topic_id, self.identity = topic_id, identity

    def limit_release(self, latest: float) -> None:
        """Limit the release to end at ``latest``, if not sooner."""
        self._release_by = latest if self._release_by is None else min(self._release_by, latest)

    def become(self, state: PartitionState) -> None:
        """Enter ``state``.

        Raises:
            FatalError: the transition table does not allow it, so the bookkeeping is wrong.
        """
        if state is self.state:
            return
        if state not in TRANSITIONS[self.state]:
            raise FatalError(f"{self.partition} cannot go from {self.state} to {state}")
        before, self.state = self.state, state
        if PartitionState.RUNNING not in (before, state):
            names = {"before": before.value, "state": state.value}
            log.debug("partition_state_changed", **self.log_fields, **names)

    def suspend(self) -> None:
        """Enter SUSPENDED, to come back to where it was before: starting, paused or delivering."""
        rests = self.state in (PartitionState.STARTING, PartitionState.PAUSED)
        self._resting = self.state if rests else PartitionState.WAITING
        self.become(PartitionState.SUSPENDED)

    def unsuspend(self) -> None:
        """Leave SUSPENDED, because the lease is confirmed again."""
        self.become(self._resting)
