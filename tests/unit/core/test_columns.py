"""Records in columns behave as the same records in a list do."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.channel.buffer import PartitionBuffer, chunk_of
from headrace.channel.settings import Limits
from headrace.core.columns import PIECE_OVERHEAD, ColumnRun
from headrace.core.record_runs import OffsetRun, headers_in, places_in
from headrace.core.records import Batch, TopicPartition, offset_of
from headrace.core.tables import table_of
from headrace.testing.records import FakeAssignment, FakeRecord, in_columns

if TYPE_CHECKING:
    from headrace.core.records import Record

PARTITION = TopicPartition("events", 3)

data = st.none() | st.binary(max_size=20)


@st.composite
def lists(draw: st.DrawFn, most: int = 40) -> list[FakeRecord]:
    """Draw records of one partition, with gaps, tombstones, headers and missing times."""
    steps = draw(st.lists(st.integers(1, 5), min_size=1, max_size=most))
    headers = st.none() | st.lists(st.tuples(st.text(max_size=5), data), min_size=1, max_size=3)
    found, offset = [], draw(st.integers(0, 10**12))
    for step in steps:
        offset += step
        times = st.just(-1) | st.integers(0, 2**60)
        found.append(
            FakeRecord(*PARTITION, offset, draw(data), draw(data), draw(headers), draw(times))
        )
    return found


def facts(record: Record) -> tuple[object, ...]:
    """Return all that can be asked of a record."""
    place = (record.topic(), record.partition(), record.offset())
    return (
        *place,
        record.key(),
        record.value(),
        record.headers(),
        record.timestamp(),
        len(record),
    )


@given(lists(), st.integers(1, 7), st.data())
def test_headers_of_a_name_are_those_of_the_list(
    records: list[FakeRecord], pieces: int, data: st.DataObject
) -> None:
    """A part of a run has each value of the header, from records that have it."""
    names = [name for each in records for name, _ in each.headers_ or ()]
    name = data.draw(st.sampled_from(names or ["none"]))
    start = data.draw(st.integers(0, len(records) - 1))
    stop = data.draw(st.integers(start + 1, len(records)))
    run = in_columns(records, PARTITION, pieces=pieces)[start:stop]
    own = [each.headers() for each in records[start:stop]]
    for found in (list(headers_in(run, name)), list(headers_in(records[start:stop], name))):
        assert all(headers in own for headers in found)
        assert {data for headers in found for each, data in headers if each == name} == {
            data for headers in own for each, data in headers or () if each == name
        }
    assert list(headers_in(OffsetRun(0, 5, 10), name)) == []


@given(lists(), st.integers(1, 7), st.booleans(), st.data())
def test_places_are_the_same_in_a_list_and_in_a_run(
    records: list[FakeRecord], pieces: int, has_gaps: bool, data: st.DataObject
) -> None:
    """An offset's place is the number of records before it, with gaps and without, known or not."""
    if not has_gaps:
        records = [replace(each, offset_=7 + at) for at, each in enumerate(records)]
    known = [each.offset_ for each in records]
    near = st.integers(known[0] - 3, known[-1] + 3) | st.sampled_from(known)
    offsets = sorted(data.draw(st.lists(near)))
    runs = [records, in_columns(records, PARTITION, pieces=pieces)]
    if not has_gaps:
        runs.append(OffsetRun(known[0], known[-1] + 1, 1))

    expected = [sum(one < each for one in known) for each in offsets]
    assert [places_in(run, offsets) for run in runs] == [expected] * len(runs)


class LookedAt(list["Record"]):
    """A list that counts how often one of its records is taken."""

    looks = 0

    def __getitem__(self, index: Any) -> Any:
        self.looks += 1
        return super().__getitem__(index)


def test_places_without_gaps_take_as_many_looks_for_one_offset_as_for_all() -> None:
    """Two records of a batch are looked at, for one letter and for a thousand."""
    for count in (1, 1000):
        records = LookedAt(FakeRecord(*PARTITION, 7 + at) for at in range(1000))
        assert places_in(records, range(7, 7 + count)) == [*range(count)]
        assert records.looks == 2


@given(lists(), st.integers(1, 7), st.data())
def test_a_run_is_the_list(records: list[FakeRecord], pieces: int, data: st.DataObject) -> None:
    """Length, order, single records, slices and ends are those of the list, in any pieces."""
    run = in_columns(records, PARTITION, pieces=pieces)
    start = data.draw(st.integers(0, len(records) - 1))
    stop = data.draw(st.integers(start + 1, len(records)))
    part = run[start:stop]

    assert list(map(facts, run)) == list(map(facts, records))
    assert list(map(facts, part)) == list(map(facts, records[start:stop]))
    assert (len(run), len(part)) == (len(records), stop - start)
    assert facts(run[start]) == facts(records[start])
    assert facts(part[-1]) == facts(records[stop - 1])
    assert part.next_offset == records[stop - 1].offset() + 1


