"""The thread that serves the API."""

from __future__ import annotations

import socket
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import structlog
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from headrace.admin.access import Rules
from headrace.admin.app import create_app
from headrace.admin.certificate import Certificate
from headrace.admin.loglevels import LogLevels
from headrace.admin.rates import INTERVAL, Rates
from headrace.admin.tokens import Folder
from headrace.clock import SYSTEM_CLOCK, Clock, Deadline
from headrace.errors import StartError

if TYPE_CHECKING:
    import ssl
    from asyncio import Transport

    from fastapi import FastAPI

    from headrace.admin.ports import Controller, Deployment, Process
    from headrace.config import AdminConfig

log = structlog.get_logger(__name__)

#: The port where the configuration names none and nobody else has it.
DEFAULT_PORT = 9465

#: Requests that are served at a time, which bounds threads and memory.
MOST_REQUESTS = 64

#: Seconds until a connection that says nothing is closed.
KEEP_ALIVE = 30

#: Tenths of a second between two looks at the certificate, which may have been renewed.
LOOK_TICKS = 50

#: Seconds in which the server has to listen.
START_TIMEOUT = 10.0

#: Seconds that requests have at the end, out of those that a stop has.
GRACE = 2


class AdminServer:
    """Serves the API from its construction to ``close``; both are for the owner.

    Raises:
        StartError: the address cannot be bound, or a file of the section cannot be used.
    """

    def __init__(
        self,
        controller: Controller,
        process: Process,
        deployment: Deployment | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        config = controller.config.admin
        self._folder = Folder.of(controller.config)
        token = self._folder.token() if config.token is None else config.token.get_secret_value()
        self._rates = Rates(controller, clock)
        self._log_levels = LogLevels()
        app = create_app(
            controller,
            process,
            deployment=deployment,
            rates=self._rates,
            rules=Rules.of(config, token),
            log_levels=self._log_levels,
            clock=clock,
        )
        certificate = None if config.tls is None else Certificate(config.tls)
        listening = _listen(config)
        self.port: int = listening.getsockname()[1]
        self.url = _url(config, self.port)
        self._server = _Server(app, certificate)
        self._stopping = Event()
        self._threads = [
            Thread(target=self._serve, args=[listening], name="admin", daemon=True),
            Thread(target=self._sample, name="admin-rates", daemon=True),
        ]
        self._start(clock)
        try:
            self._folder.write_address(self.url)
        except StartError:
            self.close(Deadline.after(START_TIMEOUT, clock))
            raise
        log.info("admin_served", url=self.url)

    def _start(self, clock: Clock) -> None:
        for thread in self._threads:
            thread.start()
        deadline = Deadline.after(START_TIMEOUT, clock)
        while not self._server.started and not deadline.expired:
            if not self._threads[0].is_alive():
                raise StartError(f"the admin API at {self.url} ended at once; the log says why")
            self._stopping.wait(0.01)

    def close(self, deadline: Deadline) -> bool:
        """Answer what was asked, close all connections and end; False if that took too long."""
        self._folder.forget_address()
        self._log_levels.close()
        self._stopping.set()
        self._server.should_exit = True
        for thread in self._threads:
            thread.join(deadline.remaining)
        if any(thread.is_alive() for thread in self._threads):
            log.warning("admin_close_overran", url=self.url)
            return False
        return True

    def _serve(self, listening: socket.socket) -> None:
        try:
            self._server.run(sockets=[listening])
        except (Exception, SystemExit):
            log.exception("admin_ended")

    def _sample(self) -> None:
        while True:
            try:
                self._rates.sample()
            except Exception:
                log.exception("admin_sample_failed")
            if self._stopping.wait(INTERVAL):
                return


class _Protocol(H11Protocol):
    """HTTP that tells the application whose certificate the client showed."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Begin with a connection."""
        super().connection_made(transport)
        self.loop.call_later(KEEP_ALIVE, self._look, None)
        certificate = transport.get_extra_info("peercert")
        if certificate:
            self.app_state = {**self.app_state, "subject": _subject(certificate)}

    def _look(self, seen: object) -> None:
        """Close the connection where no request has come since the last look, nor is answered.

        uvicorn begins to count behind the first answer only, and each connection takes a place.
        """
        cycle = self.cycle
        if self.transport.is_closing():
            return
        # uvicorn has no cycle before the first request, though it says otherwise
        if cycle is seen and getattr(cycle, "response_complete", True):
            self.transport.close()
            return
        self.loop.call_later(KEEP_ALIVE, self._look, cycle)


def _subject(certificate: dict[str, Any]) -> str:
    """Return the name in a verified certificate."""
    names = dict(pair for part in certificate.get("subject", ()) for pair in part)
    others = [name for _, name in certificate.get("subjectAltName", ())]
    return str(names.get("commonName") or (others[0] if others else "without a name"))


class _Server(uvicorn.Server):
    """Looks at its certificate now and then, on the thread that makes connections."""

    def __init__(self, app: FastAPI, certificate: Certificate | None) -> None:
        super().__init__(_settings(app, None if certificate is None else certificate.context))
        self._certificate = certificate

    async def on_tick(self, counter: int) -> bool:
        """Go on, ten times a second, until the end."""
        if self._certificate is not None and counter % LOOK_TICKS == 0:
            self._certificate.look()
        return await super().on_tick(counter)


def _settings(app: FastAPI, context: ssl.SSLContext | None) -> uvicorn.Config:
    """Return the server's settings; logs go where all of ours go, and accesses nowhere."""
    settings = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="off",
        loop="asyncio",
        log_config=None,
        access_log=False,
        server_header=False,
        limit_concurrency=MOST_REQUESTS,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
    )
    settings.load()
    settings.ssl = context
    return settings


def _listen(config: AdminConfig) -> socket.socket:
    ports = [DEFAULT_PORT, 0] if config.port is None else [config.port]
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    for port in ports:
        try:
            return socket.create_server((config.host, port), family=family)
        except OSError as error:
            failure = error
    raise StartError(
        f"the admin API cannot be served on {config.host}:{ports[-1]}: {failure.strerror}; choose "
        "another admin.port, 0 for a free one, or admin.enabled: false"
    ) from failure


def _url(config: AdminConfig, port: int) -> str:
    scheme = "http" if config.tls is None else "https"
    # what listens everywhere is reached by the loopback
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)  # noqa: S104 - read, not bound
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
