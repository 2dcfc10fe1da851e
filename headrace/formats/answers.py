"""Answers over HTTP that are there within a time as a whole, and have an end."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

#: Bytes of an answer at the most: a schema has some thousands.
MOST_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer. ``said`` is the object of JSON that it has, None where it has another thing."""

    status: int
    phrase: str
    said: Mapping[str, Any] | None

    @property
    def is_success(self) -> bool:
        """Return whether the server did what it was asked for."""
        return self.status // 100 == 2  # noqa: PLR2004 - the codes of success

    def __str__(self) -> str:
        shown = f"{self.status} {self.phrase}".rstrip()
        return shown if self.said is not None else f"{shown} with what is no object of JSON"


def ask(
    client: httpx.Client,
    url: str,
    seconds: float,
    *,
    form: Mapping[str, str] | None = None,
    document: Mapping[str, Any] | None = None,
) -> Answer:
    """Return the answer of a server, to a form or a document of JSON where there is one.

    Blocks for ``seconds`` at most.

    These are for the answer as a whole, however many parts it comes in; the name's look-up and
    the connection have as long again each.

    Raises:
        httpx.HTTPError: there was no connection, or no whole answer in time.
        httpx.InvalidURL: the address is none.
    """
    import httpx  # noqa: PLC0415 - takes a while, and few channels ask

    watch = _Watch()
    timer = threading.Timer(seconds, watch.end)
    timer.daemon = True
    timer.start()
    method = "GET" if form is None and document is None else "POST"
    try:
        with client.stream(
            method, url, data=form, json=document, extensions={"trace": watch.trace}
        ) as answer:
            body = bytearray()
            for part in answer.iter_bytes():
                body += part
                if len(body) > MOST_BYTES:
                    raise httpx.ReadError(f"the answer has more than {MOST_BYTES >> 20} MiB")
        found = Answer(answer.status_code, answer.reason_phrase, _object(bytes(body)))
    except httpx.HTTPError as error:
        if watch.ended:
            raise httpx.ReadTimeout(f"no whole answer within {seconds:g} s") from error
        raise
    finally:
        timer.cancel()
    if watch.ended:  # an answer without a length ends where the connection does
        raise httpx.ReadTimeout(f"no whole answer within {seconds:g} s")
    return found


class _Watch:
    """Ends the connection of a question when its time is over. Two threads: asker and timer.

    The client's own times are for each read, of which an answer in small parts has many.
    """

    def __init__(self) -> None:
        self.ended = False
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()

    def trace(self, event: str, about: Mapping[str, Any]) -> None:
        """Keep the connection that the client tells of."""
        del event
        made = about.get("return_value")
        look_up = getattr(made, "get_extra_info", None)
        found = look_up("socket") if look_up is not None else None
        if found is not None:
            with self._lock:
                self._socket = found
                if self.ended:
                    self._shut()

    def end(self) -> None:
        """End the connection, also one that is made after this."""
        with self._lock:
            self.ended = True
            self._shut()

    def _shut(self) -> None:
        if self._socket is not None:
            with suppress(OSError):  # it is closed, or another one has its place
                # that of TLS forgets its state first, which the reading thread needs
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _object(body: bytes) -> Mapping[str, Any] | None:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
