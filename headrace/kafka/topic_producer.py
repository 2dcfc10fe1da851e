"""Filling a topic: for the demo, the benchmarks and the tests."""

from __future__ import annotations

from contextlib import suppress
from threading import Event
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.kafka import clients
from headrace.kafka.errors import KafkaUnavailableError, ProduceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.core.clock import Deadline

#: A key or None, and a value.
KeyValue = tuple[bytes | None, bytes]

#: ``enable.idempotence``: a retry of the client's own must not put a record there twice, or every
#: count of what arrived would be wrong. ``delivery.report.only.error``: a call into Python for
#: each record that went well would cost as much as producing it.
_SETTINGS = {
    "enable.idempotence": True,
    "linger.ms": 20,
    "compression.type": "lz4",
    "queue.buffering.max.messages": 500_000,
    "delivery.report.only.error": True,
}

#: Seconds that one look at a full queue waits for room.
_ROOM_POLL_INTERVAL = 0.1

#: Seconds between two looks whether brokers tell of a new topic.
_LOOK = 0.05

#: Records between two looks for errors. Serving the client costs about as much as one record.
_SERVE_EVERY = 100


def create_topic(
    client_properties: Mapping[str, Any], topic: str, partitions: int, deadline: Deadline
) -> None:
    """Create a topic with the brokers' own settings and return when clients see it. Blocks.

    Raises:
        ProduceError: it exists already, or the brokers refuse it.
        KafkaUnavailableError: no broker answered in time.
    """
    admin = AdminClient(clients.base(client_properties))
    asked = admin.create_topics([NewTopic(topic, partitions)], request_timeout=deadline.left)
    try:
        asked[topic].result(deadline.remaining)
    except (KafkaException, TimeoutError) as error:
        code = error.args[0].code() if isinstance(error, KafkaException) else None
        if code in {None, KafkaError._TIMED_OUT, KafkaError._TRANSPORT}:  # noqa: SLF001 - public names of the client's
            servers = client_properties.get("bootstrap.servers")
            raise KafkaUnavailableError(
                f"Kafka at {servers} did not create topic {topic!r} in time; is it running?"
            ) from error
        raise ProduceError(f"topic {topic!r} cannot be created: {error.args[0].str()}") from error
    _wait_seen(admin, topic, partitions, deadline)


def _wait_seen(admin: AdminClient, topic: str, partitions: int, deadline: Deadline) -> None:
    """Return when brokers name a leader of each partition: they know a new topic after it is."""
    while True:
        with suppress(KafkaException):
            found = admin.list_topics(topic, timeout=deadline.left).topics[topic]
            leaders = [each.leader for each in found.partitions.values()]
            if len(leaders) == partitions and min(leaders) >= 0:
                return
        if deadline.expired:
            raise KafkaUnavailableError(
                f"topic {topic!r} was created, but brokers do not tell of it"
            )
        Event().wait(deadline.at_most(_LOOK))


class TopicProducer:
    """Produces to one topic and counts. Used on one thread; the counts are read on any.

    ``client_properties`` are librdkafka's, and come before the settings made here, but for those
    of ``headrace.kafka.clients.producer``.
    """

    def __init__(self, client_properties: Mapping[str, Any], topic: str) -> None:
        self.topic = topic
        #: Records handed to the client.
        self.sent = 0
        #: Records that the brokers did not take, or not for certain.
        self.failed = 0
        self._first_error = ""
        settings = {**_SETTINGS, **clients.base(client_properties)}
        self._producer = Producer(clients.producer({**settings, "on_delivery": self._count_failed}))

    def send(self, records: Iterable[KeyValue], deadline: Deadline, *, time: int = 0) -> None:
        """Produce records in their order. Blocks while the client's queue is full.

        ``time`` is that of the records, in milliseconds since 1970; 0: now.

        Raises:
            ProduceError: the queue stayed full until the deadline, or the client refuses a record;
                the rest was not sent.
        """
        for key, value in records:
            self._send(key, value, time, deadline)
        self._producer.poll(0)

    def flush(self, deadline: Deadline) -> None:
        """Wait until the brokers have stored everything that was sent. Blocks.

        Raises:
            ProduceError: something was not stored, or not by the deadline.
        """
        left = self._producer.flush(deadline.left)
        if left or self.failed:
            reason = self._first_error or "the brokers did not confirm them in time"
            raise ProduceError(
                f"{left + self.failed} of {self.sent} records did not reach topic "
                f"{self.topic!r}: {reason}; look at the broker's log"
            )

    def _send(self, key: bytes | None, value: bytes, time: int, deadline: Deadline) -> None:
        while True:
            try:
                self._producer.produce(self.topic, value, key, timestamp=time)
            except BufferError:
                if deadline.expired:
                    raise ProduceError(
                        f"topic {self.topic!r}: the brokers take no more records after "
                        f"{self.sent}; look at the broker's log"
                    ) from None
                self._producer.poll(deadline.at_most(_ROOM_POLL_INTERVAL))
            except KafkaException as error:  # as of one that is too large
                raise ProduceError(
                    f"topic {self.topic!r}: a record of {len(value)} bytes cannot be sent after "
                    f"{self.sent}: {error.args[0].str()}"
                ) from error
            else:
                break
        self.sent += 1
        if self.sent % _SERVE_EVERY == 0:
            self._producer.poll(0)

    def _count_failed(self, error: KafkaError | None, _: object) -> None:
        if error is not None:
            self.failed += 1
            self._first_error = self._first_error or error.str()
