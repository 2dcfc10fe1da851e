"""The response semantics, as one table: each request, offset, wait and next size."""

from __future__ import annotations

from itertools import product

import pytest

from headrace.channel.responses import ResponseContext, ResponseEffect, effect_of
from headrace.core.errors import InvalidResponseError
from headrace.core.records import TopicPartition
from headrace.processors import BatchResponse, Request

STANDING = ResponseContext(TopicPartition("events", 0), processed_offset=100, next_offset=120)

#: request, offset, commit_to -> committed, position to go on at (None: read on)
MEANINGS = [
    (Request.CONTINUE, None, None, None, None),
    (Request.CONTINUE, 105, None, None, 105),
    (Request.CONTINUE, 40, None, None, 40),
    (Request.ADVANCE, None, None, 120, None),
    (Request.ADVANCE, 105, None, 105, 105),
    (Request.ADVANCE, 40, None, 40, 40),
    (Request.ADVANCE, 500, None, 500, 500),
    (Request.ADVANCE, None, 100, 100, None),
    (Request.ADVANCE, None, 110, 110, None),
    (Request.ADVANCE, None, 120, 120, None),
    (Request.REVERT, None, None, None, 100),
    (Request.REVERT, 105, None, None, 105),
    (Request.REVERT, 0, None, None, 0),
]
WAITS = (0.0, 2.5)
SIZES = ((None, None), (10, None), (None, 1000), (10, 1000))


@pytest.mark.parametrize(("meaning", "wait", "sizes"), list(product(MEANINGS, WAITS, SIZES)))
def test_each_response_has_the_effect_of_the_table(
    meaning: tuple[Request, int | None, int | None, int | None, int | None],
    wait: float,
    sizes: tuple[int | None, int | None],
) -> None:
    """Each request with each offset, wait and next size has exactly its effect."""
    request, offset, commit_to, commit, seek = meaning
    response = BatchResponse(request, offset, commit_to, wait, *sizes)
    assert effect_of(response, STANDING) == ResponseEffect(commit, seek, wait, *sizes)


@pytest.mark.parametrize("commit_to", [99, 121])
def test_commit_to_outside_of_the_batch_is_refused(commit_to: int) -> None:
    """A commit_to below the processed offset or past the batch is refused by name."""
    with pytest.raises(InvalidResponseError, match=f"commit_to={commit_to}.*100 to 120"):
        effect_of(BatchResponse.advance(commit_to=commit_to), STANDING)


@pytest.mark.parametrize("answer", [None, True, "advance", 7])
def test_anything_but_a_response_is_refused(answer: object) -> None:
    """None or another object is an error and never a silent skip."""
    with pytest.raises(InvalidResponseError, match="return a BatchResponse"):
        effect_of(answer, STANDING)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"offset": -1}, "offset is -1"),
        ({"wait": -0.1}, "wait is -0.1"),
        ({"max_records": 0}, "max_records is 0"),
        ({"max_bytes": 0}, "max_bytes is 0"),
    ],
)
def test_impossible_numbers_are_refused_when_the_response_is_built(
    fields: dict[str, float], words: str
) -> None:
    """A negative offset or wait and an empty size fail where the processor writes them."""
    with pytest.raises(ValueError, match=words):
        BatchResponse(Request.ADVANCE, **fields)  # type: ignore[arg-type]


def test_contradictory_offsets_are_refused_when_the_response_is_built() -> None:
    """commit_to goes with advance only, and not together with offset."""
    with pytest.raises(ValueError, match="commit_to goes with advance"):
        BatchResponse(Request.REVERT, commit_to=3)
    with pytest.raises(ValueError, match="not both"):
        BatchResponse.advance(offset=3, commit_to=3)
