"""Which topics of a broker patterns take."""

from __future__ import annotations

import pytest

from headrace.config.subscription import Subscription
from headrace.core.clock import Deadline
from headrace.kafka.catalog import matching
from headrace.kafka.errors import KafkaUnavailableError
from headrace.testing import InMemoryBroker


def test_a_pattern_matches_existing_topics() -> None:
    """Names are ignored here, and internal topics are left out in either form."""
    broker = InMemoryBroker()
    for name in ("alerts.eu", "alerts.us", "events", "__offsets"):
        broker.create_topic(name, 2)
    broker.create_topic("alerts.internal", internal=True)
    found = matching(
        broker.catalog(), Subscription(("events", "^alerts", "^__", "^none")), Deadline.after(1)
    )
    assert {name: info.partitions for name, info in found.items()} == {
        "alerts.eu": 2,
        "alerts.us": 2,
    }


def test_a_subscription_without_patterns_asks_no_broker() -> None:
    """A listing costs a request for all topics of the cluster."""
    broker = InMemoryBroker()
    broker.down = True
    assert matching(broker.catalog(), Subscription(("events",)), Deadline.after(1)) == {}
    with pytest.raises(KafkaUnavailableError):
        matching(broker.catalog(), Subscription(("^e",)), Deadline.after(1))
