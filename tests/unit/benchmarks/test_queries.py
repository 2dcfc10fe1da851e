"""Answers in the benchmark ``queries``: when one is whole, and whether it is right."""

from __future__ import annotations

import json

import pytest

from benchmarks.query_client import Answer, Counts, Request, is_whole, measured
from headrace.extensions.keyed.codecs import partition_of

_KEYS = [f"customer-{number:05d}" for number in range(8)]
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: "


def _answer(key: int, offset: int, count: int) -> Answer:
    partition = partition_of(_KEYS[key].encode(), 2)
    body = json.dumps(
        {
            "position": {"partition": partition, "offset": offset},
            "rows": [{"key": _KEYS[key], "row": {"n": count}}],
        }
    ).encode()
    return Answer(key, 1.0, 1.002, _HEAD + b"%d\r\n\r\n" % len(body) + body)


def test_a_count_has_to_be_that_of_the_records_before_the_offset() -> None:
    """All keys of a partition come by turns, so one more is wrong, and one less."""
    counts = Counts(_KEYS, 2)
    own = [n for n, key in enumerate(_KEYS) if partition_of(key.encode(), 2) == 0]
    first, last = own[0], own[-1]
    offset = 3 * len(own) + 1
    assert counts.mistake_of(_answer(first, offset, 4)) is None
    assert counts.mistake_of(_answer(last, offset, 3)) is None
    for count in (3, 5):
        assert "expected" in (counts.mistake_of(_answer(first, offset, count)) or "")


def test_an_answer_is_whole_with_all_of_its_body() -> None:
    """A head alone is no answer, and the name of the length may be in any case."""
    assert is_whole(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx: y\r\n\r\n{}")
    assert not is_whole(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{")
    assert not is_whole(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n")


def test_refusals_and_wrong_answers_are_told_apart() -> None:
    """Times are those of all answers, in milliseconds."""
    request = Request("http://127.0.0.1:1", "/", "t", _KEYS, 2, 10.0, 1.0, 1, 1)
    refused = Answer(0, 1.0, 1.004, b"HTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n")
    found = measured(request, [_answer(0, 0, 0), _answer(1, 0, 9), refused])
    assert (found.answered, found.refused, found.wrong) == (3, 1, 1)
    assert found.p50_ms == pytest.approx(2.0)
    assert found.most_ms == pytest.approx(4.0)
