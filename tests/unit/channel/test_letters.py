"""How many records may go to the dead-letter topic before that is too many."""

from __future__ import annotations

import pytest

from headrace.channel.buffer import BatchSlice
from headrace.channel.letter_limits import DeadLetterLimits
from headrace.config import DeliveredRejects
from headrace.testing.records import FakeRecord


def one(offset: int, start: int | None = None) -> BatchSlice:
    """Return a batch of the record at ``offset``, with the gap before it."""
    begin = offset if start is None else start
    return BatchSlice(begin, [FakeRecord(offset_=offset)], offset + 1, 100)


def limits(**values: int) -> DeliveredRejects:
    """Return limits."""
    return DeliveredRejects.model_validate({"failing": "dead_letter", "topic": "dead", **values})


def test_records_in_a_row_are_bounded() -> None:
    """One more than the limit is too many; gaps do not break a row, answered records do."""
    letters, bound = DeadLetterLimits(), limits(max_consecutive=2)
    letters.note(one(4), 4)
    assert letters.excess(one(9, start=5), 9, bound) is None
    letters.note(one(9, start=5), 9)
    assert letters.excess(one(10), 10, bound) == "3 records in a row (max_consecutive: 2)"
    assert letters.excess(one(11), 11, bound) is None
    assert letters.count == 2


def test_records_within_a_thousand_offsets_are_bounded() -> None:
    """The window slides: what lies further back does not count, nor what a seek went behind."""
    letters, bound = DeadLetterLimits(), limits(max_per_thousand=2)
    for offset in (0, 500):
        letters.note(one(offset), offset)
    expected = "3 records within 1000 offsets (max_per_thousand: 2)"
    assert letters.excess(one(999), 999, bound) == expected
    assert letters.excess(one(1000), 1000, bound) is None
    assert letters.excess(one(200), 200, bound) is None


def filled(*offsets: int) -> DeadLetterLimits:
    """Return letters of which something between any two was answered."""
    letters = DeadLetterLimits()
    for offset in offsets:
        letters.note(one(offset), offset)
    return letters


@pytest.mark.parametrize(
    ("offsets", "failing", "expected"),
    [
        ((1, 4, 7, 10), 13, False),
        ((1, 4, 7, 10, 13), 16, True),
        ((1, 101, 201, 301, 401), 501, False),
        ((1, 101, 201, 301, 401), 402, False),
        ((1, 4, 7, 10, 13), 1020, False),
        ((20, 24, 27, 30, 33), 3, False),
    ],
)
def test_a_rate_beyond_the_limit_is_seen_before_it_is_reached(
    offsets: tuple[int, ...], failing: int, expected: bool
) -> None:
    """It takes five letters before the record, of the last thousand offsets, and a rate beyond."""
    assert filled(*offsets).heads_for(one(failing), limits()) is expected


def test_a_row_that_is_longer_than_by_chance_is_no_part_of_a_rate() -> None:
    """With every third record failing two in a row do by chance, and three among sixteen do not."""
    letters, bound = filled(1, 4, 7, 10, 13), limits()
    seen = []
    for offset in (16, 17, 18):
        seen.append(letters.heads_for(one(offset), bound))
        letters.note(one(offset), offset)
    assert seen == [True, True, False]


def test_failures_from_the_start_have_no_rate() -> None:
    """Without an answered record the failures may have another cause than the records."""
    letters = DeadLetterLimits()
    for offset in range(9):
        assert not letters.heads_for(one(offset), limits(max_consecutive=99))
        letters.note(one(offset), offset)
