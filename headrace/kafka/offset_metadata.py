"""What a commit says of itself in Kafka: the claim's epoch, the member and the topic, as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeGuard

from confluent_kafka import TopicPartition as ClientPartition

from headrace.kafka.ports import StoredOffset
from headrace.records import stored_topic, topic_fields

if TYPE_CHECKING:
    from headrace.records import TopicPartition

#: Version of the metadata format. Later ones may add keys; ``version`` and ``epoch`` keep their
#: meaning in all, so that members of different versions know a former owner by its epoch.
METADATA_VERSION = 1

#: Characters of another program's metadata that are kept for the log.
_SHOWN = 100


def entry(partition: TopicPartition, stored: StoredOffset) -> ClientPartition:
    """Return an offset as the client takes it.

    A member's name has 249 bytes at most and a topic id 22: far from the 4 KiB that brokers allow
    for metadata.
    """
    document: dict[str, object] = {
        "version": METADATA_VERSION,
        "epoch": stored.epoch,
        "member": stored.by,
        **topic_fields(stored.topic_id),
    }
    if stored.leader_epoch is not None:
        document["leader_epoch"] = stored.leader_epoch
    return ClientPartition(
        partition.topic, partition.partition, stored.offset, metadata=json.dumps(document)
    )


def stored_in(found: ClientPartition) -> StoredOffset | None:
    """Return what the client found, None if there is no offset."""
    if found.offset < 0:
        return None
    ours = _document(found.metadata)
    if ours is None:
        return StoredOffset(found.offset, 0, (found.metadata or "")[:_SHOWN])
    return StoredOffset(found.offset, *ours)


def _document(metadata: str | None) -> tuple[int, str, str | None, int | None] | None:
    """Return what metadata of ours say besides the offset, None where they are another's."""
    try:
        document = json.loads(metadata or "")
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    version, epoch = document.get("version"), document.get("epoch")
    if not (_is_number(version) and version >= METADATA_VERSION and _is_number(epoch)):
        return None
    member = _text(document.get("member"))
    topic_id = stored_topic(_text(document.get("topic_uuid")), _text(document.get("topic_id")))
    led = document.get("leader_epoch")
    return epoch, member or "", topic_id, led if _is_number(led) else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
