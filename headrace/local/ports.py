"""Free loopback ports for servers that must keep them across restarts."""

from __future__ import annotations

import json
import random
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: Everything listens here and nowhere else.
LOOPBACK = "127.0.0.1"

#: Below the range from which operating systems take the ports of outgoing connections (Linux:
#: 32768 up, others: 49152 up). While a server is down, no client may be given its port, least of
#: all the client that tries to reconnect to it: it would connect to itself.
_RANGE = range(15_000, 32_000)

_TRIES = 1_000


def free_port() -> int:
    """Return a port that nothing listens on now; another process may still take it first.

    Raises:
        OSError: none of many ports tried was free.
    """
    generator = random.SystemRandom()
    for _ in range(_TRIES):
        port = generator.choice(_RANGE)
        if _is_free(port):
            return port
    raise OSError(f"no free port found on {LOOPBACK} in {_TRIES} tries")


class PortBook:
    """The ports of a folder's servers, kept in a file: the same folder, the same addresses.

    Not thread-safe.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ports: dict[str, int] = _read(path)

    def port(self, name: str) -> int:
        """Return the port kept under this name, a free one the first time."""
        if name not in self._ports:
            self._ports[name] = free_port()
        return self._ports[name]

    def forget(self) -> None:
        """Let all ports go, so that others are chosen."""
        self._ports.clear()

    def save(self) -> None:
        """Write the ports down for the next start."""
        self._path.write_text(json.dumps(self._ports), encoding="utf-8")


def _read(path: Path) -> dict[str, int]:
    """Return the ports in the file; none where it is missing or cannot be read as such."""
    try:
        ports = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): int(port) for name, port in ports.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
