"""A server whose port another program has."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from headrace.devstack.errors import PortTakenError
from headrace.devstack.server import LOOPBACK
from headrace.devstack.zookeeper import ZooKeeperServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.core.clock import Deadline


@pytest.fixture
def stranger() -> Iterator[int]:
    """Answer as a ZooKeeper does, and return the port."""
    closed = threading.Event()

    def serve() -> None:
        while not closed.is_set():
            try:
                connection = listening.accept()[0]
            except TimeoutError:
                continue
            with connection:
                connection.recv(4)
                connection.sendall(b"Mode: standalone\n")

    with socket.create_server((LOOPBACK, 0)) as listening:
        listening.settimeout(0.1)
        thread = threading.Thread(target=serve, name="stranger")
        thread.start()
        yield listening.getsockname()[1]
        closed.set()
        thread.join(20)


class SlowServer(ZooKeeperServer):
    """Runs a script in place of Java, which needs a while until it has its port."""

    script = "exec sleep 100"

    def _command(self, deadline: Deadline) -> list[str]:
        del deadline
        return ["sh", "-c", self.script]


def test_another_program_is_not_taken_for_the_server(stranger: int, tmp_path: Path) -> None:
    """No server is started on a used port, even if the program there answers like it."""
    server = SlowServer(tmp_path / "zookeeper", port=stranger)
    assert server.mode() == "standalone"
    with pytest.raises(PortTakenError, match="another process listens on"):
        server.start()
    assert server.identity is None
    assert not server.log_file.exists()


def test_a_server_that_could_not_have_its_port_is_not_ready(
    stranger: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program may take the port after it was looked at, and answer."""
    monkeypatch.setattr("headrace.devstack.server._is_taken", lambda _: False)
    server = SlowServer(tmp_path / "zookeeper", port=stranger)
    said = tmp_path / "said"
    server.script = f"echo Address already in use; touch {said}; exec sleep 100"
    monkeypatch.setattr(server, "_answers", lambda _: said.exists() and server.mode() is not None)
    with pytest.raises(PortTakenError, match="another process listens on"):
        server.start()
    assert server.identity is None
