"""The buffer of one partition: order, limits, generations and gaps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from headrace.channel.buffer import (
    RECORD_OVERHEAD,
    BatchSlice,
    BufferedRecords,
    PartitionBuffer,
    chunk_of,
    split,
)
from headrace.channel.settings import Limits
from headrace.testing.records import FakeRecord

if TYPE_CHECKING:
    from headrace.core.records import Record

WIDE = Limits(1000, 1_000_000, 1.0)


def records(*offsets: int, size: int = 10) -> list[FakeRecord]:
    """Return records with the offsets given."""
    return [FakeRecord(offset_=offset, value_=b"x" * size) for offset in offsets]


def filled(*chunks: list[FakeRecord], position: int = 0) -> PartitionBuffer:
    """Return a buffer with chunks that arrived at 0.0, 1.0, ..."""
    buffer = PartitionBuffer()
    buffer.restart(position)
    for arrived, chunk in enumerate(chunks):
        kept = buffer.append(buffer.generation, chunk_of(list(chunk)), float(arrived))
        assert kept is not BufferedRecords.REFUSED
    return buffer


def offsets_of(cut: BatchSlice | None) -> list[int | None]:
    """Return the offsets in a cut."""
    assert cut is not None
    return [record.offset() for record in cut.records]


def test_a_cut_spans_chunks_up_to_the_record_limit() -> None:
    """Records of several fetches are joined in order, and the rest stays for the next cut."""
    buffer = filled(records(0, 1, 2), records(3, 4, 5))
    limits = Limits(4, 1_000_000, 1.0)
    assert offsets_of(buffer.cut(limits)) == [0, 1, 2, 3]
    assert offsets_of(buffer.cut(limits)) == [4, 5]
    assert buffer.cut(limits) is None


def test_a_record_larger_than_the_byte_limit_is_a_batch_of_its_own() -> None:
    """An oversized record is delivered alone, so that it cannot wedge its partition."""
    buffer = filled(records(0), records(1, size=5000), records(2))
    limits = Limits(10, 1000, 1.0)
    assert [offsets_of(buffer.cut(limits)) for _ in range(3)] == [[0], [1], [2]]


def test_a_batch_is_due_when_full_or_when_its_first_record_waited_long_enough() -> None:
    """A full buffer is due at once, a partial one at arrival plus linger, an empty one never."""
    assert filled().due(WIDE) is None
    assert filled(records(0, 1)).due(WIDE) == 1.0
    assert filled(records(0, 1)).due(Limits(2, 1_000_000, 1.0)) == 0.0
    assert filled(records(0, 1)).due(Limits(10, 20, 1.0)) == 0.0


def test_linger_counts_from_the_oldest_record_that_is_left() -> None:
    """After a cut took the first chunk, the second one's arrival decides."""
    buffer = filled(records(0, 1), records(2))
    buffer.cut(Limits(2, 1_000_000, 1.0))
    assert buffer.due(WIDE) == 2.0


def test_a_chunk_of_an_older_generation_is_refused() -> None:
    """Records that were fetched before a seek are refused after it."""
    buffer = filled(records(0, 1))
    old = buffer.generation
    buffer.restart(50)
    assert buffer.append(old, chunk_of(list(records(2, 3))), 0.0) is BufferedRecords.REFUSED
    assert (
        buffer.append(buffer.generation, chunk_of(list(records(50))), 0.0) is BufferedRecords.SOONER
    )


def test_offsets_must_rise() -> None:
    """A chunk that goes back behind what was fetched already is refused."""
    buffer = filled(records(0, 1, 2))
    assert (
        buffer.append(buffer.generation, chunk_of(list(records(2, 3))), 0.0)
        is BufferedRecords.REFUSED
    )


def test_a_cut_starts_where_the_last_one_ended_though_offsets_have_gaps() -> None:
    """Start continues from the previous next offset; the first record may lie behind it."""
    buffer = filled(records(5, 7), records(20), position=3)
    first = buffer.cut(Limits(2, 1_000_000, 1.0))
    second = buffer.cut(WIDE)
    assert first is not None
    assert second is not None
    assert (first.start, first.next_offset) == (3, 8)
    assert (second.start, second.next_offset) == (8, 21)


def test_a_gap_at_the_end_belongs_to_the_batch_before_it() -> None:
    """Markers behind the last record are committed with that record's batch."""
    buffer = filled(records(0, 1))
    assert not buffer.pass_gap(buffer.generation, 5)
    cut = buffer.cut(WIDE)
    assert cut is not None
    assert cut.next_offset == 5


def test_a_gap_with_nothing_before_it_is_reported() -> None:
    """Without buffered records the gap is reported once, and the start stays put."""
    buffer = filled(position=3)
    assert buffer.pass_gap(buffer.generation, 9)
    assert not buffer.pass_gap(buffer.generation, 9)
    assert buffer.position == 3
    assert (
        buffer.append(buffer.generation, chunk_of(list(records(9))), 0.0) is BufferedRecords.SOONER
    )
    cut = buffer.cut(WIDE)
    assert cut is not None
    assert (cut.start, cut.next_offset) == (3, 10)


def test_behind_the_bound_nothing_is_wanted() -> None:
    """Records are cut at the bound, a gap ends there, and then the rest does not linger."""
    buffer = PartitionBuffer(bound=3)
    buffer.restart(0)
    fetched: list[Record] = list(records(0, 1, 4, 5))
    wanted = buffer.before_bound(fetched)
    assert wanted == fetched[:2]
    assert buffer.before_bound(wanted) is wanted
    buffer.append(buffer.generation, chunk_of(wanted), 7.0)
    assert (buffer.complete, buffer.due(WIDE)) == (False, 8.0)
    assert buffer.pass_gap(buffer.generation, 4) is None
    assert (buffer.complete, buffer.due(WIDE)) == (True, 0.0)
    cut = buffer.cut(WIDE)
    assert cut is not None
    assert cut.next_offset == 3
    buffer.restart(1)
    assert buffer.pass_gap(buffer.generation, 9) == 3


