"""The offset store that a channel opens, by its configuration."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from headrace.channel.offset_stores import open_offset_store
from headrace.config import ChannelConfig
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.records import TopicPartition
from headrace.kafka import offsets as module
from headrace.kafka.fencing import GroupPartition
from headrace.testing import InMemoryZooKeeper
from tests.unit.channel.test_sink_fencing import SINK

if TYPE_CHECKING:
    from collections.abc import Mapping

P0 = TopicPartition("events", 0)
CUSTOM = {"type": "custom", "factory": "some.module:Processor"}


@pytest.mark.parametrize(
    ("settings", "group"),
    [
        ({}, "group"),
        ({"offsets": {"fencing": "transactions"}}, "group"),
        ({"offsets": "zookeeper"}, "group"),
        (SINK, "group.sink"),
        ({**SINK, "offsets": "zookeeper"}, "group.sink"),
    ],
)
def test_former_owners_are_shut_out_where_they_stored_offsets(
    settings: Mapping[str, Any], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets in doubt are those of the channel's group, or of its Kafka sink's."""
    places: list[GroupPartition | None] = []
    monkeypatch.setattr(module, "fence_producers", lambda *given: places.append(given[3]))
    channel = ChannelConfig.model_validate(
        {"topics": ["events"], "group": "group", "processor": CUSTOM, **settings}
    )
    client = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    session = InMemoryZooKeeper().session()
    with closing(open_offset_store(channel, client, session, SYSTEM_CLOCK)) as store:
        store.fence(["tx.1"], P0, Deadline.after(1))
    assert places == [GroupPartition(group, P0)]
