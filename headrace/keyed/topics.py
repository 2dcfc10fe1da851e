"""The topics that a channel with state keeps for itself: their names, and what they have to be."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

import structlog

from headrace.core.errors import StartError
from headrace.kafka.catalog import NewTopic
from headrace.keyed.restore import Changelog

if TYPE_CHECKING:
    from headrace.core.clock import Deadline
    from headrace.kafka.catalog import KafkaTopicCatalog

log = structlog.get_logger(__name__)

#: Milliseconds for which deletions can be read: local state that is older is not used.
DELETE_RETENTION_MS = 7 * 24 * 3600 * 1000

#: Seconds between two questions about a topic that was just created.
_RETRY = 0.1

#: What a changelog is created with. Small segments are compacted soon.
CHANGELOG_SETTINGS = {
    "cleanup.policy": "compact",
    "delete.retention.ms": str(DELETE_RETENTION_MS),
    "segment.bytes": str(50 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}


def changelog_name(group: str, topic: str) -> str:
    """Return the name of the changelog of a channel that reads a topic."""
    return f"{group}.{topic}.state"


def open_changelog(
    catalog: KafkaTopicCatalog,
    group: str,
    topic: str,
    deadline: Deadline,
    *,
    create: bool = True,
    replication_factor: int | None = None,
) -> Changelog:
    """Return the changelog of a channel, created where it may be and does not exist. Blocks.

    Raises:
        StartError: it does not exist and is not to be created, has another number of partitions
            than the input, or is not compacted.
        KafkaUnavailableError: no broker answered by the deadline.
    """
    name = changelog_name(group, topic)
    found = catalog.describe([topic, name], deadline)
    if topic not in found:
        raise StartError(f"topic {topic} does not exist; create it before a channel keeps state")
    partitions = found[topic].partitions
    if name not in found:
        if not create:
            raise StartError(
                f"topic {name}, the state of group {group}, does not exist; create it compacted "
                f"and with {partitions} partitions, or set processor.internal.create"
            )
        wanted = NewTopic(name, partitions, CHANGELOG_SETTINGS, replication_factor)
        if catalog.create(wanted, deadline):
            log.info("topic_created", topic=name, partitions=partitions)
        while name not in found and not deadline.expired:
            Event().wait(deadline.at_most(_RETRY))
            found = {**found, **catalog.describe([name], deadline)}
    info = found.get(name)
    if info is None:
        raise StartError(f"topic {name} was created and is not there; is the broker busy?")
    if info.partitions != partitions:
        raise StartError(
            f"topic {name}, the state of group {group}, has {info.partitions} partitions and "
            f"{topic} has {partitions}: keys would be looked for in the wrong ones"
        )
    settings = catalog.settings(name, deadline)
    if "compact" not in settings.get("cleanup.policy", "").split(","):
        raise StartError(
            f"topic {name}, the state of group {group}, is not compacted "
            f"(cleanup.policy={settings.get('cleanup.policy')}): states would be lost; set it to "
            "compact"
        )
    retention = float(settings.get("delete.retention.ms", DELETE_RETENTION_MS)) / 1000
    return Changelog(name, info.topic_id, retention)
