"""Shutting out a transactional producer that may still be alive somewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import structlog
from confluent_kafka import KafkaException, Producer

from headrace.kafka import properties
from headrace.kafka.ports import OffsetStoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.clock import Deadline

log = structlog.get_logger(__name__)


def fence_producers(
    client_properties: Mapping[str, Any], transactional_ids: Collection[str], deadline: Deadline
) -> None:
    """Begin anew under each id, which ends what its producer had open and refuses it from then on.

    A transaction that was being committed is completed first, one that was not is aborted. Blocks;
    any thread. One short-lived client for each id.

    Raises:
        OffsetStoreError: a producer may still commit.
    """
    for transactional_id in sorted(transactional_ids):
        producer = Producer(
            {**properties.silent(client_properties), "transactional.id": transactional_id}
        )
        try:
            producer.init_transactions(max(0.001, deadline.remaining))
        except KafkaException as error:
            raise OffsetStoreError(
                f"the former owner's producer {transactional_id!r} cannot be fenced: "
                f"{error.args[0].str()}; until it is, the partitions it had wait. Check that the "
                "brokers answer and that the user may write to transactional ids of this prefix"
            ) from error
        log.info("producer_fenced", transactional_id=transactional_id)
