from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from structlog.testing import capture_logs

from headrace.core.errors import HeadraceError, SinkFailedError
from headrace.sinks.console import NoopSink
from headrace.sinks.contract import Guarantee, OffsetMove
from headrace.sinks.errors import CommitConflictError
from headrace.sinks.several import SeveralSink, alone
from headrace.testing.sinks import identity, micro_batch, share
from tests.unit.sinks.memory import Fixed, Loose, Movable, Store

if TYPE_CHECKING:
    from headrace.sinks.contract import PartitionCommit


class Two:
    """Two outputs, and a sink on both."""

    def __init__(self) -> None:
        self.a, self.b = Store(), Store()
        self.sink = self.another()

    def another(self) -> SeveralSink:
        """Return another sink on them, as another process has it."""
        return SeveralSink([alone("a", Movable(self.a)), alone("b", Movable(self.b))])

    def commit(self, row: int, *shares: PartitionCommit, sink: SeveralSink | None = None) -> None:
        """Stage a row for both, and commit it."""
        chosen = sink or self.sink
        results: Any = {"a": [row], "b": [row]}
        staged = chosen.stage(micro_batch("m"), results)
        try:
            chosen.commit(staged, shares)
        except BaseException:
            chosen.discard(staged)
            raise

    def fail_between(self, row: int, *shares: PartitionCommit) -> None:
        """Commit a row to the first output, and fail in the second one."""
        self.b.errors.append(OSError("no space"))
        with pytest.raises(OSError, match="no space"):
            self.commit(row, *shares)

    @property
    def rows(self) -> list[list[Any]]:
        """Return the rows of both outputs."""
        return [self.a.rows, self.b.rows]


@pytest.fixture
def two() -> Two:
    """Two outputs that have [0, 10) of partitions 0 and 1."""
    two = Two()
    two.commit(1, share(0, 0, 10), share(1, 0, 10))
    return two


def move(number: int, start: int, target: int) -> OffsetMove:
    """Return an operator's move."""
    return OffsetMove(identity(number), share(number, 0, 1).partition, start, target)


@pytest.mark.parametrize("is_another", [False, True])
def test_an_output_with_a_range_ignores_its_repetition(two: Two, is_another: bool) -> None:
    """The lowest offset is the sink's, and the same range completes the other output only."""
    two.fail_between(2, share(0, 10, 20))
    sink = two.another() if is_another else two.sink
    assert two.rows == [[1, 2], [1]]
    with capture_logs() as events:
        assert sink.stored_offset(identity(0)) == 10
    assert [(each["event"], each["output"]) for each in events] == [("output_behind", "b")]
    assert sink.boundary(identity(0), 10) == 20
    two.commit(2, share(0, 10, 20), sink=sink)
    assert two.rows == [[1, 2], [1, 2]]
    assert sink.boundary(identity(0), 10) == 20
    assert sink.boundary(identity(0), 20) is None
    two.commit(3, share(0, 20, 30), sink=sink)
    assert two.rows == [[1, 2, 3], [1, 2, 3]]


def test_parts_of_a_range_complete_an_output(two: Two) -> None:
    """A range may come again in smaller pieces, if none crosses an output's offset."""
    two.fail_between(2, share(0, 10, 20))
    two.commit(3, share(0, 10, 14))
    assert two.sink.boundary(identity(0), 14) == 20
    two.commit(4, share(0, 14, 20))
    assert two.rows == [[1, 2], [1, 3, 4]]


@pytest.mark.parametrize(
    "shares",
    [
        [share(0, 10, 25)],
        [share(0, 10, 15), share(1, 10, 15)],
        [share(1, 10, 15), share(0, 10, 20)],
    ],
    ids=["across", "some-in-part", "some"],
)
def test_a_range_across_an_output_s_offset_is_not_stored(
    shares: list[PartitionCommit], two: Two
) -> None:
    """Partitions that differ come again one by one."""
    two.fail_between(2, share(0, 10, 20))
    with pytest.raises(SinkFailedError, match="output a has a part"):
        two.commit(3, *shares)
    assert two.rows == [[1, 2], [1]]
    assert two.b.offsets[identity(1)] == 10


@pytest.mark.parametrize("start", [0, 5, 20])
def test_a_range_that_does_not_begin_at_the_lowest_offset_is_a_conflict(
    start: int, two: Two
) -> None:
    """Also where one output could take it: what is before it would be missing in the other."""
    two.fail_between(2, share(0, 10, 20))
    with pytest.raises(CommitConflictError) as caught:
        two.commit(3, share(0, start, 30), share(1, 10, 20))
    (conflict,) = caught.value.conflicts
    assert (conflict.partition.partition, conflict.expected, conflict.stored) == (0, start, 10)


def test_another_owner_in_between_is_a_conflict_of_the_second_output(two: Two) -> None:
    """A range that a new owner completed is not stored again; other partitions go on."""
    other = two.another()
    two.fail_between(2, share(0, 10, 20), share(1, 10, 20))
    other.stored_offset(identity(0))
    two.commit(2, share(0, 10, 20), sink=other)
    with pytest.raises(SinkFailedError):
        two.sink.commit(two.sink.stage(micro_batch("m"), {}), [share(0, 20, 30), share(1, 10, 20)])
    two.commit(2, share(1, 10, 20))
    two.commit(3, share(0, 20, 30))
    assert two.rows == [[1, 2, 3], [1, 2, 2, 3]]


