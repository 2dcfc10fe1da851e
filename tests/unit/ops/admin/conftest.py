"""A scene with one running channel."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from headrace.telemetry.logs import levels, set_level
from headrace.testing import running
from tests.unit.channel.in_memory import P0, P1, committed, filled_broker
from tests.unit.channel.recorder import PATIENCE
from tests.unit.ops.admin.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def stage() -> Scene:
    """The one application of all tests."""
    return Scene(filled_broker())


@pytest.fixture
def scene(stage: Scene) -> Iterator[Scene]:
    """A process whose channel has read ten records of each of two partitions."""
    scene = stage.reset(filled_broker())
    with running(scene.controller.add()):
        for partition in (P0, P1):
            assert committed(scene.controller.broker, partition, 10)
        yield scene


@pytest.fixture
def bare(stage: Scene) -> Scene:
    """A process without any channel."""
    return stage.reset(filled_broker())


@pytest.fixture(autouse=True)
def usual_levels() -> Iterator[None]:
    """Restore the levels after the test, however it changed them."""
    before = levels()
    yield
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer) and thread.name == "admin-log-level":
            # what goes back only now would stay, or stay lent with whoever is to take it back
            thread.cancel()
            thread.join(PATIENCE)
            thread.function()
    after = levels()
    if after != before:
        set_level(before[""])
        for logger in (after.keys() | before.keys()) - {""}:
            set_level(before.get(logger), logger)
