"""A partition without a channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.channel.fetcher import Fetcher
from headrace.channel.partition import OwnedPartition
from headrace.channel.pauses import DeliveryGate
from headrace.channel.settings import LiveSettings
from headrace.config import ChannelConfig
from headrace.coordinators.claims import Claim
from headrace.coordinators.lease import Lease
from headrace.core.records import TopicPartition
from headrace.telemetry.metrics import Metrics
from headrace.testing import InMemoryBroker
from headrace.testing.channel import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.core.clock import Clock
    from headrace.kafka.ports import RecordSource


def owned_partition(
    number: int = 0,
    epoch: int = 1,
    *,
    lease: Lease | None = None,
    delivery_gate: DeliveryGate | None = None,
    max_records: int = 10,
    copies: int = 1,
) -> OwnedPartition:
    """Make an owned partition by number, with two batches in flight."""
    partition = TopicPartition("events", number)
    settings = LiveSettings(
        ChannelConfig.model_validate(
            {
                "topics": ["events"],
                "group": "g",
                "processor": {"type": "custom", "factory": "memory:processor"},
                "batch": {"max_records": max_records, "max_bytes": 10_000, "linger": "1s"},
                "max_in_flight": 2,
            }
        )
    )
    claim = Claim(partition, epoch, "me", 7, 1, lease or Lease(10.0, FakeClock(), 0.0))
    owned = OwnedPartition(
        claim,
        settings,
        channel="channel",
        copies=copies,
        delivery_gate=delivery_gate or DeliveryGate(),
    )
    owned.life.identity = f"c/g/t/{number}"
    return owned


def fetcher_of(
    source: RecordSource, clock: Clock, fail: Callable[[BaseException], None]
) -> Fetcher:
    """Make a fetcher that is not started, with a budget that nothing uses up."""
    return Fetcher(
        source,
        budget=lambda: 1 << 30,
        touch=lambda _owned: None,
        metrics=Metrics(),
        channel="channel",
        clock=clock,
        fail=fail,
    )


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still."""
    return FakeClock()


@pytest.fixture
def delivery_gate() -> DeliveryGate:
    """Gates that are open."""
    return DeliveryGate()


@pytest.fixture
def own(clock: FakeClock, delivery_gate: DeliveryGate) -> Callable[..., OwnedPartition]:
    """Make an owned partition by number, with two batches in flight."""

    def make(
        number: int = 0, session_timeout: float = 10.0, epoch: int = 1, copies: int = 1
    ) -> OwnedPartition:
        lease = Lease(session_timeout, clock, clock.monotonic())
        return owned_partition(
            number, epoch, lease=lease, delivery_gate=delivery_gate, copies=copies
        )

    return make


@pytest.fixture
def broker() -> InMemoryBroker:
    """A broker with the topic ``events`` of two partitions."""
    made = InMemoryBroker()
    made.create_topic("events", 2)
    return made
