"""A schema registry over HTTP on loopback, for tests: what readers use of Confluent's API."""

from __future__ import annotations

import json
import re
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from typing import Self

_BY_ID = re.compile(r"/schemas/ids/(\d+)")
_BY_VERSION = re.compile(r"/subjects/([^/]+)/versions/(latest|\d+)")
_REGISTER = re.compile(r"/subjects/([^/]+)/versions")
_LOOK_UP = re.compile(r"/subjects/([^/]+)")


class RegistryServer:
    """A registry in memory. Any thread; ``with`` starts and stops it.

    ``port`` 0 is any free one. ``asked`` has the paths of all questions. Where ``status`` is set,
    each question is answered with it, and where ``login`` is set, only those that have it in their
    header ``Authorization`` are answered otherwise than by 401.
    """

    def __init__(self, port: int = 0) -> None:
        self.asked: list[str] = []
        self.status: HTTPStatus | None = None
        self.login: str | None = None
        self._schemas: dict[int, dict[str, Any]] = {}
        self._subjects: dict[str, list[int]] = {}
        self._lock = threading.Lock()
        self._port = port
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Open its port; after a stop, the same one."""
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), _handler(self))
        self._server.daemon_threads = True
        self._port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def stop(self) -> None:
        """Refuse connections from now on; what is registered stays."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(10)
            self._server = None

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://127.0.0.1:{self._port}"

    def register(self, subject: str, schema: str, **more: Any) -> int:
        """Return the id of a schema, registered as the subject's next version if it is a new one.

        ``more`` may have ``schemaType`` and ``references``.
        """
        entry = {"schema": schema, **more}
        with self._lock:
            number = next((n for n, each in self._schemas.items() if each == entry), None)
            if number is None:
                number = len(self._schemas) + 1
                self._schemas[number] = entry
            versions = self._subjects.setdefault(subject, [])
            if number not in versions:
                versions.append(number)
            return number

    def answer(self, method: str, path: str, body: bytes) -> tuple[HTTPStatus, dict[str, Any]]:
        """Return the answer to a question."""
        self.asked.append(path)
        path = urlsplit(path).path
        if self.status is not None:
            return self.status, {"error_code": self.status * 100 + 1, "message": "as was set"}
        if match := _BY_ID.fullmatch(path):
            found = self._schemas.get(int(match[1]))
            return (HTTPStatus.OK, found) if found else _missing(40403, "Schema not found")
        if match := _BY_VERSION.fullmatch(path):
            return self._version(unquote(match[1]), match[2])
        if method == "POST" and (match := _REGISTER.fullmatch(path) or _LOOK_UP.fullmatch(path)):
            given = {key: value for key, value in json.loads(body).items() if value}
            number = self.register(unquote(match[1]), **given)
            versions = self._subjects[unquote(match[1])]
            entry = {"id": number, "version": versions.index(number) + 1, "subject": match[1]}
            return HTTPStatus.OK, {**self._schemas[number], **entry}
        return HTTPStatus.NOT_FOUND, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _version(self, subject: str, version: str) -> tuple[HTTPStatus, dict[str, Any]]:
        numbers = self._subjects.get(subject)
        if numbers is None:
            return _missing(40401, f"Subject '{subject}' not found.")
        place = len(numbers) if version == "latest" else int(version)
        if not 0 < place <= len(numbers):
            return _missing(40402, "Version not found.")
        number = numbers[place - 1]
        entry = {"subject": subject, "version": place, "id": number}
        return HTTPStatus.OK, {**self._schemas[number], **entry}


def _missing(code: int, message: str) -> tuple[HTTPStatus, dict[str, Any]]:
    return HTTPStatus.NOT_FOUND, {"error_code": code, "message": message}


def _handler(registry: RegistryServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers one question."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

        def _answer(self, body: bytes) -> None:
            if registry.login not in {None, self.headers.get("Authorization")}:
                status, said = HTTPStatus.UNAUTHORIZED, {"error_code": 401, "message": "no login"}
            else:
                status, said = registry.answer(self.command, self.path, body)
            text = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            del format, args

    return Handler
