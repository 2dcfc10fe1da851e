"""What other threads leave for the worker that next holds a partition."""

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
    """News for a partition: ``offset`` is stored, and with it all that was staged before it."""

    offset: int
    sequence: int


@dataclass(frozen=True, slots=True)
class PartitionErrorEvent:
    """News for a partition: an error that belongs to no batch."""

    error: PartitionError


@dataclass(frozen=True, slots=True)
class EpochRaised:
    """News for a partition: the coordinator raised the epoch of its claim."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class OffsetOutOfRange:
    """News for a partition: the broker does not have its position (of that generation)."""

    generation: int


@dataclass(frozen=True, slots=True)
class LogTruncated:
    """News for a partition: its log does not lead to the position (of that generation) any more.

    ``end`` is where the log that was read ends now, None where that is not known.
    """

    generation: int
    end: int | None


@dataclass(frozen=True, slots=True)
class GapSkipped:
    """News for a partition: nothing readable lies between its position and ``end``.

    True for that generation of its buffer only.
    """

    generation: int
    end: int


@dataclass(frozen=True, slots=True)
class LogChecked:
    """News for a partition: whether its log leads to its start as under ``epoch`` is answered."""

    start: int
    epoch: int
    look: Future[LogLook]


@dataclass(frozen=True, slots=True)
class LogReplaced:
    """News for a partition: its topic was created again, so that its offsets mean other records.

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
    """News for a partition: an operator wants it to go on at ``offset``.

    ``replay`` says what becomes of the sink's output of records that are read again.
    """

    offset: int
    by: str
    outcome: Future[SeekResult]
    replay: Replay | None = None


@dataclass(frozen=True, slots=True)
class RecordSkipped:
    """News for a partition: a record is left out from now on, which may be why a batch fails."""


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
