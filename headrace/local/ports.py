"""Free loopback ports for servers that must keep them across restarts."""

from __future__ import annotations

import random
import socket

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


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True
