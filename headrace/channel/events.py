"""The events that other threads leave for the worker that next holds a partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Future

    from headrace.coordinators.claims import Claim
    from headrace.core.errors import PartitionError
    from headrace.core.positions import Replay
    from headrace.core.records import TopicPartition
    from headrace.kafka.ports import LogLook


@dataclass(frozen=True, slots=True)
class OffsetCommitted:
    """The committer stored ``offset``, and with it all that was staged up to ``sequence``."""

    offset: int
    sequence: int


@dataclass(frozen=True, slots=True)
class PartitionErrorEvent:
    """An error of the partition that belongs to no batch, such as a commit that failed."""

    error: PartitionError


@dataclass(frozen=True, slots=True)
class EpochRaised:
    """The coordinator raised the epoch of the claim, which is ``claim`` from now on."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class OffsetOutOfRange:
    """The broker does not have the position, in this generation of the buffer."""

    generation: int


@dataclass(frozen=True, slots=True)
class LogTruncated:
    """The log was truncated before the position, in this generation of the buffer.

    ``end`` is where the log that was read ends now, None where that is not known.
    """

    generation: int
    end: int | None


@dataclass(frozen=True, slots=True)
class GapSkipped:
    """The fetcher found nothing to read between the position and ``end``.

    True in this generation of the buffer only.
    """

    generation: int
    end: int


@dataclass(frozen=True, slots=True)
class LogChecked:
    """The broker answered whether the log leads to ``start`` as it did under ``epoch``."""

    start: int
    epoch: int
    look: Future[LogLook]


@dataclass(frozen=True, slots=True)
class LogReplaced:
    """The topic was created again, so that the partition's offsets mean other records.

    What was claimed since may know the new topic already.
    """


@dataclass(frozen=True, slots=True)
class SeekResult:
    """A partition that was moved; it is committed once ``sequence`` is stored."""

    partition: TopicPartition
    before: int
    offset: int
    sequence: int


@dataclass(frozen=True, slots=True)
class SeekRequested:
    """An operator asked for the partition to go on at ``offset``.

    ``replay`` says what becomes of the sink's output of records that are read again.
    """

    offset: int
    by: str
    outcome: Future[SeekResult]
    replay: Replay | None = None


@dataclass(frozen=True, slots=True)
class RecordSkipped:
    """An operator had a record skipped, which may be why a batch fails."""


PartitionEvent = (
    OffsetCommitted
    | PartitionErrorEvent
    | EpochRaised
    | OffsetOutOfRange
    | LogTruncated
    | GapSkipped
    | LogChecked
    | LogReplaced
    | SeekRequested
    | RecordSkipped
)
