"""How long a partition that is to be given back may wait for its batches."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.channel.bounds import Bounds
from headrace.channel.commits import COMMIT_TIMEOUT
from headrace.channel.environment import ChannelEnvironment
from headrace.channel.partition_manager import RELEASE_SHARE, PartitionManager
from headrace.channel.pauses import DeliveryGate
from headrace.channel.scheduler import Scheduler
from headrace.channel.settings import LiveSettings
from headrace.channel.topics import KnownTopics
from headrace.config import ChannelConfig
from headrace.coordinators.claims import Claim
from headrace.coordinators.lease import Lease
from headrace.core.clock import Deadline
from headrace.telemetry.metrics import Metrics
from headrace.testing.channel import QUICK, FakeClock
from tests.unit.channel.in_memory import P0, P1, fail
from tests.unit.channel.recorder import Recorder


def manager_of(clock: FakeClock, **settings: Any) -> PartitionManager:
    """Return a manager that has claims on two partitions."""
    config = ChannelConfig.model_validate({**QUICK, **settings})
    manager = PartitionManager(
        ChannelEnvironment("main", LiveSettings(config), Metrics(), clock, fail),
        bounds=Bounds(None, "main", clock, fail),
        delivery_gate=DeliveryGate(),
        processor=Recorder(),
        scheduler=Scheduler(clock),
        topics=KnownTopics(config.subscription),
    )
    lease = Lease(60.0, clock, clock.monotonic())
    for partition in (P0, P1):
        manager.claimed(Claim(partition, 1, "me", 7, 1, lease))
    return manager


def seconds_to_release(manager: PartitionManager, clock: FakeClock, number: int) -> float:
    """Release a partition and return the seconds that its end may take."""
    owned = manager.all()[number]
    manager.release_requested(owned.life.claim)
    assert owned.life.release_by is not None
    return owned.life.release_by - clock.monotonic()


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"batch_timeout": "20s"}, 20.0),
        ({"batch_timeout": "10m"}, 600.0),
        ({"batch_timeout": "24h", "release_timeout": "5m"}, 300.0),
    ],
)
def test_a_release_waits_for_batches_up_to_batch_timeout_or_release_timeout(
    clock: FakeClock, settings: dict[str, Any], most: float
) -> None:
    """A partition need not be unread for a day because a batch may take one; a stop is sooner."""
    manager = manager_of(clock, **settings)
    assert seconds_to_release(manager, clock, 0) == most + COMMIT_TIMEOUT
    manager.finish_by(Deadline.after(10, clock))
    assert seconds_to_release(manager, clock, 1) == 10 * RELEASE_SHARE
