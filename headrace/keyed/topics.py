"""The topics that a channel with state keeps for itself: their names, and what they have to be."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING

import structlog

from headrace.config.derived import changelog_name
from headrace.core.errors import StartError
from headrace.kafka.catalog import NewTopic

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace.core.clock import Deadline
    from headrace.kafka.catalog import KafkaTopicCatalog
    from headrace.kafka.ports import TopicInfo

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Changelog:
    """The changelog of a channel. ``delete_retention`` (s): how long deletions can be read."""

    topic: str
    topic_id: str
    delete_retention: float


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
        info = _created(catalog, wanted, deadline)
    else:
        info = found[name]
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


def _created(catalog: KafkaTopicCatalog, wanted: NewTopic, deadline: Deadline) -> TopicInfo:
    """Create a topic unless somebody else does, and return it once the brokers know it."""
    if catalog.create(wanted, deadline):
        log.info("topic_created", topic=wanted.name, partitions=wanted.partitions)
    while True:
        found = catalog.describe([wanted.name], deadline).get(wanted.name)
        if found is not None:
            return found
        if deadline.expired:
            raise StartError(
                f"topic {wanted.name} was created and is not there; is the broker busy?"
            )
        Event().wait(deadline.at_most(_RETRY))


#: What a by-key topic has to have: nothing but the channel that reads it takes records away from
#: it, and their times are those of the input.
BY_KEY_SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "message.timestamp.type": "CreateTime",
}

#: Bytes by which a record may be larger in a by-key topic than in the input: a key, and a header.
_LARGER_BY = 64 << 10


def open_by_key(
    catalog: KafkaTopicCatalog,
    name: str,
    sources: Collection[str],
    deadline: Deadline,
    *,
    create: bool = True,
    replication_factor: int | None = None,
    partitions: int | None = None,
) -> None:
    """Have the topic for re-keyed records of other topics ready. Blocks.

    It is created where it may be and does not exist, with as many partitions as the largest of
    ``sources`` has, unless ``partitions`` says how many.

    Raises:
        StartError: it does not exist and is not to be created, or would lose records.
        KafkaUnavailableError: no broker answered by the deadline.
    """
    found = catalog.describe([name], deadline).get(name)
    if found is None:
        if not create:
            raise StartError(
                f"topic {name}, for re-keyed records, does not exist; create it with "
                f"{', '.join('='.join(each) for each in BY_KEY_SETTINGS.items())}, or set "
                "processor.internal.create"
            )
        inputs = catalog.describe(sources, deadline)
        if missing := sorted(set(sources) - inputs.keys()):
            raise StartError(f"topic {missing[0]} does not exist; create it before it is re-keyed")
        count = partitions or max(info.partitions for info in inputs.values())
        sizes = (catalog.settings(each, deadline)["max.message.bytes"] for each in inputs)
        settings = {
            **BY_KEY_SETTINGS,
            "segment.bytes": str(50 << 20),
            "max.message.bytes": str(max(map(int, sizes), default=1 << 20) + _LARGER_BY),
        }
        _created(catalog, NewTopic(name, count, settings, replication_factor), deadline)
        return
    if partitions is not None and found.partitions != partitions:
        raise StartError(
            f"topic {name} has {found.partitions} partitions, and processor.internal.partitions "
            f"is {partitions}; leave that out: with other partitions keys would be looked for in "
            "the wrong ones"
        )
    settings = dict(catalog.settings(name, deadline))
    for setting, wanted in BY_KEY_SETTINGS.items():
        if settings.get(setting, wanted) != wanted:
            raise StartError(
                f"topic {name}, for re-keyed records, has {setting}={settings[setting]}, by which "
                f"records would be lost or get another time; set it to {wanted}"
            )
