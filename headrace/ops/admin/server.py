"""The application and the thread that serves the API."""

from __future__ import annotations

import os
import secrets
import socket
from functools import partial
from threading import Event, Thread
from typing import TYPE_CHECKING

import structlog
from fastapi import Depends, FastAPI
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer

from headrace.core.clock import SYSTEM_CLOCK, Clock, Deadline
from headrace.core.errors import StartError
from headrace.core.http_server import HttpServer, listen
from headrace.core.processes import ProcessRecord, forget
from headrace.ops.admin.auth import FULL, Certificate, Folder, Guard, Rules
from headrace.ops.admin.changes import Changes
from headrace.ops.admin.history import INTERVAL, Rates
from headrace.ops.admin.key_questions import KeyQuestions
from headrace.ops.admin.loglevels import LogLevels
from headrace.ops.admin.models import handle_errors
from headrace.ops.admin.page_files import SafeHeaders, page_routes
from headrace.ops.admin.reads import Reads
from headrace.ops.admin.rejects import FILE, Rejects
from headrace.ops.admin.status import StatusBuilder
from headrace.ops.admin.stores import StoreReads
from headrace.version import VERSION

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.config import AdminConfig
    from headrace.ops.admin.ports import Controller, Deployment, Process


_DESCRIPTION = """\
What a Headrace process is doing, and changes to it. Every change is a POST and takes the token, as
`Authorization: Bearer TOKEN`, or a client certificate. On loopback reading takes no token, but for
the configuration, the stacks, and states and rows by key; elsewhere it does, but for `/health`.
"""


def create_app(
    controller: Controller,
    process: Process,
    *,
    deployment: Deployment | None = None,
    rates: Rates,
    rules: Rules,
    log_levels: LogLevels,
    rejects: Rejects | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> FastAPI:
    """Return the application. It starts no thread and opens nothing.

    Without a ``deployment`` there is no reload. Without ``rejects`` what is acknowledged does not
    outlive the application.
    """
    # pages with documentation load their scripts from elsewhere
    app = FastAPI(
        title="Headrace",
        version=VERSION,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
    )
    app.add_api_route("/openapi.json", partial(_document, app), include_in_schema=False)
    handle_errors(app)
    # the guard has looked at the token by then: this is for the OpenAPI document
    bearer = Depends(HTTPBearer(auto_error=False, description="The token of the process."))
    if rejects is None:
        rejects = Rejects(None, controller, clock)
    builder = StatusBuilder(
        controller, process, deployment, rates=rates, rejects=rejects, clock=clock
    )
    changes = Changes(
        controller, process, deployment, log_levels=log_levels, rejects=rejects, clock=clock
    )
    reads = Reads(controller, process, builder, StoreReads(controller), clock)
    guarded = partial(rules.needs_proof, "GET")
    app.include_router(reads.router(bearer, guarded), tags=["look"])
    app.include_router(changes.router(dependencies=[bearer]), tags=["change"])
    app.router.routes.extend(page_routes())
    app.add_middleware(Guard, rules=rules)
    app.add_middleware(SafeHeaders)
    return app


def _document(app: FastAPI) -> JSONResponse:
    """Return the API's description. On a thread of the pool: making it takes more than a second."""
    return JSONResponse(app.openapi())


log = structlog.get_logger(__name__)

#: The port if the configuration names none and it is free.
DEFAULT_PORT = 9465

#: Seconds in which the server has to listen.
START_TIMEOUT = 10.0


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
        run_token = secrets.token_urlsafe(32)
        self._rates = Rates(controller, clock)
        self._rejects = Rejects(self._folder.path / FILE, controller, clock)
        self._log_levels = LogLevels()
        rules = Rules.of(config, token, run_token)
        app = create_app(
            controller,
            process,
            deployment=deployment,
            rates=self._rates,
            rules=rules,
            log_levels=self._log_levels,
            rejects=self._rejects,
            clock=clock,
        )
        certificate = None if config.tls is None else Certificate(config.tls)
        listening = _listen(config)
        self.port: int = listening.getsockname()[1]
        self.url = _url(config, self.port)
        #: The same for other machines, None where only this one gets through.
        self.public_url = public_url(config, self.port)
        self._server = HttpServer(
            app,
            listening,
            "admin",
            failed=_log_end,
            certificate=certificate,
            trusted_proxies=config.trusted_proxies,
            plain=KeyQuestions(StoreReads(controller), rules),
        )
        self._stopping = Event()
        self._sampling = Thread(target=self._sample, name="admin-rates", daemon=True)
        self._start(clock)
        self._records: list[Path] = []
        try:
            self._folder.write_address(self.url)
            self._records = self._leave_record(controller, process, run_token)
        except StartError:
            self.close(Deadline.after(START_TIMEOUT, clock))
            raise
        log.info("admin_served", url=self.url)

    def _leave_record(self, controller: Controller, process: Process, run_token: str) -> list[Path]:
        """Write the file that commands find the process by."""
        config = controller.config
        record = ProcessRecord.of_this_process(
            process.file,
            config.instance_id,
            self.url,
            run_token,
            None if config.admin.tls is None else config.admin.tls.certificate_file,
        )
        try:
            return record.leave(config.state_dir, os.environ)
        except OSError as error:
            if error.errno in FULL:
                folder = config.state_dir
                log.warning("admin_file_not_written", file=str(folder), error=error.strerror)
                return []
            raise StartError(
                f"no record can be left in {config.state_dir}: {error.strerror}; give the process "
                "a state_dir that it may write to"
            ) from error

    def _start(self, clock: Clock) -> None:
        self._sampling.start()
        if not self._server.start(Deadline.after(START_TIMEOUT, clock)):
            self._stopping.set()
            raise StartError(f"the admin API at {self.url} ended at once; the log says why")

    def close(self, deadline: Deadline) -> bool:
        """Answer what was asked, close all connections and end; False if that took too long."""
        self._folder.forget_address()
        forget(self._records)
        self._log_levels.close()
        self._stopping.set()
        served = self._server.close(deadline)
        if not (deadline.joined(self._sampling) and served):
            log.warning("admin_close_timed_out", url=self.url)
            return False
        return True

    def _sample(self) -> None:
        while True:
            try:
                self._rates.sample()
                self._rejects.sample()
            except Exception:
                log.exception("admin_sample_failed")
            if self._stopping.wait(INTERVAL):
                return


def _log_end(error: BaseException) -> None:
    log.error("admin_ended", exc_info=error)


def _listen(config: AdminConfig) -> socket.socket:
    ports = [DEFAULT_PORT, 0] if config.port is None else [config.port]
    for port in ports:
        try:
            return listen(config.host, port)
        except OSError as error:
            failure = error
    raise StartError(
        f"the admin API cannot be served on {config.host}:{ports[-1]}: {failure.strerror}; choose "
        "another admin.port, 0 for a free one, or admin.enabled: false"
    ) from failure


#: What listens on every address, and where this machine reaches it.
_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read, not bound


def _url(config: AdminConfig, port: int) -> str:
    return _at(config, _EVERYWHERE.get(config.host, config.host), port)


def public_url(config: AdminConfig, port: int) -> str | None:
    """Return where other machines reach an API, None where they do not."""
    if config.advertised_url is not None:
        return config.advertised_url.rstrip("/")
    if config.on_loopback:
        return None
    return _at(config, socket.getfqdn() if config.host in _EVERYWHERE else config.host, port)


def _at(config: AdminConfig, host: str, port: int) -> str:
    scheme = "http" if config.tls is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
