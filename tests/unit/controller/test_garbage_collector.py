"""Memory of ended claims is freed soon."""

from __future__ import annotations

import gc
import weakref
from queue import SimpleQueue
from threading import current_thread
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from headrace.core.memory import INTERVAL, GarbageCollector
from headrace.testing import FakeClock
from tests.unit.controller.world import delivers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.controller.world import World


@pytest.fixture(autouse=True)
def _no_collection_by_itself() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_a_channel_that_was_replaced_is_freed(world: World) -> None:
    """The channel is freed by two collections, without the interpreter's own."""
    clock = FakeClock()
    collector = GarbageCollector(world.controller.claims, clock)
    delivers(world)
    clock.advance(INTERVAL)
    assert not collector.run_once()
    former = weakref.ref(world.controller.channels["main"])
    world.channel(group="again")
    world.reload()
    delivers(world, "again")
    for _ in range(2):
        clock.advance(INTERVAL)
        swept = collector.run_once()
    assert swept
    assert former() is None


def test_no_collection_runs_without_an_ended_claim(world: World) -> None:
    """A process that only works is never held up."""
    clock = FakeClock()
    collector = GarbageCollector(world.controller.claims, clock)
    delivers(world)
    for _ in range(5):
        clock.advance(INTERVAL)
        assert not collector.run_once()


def test_looks_are_rare(world: World) -> None:
    """Between two looks lies the interval, whatever ended."""
    clock = FakeClock()
    collector = GarbageCollector(world.controller.claims, clock)
    delivers(world)
    world.channel(group="again")
    world.reload()
    delivers(world, "again")
    clock.advance(INTERVAL - 1)
    assert not collector.run_once()


def test_looks_are_taken_on_a_thread_of_their_own(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow collection delays no other thread, and a failed one is followed by others."""
    threads: SimpleQueue[str] = SimpleQueue()

    def fail(_: GarbageCollector) -> None:
        threads.put(current_thread().name)
        raise ValueError("in a look")

    monkeypatch.setattr("headrace.core.memory._GIVING_BACK", 0.01)
    monkeypatch.setattr(GarbageCollector, "run_once", fail)
    with capture_logs() as logs, GarbageCollector(world.controller.claims).running():
        assert [threads.get(timeout=10) for _ in range(2)] == ["memory"] * 2
    assert "garbage_collection_failed" in [each["event"] for each in logs]