@given(lists(), st.integers(1, 7))
def test_the_table_is_the_lists(records: list[FakeRecord], pieces: int) -> None:
    """Spark's table does not depend on how records were fetched."""
    end = records[-1].offset() + 1
    assignment = FakeAssignment(PARTITION)
    run = in_columns(records, PARTITION, pieces=pieces)

    table = table_of(Batch(assignment, 0, run, end, 0))

    assert table.equals(table_of(Batch(assignment, 0, list(records), end, 0)))


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(1, 30), st.integers(1, 30_000)
)
@example([2, 15, 1], 16, 14_870)
def test_a_buffer_cuts_runs_within_limits(fetches: list[int], most: int, size: int) -> None:
    """Every record comes once and in order, and only a single record may pass the limits."""
    limits, end = Limits(most, size, 0.0), 0
    buffer, put = PartitionBuffer(), list[int]()
    buffer.restart(0)
    for count in fetches:
        shifted = [FakeRecord(*PARTITION, end + at, value_=b"x" * 50) for at in range(count)]
        end += count
        put += map(offset_of, shifted)
        buffer.append(buffer.generation, chunk_of(in_columns(shifted, PARTITION)), 0.0, limits)
    got: list[int] = []
    while (cut := buffer.cut(limits)) is not None:
        assert isinstance(cut.records, ColumnRun)
        assert len(cut.records) <= most
        assert len(cut.records) == 1 or cut.size <= size
        assert cut.next_offset == cut.records.next_offset
        got += map(offset_of, cut.records)
    assert got == put
    assert (buffer.records, buffer.size) == (0, 0)


def test_a_slice_weighs_its_own_rows() -> None:
    """The bytes of a run are those of its rows, not those of the columns that it is cut from."""
    values = [b"x" * 10_000, *[b"y" * 100] * 99]
    run = in_columns([FakeRecord(offset_=n, value_=v) for n, v in enumerate(values)], PARTITION)
    rest = run[1:].size - PIECE_OVERHEAD
    assert 9_900 <= rest < 15_000
    assert 19_900 <= run.size - PIECE_OVERHEAD < 26_000
    assert run.fitting(100, 10_000) == 0
    assert run.fitting(100, PIECE_OVERHEAD + 11_000) < 10
    assert run.fitting(7, 10**9) == 7


def test_records_that_came_one_by_one_become_few_pieces() -> None:
    """A batch that grows by single records has some dozen pieces, whatever their number."""
    whole = in_columns([FakeRecord(offset_=0, value_=b"0")], PARTITION)
    for n in range(1, 3000):
        record = FakeRecord(*PARTITION, n, value_=b"%d" % n)
        whole = whole.followed_by(in_columns([record], PARTITION))
        assert len(whole.pieces) < 100
    assert [record.value() for record in whole] == [b"%d" % n for n in range(3000)]


def test_large_pieces_of_few_records_stay() -> None:
    """A copy of pieces with large values takes memory without a gain."""
    whole = in_columns([FakeRecord(offset_=0, value_=bytes(1 << 20))], PARTITION)
    large = whole.pieces[0]
    for n in range(1, 200):
        whole = whole.followed_by(in_columns([FakeRecord(offset_=n, value_=b"x")], PARTITION))
    assert whole.pieces[0] is large
    assert len(whole.pieces) < 100


def test_a_buffer_counts_the_memory_of_single_records() -> None:
    """Made into few pieces they no longer weigh what each one did by itself."""
    limits, buffer = Limits(100_000, 100 << 20, 0.0), PartitionBuffer()
    buffer.restart(0)
    for n in range(1000):
        run = in_columns([FakeRecord(*PARTITION, n, value_=b"x" * 100)], PARTITION)
        buffer.append(buffer.generation, chunk_of(run), 0.0, limits)
    cut = buffer.cut(limits)
    assert cut is not None
    assert isinstance(cut.records, ColumnRun)
    assert cut.size == cut.records.size < 1000 * PIECE_OVERHEAD // 5
    assert (buffer.records, buffer.size) == (0, 0)


def test_columns_and_others_are_not_mixed() -> None:
    """A list or a run by reference does not join a run in columns."""
    run = in_columns([FakeRecord(offset_=1)], PARTITION)
    assert run.may_precede(run)
    assert not run.may_precede([FakeRecord(offset_=2)])
    assert not run.may_precede(OffsetRun(2, 3, 1))
    assert not OffsetRun(0, 1, 1).may_precede(run)


def test_a_run_has_no_steps_and_no_record_behind_its_end() -> None:
    """An index past the end raises an IndexError, as a list does; a step is refused."""
    run = in_columns([FakeRecord(offset_=n) for n in range(4)], PARTITION, pieces=2)
    with pytest.raises(IndexError):
        run[4]
    with pytest.raises(ValueError, match="without a step"):
        run[::2]
