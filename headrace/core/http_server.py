"""HTTP on a thread of its own: connections of all clients are bounded and have time-outs."""

from __future__ import annotations

import socket
from contextlib import suppress
from functools import partial
from ipaddress import IPv6Address
from threading import Thread
from typing import TYPE_CHECKING, Any, Protocol

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    import ssl
    from asyncio import Transport
    from collections.abc import Callable, Collection, Sequence

    from starlette.types import ASGIApp

    from headrace.core.clock import Deadline

#: Connections that are open at a time, which bounds descriptors and memory. One more takes the
#: place of the oldest that is not being answered.
MOST_CONNECTIONS = 256

#: Connections that wait to be accepted: as many may be open beyond the bound for one turn of the
#: loop, and a new one stays for several turns, in which its request is read.
BACKLOG = MOST_CONNECTIONS // 4

#: Seconds in which a new connection's first request has to be there, TLS included.
REQUEST_TIMEOUT = 5.0

#: Seconds until a connection is closed that was answered and sends no other request, or that does
#: not read its answer.
KEEP_ALIVE = 30.0

#: Tenths of a second between two looks at connections that are silent.
SILENCE_TICKS = 5

#: Tenths of a second between two looks at the certificate, which may have been renewed.
CERTIFICATE_TICKS = 50

#: Seconds that requests have at the end, out of those that a stop has.
GRACE = 2

#: The end of a request's head.
_END = b"\r\n\r\n"


class ServerCertificate(Protocol):
    """The certificate that a server shows."""

    @property
    def context(self) -> ssl.SSLContext:
        """Return what connections are made with."""

    def reload(self) -> None:
        """Reload what was renewed."""


class PlainRequests(Protocol):
    """Requests that are answered as they come in, without the application.

    What a request costs on its way through layers and a task of its own is many times the cost of
    the answer where thousands are asked for each second. Both are for the loop's thread.
    """

    #: The lines of an answer's head, but for its date and length.
    head: bytes

    def take(
        self, request: bytes, subject: str | None, answer: Callable[[bytes | None], None]
    ) -> bool:
        """Start answering a request, which is a whole head and nothing else.

        ``subject`` is that of the client's certificate. False: the application answers. Else
        ``answer`` is called on this thread, soon and once, with a body, or with None where the
        application is to answer after all.
        """
        ...


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on a name or an address of either family.

    On ``::`` that is IPv4, too, where the system has both on one socket.

    Raises:
        OSError: that is not possible.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    both = family == socket.AF_INET6 and address[0] == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(address[:2], family=family, dualstack_ipv6=both)


class HttpServer:
    """Serves ``app`` on a socket that listens, from ``start`` to ``close``; both are for the owner.

    The thread has the name that is given, and hands ``failed`` the error that ends it. What headers
    say of who asks is believed where ``trusted_proxies`` sent them, addresses or networks.
    ``plain`` has the requests that ``app`` does not need to see.
    """

    def __init__(
        self,
        app: ASGIApp,
        listening: socket.socket,
        name: str,
        *,
        failed: Callable[[BaseException], None],
        certificate: ServerCertificate | None = None,
        trusted_proxies: Sequence[str] = (),
        plain: PlainRequests | None = None,
    ) -> None:
        self._server = _Server(app, listening, certificate, trusted_proxies, plain)
        self._failed = failed
        self._thread = Thread(target=self._serve, name=name, daemon=True)

    def start(self, deadline: Deadline) -> bool:
        """Start answering; return False if the thread ended instead."""
        self._thread.start()
        while not self._server.started and not deadline.expired:
            self._thread.join(0.01)
            if not self._thread.is_alive():
                return False
        return True

    def close(self, deadline: Deadline) -> bool:
        """Answer what was asked, close all connections and end; False if that took too long."""
        self._server.should_exit = True
        self._thread.join(deadline.remaining)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        try:
            self._server.run(sockets=[self._server.door])
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the owner logs it
            self._failed(error)


