"""Looking for the records that fail, without threads: a partition, its cuts, and what is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.channel.buffer import BatchSlice, chunk_of
from headrace.channel.failures import halves, names_one_of
from headrace.core.errors import PoisonRecordError, UndecodableRecordError
from headrace.core.records import TopicPartition, offset_of
from headrace.testing.records import FakeRecord
from tests.unit.channel.conftest import owned_partition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.channel.partition import OwnedPartition

P0 = TopicPartition("events", 0)
ANY = ValueError("no")

#: Seconds after which what is there makes a batch, however few.
BEHIND_LINGER = 2.0


def records(*offsets: int) -> list[FakeRecord]:
    """Return records with these offsets."""
    return [FakeRecord(*P0, offset) for offset in offsets]


def cut_of(*offsets: int) -> BatchSlice:
    """Return a batch of records with these offsets that begins at the first and ends behind."""
    return BatchSlice(offsets[0], list(records(*offsets)), offsets[-1] + 1, 100 * len(offsets))


def spans(parts: Sequence[BatchSlice]) -> list[tuple[int, int]]:
    """Return where each part begins and ends."""
    return [(part.start, part.next_offset) for part in parts]


def test_a_batch_becomes_two_halves() -> None:
    """They cover it without a gap, gaps in the log included, and know how often they failed."""
    cut = cut_of(3, 5, 9, 10, 20)
    parts = halves(cut, cut.records, ANY, 5)
    assert spans(parts) == [(3, 9), (9, 21)]
    assert [part.failures for part in parts] == [5, 5]
    assert sum(part.size for part in parts) == cut.size


@pytest.mark.parametrize(
    ("offset", "expected"),
    [(3, [(3, 5), (5, 21)]), (9, [(3, 9), (9, 10), (10, 21)]), (20, [(3, 20), (20, 21)])],
)
def test_a_named_record_becomes_a_part_of_its_own(
    offset: int, expected: list[tuple[int, int]]
) -> None:
    """The records before and after the named one are the other parts."""
    cut = cut_of(3, 5, 9, 10, 20)
    error = UndecodableRecordError(P0, offset, "no JSON")
    assert names_one_of(cut.records, error)
    assert spans(halves(cut, cut.records, error, 1)) == expected


def test_a_record_that_was_not_delivered_is_not_named() -> None:
    """An error about some other record says nothing: there are two halves."""
    cut = cut_of(3, 5, 9, 10)
    error = PoisonRecordError(P0, 4, "whatever")
    assert not names_one_of(cut.records, error)
    assert spans(halves(cut, cut.records, error, 1)) == [(3, 9), (9, 11)]


def test_omitted_records_do_not_count_for_halves() -> None:
    """Halves are halves of what was delivered; a batch with one record delivered has no parts."""
    cut = cut_of(0, 1, 2, 3, 4, 5)
    assert spans(halves(cut, records(4, 5), ANY, 1)) == [(0, 5), (5, 6)]
    assert spans(halves(cut, records(4), ANY, 1)) == [(0, 6)]


def process(owned: OwnedPartition, poison: frozenset[int], *, named: bool) -> Run:
    """Deliver all records as a channel does, with a processor that fails at ``poison``."""
    run = Run()
    while (cut := owned.take_batch(BEHIND_LINGER)) is not None:
        run.deliveries += 1
        bad = [offset_of(r) for r in cut.records if offset_of(r) in poison]
        if not bad:
            run.processed += [offset_of(r) for r in cut.records]
            continue
        error = PoisonRecordError(P0, bad[-1], "poison") if named else ANY
        if len(cut.records) == 1:
            run.found += bad
        else:
            parts = halves(cut, cut.records, error, cut.failures + 1)
            assert owned.rewind(cut.start, parts)
    return run


class Run:
    """Hold the records that were processed and those that were found to fail, in order."""

    def __init__(self) -> None:
        self.processed: list[int] = []
        self.found: list[int] = []
        self.deliveries = 0


offsets_in_order = st.sets(st.integers(0, 300), min_size=1, max_size=60).map(sorted)


@given(offsets_in_order, st.data(), st.integers(1, 20), st.booleans())
def test_exactly_the_poison_is_found(
    offsets: list[int], data: st.DataObject, most: int, named: bool
) -> None:
    """Any set of records: each is found, everything else is processed once and in order."""
    poison = data.draw(st.frozensets(st.sampled_from(offsets)))
    owned = owned_partition(max_records=most)
    owned.progress.buffer.restart(0)
    owned.progress.buffer.append(
        owned.progress.buffer.generation, chunk_of(list(records(*offsets))), 0.0
    )
    run = process(owned, poison, named=named)
    assert run.found == sorted(poison)
    assert run.processed == [offset for offset in offsets if offset not in poison]
    assert owned.position == offsets[-1] + 1
    # each is found within as many divisions as its batch can be halved, or named at once
    halvings = 2 if named else most.bit_length()
    assert run.deliveries <= -(-len(offsets) // most) + 2 * halvings * len(poison)
