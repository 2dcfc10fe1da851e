"""The buffer of one partition whose records are by reference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.channel.buffer import PartitionBuffer, chunk_of
from headrace.channel.settings import Limits
from headrace.core.errors import HeadraceError
from headrace.core.record_runs import OffsetRun


@given(
    start=st.integers(0, 10**12),
    lengths=st.lists(st.integers(1, 500_000), min_size=1, max_size=10),
    each=st.integers(1, 2_000),
    most=st.integers(1, 200_000),
    size=st.integers(1, 1 << 26),
)
def test_cuts_cover_every_offset_once_in_order(
    start: int, lengths: list[int], each: int, most: int, size: int
) -> None:
    """Cuts follow each other and keep the limits, for any runs."""
    limits = Limits(most, size, 0.0)
    buffer = PartitionBuffer()
    buffer.restart(start)
    end = start
    for length in lengths:
        run = OffsetRun(end, end + length, each)
        buffer.append(buffer.generation, chunk_of(run), 0.0, limits)
        end += length
    position = start
    for _ in range(200):
        cut = buffer.cut(limits)
        if cut is None:
            break
        assert isinstance(cut.records, OffsetRun)
        assert (cut.start, cut.records.start, cut.records.next_offset) == (
            position,
            position,
            cut.next_offset,
        )
        assert 1 <= len(cut.records) <= max(1, min(most, size // each))
        position = cut.next_offset
    else:
        return  # many small cuts: what they cover so far was checked
    assert position == end
    assert (buffer.records, buffer.size) == (0, 0)


def test_a_gap_between_runs_ends_a_batch() -> None:
    """Lost records between two runs are in neither batch."""
    limits = Limits(100, 1 << 20, 0.0)
    buffer = PartitionBuffer()
    buffer.restart(0)
    buffer.append(buffer.generation, chunk_of(OffsetRun(0, 10, 1)), 0.0, limits)
    buffer.pass_gap(buffer.generation, 60)
    buffer.append(buffer.generation, chunk_of(OffsetRun(60, 70, 1)), 0.0, limits)
    first, second = buffer.cut(limits), buffer.cut(limits)
    assert first is not None
    assert second is not None
    assert (first.start, first.next_offset, len(first.records)) == (0, 10, 10)
    assert (second.start, second.next_offset, second.records[0].offset()) == (10, 70, 60)


def test_a_record_by_reference_has_an_offset_and_nothing_else() -> None:
    """Reading more than the offset raises an error with the reason and the remedy."""
    record = OffsetRun(5, 8, 100)[1]
    assert (record.offset(), len(record), record.timestamp()) == (6, 100, (0, 0))
    with pytest.raises(HeadraceError, match=r"the value of the record at 6 .* source: by_value"):
        record.value()


def test_runs_are_cut_and_joined() -> None:
    """A part of a run is a run, and so are two that follow each other."""
    run = OffsetRun(10, 20, 8)
    assert (run[:4].next_offset, run[4:].start, len(run[4:])) == (14, 14, 6)
    whole = run[:4].followed_by(run[4:])
    assert (whole.start, whole.next_offset, whole.size) == (10, 20, 80)
    with pytest.raises(ValueError, match="no gaps"):
        run[::2]