def test_the_group_s_offset_counts_while_an_output_has_none() -> None:
    """After a crash in the very first commit the others are ahead of what was answered."""
    two = Two()
    two.fail_between(1, share(0, 5, 10))
    assert two.sink.stored_offset(identity(0)) is None
    assert two.sink.boundary(identity(0), 5) == 10
    two.commit(1, share(0, 5, 10))
    assert two.sink.stored_offset(identity(0)) == 10
    assert two.rows == [[1], [1]]


def test_a_group_ahead_of_the_outputs_is_not_followed() -> None:
    """The outputs' offsets decide on the next start, also when one output has none."""
    two = Two()
    two.a.offsets[identity(0)] = 10
    assert two.sink.stored_offset(identity(0)) is None
    with pytest.raises(CommitConflictError):
        two.commit(1, share(0, 20, 30))
    assert two.sink.stored_offset(identity(0)) == 10


def test_outputs_without_offsets_are_written_first() -> None:
    """A failure after them repeats the range for all: twice is better than never."""
    loose, kept = Store(journal=[]), Store()
    loose.journal = kept.journal
    sink = SeveralSink([alone("kept", Fixed(kept, "kept")), alone("loose", Loose(loose, "loose"))])
    assert sink.guarantee is Guarantee.AT_LEAST_ONCE
    sink.commit(sink.stage(micro_batch("m"), {}), [share(0, 0, 10)])
    assert kept.journal == ["loose", "kept"]


def test_the_weakest_output_decides_on_the_guarantee() -> None:
    """An output that keeps no rows does not weaken it."""
    kept, none = alone("kept", Fixed(Store())), alone("none", NoopSink())
    assert SeveralSink([kept, none]).guarantee is Guarantee.EXACTLY_ONCE
    assert SeveralSink([none]).guarantee is Guarantee.NOT_KEPT
    assert SeveralSink([kept, alone("x", Loose(Store()))]).guarantee is Guarantee.AT_LEAST_ONCE


def test_unused_staged_results_are_discarded(two: Two) -> None:
    """Each output discards its own after a failure, and if it has the range already."""
    two.fail_between(2, share(0, 10, 20))
    assert (two.a.discarded, two.b.discarded) == ([], [[2]])
    two.commit(2, share(0, 10, 20))
    assert (two.a.discarded, two.b.discarded) == ([[2]], [[2]])


def test_a_failed_stage_removes_what_was_staged_before_it() -> None:
    """The parts of a result are discarded if another part cannot be staged."""

    class Refusing(Movable):
        def stage(self, *_: Any) -> list[Any]:
            """Refuse."""
            raise ValueError("no")

    a = Store()
    sink = SeveralSink([alone("a", Movable(a)), alone("b", Refusing(Store()))])
    with pytest.raises(ValueError, match="no"):
        sink.stage(micro_batch("m"), {"a": [1]})
    assert a.discarded == [[1]]


def test_all_outputs_are_opened_and_closed(two: Two) -> None:
    """Each in its turn."""
    two.sink.open()
    assert (two.a.is_open, two.b.is_open) == (True, True)
    two.sink.close()
    assert (two.a.is_open, two.b.is_open) == (False, False)


def test_offsets_are_moved_wherever_they_stand(two: Two) -> None:
    """An output that is ahead goes to the same place, and what follows begins there for all."""
    two.fail_between(2, share(0, 10, 20))
    two.sink.move_offsets([move(0, 10, 4)], "by hand")
    assert [store.offsets[identity(0)] for store in (two.a, two.b)] == [4, 4]


def test_a_move_that_one_output_refuses_is_taken_back_in_the_others(two: Two) -> None:
    """All or none; where not even that can be done, the error says what stands where."""
    two.b.errors.append(OSError("away"))
    with pytest.raises(OSError, match="away"):
        two.sink.move_offsets([move(0, 10, 4)], "by hand")
    assert [store.offsets[identity(0)] for store in (two.a, two.b)] == [10, 10]


def test_a_move_that_cannot_be_taken_back_is_told(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says which output refused, and which one was moved."""
    real = Movable.move_offsets

    def once(sink: Movable, moves: Any, note: str) -> None:
        if sink.store is two.b or "taken back" in note:
            raise OSError("away")
        real(sink, moves, note)

    monkeypatch.setattr(Movable, "move_offsets", once)
    with pytest.raises(HeadraceError, match=r"output b refused .* output a could not be taken"):
        two.sink.move_offsets([move(0, 10, 4)], "by hand")


def test_offsets_that_cannot_be_moved_are_named() -> None:
    """An output of one's own need not be able to."""
    sink = SeveralSink([alone("a", Movable(Store())), alone("b", Fixed(Store()))])
    assert sink.offset_moves.unmovable() == "b"
    with pytest.raises(HeadraceError, match="output b keeps offsets and has no move_offsets"):
        sink.move_offsets([], "by hand")
