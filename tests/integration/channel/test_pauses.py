"""Pauses on real servers: held over a rebalance, drained, and kept over a restart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.channel.pauses import PauseMode
from headrace.core.clock import Deadline
from headrace.kafka.ports import StoredOffset
from tests.integration.channel.rig import WAIT, Group, Notes, channel_of, eventually

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_held_channel_keeps_up_with_its_group(make_group: Callable[..., Group]) -> None:
    """It gives partitions back to one that joins, takes them again, and delivers none meanwhile."""
    group, numbers = make_group(4), range(4)
    held, other = Notes(), Notes()
    with group.running(held, "held") as controller:
        channel = channel_of(controller)
        held.wait(lambda: len(held.assigned) == 4)
        channel.pause(by="test")
        assert channel.wait_paused(Deadline.after(WAIT))
        group.produce(10, *numbers)
        with group.running(other, "other"):
            other.wait_values(20)
            assert len(held.assigned) == 2
        held.wait(lambda: len(held.assigned) == 4)
        assert channel.wait_paused(Deadline.after(WAIT))
        assert held.values.total() == 0
        channel.resume(by="test")
        eventually(lambda: group.offsets(*numbers) == [10] * 4)
    both = held.values + other.values
    assert len(both) == 40
    assert set(both.values()) == {1}


def test_a_drained_channel_has_left_and_comes_back(make_group: Callable[..., Group]) -> None:
    """The group knows nothing of it until it is resumed; nothing is lost or comes twice."""
    group, notes = make_group(2), Notes()
    with group.running(notes) as controller:
        channel = channel_of(controller)
        group.produce(10, 0, 1)
        eventually(lambda: group.offsets(0, 1) == [10, 10])
        channel.pause(by="test", mode=PauseMode.DRAIN)
        assert channel.wait_paused(Deadline.after(WAIT))
        assert group.nodes() == {group.paths.ids: [], group.paths.owners(group.topic): []}
        group.produce(10, 0, 1, start=10)
        channel.resume(by="test")
        eventually(lambda: group.stored(0, 1) == [StoredOffset(20, 2)] * 2)
    assert set(notes.values.values()) == {1}
    assert "lost" not in {call for calls in notes.callbacks.values() for call in calls}


def test_a_kept_pause_holds_the_next_process_as_well(make_group: Callable[..., Group]) -> None:
    """A restart delivers nothing before somebody resumes, and then everything."""
    group, kept = make_group(1), {"persist": True}
    with group.running(Notes(), pause=kept) as controller:
        channel_of(controller).pause(by="test", note="over night")
    group.produce(10)
    notes = Notes()
    with group.running(notes, pause=kept) as controller:
        channel = channel_of(controller)
        notes.wait(lambda: "assigned" in notes.callbacks[group.partition()])
        assert channel.wait_paused(Deadline.after(WAIT))
        assert [pause.note for pause in channel.pauses] == ["over night"]
        assert notes.values.total() == 0
        channel.resume(by="test")
        notes.wait_values(10)