def test_shedding_fetches_again_from_the_position() -> None:
    """Dropped unread records are aimed at again, under a new generation."""
    buffer = filled(records(0, 1), records(2, 3))
    buffer.cut(Limits(2, 1_000_000, 1.0))
    old = buffer.generation
    assert buffer.shed(old)
    assert buffer.aim() == (old + 1, 2, None)
    assert buffer.size == buffer.records == 0


def test_split_keeps_every_record_and_both_starts() -> None:
    """A smaller next size divides a batch without losing a record."""
    cut = BatchSlice(0, list(records(0, 1, 2, 3)), 9, 400)
    front, rest = split(cut, Limits(3, 1_000_000, 0.0))
    assert rest is not None
    assert (offsets_of(front), offsets_of(rest)) == ([0, 1, 2], [3])
    assert (front.start, front.next_offset, rest.start, rest.next_offset) == (0, 3, 3, 9)


@given(
    gaps=st.lists(st.integers(1, 4), min_size=1, max_size=40),
    chunk=st.integers(1, 7),
    limit=st.integers(1, 9),
    sizes=st.integers(1, 900),
)
def test_cuts_deliver_every_record_once_in_order(
    gaps: list[int], chunk: int, limit: int, sizes: int
) -> None:
    """Cuts join up to the fetched records, end to start, for any chunks and limits."""
    offsets, offset = [], 0
    for gap in gaps:
        offset += gap
        offsets.append(offset)
    buffer = filled(*[records(*offsets[i : i + chunk]) for i in range(0, len(offsets), chunk)])
    seen: list[int | None] = []
    position = 0
    while (cut := buffer.cut(Limits(limit, sizes, 0.0))) is not None:
        assert cut.start == position
        assert 1 <= len(cut.records) <= limit
        seen += [record.offset() for record in cut.records]
        position = cut.next_offset
    assert seen == offsets
    assert (buffer.records, buffer.size) == (0, 0)


def test_chunks_are_joined_to_what_the_next_batch_takes() -> None:
    """Joined chunks make full batches and a rest, in order, none larger than the limits allow."""
    buffer = PartitionBuffer()
    limits = Limits(4, 1_000_000, 1.0)
    for chunk in (records(0, 1, 2), records(3, 4, 5), records(7, 9)):
        buffer.append(buffer.generation, chunk_of(list(chunk)), 0.0, limits)
    first, second = buffer.cut(limits), buffer.cut(limits)
    assert offsets_of(first) == [0, 1, 2, 3]
    assert offsets_of(second) == [4, 5, 7, 9]
    assert second is not None
    assert (second.start, second.next_offset) == (4, 10)
    assert (buffer.records, buffer.size) == (0, 0)


def test_chunks_too_large_for_one_batch_are_not_joined() -> None:
    """The byte limit holds for joined chunks as it does for single ones."""
    buffer = PartitionBuffer()
    limits = Limits(100, 1000, 1.0)
    for offset in range(4):
        buffer.append(buffer.generation, chunk_of(list(records(offset, size=300))), 0.0, limits)
    assert [offsets_of(buffer.cut(limits)) for _ in range(4)] == [[0], [1], [2], [3]]


def test_a_batch_that_was_cut_is_not_changed_by_what_comes_later() -> None:
    """Records that arrive after a cut belong to the next batch."""
    buffer = PartitionBuffer()
    buffer.append(buffer.generation, chunk_of(list(records(0, 1))), 0.0, WIDE)
    cut = buffer.cut(WIDE)
    buffer.append(buffer.generation, chunk_of(list(records(2))), 1.0, WIDE)
    assert offsets_of(cut) == [0, 1]
    assert offsets_of(buffer.cut(WIDE)) == [2]


def test_a_chunk_matters_to_the_schedule_when_it_is_the_first_or_fills_the_batch() -> None:
    """Only then can the next batch be due sooner than it was before."""
    buffer = PartitionBuffer()
    limits = Limits(4, 1_000_000, 1.0)
    kept = [
        buffer.append(buffer.generation, chunk_of(list(records(offset))), 0.0, limits)
        for offset in range(6)
    ]
    assert kept == [
        BufferedRecords.SOONER,
        BufferedRecords.WAITS,
        BufferedRecords.WAITS,
        BufferedRecords.SOONER,
        BufferedRecords.WAITS,
        BufferedRecords.WAITS,
    ]


def test_cutting_a_long_chunk_weighs_each_record_a_few_times() -> None:
    """Records that cannot fit into the next batch are not weighed, for any number of batches."""
    weighed = 0

    class Weighed(FakeRecord):
        def __len__(self) -> int:
            nonlocal weighed
            weighed += 1
            return 100

    buffer = PartitionBuffer()
    buffer.restart(0)
    records: list[Record] = [Weighed(offset_=offset) for offset in range(5_000)]
    buffer.append(buffer.generation, chunk_of(records), 0.0)
    limits, cuts = Limits(1_000, 10_000, 0.0), 0
    while (cut := buffer.cut(limits)) is not None:
        assert cut.size <= limits.max_bytes
        cuts += 1
    together = 10_000 // (RECORD_OVERHEAD + 100)
    assert cuts == -(-5_000 // together)
    assert weighed <= 4 * len(records)
