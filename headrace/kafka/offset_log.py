"""Offsets that a transaction has in doubt, as they were sent.

A reader of a group's offsets is not told them, so this reads ``__consumer_offsets`` as a topic.
"""

from __future__ import annotations

import json
import struct
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import TopicPartition as ClientPartition

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.kafka.catalog import KafkaTopicCatalog
from headrace.kafka.errors import OffsetStoreError
from headrace.kafka.log_fields import Fields
from headrace.kafka.source import read_log
from headrace.kafka.transaction_log import OFFSETS_TOPIC, TransactionLog, internal_partition

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The field of an offset's metadata that names the transactional producer which sent it.
PRODUCER = "producer"

#: Seconds in which the brokers have to answer one question.
_ANSWER_TIMEOUT = 15.0

#: Versions of a key that are of an offset; others are of a group's members.
_KEYS = (0, 1)

#: Versions of a value that are understood: 3 has a leader epoch, 4 compact texts.
_OLDEST, _WITH_EPOCH, _COMPACT = 1, 3, 4


class SentOffset(NamedTuple):
    """An offset as a record of the log has it. ``leader_epoch`` is -1 where none was said."""

    offset: int
    leader_epoch: int
    metadata: str

    def entry(self, partition: TopicPartition) -> ClientPartition:
        """Return it as the client takes it."""
        if self.leader_epoch < 0:
            return ClientPartition(*partition, self.offset, self.metadata)
        return ClientPartition(*partition, self.offset, self.metadata, self.leader_epoch)

    @property
    def producer(self) -> str | None:
        """Return the transactional producer that sent it, None where the metadata name none."""
        name = (document_of(self.metadata) or {}).get(PRODUCER)
        return name if isinstance(name, str) else None


def document_of(metadata: str) -> dict[str, Any] | None:
    """Return the JSON object that an offset's metadata are, None where they are something else."""
    try:
        document = json.loads(metadata)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def decode_offset(
    key: bytes, value: bytes | None
) -> tuple[str, TopicPartition, SentOffset | None] | None:
    """Return group, partition and offset of a record, None where it is of another kind.

    A deleted offset is None.

    Raises:
        OffsetStoreError: it is of a version that is not known.
    """
    try:
        name = Fields(key)
        if name.number("h") not in _KEYS:
            return None
        group, topic = name.text(compact=False), name.text(compact=False)
        partition = TopicPartition(topic, name.number("i"))
        if value is None:
            return group, partition, None
        fields = Fields(value)
        version = fields.number("h")
        if not _OLDEST <= version <= _COMPACT:
            raise OffsetStoreError(
                f"{OFFSETS_TOPIC} has records of version {version}; this Headrace knows {_OLDEST} "
                f"to {_COMPACT}"
            )
        offset = fields.number("q")
        epoch = fields.number("i") if version >= _WITH_EPOCH else -1
        # the client writes a zero byte behind them, and will again
        metadata = fields.text(compact=version >= _COMPACT).removesuffix("\0")
    except (struct.error, UnicodeDecodeError) as error:
        raise OffsetStoreError(
            f"{OFFSETS_TOPIC} has a record that cannot be read ({error})"
        ) from error
    return group, partition, SentOffset(offset, epoch, metadata)


def sent_offsets(
    client_properties: Mapping[str, Any], group: str, transactional_id: str
) -> dict[TopicPartition, SentOffset]:
    """Return the offsets of a group that a producer sent last, of those held back. Blocks.

    A partition whose last offset was sent by another is left out, and so is one that was sent by a
    version that did not name the producer.

    Raises:
        KafkaAccessError: this user may not read the topic.
        KafkaUnavailableError: the brokers did not answer.
        OffsetStoreError: a record is not understood.
    """
    with closing(KafkaTopicCatalog(client_properties, group)) as catalog:
        deadline = Deadline.after(_ANSWER_TIMEOUT)
        info = catalog.describe([OFFSETS_TOPIC], deadline).get(OFFSETS_TOPIC)
    if info is None:
        return {}
    place = TopicPartition(OFFSETS_TOPIC, internal_partition(group, info.partitions))
    held = TransactionLog(client_properties).held_back([place]).get(place)
    if held is None:
        return {}
    properties = {**client_properties, "isolation.level": "read_uncommitted"}
    found: dict[TopicPartition, SentOffset] = {}
    for record in read_log(properties, group, place, *held):
        key = record.key()
        decoded = None if key is None else decode_offset(key, record.value())
        if decoded is None or decoded[0] != group:
            continue
        _, partition, offset = decoded
        if offset is not None and offset.producer == transactional_id:
            found[partition] = offset
        else:
            found.pop(partition, None)
    return found
