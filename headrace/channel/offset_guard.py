"""Finding out that somebody else stored an offset of ours, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import structlog

from headrace.clock import Deadline
from headrace.kafka.ports import OffsetStoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.channel.partition import OwnedPartition
    from headrace.clock import Clock
    from headrace.kafka.ports import OffsetStore, StoredOffset
    from headrace.metrics import Metrics

log = structlog.get_logger(__name__)

#: Seconds between two looks at the offsets of all partitions that are held: one request, answered
#: from the coordinator's memory. A wrong offset stands for as long at most, while the owner lives.
CHECK_INTERVAL = 5.0

#: Seconds after which a look is too old to commit upon.
FRESH = 1.0

#: Seconds that a look may take. Commits wait behind it.
CHECK_TIMEOUT = 2.0


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What the store last confirmed of one partition, and when (monotonic seconds)."""

    offset: int
    epoch: int
    sequence: int
    at: float
    leader_epoch: int | None = None


class Finding(Enum):
    """What a look at a stored offset says. The values are labels of a metric."""

    INTACT = "intact"
    """It is what we stored."""
    MISSING = "missing"
    """There is none: it expired, or somebody deleted it. It is stored again."""
    LATE = "late"
    """An earlier commit of this claim was executed after a later one. It is stored again."""
    STALE = "stale"
    """A former owner's commit came after ours. It is stored again."""
    FOREIGN = "foreign"
    """Another program stored it. It is stored again."""
    SUPERSEDED = "superseded"
    """It has a higher epoch: the partition has a new owner, and it is not us."""


def judge(stored: StoredOffset | None, believed: Acknowledged, *, in_doubt: bool) -> Finding:
    """Compare what is stored with what we stored.

    ``in_doubt``: a commit of ours is to be tried again. Then an offset of our own epoch may be
    its first try, and whatever it is, the next one replaces it.
    """
    if stored is None:
        return Finding.MISSING
    if stored.epoch > believed.epoch:
        return Finding.SUPERSEDED
    if stored.epoch == 0:
        return Finding.FOREIGN
    if stored.epoch < believed.epoch:
        return Finding.STALE
    return Finding.INTACT if in_doubt or stored.offset == believed.offset else Finding.LATE


class OffsetGuard:
    """Looks at the stored offsets now and then. Used by the committer's thread."""

    def __init__(self, store: OffsetStore, *, metrics: Metrics, channel: str, clock: Clock) -> None:
        self._store = store
        self._metrics = metrics
        self._channel = channel
        self._clock = clock
        self._looked_at = clock.monotonic()

    def is_due(self, *, before_commit: bool) -> bool:
        """Whether it is time to look: at an interval, and earlier when a commit is to follow."""
        age = self._clock.monotonic() - self._looked_at
        return age >= (FRESH if before_commit else CHECK_INTERVAL)

    def look(
        self,
        believed: Mapping[OwnedPartition, Acknowledged],
        staged: Collection[OwnedPartition],
    ) -> Mapping[OwnedPartition, Finding]:
        """Return what is not as we stored it; each is logged and counted. Blocks.

        ``staged`` are the partitions of which another commit is to come.
        """
        self._looked_at = self._clock.monotonic()
        if not believed:
            return {}
        deadline = Deadline.after(CHECK_TIMEOUT, self._clock)
        try:
            found = self._store.read_many([owned.partition for owned in believed], deadline)
        except OffsetStoreError as error:
            # commits fail likewise, loudly; the next look tells what came of them
            log.info("offsets_unseen", channel=self._channel, reason=str(error))
            return {}
        findings = {}
        for owned, acknowledged in believed.items():
            stored = found.get(owned.partition)
            finding = judge(stored, acknowledged, in_doubt=owned in staged)
            if finding is not Finding.INTACT:
                findings[owned] = finding
                self._report(owned, acknowledged, stored, finding)
        return findings

    def _report(
        self,
        owned: OwnedPartition,
        acknowledged: Acknowledged,
        stored: StoredOffset | None,
        finding: Finding,
    ) -> None:
        topic, number = owned.partition
        self._metrics.foreign_commits.labels(self._channel, topic, finding.value).inc()
        log.warning(
            "foreign_commit_found",
            channel=self._channel,
            topic=topic,
            partition=number,
            finding=finding.value,
            offset=acknowledged.offset,
            epoch=acknowledged.epoch,
            stored_offset=None if stored is None else stored.offset,
            stored_epoch=None if stored is None else stored.epoch,
            stored_by=None if stored is None else stored.by,
        )
