"""Records that an operator has left out, so that what comes after them is delivered."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

import structlog

from headrace.core.records import offset_of

if TYPE_CHECKING:
    from headrace.channel.buffer import BatchSlice
    from headrace.channel.partition import OwnedPartition
    from headrace.core.record_runs import Run
    from headrace.core.records import TopicPartition
    from headrace.telemetry.metrics import Metrics

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Skip:
    """A record that is to be left out: its own offset, why, and who wants it."""

    partition: TopicPartition
    offset: int
    reason: str
    by: str


@dataclass(slots=True)
class _Wanted:
    """A skip, and whether the last batch that reaches over the record was without it."""

    skip: Skip
    left_out: bool = False


#: What tells a log from every other: the topic's id and the partition's number.
_Log: TypeAlias = "tuple[str | None, int]"


def _log(owned: OwnedPartition) -> _Log:
    return owned.life.topic_id, owned.partition.partition


class Skips:
    """The records to leave out of batches, until this is committed. Safe on any thread.

    It belongs to the log and not to a claim or a group: it holds as long as this process runs, also
    where the partition goes and comes back, and for the channel that comes in the place of this
    one, but other members do not know of it.
    """

    def __init__(self, metrics: Metrics, channel: str) -> None:
        self._metrics = metrics
        self._channel = channel
        self._lock = Lock()
        self._wanted: dict[_Log, dict[int, _Wanted]] = {}

    def add(self, owned: OwnedPartition, skip: Skip) -> None:
        """Leave the record out of the batches that are handed out from now on."""
        with self._lock:
            self._wanted.setdefault(_log(owned), {})[skip.offset] = _Wanted(skip)

    def all(self) -> list[Skip]:
        """Return what is not done yet, by partition and offset."""
        with self._lock:
            found = [each.skip for wanted in self._wanted.values() for each in wanted.values()]
        return sorted(found, key=lambda skip: (skip.partition, skip.offset))

    def without(self, owned: OwnedPartition, cut: BatchSlice) -> Run:
        """Return the records to hand out: those of ``cut`` itself where none is left out."""
        if _log(owned) not in self._wanted:
            return cut.records
        with self._lock:
            concerned = {
                offset: each
                for offset, each in self._wanted.get(_log(owned), {}).items()
                if cut.start <= offset < cut.next_offset
            }
            if not concerned:
                return cut.records
            for each in concerned.values():
                each.left_out = True
        return [record for record in cut.records if offset_of(record) not in concerned]

    def has_late_skip(self, owned: OwnedPartition, cut: BatchSlice) -> bool:
        """Return whether a record handed out with ``cut`` is left out the next time."""
        if _log(owned) not in self._wanted:
            return False
        with self._lock:
            wanted = self._wanted.get(_log(owned), {})
            return any(
                cut.start <= offset < cut.next_offset and not each.left_out
                for offset, each in wanted.items()
            )

    def committed(self, owned: OwnedPartition) -> None:
        """Count and log what is done: the commit of ``owned`` is past it."""
        if _log(owned) not in self._wanted or owned.committed is None:
            return
        with self._lock:
            wanted = self._wanted.get(_log(owned), {})
            done = [wanted.pop(offset) for offset in sorted(wanted) if offset < owned.committed]
            if not wanted:
                self._wanted.pop(_log(owned), None)
        for each in done:
            self._post(each)

    def _post(self, done: _Wanted) -> None:
        topic, number = done.skip.partition
        facts = {"channel": self._channel, "topic": topic, "partition": number}
        facts |= {"offset": done.skip.offset, "reason": done.skip.reason, "by": done.skip.by}
        if done.left_out:
            self._metrics.skipped.labels(self._channel, topic, "operator").inc()
            log.warning("skip_applied", **facts)
        else:
            log.warning("skip_too_late", **facts)
