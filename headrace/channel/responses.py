"""The effects of a processor's response on the channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.core.errors import InvalidResponseError
from headrace.processors.contract import BatchResponse, Request

if TYPE_CHECKING:
    from headrace.channel.buffer import BatchSlice
    from headrace.core.records import TopicPartition


@dataclass(frozen=True, slots=True)
class ResponseContext:
    """The offsets of a partition when a response arrives.

    ``next_offset`` is the end of the answered batch; where no batch is answered (idle, exception,
    termination) it is the position. ``processed_offset`` is the highest offset that was advanced
    to, whether its commit is stored already or still on its way: a revert goes there, because what
    lies before it was declared done.
    """

    partition: TopicPartition
    processed_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class ResponseEffect:
    """The effect of a response: commit this, go on there, hold back for so many seconds.

    ``parts`` are the parts that a failed batch was divided into.
    """

    commit: int | None = None
    seek: int | None = None
    wait: float = 0.0
    max_records: int | None = None
    max_bytes: int | None = None
    parts: tuple[BatchSlice, ...] = ()


def effect_of(response: object, context: ResponseContext) -> ResponseEffect:
    """Return what ``response`` asks for.

    Raises:
        InvalidResponseError: ``response`` is no BatchResponse (None included), or its
            ``commit_to`` lies outside of what was delivered.
    """
    if not isinstance(response, BatchResponse):
        raise InvalidResponseError(
            context.partition,
            f"{context.partition}: on_next_batch returned {response!r}; return a BatchResponse "
            "or a Future of one (None is refused, so that no batch is passed over by mistake)",
        )
    commit, seek = _commit_and_seek(response, context)
    return ResponseEffect(commit, seek, response.wait, response.max_records, response.max_bytes)


def _commit_and_seek(
    response: BatchResponse, context: ResponseContext
) -> tuple[int | None, int | None]:
    if response.request is Request.CONTINUE:
        return None, response.offset
    if response.request is Request.REVERT:
        return None, context.processed_offset if response.offset is None else response.offset
    if response.offset is not None:
        return response.offset, response.offset
    if response.commit_to is not None:
        return _check_advance(response.commit_to, context), None
    return context.next_offset, None


def _check_advance(commit_to: int, context: ResponseContext) -> int:
    if not context.processed_offset <= commit_to <= context.next_offset:
        raise InvalidResponseError(
            context.partition,
            f"{context.partition}: advance(commit_to={commit_to}) is outside of "
            f"{context.processed_offset} to {context.next_offset}, what was advanced to and "
            "what was delivered; use advance(offset=...) to move the position there",
        )
    return commit_to
