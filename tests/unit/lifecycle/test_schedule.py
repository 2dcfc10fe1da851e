from __future__ import annotations

from collections import Counter

from benchmarks.lifecycle.schedule import PAUSES, Kind, draw


def test_a_seed_draws_the_same_operations_again() -> None:
    """A run can be had again by its seed, and another seed is another run."""
    assert draw(7, 50) == draw(7, 50)
    assert draw(7, 50) != draw(8, 50)


def test_no_kind_is_left_out() -> None:
    """Fifty operations have each kind as often as any other, but for one, and on both daemons."""
    operations = draw(1, 50)
    counts = Counter(operation.kind for operation in operations)
    assert set(counts) == set(Kind)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert {operation.target for operation in operations} == {0, 1}


def test_only_pauses_last() -> None:
    """Some pauses go on while other things are done; nothing else does."""
    operations = draw(1, 200)
    assert {operation.kind for operation in operations if operation.lasts} == set(PAUSES)


def test_kinds_can_be_chosen() -> None:
    """Without kinds that end a process, none is drawn."""
    kinds = (Kind.HOT, Kind.HOLD)
    operations = draw(1, 20, daemons=1, kinds=kinds)
    assert {operation.kind for operation in operations} == set(kinds)
    assert {operation.target for operation in operations} == {0}
