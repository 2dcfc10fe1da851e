from __future__ import annotations

import socket
import threading

from headrace.devstack.kafka import live_brokers
from headrace.devstack.server import LOOPBACK, free_port


def test_a_useless_answer_lists_no_broker() -> None:
    """A connection that is closed without an answer means that the broker is not ready."""
    closed = threading.Event()
    with socket.create_server((LOOPBACK, 0)) as server:
        server.settimeout(0.1)

        def serve() -> None:
            while not closed.is_set():
                try:
                    server.accept()[0].close()
                except TimeoutError:
                    continue

        thread = threading.Thread(target=serve, name="fake-broker")
        thread.start()
        try:
            assert live_brokers(f"{LOOPBACK}:{server.getsockname()[1]}") == []
        finally:
            closed.set()
            thread.join(20)


def test_a_refused_connection_lists_no_broker() -> None:
    """A refused connection means that the broker is not ready."""
    assert live_brokers(f"{LOOPBACK}:{free_port()}") == []
