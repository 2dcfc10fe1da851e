"""What a response means for the partition it was given for: pure rules, no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.errors import InvalidResponseError
from headrace.processors.responses import BatchResponse, Request

if TYPE_CHECKING:
    from headrace.channel.buffer import Cut
    from headrace.records import TopicPartition


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a partition stands when a response arrives.

    ``next_offset`` is the end of the answered batch; where no batch is answered (idle, exception,
    termination) it is the position. ``advanced`` is the highest offset that was advanced to,
    whether its commit is stored already or still on its way: a revert goes there, because what
    lies before it was declared done.
    """

    partition: TopicPartition
    advanced: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Effect:
    """What the channel has to do: commit this, go on there, hold back for so many seconds.

    ``parts`` are what a batch comes again as that failed and was divided.
    """

    commit: int | None
    seek: int | None
    wait: float
    max_records: int | None
    max_bytes: int | None
    parts: tuple[Cut, ...] = ()


def effect_of(response: object, standing: Standing) -> Effect:
    """Return what ``response`` asks for.

    Raises:
        InvalidResponseError: ``response`` is no BatchResponse (None included), or its
            ``commit_to`` lies outside of what was delivered.
    """
    if not isinstance(response, BatchResponse):
        raise InvalidResponseError(
            standing.partition,
            f"{standing.partition}: on_next_batch returned {response!r}; return a BatchResponse "
            "or a Future of one (None is refused, so that no batch is passed over by mistake)",
        )
    commit, seek = _commit_and_seek(response, standing)
    return Effect(commit, seek, response.wait, response.max_records, response.max_bytes)


def _commit_and_seek(response: BatchResponse, standing: Standing) -> tuple[int | None, int | None]:
    if response.request is Request.CONTINUE:
        return None, response.offset
    if response.request is Request.REVERT:
        return None, standing.advanced if response.offset is None else response.offset
    if response.offset is not None:
        return response.offset, response.offset
    if response.commit_to is not None:
        return _checked(response.commit_to, standing), None
    return standing.next_offset, None


def _checked(commit_to: int, standing: Standing) -> int:
    if not standing.advanced <= commit_to <= standing.next_offset:
        raise InvalidResponseError(
            standing.partition,
            f"{standing.partition}: advance(commit_to={commit_to}) is outside of "
            f"{standing.advanced} to {standing.next_offset}, what was advanced to and what was "
            "delivered; use advance(offset=...) to move the position there",
        )
    return commit_to
