"""A broker that leads a partition and has not heard of it yet refuses the first that is produced.

What a real one does for a moment after a topic's creation or an election, a proxy before it does at
a time of the test's choosing.
"""

from __future__ import annotations

import struct
from contextlib import closing, suppress
from select import select
from socket import create_connection
from socketserver import BaseRequestHandler, ThreadingTCPServer
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from headrace.core.clock import Deadline
from headrace.core.records import ResultRecord
from headrace.devstack import KafkaBroker
from headrace.devstack.server import LOOPBACK, free_port
from headrace.kafka.topic_producer import TopicProducer
from tests.brokers import Broker
from tests.kafka_sinks import KafkaPlace, committed_records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from socket import socket

WAIT = 60.0

#: A request for each record, sent at once, and as many in flight as an idempotent producer may
#: have: what would lose records if it were heeded.
_EAGER = {
    "linger.ms": 0,
    "batch.num.messages": 1,
    "max.in.flight": 5,
    "max.in.flight.requests.per.connection": 5,
}
_VALUES = [b"%d" % number for number in range(8)]

_PRODUCE = 0
_NOT_LEADER = 6

#: Versions of the request that begin alike, and whose answers are.
_VERSIONS = range(9, 13)

#: Seconds that a refusal is held back for the next request, which is in flight then.
_HOLD = 1.0


class LateLeader(ThreadingTCPServer):
    """A proxy in front of a broker, which refuses the first that is produced to a partition.

    It hands on one request at a time, so that answers come in the order of the requests. What it
    refuses the broker never sees.
    """

    daemon_threads = True

    def __init__(self, target: int) -> None:
        super().__init__((LOOPBACK, 0), _Connection)
        self.target = target
        #: The topics whose partitions have leaders that are late.
        self.late: set[str] = set()
        #: What was refused, by topic and partition.
        self.refused: set[tuple[str, int]] = set()
        Thread(target=self.serve_forever, name="late-leader", daemon=True).start()

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        return f"{LOOPBACK}:{self.server_address[1]}"

    def refusal(self, request: bytes) -> bytes | None:
        """Return the answer to a request that is to be refused, None for all others."""
        key, version, correlation = struct.unpack_from(">hhi", request, 4)
        if key != _PRODUCE:
            return None
        assert version in _VERSIONS
        (length,) = struct.unpack_from(">h", request, 12)
        at = 12 + 2 + max(0, length) + 1
        _, at = _text(request, at)  # the transactional id
        at += 2 + 4 + 1  # acks, time-out, the number of topics
        topic, at = _text(request, at)
        (partition,) = struct.unpack_from(">i", request, at + 1)
        if topic not in self.late or (topic, partition) in self.refused:
            return None
        self.refused.add((topic, partition))
        name = topic.encode()
        body = (
            struct.pack(">ibb", correlation, 0, 2)
            + bytes([len(name) + 1])
            + name
            + struct.pack(">bihqqq", 2, partition, _NOT_LEADER, -1, -1, -1)
            # neither records nor a message, and no tags: of the partition, the topic, the answer
            + struct.pack(">bbbbib", 1, 0, 0, 0, 0, 0)
        )
        return struct.pack(">i", len(body)) + body


class _Connection(BaseRequestHandler):
    def handle(self) -> None:
        """Answer a client's requests until it or the broker ends the connection."""
        leader = self.server
        assert isinstance(leader, LateLeader)
        with (
            suppress(OSError, EOFError),
            closing(create_connection((LOOPBACK, leader.target))) as onward,
        ):
            while True:
                request = _frame(self.request)
                answer = leader.refusal(request)
                if answer is None:
                    onward.sendall(request)
                    answer = _frame(onward)
                else:
                    select([self.request], [], [], _HOLD)
                self.request.sendall(answer)


def _frame(sender: socket) -> bytes:
    """Return one request or answer with its length."""
    head = _bytes(sender, 4)
    (length,) = struct.unpack(">i", head)
    return head + _bytes(sender, length)


def _bytes(sender: socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        more = sender.recv(count - len(found))
        if not more:
            raise EOFError
        found += more
    return bytes(found)


def _text(data: bytes, at: int) -> tuple[str, int]:
    """Return a text whose length takes one byte, and where it ends."""
    assert data[at] < 0x80
    end = at + max(1, data[at])
    return data[at + 1 : end].decode(), end


@pytest.fixture(scope="module")
def leader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LateLeader]:
    """A broker whose clients all come through the proxy."""
    port = free_port()
    with LateLeader(port) as leader:
        server = KafkaBroker(
            tmp_path_factory.mktemp("kafka"),
            port=port,
            properties={"advertised.listeners": f"PLAINTEXT://{leader.address}"},
            short_lived=True,
        )
        server.start()
        yield leader
        server.stop(Deadline.after(WAIT))
        leader.shutdown()


@pytest.fixture(scope="module")
def broker(leader: LateLeader) -> Broker:
    """The broker as seen through the proxy."""
    return Broker(leader.address)


def test_a_topic_s_producer_loses_nothing(leader: LateLeader, broker: Broker) -> None:
    """Records whose first request is refused are in the log once each, in their order."""
    topic = broker.create_topic()
    leader.late.add(topic)
    producer = TopicProducer({"bootstrap.servers": broker.address, **_EAGER}, topic)
    producer.send([(None, value) for value in _VALUES], Deadline.after(WAIT))
    producer.flush(Deadline.after(WAIT))
    assert (topic, 0) in leader.refused
    assert _values(broker, topic) == _VALUES


def test_a_kafka_sink_loses_nothing(leader: LateLeader, broker: Broker) -> None:
    """A transaction's records in a partition are there whole, or it is not committed."""
    with closing(KafkaPlace(broker)) as place:
        leader.late.add(place.topic)
        place.properties |= _EAGER
        with closing(place.results()) as results:
            records = [ResultRecord(place.topic, value, partition=0) for value in _VALUES]
            assert results.commit([place.share(0, 0, 8)], records) == []
            assert results.stored(place.identity(0)) == 8
        assert (place.topic, 0) in leader.refused
        assert _values(broker, place.topic) == _VALUES


def _values(broker: Broker, topic: str) -> list[bytes | None]:
    return [message.value() for message in committed_records(broker.address, topic)]
