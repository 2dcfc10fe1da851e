"""Standbys of a task: the members that keep a copy of its state."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.extensions.keyed.runtime.standbys import standbys_of

MEMBERS = st.sets(st.text("abcdefgh-0123", min_size=1, max_size=6), min_size=1, max_size=8)
TASKS = st.integers(0, 65_535)


@given(MEMBERS, TASKS, st.integers(0, 9), st.data())
def test_standbys_are_as_many_others_as_wanted(
    members: set[str], task: int, count: int, data: st.DataObject
) -> None:
    """There are as many as wanted and there are, each once, and the owner is none of them."""
    owner = data.draw(st.sampled_from([None, *sorted(members)]))
    found = standbys_of(task, members, owner, count)
    others = members - {owner}
    assert len(found) == len(set(found)) == min(count, len(others))
    assert others.issuperset(found)


@given(MEMBERS, TASKS, st.integers(0, 9))
def test_standbys_depend_on_the_members_and_not_on_their_order(
    members: set[str], task: int, count: int
) -> None:
    """All members come to the same standbys, in whichever order they see the group."""
    ordered = sorted(members)
    assert standbys_of(task, ordered, None, count) == standbys_of(task, ordered[::-1], None, count)


@given(MEMBERS, TASKS, st.integers(1, 3), st.text("xyz", min_size=1, max_size=3))
def test_standbys_change_by_one_where_one_joins(
    members: set[str], task: int, count: int, joining: str
) -> None:
    """One that joins takes the place of the last at most, and the others keep their order."""
    before = standbys_of(task, members, None, count)
    after = standbys_of(task, members | {joining}, None, count)
    kept = [name for name in after if name != joining]
    assert kept == before[: len(kept)]
    assert len(before) - len(kept) <= 1


def test_standbys_of_many_tasks_are_spread_over_the_members() -> None:
    """Each of four members stands by for some of 64 tasks of the fifth."""
    members = [f"member-{number}" for number in range(5)]
    found = [standbys_of(task, members, "member-0", 1)[0] for task in range(64)]
    counts = {name: found.count(name) for name in members[1:]}
    assert min(counts.values()) >= 8, counts
