"""Asks a daemon for keys at a rate, as a process of its own, and checks each answer.

It is open-loop: a question that waits for a connection, because the answers before it are late, has
waited since the time at which it was due. Reads its ``Request`` from standard input, as JSON, and
writes what it ``Measured``.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from random import Random
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import numpy as np

from headrace.extensions.keyed.codecs import partition_of

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Questions that are not measured, so that connections are open and paths are warm: of that many
#: seconds.
_WARM_UP = 0.5

#: Seconds after the last question in which answers still count.
_GRACE = 5.0

_READ = 1 << 16


@dataclass(frozen=True, slots=True)
class Request:
    """Who is asked for what: ``rate`` questions a second, each for one of ``keys``."""

    url: str
    path: str
    token: str
    keys: Sequence[str]
    partitions: int
    rate: float
    seconds: float
    connections: int
    seed: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of it. Times are in milliseconds, from when a question was due to its answer."""

    asked: int
    answered: int
    refused: int
    wrong: int
    rate: float
    p50_ms: float
    p99_ms: float
    most_ms: float
    processor_s: float
    examples: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Connection:
    """One connection, and the question that is under way on it."""

    socket: socket.socket
    due: float = 0.0
    key: int = 0
    heard: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a question for the key of a number, and when it was due and there."""

    key: int
    due: float
    at: float
    text: bytes


def ask(request: Request) -> list[Answer]:
    """Ask at the rate, and return the answers in the order of their arrival. Blocks."""
    selector = selectors.DefaultSelector()
    address = urlsplit(request.url)
    host, port = address.hostname or "", address.port or 80
    idle: deque[Connection] = deque()
    for _ in range(request.connections):
        opened = socket.create_connection((host, port), timeout=10)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = Connection(opened)
        selector.register(opened, selectors.EVENT_READ, connection)
        idle.append(connection)
    head = f" HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {request.token}\r\n\r\n"
    asked = [f"GET {request.path}/{key}{head}".encode() for key in request.keys]
    random = Random(request.seed)  # noqa: S311 - data, not secrets
    total = int(request.rate * (request.seconds + _WARM_UP))
    order = [random.randrange(len(asked)) for _ in range(total)]
    found: list[Answer] = []
    begun = time.monotonic()
    last = begun + request.seconds + _WARM_UP + _GRACE
    sent = 0
    while len(found) < total and (now := time.monotonic()) < last:
        while idle and sent < total and begun + sent / request.rate <= now:
            connection = idle.popleft()
            connection.due, connection.key = begun + sent / request.rate, order[sent]
            connection.socket.sendall(asked[connection.key])
            sent += 1
        wait = last - now
        if idle and sent < total:
            wait = max(0.0, begun + sent / request.rate - now)
        for key, _ in selector.select(wait):
            connection = key.data
            heard = connection.socket.recv(_READ)
            if not heard:
                raise ConnectionError(f"{request.url} closed a connection in use")
            connection.heard += heard
            if is_whole(connection.heard):
                at = time.monotonic()
                found.append(Answer(connection.key, connection.due, at, connection.heard))
                connection.heard = b""
                idle.append(connection)
    selector.close()
    return [each for each in found if each.due >= begun + _WARM_UP]


def is_whole(heard: bytes) -> bool:
    """Return whether that is an answer with all of its body."""
    head, end, body = heard.partition(b"\r\n\r\n")
    if not end:
        return False
    _, _, rest = head.lower().partition(b"\r\ncontent-length:")
    return len(body) >= int(rest.partition(b"\r\n")[0])


class Counts:
    """What the count of each key has to be, of a topic with all keys by turns."""

    def __init__(self, keys: Sequence[str], partitions: int) -> None:
        self._keys = keys
        self._places: list[tuple[int, int]] = []
        self._sizes = [0] * partitions
        for key in keys:
            partition = partition_of(key.encode(), partitions)
            self._places.append((partition, self._sizes[partition]))
            self._sizes[partition] += 1

    def mistake_of(self, answer: Answer) -> str | None:
        """Return what is wrong with an answer, None where it is right.

        The count is of exactly the records before the offset that the answer says.
        """
        head, _, body = answer.text.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200 "):
            return body.decode(errors="replace")
        said = json.loads(body)
        partition, place = self._places[answer.key]
        size = self._sizes[partition]
        offset = said["position"]["offset"]
        wanted = (offset - place + size - 1) // size
        (row,) = said["rows"]
        found = (said["position"]["partition"], row["key"], row["row"])
        right = (partition, self._keys[answer.key], {"n": wanted})
        return None if found == right else f"before {offset} {right} was expected, not {found}"


def measured(request: Request, answers: Sequence[Answer]) -> Measured:
    """Return the figures of answers; what was never answered has no time."""
    counts = Counts(request.keys, request.partitions)
    mistakes = [each for answer in answers if (each := counts.mistake_of(answer)) is not None]
    refused = sum(not each.text.startswith(b"HTTP/1.1 200 ") for each in answers)
    times = np.array([each.at - each.due for each in answers] or [0.0]) * 1000
    span = max(each.at for each in answers) - min(each.due for each in answers) if answers else 1.0
    p50, p99 = np.percentile(times, [50, 99]).tolist()
    return Measured(
        asked=round(request.rate * request.seconds),
        answered=len(answers),
        refused=refused,
        wrong=len(mistakes) - refused,
        rate=round(len(answers) / span, 1),
        p50_ms=round(p50, 2),
        p99_ms=round(p99, 2),
        most_ms=round(float(times.max()), 2),
        processor_s=round(time.process_time(), 2),
        examples=mistakes[:3],
    )


def main() -> None:
    """Do what standard input says."""
    request = Request(**json.loads(sys.stdin.read()))
    sys.stdout.write(json.dumps(asdict(measured(request, ask(request)))) + "\n")


if __name__ == "__main__":
    main()
