from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from benchmarks.chaos.link import Network
from headrace.core.clock import Deadline
from headrace.devstack.server import LOOPBACK
from headrace.devstack.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.chaos.link import Link

_WAIT = 10.0

#: Seconds in which something must not come; a loopback needs less than a thousandth of it.
_SILENCE = 0.3


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Yield the socket that listens behind the link."""
    with socket.create_server((LOOPBACK, 0)) as server:
        server.settimeout(_WAIT)
        yield server


@pytest.fixture
def link(listener: socket.socket) -> Iterator[Link]:
    """A link to the listener."""
    network = Network()
    yield network.link(listener.getsockname()[1])
    network.close()


def _connect(link: Link) -> socket.socket:
    return socket.create_connection((LOOPBACK, link.port), _WAIT)


def test_both_directions_pass(link: Link, listener: socket.socket) -> None:
    """Bytes that either side sends arrive at the other."""
    with _connect(link) as client, listener.accept()[0] as server:
        client.sendall(b"question")
        assert server.recv(100) == b"question"
        server.sendall(b"answer")
        assert client.recv(100) == b"answer"


def test_a_silent_cut_delays_sent_bytes(link: Link, listener: socket.socket) -> None:
    """Bytes do not arrive, and neither side gets an error; after the healing they arrive."""
    with _connect(link) as client, listener.accept()[0] as server:
        link.cut(drops=False)
        client.sendall(b"late")
        server.settimeout(_SILENCE)
        with pytest.raises(TimeoutError):
            server.recv(100)
        link.heal()
        server.settimeout(_WAIT)
        assert server.recv(100) == b"late"


def test_a_dropping_cut_breaks_connections_and_refuses_new_ones(
    link: Link, listener: socket.socket
) -> None:
    """Both sides see the end; after the healing a new connection passes."""
    with _connect(link) as client, listener.accept()[0] as server:
        link.cut(drops=True)
        with suppress(ConnectionResetError):
            assert client.recv(100) == b""
        with suppress(ConnectionResetError):
            assert server.recv(100) == b""
    with pytest.raises(OSError, match="refused"):
        _connect(link).close()
    link.heal()
    assert wait_for(lambda: _passes(link, listener), Deadline.after(_WAIT))


def _passes(link: Link, listener: socket.socket) -> bool:
    with _connect(link) as client, listener.accept()[0] as server:
        client.sendall(b"again")
        return server.recv(100) == b"again"
