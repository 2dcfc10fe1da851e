from __future__ import annotations

import socket
import struct
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from headrace.devstack.kafka import live_brokers
from headrace.devstack.server import LOOPBACK, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator


def _text(text: str | None) -> bytes:
    return struct.pack(">h", -1) if text is None else struct.pack(">h", len(text)) + text.encode()


def _answer(*brokers: tuple[int, str | None]) -> bytes:
    """Return a metadata answer of version 1 that lists the brokers with their racks."""
    body = struct.pack(">ii", 1, len(brokers))
    for number, rack in brokers:
        body += struct.pack(">i", number) + _text(LOOPBACK)
        body += struct.pack(">i", 9092) + _text(rack)
    body += struct.pack(">ii", 1, 0)
    return struct.pack(">i", len(body)) + body


@contextmanager
def _answering(data: bytes) -> Iterator[int]:
    """Serve one connection: read the question, send ``data``, close."""
    with socket.create_server((LOOPBACK, 0)) as server:
        server.settimeout(20)

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
                connection.recv(size, socket.MSG_WAITALL)
                connection.sendall(data)

        thread = threading.Thread(target=serve, name="fake-broker")
        thread.start()
        yield server.getsockname()[1]
        thread.join(20)


def test_the_live_brokers_are_listed() -> None:
    """Ids are read past hosts and racks of any length."""
    with _answering(_answer((1, None), (7, "rack-7"), (-1, ""))) as port:
        assert live_brokers(LOOPBACK, port) == [1, 7, -1]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0",
        _answer((1, None))[:-14],
        struct.pack(">iii", 8, 1, 1_000_000),
        _answer(),
    ],
    ids=["closed", "cut in the size", "cut in the body", "too many brokers", "no broker yet"],
)
def test_a_useless_answer_lists_no_broker(data: bytes) -> None:
    """An answer that is cut short, wrong or empty means that the broker is not ready."""
    with _answering(data) as port:
        assert live_brokers(LOOPBACK, port) == []


def test_nobody_listening_lists_no_broker() -> None:
    """A refused connection means that the broker is not ready."""
    assert live_brokers(LOOPBACK, free_port()) == []
