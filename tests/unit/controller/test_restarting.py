"""Starting a channel anew, and what comes in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.controller import ReloadOutcome
from tests.unit.controller.world import delivers

if TYPE_CHECKING:
    import pytest

    from headrace.channel.lifecycle import StopReport
    from headrace.clock import Deadline
    from headrace.config import ChannelConfig
    from tests.unit.controller.world import World


def test_whatever_keeps_a_channel_from_starting_the_former_goes_on(world: World) -> None:
    """An error of the processor's own is pending, and taken back it is as if it had not been."""
    delivers(world)
    world.broken["channel main again"] = RuntimeError("database away")
    world.channel(group="again")
    assert world.reload().outcome is ReloadOutcome.PARTLY
    assert "database away" in world.pending()["channels.main.group"]
    delivers(world)
    world.channel(group="main")
    assert world.reload().outcome is ReloadOutcome.UNCHANGED
    delivers(world)


def test_a_processor_that_refuses_a_change_leaves_it_pending(world: World) -> None:
    """Nothing of it is taken over, however often it is asked."""

    def refuse(_: ChannelConfig) -> None:
        raise ValueError("not with me")

    world.recorder().on_reconfigured = refuse  # type: ignore[assignment]
    world.channel(workers=3)
    for _ in range(2):
        assert world.reload().outcome is ReloadOutcome.PARTLY
        assert "not with me" in world.pending()["channels.main.workers"]
    assert world.controller.channels["main"].config.workers != 3


def test_a_pause_that_begins_while_a_channel_stops_holds_for_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The channel that comes in its place is paused from its start."""
    channel = world.controller.channels["main"]
    stop = channel.stop

    def paused_meanwhile(deadline: Deadline) -> StopReport:
        channel.pause(by="ann", note="now")
        return stop(deadline)

    monkeypatch.setattr(channel, "stop", paused_meanwhile)
    world.channel(group="again")
    assert world.reload().outcome is ReloadOutcome.APPLIED
    assert [pause.note for pause in world.controller.channels["main"].pauses] == ["now"]
