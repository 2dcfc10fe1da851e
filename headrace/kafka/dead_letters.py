"""The dead-letter topic's producer: each record is on all in-sync replicas before it counts."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer

from headrace.kafka import clients
from headrace.kafka.ports import DeadLetterError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.core.clock import Deadline
    from headrace.kafka.ports import DeadLetter

#: ``enable.idempotence``: all in-sync replicas have it, and a retry of the client's own puts it
#: there once. ``message.timeout.ms``: the client gives a record up when we do, so that what failed
#: does not come out of its queue hours later. ``message.max.bytes``: a record that was read with
#: its headers may pass the client's own limit; the topic's is the one that counts.
_SETTINGS = {
    "enable.idempotence": True,
    "linger.ms": 0,
    "message.timeout.ms": 5_000,
    "message.max.bytes": 100_000_000,
}

#: Seconds of one poll: one of more than 0.2 s lasts its whole time in confluent-kafka from 2.13 on.
_POLL_INTERVAL = 0.1


class KafkaDeadLetterStore:
    """A ``DeadLetterStore`` on one producer, which is made when the first record comes. Any thread.

    A channel without poison has no producer, and none of its threads.
    """

    def __init__(self, client_properties: Mapping[str, Any]) -> None:
        self._properties = client_properties
        self._lock = Lock()
        self._producer: Producer | None = None

    def store(self, topic: str, letter: DeadLetter, deadline: Deadline) -> None:
        producer = self._open()
        receipt: list[KafkaError | None] = []
        try:
            producer.produce(
                topic,
                letter.value,
                letter.key,
                headers=list(letter.headers),
                on_delivery=lambda error, _: receipt.append(error),
            )
        except (BufferError, KafkaException) as error:
            raise _failed(topic, str(error)) from error
        while not receipt and not deadline.expired:
            producer.poll(deadline.at_most(_POLL_INTERVAL))
        if not receipt:
            raise _failed(topic, "no answer in time")
        if receipt[0] is not None:
            if receipt[0].fatal():
                self._forget(producer)
            raise _failed(topic, receipt[0].str())

    def _open(self) -> Producer:
        with self._lock:
            if self._producer is None:
                given = clients.base(self._properties)
                self._producer = Producer(clients.producer({**_SETTINGS, **given}))
            return self._producer

    def _forget(self, producer: Producer) -> None:
        """Let the next record make another producer: this one takes no more."""
        with self._lock:
            if self._producer is producer:
                self._producer = None

    def close(self) -> None:
        """Release the producer; what is not confirmed counts as not sent."""
        with self._lock:
            if self._producer is not None:
                self._producer.purge()
                self._producer = None


def _failed(topic: str, reason: str) -> DeadLetterError:
    return DeadLetterError(
        f"the dead-letter topic {topic} did not take a record: {reason}; headrace doctor looks "
        "whether it exists and names the permission that it needs"
    )
