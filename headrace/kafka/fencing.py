"""Shutting out a transactional producer that may still be alive somewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog
from confluent_kafka import TopicPartition as ClientPartition

from headrace.kafka import properties
from headrace.kafka.clients import open_consumer
from headrace.kafka.ports import OffsetStoreError, Refusal
from headrace.kafka.transactional_producer import TransactionalProducer

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.clock import Deadline
    from headrace.kafka.ports import Failure
    from headrace.records import TopicPartition

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """A group that a producer stored offsets in, and a partition that the group reads.

    Any existing one will do: the brokers mark a group as a whole.
    """

    group: str
    partition: TopicPartition


def fence_producers(
    client_properties: Mapping[str, Any],
    transactional_ids: Collection[str],
    deadline: Deadline,
    place: Place | None = None,
) -> None:
    """Begin anew under each id, which ends what its producer had open and refuses it from then on.

    A transaction that was being committed is completed first, one that was not is aborted. Blocks;
    any thread. One short-lived client for each id.

    With a ``place``, a transaction that has an offset there is aborted as well. It ends what the
    brokers hold for decided though the group was never told, and what else would keep the group's
    offsets unreadable. Other producers' transactions, and what is committed, stay as they are.

    Raises:
        OffsetStoreError: a producer may still commit, or the group was not told.
    """
    metadata = None if place is None else _metadata(place.group)
    for transactional_id in sorted(transactional_ids):
        producer = TransactionalProducer(client_properties, transactional_id, quiet=True)
        failure = producer.conclude(deadline)
        if failure is not None:
            raise _unfenced(transactional_id, failure)
        if place is not None:
            _clear(producer, place, metadata, deadline)
        log.info("producer_fenced", transactional_id=transactional_id)


def _clear(
    producer: TransactionalProducer, place: Place, metadata: object, deadline: Deadline
) -> None:
    topic, number = place.partition
    # which offset it is does not matter: nobody will ever read it
    failure = producer.abort([ClientPartition(topic, number, 0)], metadata, deadline)
    if failure is None or failure.refusal is Refusal.MEMBERSHIP:
        # the second is another owner that began anew under the id after us, and does the same
        return
    raise OffsetStoreError(
        f"the former owner's producer {producer.transactional_id!r} is shut out, but what it may "
        f"have left in doubt in group {place.group} is not: {failure}; until it is, the partitions "
        "it had wait. Check that the brokers answer and that the user may read the group"
    )


def _metadata(group: str) -> object:
    """Return what a producer has to know of a group, from a client that asks nobody."""
    consumer = open_consumer(properties.consumer(properties.silent({}), group))
    try:
        return consumer.consumer_group_metadata()
    finally:
        consumer.close()


def _unfenced(transactional_id: str, failure: Failure) -> OffsetStoreError:
    return OffsetStoreError(
        f"the former owner's producer {transactional_id!r} cannot be fenced: {failure}; until it "
        "is, the partitions it had wait. Check that the brokers answer and that the user may write "
        "to transactional ids of this prefix"
    )
