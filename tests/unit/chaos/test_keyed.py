from __future__ import annotations

import pytest

from benchmarks.chaos.keyed import compared_rows, miscounted


def test_counts_that_rise_by_one_with_the_offsets_are_right() -> None:
    """Each key's counts rise, and its state is the last of them."""
    assert miscounted({b"a": [(3, 1), (9, 2)], b"b": [(4, 1)]}, {b"a": 2, b"b": 1}) == 0


@pytest.mark.parametrize(
    ("found", "state"),
    [
        ([(3, 1), (9, 1)], 1),
        ([(3, 1), (9, 3)], 3),
        ([(3, 1), (3, 2)], 2),
        ([(9, 1), (3, 2)], 2),
        ([(3, 1), (9, 2)], 1),
        ([(3, 1)], None),
        ([], 1),
    ],
)
def test_every_other_count_is_wrong(found: list[tuple[int, int]], state: int | None) -> None:
    """Lost, repeated, out of order, or not what the state says."""
    outputs = {b"a": found, b"b": [(1, 1)]}
    assert miscounted(outputs, {b"b": 1} | ({} if state is None else {b"a": state})) == 1


def test_rows_are_counted_over_all_partitions_that_were_compared() -> None:
    """The numbers are the command's; partitions that it did not compare have none."""
    said = (
        "g.t.state-0: 25 keys compared, 0 differ\n"
        "g.t.state-1: nothing of it is here\n"
        "g.t.state-2: 20 keys compared, 3 differ; 7 offsets behind\n"
    )
    assert compared_rows(said) == (45, 3)
