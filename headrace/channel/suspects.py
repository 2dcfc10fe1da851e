"""Finding the records for which a batch fails: it is divided, and its parts come one by one."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.channel.buffer import divide
from headrace.errors import PoisonRecordError
from headrace.records import offset_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.channel.buffer import Cut
    from headrace.records import Record


def divided(
    cut: Cut, delivered: Sequence[Record], error: BaseException, failures: int
) -> tuple[Cut, ...]:
    """Return the parts of a batch that is given up, in order; itself where it cannot be divided.

    ``delivered`` are the records of ``cut`` that were handed out: two or more of them make parts.
    A record that the error names becomes a part of its own, otherwise there are two halves. A part
    that fails is divided in its turn, so that the parts before it are answered and committed, and
    a record that fails alone is found after as many failures as the batch can be halved.
    """
    parts, rest = [], cut
    for border in _borders(delivered, error):
        count = bisect_left(rest.records, border, key=offset_of)
        if 0 < count < len(rest.records):
            front, rest = divide(rest, count)
            parts.append(front)
    return tuple(replace(part, failures=failures) for part in (*parts, rest))


def names_one_of(delivered: Sequence[Record], error: BaseException) -> bool:
    """Whether the error names a record that was delivered."""
    if not isinstance(error, PoisonRecordError):
        return False
    index = bisect_left(delivered, error.offset, key=offset_of)
    return index < len(delivered) and offset_of(delivered[index]) == error.offset


def _borders(delivered: Sequence[Record], error: BaseException) -> tuple[int, ...]:
    if len(delivered) == 1:
        return ()
    if isinstance(error, PoisonRecordError) and names_one_of(delivered, error):
        return error.offset, error.offset + 1
    return (offset_of(delivered[len(delivered) // 2]),)
