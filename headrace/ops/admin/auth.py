"""Access to the API: tokens, certificates, and rules by address.

In ``<state_dir>/<instance_id>/`` lie ``admin.json`` with the address, while the API is served, and
``admin-token``, readable by its owner alone, where the configuration names no token. That one is
made at the first start and stays, so that what was given to a script works after a restart; who
deletes it gets another one at the next start.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
import json
import os
import re
import secrets
import socket
import ssl
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog
from starlette.datastructures import Headers

from headrace.config.models.admin import SHORTEST_TOKEN
from headrace.core.errors import StartError
from headrace.core.files import digest, write_whole
from headrace.ops.admin.key_paths import is_text
from headrace.ops.admin.models import ApiError, internal_error
from headrace.ops.admin.page_files import FOLDER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from headrace.config import AdminConfig, AdminTls, Config


TOKEN_FILE = "admin-token"  # noqa: S105 - the name of a file
ADDRESS_FILE = "admin.json"

#: What a disk says that has no room, or none for this user.
FULL = (errno.ENOSPC, errno.EDQUOT)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Address:
    """The URL of an API, and the id of the process that serves it."""

    url: str
    pid: int


@dataclass(frozen=True, slots=True)
class Folder:
    """The process's folder."""

    path: Path

    @classmethod
    def of(cls, config: Config) -> Folder:
        """Return the folder of a configuration's process."""
        return cls(Path(config.state_dir) / config.instance_id)

    @property
    def token_file(self) -> Path:
        """Return where a token that was made is."""
        return self.path / TOKEN_FILE

    @property
    def address_file(self) -> Path:
        """Return where the address is."""
        return self.path / ADDRESS_FILE

    def token(self) -> str:
        """Return the token that was made, or make one of 256 random bits. Blocks for a file.

        Raises:
            StartError: the file cannot be read or written.
        """
        known = self.read_token()
        if known is not None:
            return known
        token = secrets.token_urlsafe(32)
        self._write(self.token_file, f"{token}\n")
        return token

    def read_token(self) -> str | None:
        """Return the token that was made, None where there is none.

        Raises:
            StartError: the file cannot be read.
        """
        try:
            text = self.token_file.read_text(encoding="utf-8").strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise StartError(
                f"{self.token_file} cannot be read: {error}; use the process's own user, or delete "
                "the file to have another one made"
            ) from error
        return text if len(text) >= SHORTEST_TOKEN else None

    def write_address(self, url: str) -> None:
        """Write the API's address to a file. Blocks for as long as that takes.

        On a full disk it is left out, and logged.

        Raises:
            StartError: the file cannot be written.
        """
        self._write(self.address_file, json.dumps({"url": url, "pid": os.getpid()}))

    def forget_address(self) -> None:
        """Remove what this process said, but not what a later one did."""
        found = self.read_address()
        if found is not None and found.pid == os.getpid():
            with suppress(OSError):
                self.address_file.unlink(missing_ok=True)

    def read_address(self) -> Address | None:
        """Return where the API is served, None where no address is set."""
        try:
            found = json.loads(self.address_file.read_text(encoding="utf-8"))
            return Address(str(found["url"]), int(found["pid"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _write(self, file: Path, text: str) -> None:
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(file, text)
        except OSError as error:
            if error.errno in FULL:
                # the process does without; it is there to be asked why no more is stored
                log.warning("admin_file_not_written", file=str(file), error=error.strerror)
                return
            raise StartError(
                f"{file} cannot be written: {error.strerror}; give the process a state_dir that it "
                "may write to"
            ) from error


class Certificate:
    """The TLS context of connections, made from the files that ``admin.tls`` names.

    Raises:
        StartError: a file cannot be used.
    """

    def __init__(self, config: AdminTls) -> None:
        self._config = config
        self._seen = self._digests()
        self.context = _context(config)

    def reload(self) -> None:
        """Reload certificate and key if their files have changed.

        For the thread that makes connections: no other may touch a context in use. Blocks for
        as long as it takes to read two small files. Connections go on with what they began with.
        """
        found = self._digests()
        if found == self._seen:
            return
        self._seen = found
        try:
            # a key that does not fit would leave a context without any, so another one tries it
            _context(self._config)
            _load(self.context, self._config)
        except StartError as error:
            log.error("admin_certificate_refused", error=str(error))  # noqa: TRY400 - the reason says it all
        else:
            log.info("admin_certificate_renewed", file=str(self._config.certificate_file))

    def _digests(self) -> tuple[str, str]:
        return digest(self._config.certificate_file), digest(self._config.key_file)


def _context(config: AdminTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, config)
    try:
        if config.client_ca_file is not None:
            context.load_verify_locations(config.client_ca_file)
            context.verify_mode = ssl.CERT_OPTIONAL
    except (OSError, ssl.SSLError) as error:
        raise _unusable(error) from error
    return context


def _load(context: ssl.SSLContext, config: AdminTls) -> None:
    password = config.key_password
    try:
        context.load_cert_chain(
            config.certificate_file,
            config.key_file,
            # an empty one, because None has OpenSSL ask on the terminal
            "" if password is None else password.get_secret_value(),
        )
    except (OSError, ssl.SSLError) as error:
        raise _unusable(error) from error


def _unusable(error: Exception) -> StartError:
    return StartError(f"admin.tls cannot be used: {error}; check its files and key_password")


#: Requests that are answered at a time, which bounds threads and memory.
MOST_REQUESTS = 64

#: What is answered however many other requests wait: it asks for no thread and blocks on nothing.
UNCOUNTED_PATHS = frozenset({"/health/live", "/health/ready"})

#: Bytes of the largest body that is read. What is asked for takes a few hundred.
LARGEST_BODY = 64 * 1024

#: Seconds in which a body has to be there.
BODY_TIMEOUT = 10.0

#: What everybody may read who gets through to the port: what probes ask, and the status page,
#: which has no data of its own.
OPEN_PATHS = frozenset({"/", "/health/live", "/health/ready"})

#: What is read with a token only, also on loopback: more than any user of the machine should see.
GUARDED_READS = frozenset({"/api/v1/config", "/api/v1/stacks"})

#: The same of states by key, of topologies' rows and of taps, which have what records brought.
_RECORDS = re.compile(
    r"/api/v1/(channels/[^/]+/(state(/.*)?|tap)|topologies/[^/]+/stores/.*)", re.DOTALL
)


def is_guarded_read(path: str) -> bool:
    """Return whether reading this takes the token everywhere."""
    return path in GUARDED_READS or _RECORDS.fullmatch(path) is not None


_READING = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request. ``proof`` is nothing, the token, or a certificate's subject."""

    address: str
    proof: str

    @property
    def host(self) -> str:
        """Return the address without the port, which differs for each connection."""
        return self.address.rpartition(":")[0] or self.address


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of access. ``open_reads``: reading takes no token.

    ``hosts`` are the names, in lower case, under which the API may be asked besides addresses.
    ``run_token`` lets in as ``token`` does, for as long as the process runs: its commands have it.
    """

    token: str
    open_reads: bool
    hosts: frozenset[str]
    run_token: str | None = None

    @classmethod
    def of(cls, config: AdminConfig, token: str, run_token: str | None = None) -> Rules:
        """Return the rules of a configuration.

        On loopback everybody on the machine may read what a process does, as they may read its
        name in the process list; elsewhere only who has the token or a certificate.
        """
        own = socket.gethostname()
        names = {"localhost", own, socket.getfqdn(own) if not config.on_loopback else own}
        hosts = {*names, config.host, *config.allowed_hosts}
        if config.advertised_url is not None:
            hosts.add(urlsplit(config.advertised_url).hostname or "")
        lower = frozenset(name.lower() for name in hosts)
        return cls(token, config.on_loopback, lower, run_token)

    def needs_proof(self, method: str, path: str) -> bool:
        """Return whether this takes a token or a certificate."""
        if method not in _READING:
            return True
        if path in OPEN_PATHS or path.startswith(FOLDER):
            return False
        return is_guarded_read(path) or not self.open_reads

    def check_host(self, headers: Headers) -> None:
        """Refuse names through which a foreign page may have been resolved to this address.

        An address in place of a name can be nothing but what the client connected to.

        Raises:
            ApiError: the name is none of ours.
        """
        host = headers.get("host", "")
        name = _name_of(host).lower()
        if name in self.hosts or _is_address(name):
            return
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            "host_not_allowed",
            f"the API is not served under the name {name or '(none)'}",
            value=host,
            next_step="ask by address, or add the name to admin.allowed_hosts",
        )

    def check_origin(self, headers: Headers, scheme: str) -> None:
        """Refuse requests that a page of another site sends.

        Raises:
            ApiError: the page is not the API's own.
        """
        origin = headers.get("origin")
        if origin is None or origin.lower() == f"{scheme}://{headers.get('host', '')}".lower():
            return
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            "origin_not_allowed",
            "pages of other sites may not use the API",
            value=origin,
            next_step="send the request without an Origin, or from the API's own page",
        )

    def identify(self, headers: Headers, subject: str | None) -> str | None:
        """Return the certificate or token that lets the caller in, None where nothing does."""
        if subject is not None:
            return f"certificate {subject}"
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = token.strip().encode("utf-8", "surrogateescape")
        if scheme.lower() != "bearer":
            return None
        known = [token.encode() for token in (self.token, self.run_token) if token is not None]
        return "token" if any(hmac.compare_digest(given, each) for each in known) else None


class Guard:
    """The outermost layer: only requests that keep the rules reach the endpoints."""

    def __init__(self, app: ASGIApp, rules: Rules) -> None:
        self._app = app
        self._rules = rules
        self._answering = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer with the refusal."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False
        place = ExitStack()
        # whatever is read can be asked for without its body; the server keeps the length
        is_head = scope["method"] == "HEAD"

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            # the answer is there: how fast the client reads it is its own affair
            place.close()
            if is_head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            await send(message)

        try:
            receive = await self._admit(scope, receive)
            with place:
                place.enter_context(self._occupy_place(scope["path"]))
                asked = {**scope, "method": "GET", "is_head": True} if is_head else scope
                await self._app(asked, receive, noting)
        except ApiError as error:
            self._log_refusal(scope, error)
            await error.response()(scope, receive, send)
        except Exception:
            log.exception("admin_request_failed", method=scope["method"], path=scope["path"])
            if not started:
                await internal_error().response()(scope, receive, send)

    @contextmanager
    def _occupy_place(self, path: str) -> Iterator[None]:
        """Occupy one of the places for requests while the block runs.

        Raises:
            ApiError: all are taken.
        """
        if path in UNCOUNTED_PATHS:
            yield
            return
        if self._answering >= MOST_REQUESTS:
            raise ApiError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "too_many_requests",
                f"{self._answering} requests are being answered already",
                next_step="ask again when those are answered; /health answers meanwhile",
                headers={"Retry-After": "1"},
            )
        self._answering += 1
        try:
            yield
        finally:
            self._answering -= 1

    async def _admit(self, scope: Scope, receive: Receive) -> Receive:
        headers = Headers(scope=scope)
        _check_path(scope)
        self._rules.check_host(headers)
        self._rules.check_origin(headers, scope["scheme"])
        proof = self._rules.identify(headers, scope.get("state", {}).get("subject"))
        if proof is None and self._rules.needs_proof(scope["method"], scope["path"]):
            raise _unauthorised(headers)
        client = scope.get("client")
        address = "unknown" if client is None else f"{client[0]}:{client[1]}"
        scope["caller"] = Caller(address, proof or "nothing")
        if scope["method"] in _READING:
            return receive
        return await _limit_body(headers, receive)

    @staticmethod
    def _log_refusal(scope: Scope, error: ApiError) -> None:
        client = scope.get("client") or ("unknown",)
        log.warning(
            "admin_request_refused",
            method=scope["method"],
            path=scope["path"],
            address=client[0],
            error=error.problem.error,
        )


def _check_path(scope: Scope) -> None:
    """Refuse what would be asked for under another name than the request has.

    Raises:
        ApiError: what is escaped in the path is no text.
    """
    path = scope.get("raw_path") or b""
    if b"%" in path and not is_text(path):
        raise ApiError(
            HTTPStatus.BAD_REQUEST,
            "invalid_path",
            "what is escaped in the path is not UTF-8",
            value=path.decode("ascii"),
            next_step="name a key whose bytes are no text by their hexadecimal digits, and add "
            "hex=true",
        )


def _unauthorised(headers: Headers) -> ApiError:
    shown = "authorization" in headers
    return ApiError(
        HTTPStatus.UNAUTHORIZED,
        "wrong_token" if shown else "token_missing",
        "the token is not the process's" if shown else "this takes a token",
        next_step="send the header Authorization: Bearer TOKEN; it is admin.token or stands in "
        "the file admin-token of the process's folder in state_dir",
        headers={"WWW-Authenticate": "Bearer"},
    )


async def _limit_body(headers: Headers, receive: Receive) -> Receive:
    """Read the body, within its limits, and return what hands it on."""
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:10]) > LARGEST_BODY:
        raise _too_large()
    try:
        body = await asyncio.wait_for(_body(receive), BODY_TIMEOUT)
    except TimeoutError:
        raise ApiError(
            HTTPStatus.REQUEST_TIMEOUT,
            "body_too_slow",
            f"the body was not there within {BODY_TIMEOUT:g} s",
            next_step="send the request again",
        ) from None
    handed = False

    async def replay() -> Message:
        nonlocal handed
        if handed:
            return await receive()
        handed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _cut_off()
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > LARGEST_BODY:
            raise _too_large()
        more = message.get("more_body", False)
    return b"".join(parts)


def _cut_off() -> ApiError:
    return ApiError(
        HTTPStatus.BAD_REQUEST,
        "body_cut_off",
        "the connection ended before the body did; nothing was changed",
        next_step="send the request again",
    )


def _too_large() -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        "body_too_large",
        f"the body is larger than {LARGEST_BODY} bytes",
        next_step="send what /openapi.json describes, which is shorter",
    )


def _name_of(host: str) -> str:
    """Return a Host header's name or address, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
