"""Starting a channel anew, and what comes in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.controller.reports import ReloadOutcome
from headrace.core.records import TopicPartition, offset_of
from headrace.processors import BatchResponse
from tests.unit.channel.in_memory import P0, eventually
from tests.unit.controller.world import delivers, soon

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.states import StopReport
    from headrace.config import ChannelConfig
    from headrace.core.clock import Deadline
    from headrace.core.records import Batch
    from tests.unit.controller.world import World


def test_the_former_channel_goes_on_after_any_failed_start(world: World) -> None:
    """A processor's error is pending, and reverting the change clears it."""
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
    """No value is applied, at each reload."""

    def refuse(_: ChannelConfig) -> None:
        raise ValueError("not with me")

    world.recorder().on_reconfigured = refuse  # type: ignore[assignment]
    world.channel(workers=3)
    for _ in range(2):
        assert world.reload().outcome is ReloadOutcome.PARTLY
        assert "not with me" in world.pending()["channels.main.workers"]
    assert world.controller.channels["main"].config.workers != 3


def test_topics_that_a_processor_refuses_are_not_followed(world: World) -> None:
    """The channel goes on with those it has, until the processor takes the change."""

    def refuse(_: ChannelConfig) -> None:
        raise ValueError("not with me")

    world.recorder().on_reconfigured = refuse  # type: ignore[assignment]
    world.channel(topics=["events", "others"])
    assert world.reload().outcome is ReloadOutcome.PARTLY
    assert "not with me" in world.pending()["channels.main.topics"]
    assert set(world.controller.channels["main"].topics) == {"events"}
    delivers(world)
    del world.recorder().on_reconfigured
    world.reload()
    assert not world.pending()
    delivers(world, partition=TopicPartition("others", 0))


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


def _poisoned(batch: Batch) -> BatchResponse:
    if any(record.value() == b"poison" for record in batch.records):
        raise ValueError("cannot be processed")
    return BatchResponse.advance()


def _another_group(world: World) -> None:
    world.channel(group="again")


def _another_processor(world: World) -> None:
    world.channel(sink=None, processor={"type": "custom", "factory": "memory:other"})


def _another_connection(world: World) -> None:
    world.write(kafka={"bootstrap_servers": ["other:9092"]})


@pytest.mark.parametrize("change", [_another_group, _another_processor, _another_connection])
def test_a_record_that_is_skipped_stays_so_when_its_channel_starts_again(
    world: World, change: Callable[[World], None]
) -> None:
    """The channel that comes in its place leaves the record out, and the rest is delivered."""
    world.channel(retry={"backoff": "1h", "max_backoff": "1h"})
    assert world.reload().outcome is ReloadOutcome.APPLIED
    world.answer = world.recorder().answer = _poisoned
    world.broker.produce(P0, b"fine", b"poison", b"fine")
    former = world.controller.channels["main"]
    eventually(lambda: any(each.state == "backing_off" for each in former.partitions()))
    former.pause(by="ann")
    assert former.wait_paused(soon())
    skip = former.skip(P0, 1, reason="no JSON", by="ann")
    change(world)
    assert world.reload().outcome is ReloadOutcome.APPLIED
    channel = world.controller.channels["main"]
    assert channel is not former
    assert channel.skips == [skip]
    channel.resume(by="ann")
    assert world.broker.wait_committed(channel.config.group, P0, 3, soon())
    assert [offset_of(record) for record in world.recorder().batches[0].records] == [0, 2]
    eventually(lambda: channel.skips == [])
