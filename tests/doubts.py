"""Offsets that a real broker holds in doubt for ever, as one does that lost a transaction's mark.

What a broker does that is killed at the wrong moment cannot be brought about on purpose. The state
it leaves can: an offset is sent under a producer's id in a transaction that the coordinator of
transactions was never told of. So it never ends it, and the group has the offset in doubt.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as ClientPartition

from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from tests.brokers import configured

if TYPE_CHECKING:
    from headrace.core.records import TopicPartition

WAIT = 30.0

#: Brokers check by this setting that a transaction was announced.
_CHECKED = "transaction.partition.verification.enable"

#: Kafka's requests, by key and version, in versions whose strings have two bytes of length.
_INIT_PRODUCER_ID = (22, 1)
_TXN_OFFSET_COMMIT = (28, 2)


def leave_in_doubt(
    address: str,
    transactional_id: str,
    group: str,
    partition: TopicPartition,
    offset: int,
    *,
    metadata: str | None = None,
    committed: bool = False,
) -> None:
    """Make the only broker hold an offset in doubt for ever. Blocks.

    The id's producer is begun anew by the way. ``committed``: the log of transactions says that its
    last one was a commit.
    """
    if committed:
        _commit(address, transactional_id, group, partition)
    with configured(address, _CHECKED, "false"):
        producer_id, epoch = _begin(address, transactional_id)
        body = (
            _string(transactional_id)
            + _string(group)
            + struct.pack(">qh", producer_id, epoch)
            + struct.pack(">i", 1)
            + _string(partition.topic)
            + struct.pack(">iiqi", 1, partition.partition, offset, -1)
            + (struct.pack(">h", -1) if metadata is None else _string(metadata))
        )
        assert wait_for(
            lambda: _ask(address, _TXN_OFFSET_COMMIT, body)[-2:] == b"\0\0", Deadline.after(WAIT)
        )


def _commit(address: str, transactional_id: str, group: str, partition: TopicPartition) -> None:
    """Commit the offset 5 under the id."""
    producer = Producer(
        {"bootstrap.servers": address, "transactional.id": transactional_id, "log_level": 0}
    )
    producer.init_transactions(WAIT)
    with Consumer({"group.id": group, "log_level": 0}) as consumer:
        known = consumer.consumer_group_metadata()
    producer.begin_transaction()
    producer.send_offsets_to_transaction([ClientPartition(*partition, 5)], known, WAIT)
    producer.commit_transaction(WAIT)


def _begin(address: str, transactional_id: str) -> tuple[int, int]:
    """Return id and epoch of the producer."""
    found: list[tuple[int, int]] = []
    # what this asks of the brokers has them make their topic for transactions
    Producer(
        {"bootstrap.servers": address, "transactional.id": transactional_id, "log_level": 0}
    ).init_transactions(WAIT)

    def begun() -> bool:
        answer = _ask(
            address, _INIT_PRODUCER_ID, _string(transactional_id) + struct.pack(">i", 15_000)
        )
        _, error, producer_id, epoch = struct.unpack(">ihqh", answer)
        found.append((producer_id, epoch))
        return bool(error == 0)

    assert wait_for(begun, Deadline.after(WAIT))
    return found[-1]


def _ask(address: str, request: tuple[int, int], body: bytes) -> bytes:
    """Send one request and return the answer behind its number."""
    host, port = address.split(":")
    message = struct.pack(">hhi", *request, 0) + _string("test") + body
    with socket.create_connection((host, int(port)), WAIT) as connection:
        connection.sendall(struct.pack(">i", len(message)) + message)
        with connection.makefile("rb") as answers:
            (length,) = struct.unpack(">i", answers.read(4))
            return answers.read(length)[4:]


def _string(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded
