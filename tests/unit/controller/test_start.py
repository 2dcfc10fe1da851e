"""The start of a process with several channels."""

from __future__ import annotations

import os
import signal
from threading import Event, Timer
from typing import TYPE_CHECKING

import pytest

from headrace.channel.states import ChannelState
from headrace.core.clock import Deadline
from headrace.core.errors import StartError
from headrace.kafka.errors import UnknownTopicError
from headrace.testing import FakeClock
from tests.unit.channel.recorder import PATIENCE, Recorder
from tests.unit.controller.world import CHANNEL, World, delivers, soon

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.processors import ChannelContext

#: Seconds that the processor of a channel takes to open, by a clock that only it turns.
_SLOW = 1000.0


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A process with the channels ``main`` and ``more``, not started."""
    return World(tmp_path, channels={"main": CHANNEL, "more": {**CHANNEL, "group": "more"}})


def _claimed(world: World) -> list[str]:
    """Return the nodes that stay of each partition that was ever claimed."""
    return [path for path in world.zookeeper.paths() if path.startswith("/consumers/main/epochs/")]


def test_no_channel_claims_before_all_are_prepared(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow start of the last one, as for Spark, keeps all from reading and committing."""
    states: list[ChannelState] = []

    def opened(_: Recorder, context: ChannelContext) -> None:
        if context.channel == "more":
            states.append(world.controller.channels["main"].state)

    monkeypatch.setattr(Recorder, "open", opened)
    world.controller.start(soon())
    assert states == [ChannelState.STARTING]
    delivers(world, "main")
    delivers(world, "more")
    assert world.controller.stop(soon()).clean


def test_a_channel_that_cannot_start_leaves_nothing_claimed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others were prepared and have joined no group; they are closed again."""

    def opened(_: Recorder, context: ChannelContext) -> None:
        if context.channel == "more":
            raise OSError("no such table")

    monkeypatch.setattr(Recorder, "open", opened)
    with pytest.raises(StartError, match="channel more cannot be started: OSError: no such table"):
        world.controller.start(soon())
    assert world.recorder("main").names(-1) == ["closed"]
    assert _claimed(world) == []


def test_a_topic_that_is_missing_leaves_nothing_claimed(tmp_path: Path) -> None:
    """That of the last channel is looked for before the first one joins its group."""
    wrong = {**CHANNEL, "group": "more", "topics": ["evnets"]}
    world = World(tmp_path, channels={"main": CHANNEL, "more": wrong})
    with pytest.raises(UnknownTopicError, match="no topic evnets"):
        world.controller.start(soon())
    assert world.recorder("main").names(-1) == ["closed"]
    assert _claimed(world) == []


def test_the_time_of_a_processor_is_not_taken_from_the_brokers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers that answer at once are not said to be away where Spark took ten minutes."""
    clock = FakeClock()
    monkeypatch.setattr(Recorder, "open", lambda *_: clock.advance(_SLOW))
    world.controller.start(Deadline.after(_SLOW / 2, clock))
    delivers(world, "main")
    delivers(world, "more")
    assert world.controller.stop(soon()).clean


def test_a_wait_for_failures_ends_though_a_signal_s_handler_runs_past_its_time_out(
    world: World,
) -> None:
    """The main thread comes back to look for a stop, however late the handler ends."""
    timeout = 0.05
    ends = Event()
    before = signal.signal(signal.SIGUSR2, lambda *_: ends.wait(4 * timeout))
    sending = Timer(timeout / 5, os.kill, [os.getpid(), signal.SIGUSR2])
    # a wait without an end would end with this, and not with nothing
    rescue = Timer(PATIENCE, world.controller.fail, [StartError("still waiting")])
    try:
        sending.start()
        rescue.start()
        assert world.controller.wait(timeout) is None
    finally:
        rescue.cancel()
        sending.join(PATIENCE)
        signal.signal(signal.SIGUSR2, before)
