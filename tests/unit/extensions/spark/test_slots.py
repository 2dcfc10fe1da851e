from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.extensions.spark.settings import Share, Slots, slots_for

if TYPE_CHECKING:
    from collections.abc import Sequence


def _slots(cores: int, lanes: Sequence[object]) -> Slots:
    slots = Slots()
    slots.resize(cores, slots_for(cores, len(lanes)))
    for lane in lanes:
        slots.enter(lane)
    return slots


@pytest.mark.parametrize(
    ("cores", "channels", "count"), [(4, 0, 4), (4, 1, 4), (4, 2, 8), (4, 5, 11), (1, 3, 3)]
)
def test_several_channels_have_more_slots_than_cores(cores: int, channels: int, count: int) -> None:
    """One channel alone keeps the cores; of others one may hang with all cores' tasks."""
    assert slots_for(cores, channels) == count


def test_a_lane_alone_has_all_cores_and_no_limit() -> None:
    """A lane without competitors has all cores."""
    slots = _slots(4, ["a"])
    with slots.share("a") as share:
        assert share == Share(4)


def test_no_lane_has_a_limit_without_a_slot_count() -> None:
    """The slots of a cluster cannot be counted, because its executors come and go."""
    slots = _slots(4, ["a", "b"])
    slots.resize(16, None)
    with slots.share("a") as share:
        assert share == Share(16)


def test_a_hanging_lane_leaves_another_all_cores() -> None:
    """Two lanes are busy, and slots number twice the cores."""
    slots = _slots(4, "abc")
    with slots.share("a") as hung:
        for _ in range(3):
            with slots.share("b") as share:
                assert (hung.tasks, share.tasks) == (4, 4)
                assert hung.is_limit
                assert share.is_limit


def test_lanes_that_are_busy_all_the_time_come_to_even_shares() -> None:
    """A lane that came late gets more than the slot that the other two leave it."""
    slots, last = _slots(8, "abc"), dict.fromkeys("abc", 0)
    taken: dict[str, ExitStack] = {}
    for _ in range(3):
        for lane in "abc":
            if lane in taken:
                taken[lane].close()
            taken[lane] = ExitStack()
            last[lane] = taken[lane].enter_context(slots.share(lane)).tasks
    assert sum(last.values()) <= slots_for(8, 3)
    assert min(last.values()) >= 5


@given(
    cores=st.integers(1, 16),
    channels=st.integers(2, 9),
    turns=st.lists(st.integers(0, 8), max_size=40),
)
def test_each_lane_has_a_slot_next_to_hanging_ones(
    cores: int, channels: int, turns: list[int]
) -> None:
    """Jobs have at most the existing slots and at least one each, in any order."""
    slots = _slots(cores, range(channels))
    busy: dict[int, tuple[ExitStack, Share]] = {}
    for lane in [turn % channels for turn in turns] + [*range(channels)]:
        if lane in busy and len(busy) < channels:
            busy.pop(lane)[0].close()
        elif lane not in busy:
            stack = ExitStack()
            busy[lane] = stack, stack.enter_context(slots.share(lane))
        assert all(1 <= share.tasks <= cores for _, share in busy.values())
        assert sum(share.tasks for _, share in busy.values()) <= slots_for(cores, channels)


def test_a_lane_that_left_gets_nothing_back() -> None:
    """One that was left behind in its job ends it later, when its slots are others' again."""
    slots = _slots(2, ["a", "b"])
    with slots.share("a"):
        slots.leave("a")
        with slots.share("b") as share:
            assert share == Share(2)
    with slots.share("b") as share:
        assert share == Share(2)
    with slots.share("a"), slots.share("b") as share:  # a turn that was under way
        assert share == Share(2)
