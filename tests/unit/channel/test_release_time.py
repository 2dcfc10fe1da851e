"""How long a partition that is to be given back may wait for its batches."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.channel.commits import COMMIT_TIMEOUT
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.testing import InMemoryBroker, in_memory_channel
from tests.unit.channel.recorder import Recorder


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"batch_timeout": "20s"}, 20.0),
        ({"batch_timeout": "10m"}, 600.0),
        ({"batch_timeout": "24h", "release_timeout": "5m"}, 300.0),
    ],
)
def test_a_release_waits_for_its_batches_as_long_as_they_may_take_or_as_is_said(
    settings: dict[str, Any], most: float
) -> None:
    """A partition need not be unread for a day because a batch may take one; a stop is sooner."""
    channel = in_memory_channel(Recorder(), InMemoryBroker(), **settings)
    manager = channel._runtime.manager
    now = SYSTEM_CLOCK.monotonic()
    assert now + most <= manager._release_by() - COMMIT_TIMEOUT <= now + most + 60
    manager.finish_by(Deadline.after(10))
    assert manager._release_by() <= now + 15
