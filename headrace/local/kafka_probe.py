"""Asking a broker the smallest question that only a ready one answers, with a plain socket."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_METADATA = 3

#: The lowest version every Kafka so far answers; names of brokers stand in it uncompacted.
_VERSION = 1

_CORRELATION = 1

_TIMEOUT_S = 2.0


def live_brokers(host: str, port: int) -> list[int]:
    """Return the ids of the live brokers of the cluster; [] if nobody answers. Blocks briefly.

    A starting broker accepts connections well before the controller counts it as live. Only
    from then on do metadata list it and topics find a leader.
    """
    try:
        with socket.create_connection((host, port), _TIMEOUT_S) as connection:
            connection.sendall(_request())
            size = int.from_bytes(_read(connection.recv, 4), "big")
            return _broker_ids(_read(connection.recv, size))
    except (OSError, EOFError):
        return []


def _request() -> bytes:
    client = b"headrace-local"
    header = struct.pack(">hhih", _METADATA, _VERSION, _CORRELATION, len(client)) + client
    no_topics = struct.pack(">i", 0)
    return struct.pack(">i", len(header) + len(no_topics)) + header + no_topics


def _read(receive: Callable[[int], bytes], size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = receive(size - len(data))
        if not part:
            raise EOFError("the broker closed the connection")
        data += part
    return data


def _broker_ids(answer: bytes) -> list[int]:
    """Read correlation id, then an array of (id, host, port, rack)."""
    count = _number(answer, 4, 4)
    position, ids = 8, []
    for _ in range(count):
        ids.append(_number(answer, position, 4))
        position = _skip_string(answer, _skip_string(answer, position + 4) + 4)
    return ids


def _skip_string(answer: bytes, position: int) -> int:
    return position + 2 + max(0, _number(answer, position, 2))


def _number(answer: bytes, position: int, size: int) -> int:
    if position + size > len(answer):
        raise EOFError("the broker's answer ends too early")
    return int.from_bytes(answer[position : position + size], "big", signed=True)
