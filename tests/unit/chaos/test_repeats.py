from __future__ import annotations

from benchmarks.chaos.commits import Commit
from benchmarks.chaos.oracle import Stored
from benchmarks.chaos.repeats import repeats, summary


def _rows(offsets: range, epoch: int, at: float) -> list[Stored]:
    return [Stored(n, "t-0", n, "a", epoch, at) for n in offsets]


def test_records_after_the_last_commit_are_repeated_with_need() -> None:
    """An owner that begins at the last commit repeats what was stored since, and no more."""
    rows = [*_rows(range(10), 1, 5.0), *_rows(range(6, 12), 2, 9.0)]
    commits = [Commit("g", "t", 0, *each) for each in ((4, 1.0), (6, 3.0), (6, 8.0))]
    (found,) = repeats(rows, commits)
    assert (found.records, found.needless, found.uncommitted_s) == (4, 0, 2.0)
    assert (found.partition, found.epoch, found.at) == ("t-0", 2, 9.0)


def test_records_below_the_last_commit_are_repeated_without_need() -> None:
    """A commit that came before the first repeated record counts, a later one does not."""
    rows = [*_rows(range(10), 1, 5.0), *_rows(range(6, 12), 2, 9.0)]
    commits = [Commit("g", "t", 0, 8, 6.0), Commit("g", "t", 0, 10, 9.5)]
    (found,) = repeats(rows, commits)
    assert (found.records, found.needless, found.uncommitted_s) == (4, 2, 0.0)


def test_a_claim_may_repeat_what_it_stored_itself() -> None:
    """An offset that goes back within one claim begins a repeat of its own."""
    rows = [*_rows(range(3), 1, 1.0), *_rows(range(1, 4), 1, 2.0), *_rows(range(2, 5), 2, 3.0)]
    assert [each.records for each in repeats(rows, [])] == [2, 2]


def test_each_partition_counts_for_itself() -> None:
    """No record is repeated while every partition goes on."""
    other = [Stored(100, "t-1", 0, "a", 1, 1.0)]
    assert repeats([*_rows(range(3), 1, 1.0), *_rows(range(3, 5), 2, 2.0), *other], []) == []


def test_the_summary_has_the_sums_and_the_largest() -> None:
    """Sums are over all repeats, and the largest come first."""
    rows = [*_rows(range(3), 1, 1.0), *_rows(range(2, 4), 2, 2.0), *_rows(range(5), 3, 3.0)]
    found = summary(repeats(rows, [Commit("g", "t", 0, 2, 0.5)]))
    assert (found["times"], found["records"], found["needless"]) == (2, 5, 2)
    assert [each["records"] for each in found["largest"]] == [4, 1]