class _Protocol(H11Protocol):
    """HTTP that says until when it may be silent, and tells the application of certificates."""

    #: The connection's descriptor.
    fileno: int

    #: Monotonic time of the last answer's end, None before.
    answered: float | None = None

    #: Monotonic time since which nothing more of an answer can be sent, None while it can.
    unread: float | None = None

    #: The request that is answered without the application, None while there is none, and what
    #: came after it.
    _taken: bytes | None = None
    _later: bytes = b""

    #: Whether the connection is to end after that answer.
    _is_ending = False

    #: The subject of the client's certificate.
    _subject: str | None = None

    def __init__(self, *args: Any, plain: PlainRequests | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._plain = plain

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.client is not None:
            self.client = (_own_family(self.client[0]), self.client[1])
        self.fileno = transport.get_extra_info("socket").fileno()
        certificate = transport.get_extra_info("peercert")
        if certificate:
            self._subject = _subject(certificate)
            self.app_state = {**self.app_state, "subject": self._subject}

    def data_received(self, data: bytes) -> None:
        if self._taken is not None:
            # answers are in the order of their requests
            self._later += data
            self.flow.pause_reading()
            return
        if self._plain is not None and self._is_whole_head(data):
            self._taken = data
            if self._plain.take(data, self._subject, self._answer):
                self._unset_keepalive_if_required()
                return
            self._taken = None
        super().data_received(data)

    def _is_whole_head(self, data: bytes) -> bool:
        """Return whether that is a request without a body, and the first to be answered."""
        return (
            data.startswith(b"GET ")
            and data.find(_END) == len(data) - len(_END)
            and self.conn.their_state is h11.IDLE
            and not self.conn.trailing_data[0]
            and self.unread is None
        )

    def _answer(self, body: bytes | None) -> None:
        """Send the answer to the request that was taken, or have the application answer."""
        taken, self._taken = self._taken, None
        later, self._later = self._later, b""
        assert taken is not None, "answered once"
        assert self._plain is not None, "it is who answers"
        if self.transport.is_closing():
            return
        if body is None:
            super().data_received(taken)
        else:
            lines = [b"HTTP/1.1 200 OK\r\n"]
            lines += [b"%b: %b\r\n" % each for each in self.server_state.default_headers]
            lines += [self._plain.head, b"content-length: %d\r\n\r\n" % len(body), body]
            self.transport.write(b"".join(lines))
            self.server_state.total_requests += 1
            self.answered = SYSTEM_CLOCK.monotonic()
        if self._is_ending:
            self.shutdown()
        elif later:
            self.flow.resume_reading()
            self.data_received(later)

    def shutdown(self) -> None:
        if self._taken is None:
            super().shutdown()
        else:
            self._is_ending = True

    def due(self, accepted: float) -> float | None:
        """Return when the connection ends if nothing happens, None while a request is answered."""
        if self.unread is not None:
            return self.unread + KEEP_ALIVE
        if self._taken is not None:
            return None
        # uvicorn has no cycle before the first request, though it says otherwise
        if not getattr(self.cycle, "response_complete", True):
            return None
        if self.answered is None:
            return accepted + REQUEST_TIMEOUT
        return self.answered + KEEP_ALIVE

    def on_response_complete(self) -> None:
        self.answered = SYSTEM_CLOCK.monotonic()
        super().on_response_complete()

    def pause_writing(self) -> None:
        self.unread = SYSTEM_CLOCK.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:
        self.unread = None
        super().resume_writing()


def _own_family(address: str) -> str:
    """Return an address as proxies are named and logs have it: of IPv4 if it was reached by it."""
    try:
        mapped = IPv6Address(address).ipv4_mapped
    except ValueError:
        return address
    return address if mapped is None else str(mapped)


def _subject(certificate: dict[str, Any]) -> str:
    """Return the name in a verified certificate."""
    names = dict(pair for part in certificate.get("subject", ()) for pair in part)
    others = [name for _, name in certificate.get("subjectAltName", ())]
    return str(names.get("commonName") or (others[0] if others else "without a name"))


class _Door(socket.socket):
    """Listens, and keeps count of connections from the moment at which they are accepted.

    So those count, too, of which the TLS handshake does not come to an end. All methods are for the
    loop's thread. ``protocols`` has those with whom HTTP is spoken.
    """

    def __init__(self, listening: socket.socket, protocols: Collection[object]) -> None:
        super().__init__(fileno=listening.detach())
        self._protocols = protocols
        self._open: dict[socket.socket, float] = {}

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection, and close another one if there are too many.

        Raises:
            ConnectionAbortedError: all others are being answered.
        """
        connection, address = super().accept()
        self._open = {each: since for each, since in self._open.items() if each.fileno() >= 0}
        if len(self._open) >= MOST_CONNECTIONS:
            silent = self._silent()
            if not silent:
                connection.close()
                raise ConnectionAbortedError
            self._let_go(silent[0][0])
        self._open[connection] = SYSTEM_CLOCK.monotonic()
        return connection, address

    def close_silent(self) -> None:
        """Close connections that had the time for a request and did not send one."""
        now = SYSTEM_CLOCK.monotonic()
        for connection, due in self._silent():
            if due < now:
                self._let_go(connection)

    def _silent(self) -> list[tuple[socket.socket, float]]:
        """Return the connections that are not being answered, oldest first, and their ends."""
        spoken = {each.fileno: each for each in self._protocols if isinstance(each, _Protocol)}
        found = []
        for connection, accepted in self._open.items():
            protocol = spoken.get(connection.fileno())
            due = accepted + REQUEST_TIMEOUT if protocol is None else protocol.due(accepted)
            if due is not None:
                found.append((connection, due))
        return found

    def _let_go(self, connection: socket.socket) -> None:
        """Shut the connection down, so that the loop sees its end even if no answer is read."""
        del self._open[connection]
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


class _Server(uvicorn.Server):
    """Looks at connections and at its certificate now and then, on the loop's thread."""

    def __init__(
        self,
        app: ASGIApp,
        listening: socket.socket,
        certificate: ServerCertificate | None,
        trusted_proxies: Sequence[str],
        plain: PlainRequests | None,
    ) -> None:
        context = None if certificate is None else certificate.context
        super().__init__(_settings(app, context, trusted_proxies, plain))
        self._certificate = certificate
        self.door = _Door(listening, self.server_state.connections)

    async def on_tick(self, counter: int) -> bool:
        """Return whether the server stops; called ten times a second."""
        if counter % SILENCE_TICKS == 0:
            self.door.close_silent()
        if self._certificate is not None and counter % CERTIFICATE_TICKS == 0:
            self._certificate.reload()
        return await super().on_tick(counter)


def _settings(
    app: ASGIApp,
    context: ssl.SSLContext | None,
    trusted_proxies: Sequence[str],
    plain: PlainRequests | None,
) -> uvicorn.Config:
    """Return the server's settings; logs go where all of ours go, and accesses nowhere."""
    settings = uvicorn.Config(
        app,
        http=partial(_Protocol, plain=plain),  # type: ignore[arg-type]  # it is called, no more
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
        backlog=BACKLOG,
        timeout_keep_alive=int(KEEP_ALIVE),
        timeout_graceful_shutdown=GRACE,
    )
    settings.load()
    settings.ssl = context
    return settings
