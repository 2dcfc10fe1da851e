"""A schema registry over HTTP on loopback, for tests: what is used of Confluent's API."""

from __future__ import annotations

import json
import re
import threading
import uuid
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from headrace.core.files import write_whole

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from io import BufferedIOBase
    from pathlib import Path
    from typing import Self

_BY_GUID = re.compile(r"/schemas/guids/([0-9a-f-]+)")
_BY_ID = re.compile(r"/schemas/ids/(\d+)")
_BY_VERSION = re.compile(r"/subjects/([^/]+)/versions/(latest|\d+)")
_REGISTER = re.compile(r"/subjects/([^/]+)/versions")
_LOOK_UP = re.compile(r"/subjects/([^/]+)")


class RegistryServer:
    """A registry in memory. Any thread; ``with`` starts and stops it.

    ``file`` keeps what is registered for the next one, None: nothing does. ``port`` 0 is any free
    one. ``tls`` is for https. ``asked`` has the paths of all questions, and ``headers`` has
    theirs. Where ``status`` is set, each question is answered with it, and where ``login`` is set,
    only those that have it in their header ``Authorization`` are answered otherwise than by 401.
    Where ``refusal`` is set, no new schema is registered, for that reason. Where ``body`` is set,
    answers have these bytes, whatever was asked. ``pause`` is the seconds
    before each byte of an answer. ``stopped`` is set while connections are refused.
    """

    def __init__(
        self, port: int = 0, file: Path | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.asked: list[str] = []
        self.headers: list[Mapping[str, str]] = []
        self.status: HTTPStatus | None = None
        self.login: str | None = None
        self.refusal: str | None = None
        self.body: bytes | None = None
        self.pause = 0.0
        self._schemas: dict[int, dict[str, Any]] = {}
        self._subjects: dict[str, list[int]] = {}
        self._lock = threading.Lock()
        self._file = file
        self._tls = tls
        if file is not None and file.exists():
            kept = json.loads(file.read_text(encoding="utf-8"))
            self._schemas = {int(number): each for number, each in kept["schemas"].items()}
            self._subjects = kept["subjects"]
        self._port = port
        self.stopped = threading.Event()
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Open its port; after a stop, the same one."""
        self.stopped.clear()
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), _handler(self))
        self._server.daemon_threads = True
        if self._tls is not None:
            plain = self._server.socket
            self._server.socket = self._tls.wrap_socket(plain, server_side=True)
        self._port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def stop(self) -> None:
        """Refuse connections from now on; what is registered stays."""
        self.stopped.set()
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(10)
            self._server = None

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http{'' if self._tls is None else 's'}://127.0.0.1:{self._port}"

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
            if self._file is not None:
                kept = {"schemas": self._schemas, "subjects": self._subjects}
                write_whole(self._file, json.dumps(kept))
            return number

    def guid(self, number: int) -> str:
        """Return the GUID of the schema of this id: the same one wherever it is registered."""
        text = json.dumps(self._schemas[number], sort_keys=True)
        return str(uuid.uuid5(uuid.NAMESPACE_URL, text))

    def answer(self, method: str, path: str, body: bytes) -> tuple[HTTPStatus, dict[str, Any]]:
        """Return the answer to a question."""
        self.asked.append(path)
        path = urlsplit(path).path
        if self.status is not None:
            return self.status, {"error_code": self.status * 100 + 1, "message": "as was set"}
        if match := _BY_ID.fullmatch(path) or _BY_GUID.fullmatch(path):
            found = next((s for n, s in self._schemas.items() if match[1] in self._names(n)), None)
            return (HTTPStatus.OK, found) if found else _missing(40403, "Schema not found")
        if match := _BY_VERSION.fullmatch(path):
            return self._version(unquote(match[1]), match[2])
        if method == "POST" and (match := _REGISTER.fullmatch(path)):
            return self._posted(unquote(match[1]), _schema_in(body), is_new=True)
        if method == "POST" and (match := _LOOK_UP.fullmatch(path)):
            return self._posted(unquote(match[1]), _schema_in(body), is_new=False)
        return HTTPStatus.NOT_FOUND, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _posted(
        self, subject: str, given: dict[str, Any], *, is_new: bool
    ) -> tuple[HTTPStatus, dict[str, Any]]:
        """Return the version of a schema in a subject, which is registered where it is new."""
        versions = self._subjects.get(subject, [])
        number = next((each for each in versions if self._schemas[each] == given), None)
        if number is None and is_new:
            if self.refusal is not None:
                return HTTPStatus.CONFLICT, {"error_code": 409, "message": self.refusal}
            number = self.register(subject, **given)
        if number is None:
            if subject in self._subjects:
                return _missing(40403, "Schema not found")
            return _missing(40401, f"Subject '{subject}' not found.")
        place = self._subjects[subject].index(number) + 1
        return HTTPStatus.OK, self._registered(number, {"version": place, "subject": subject})

    def _version(self, subject: str, version: str) -> tuple[HTTPStatus, dict[str, Any]]:
        numbers = self._subjects.get(subject)
        if numbers is None:
            return _missing(40401, f"Subject '{subject}' not found.")
        place = len(numbers) if version == "latest" else int(version)
        if not 0 < place <= len(numbers):
            return _missing(40402, "Version not found.")
        number = numbers[place - 1]
        return HTTPStatus.OK, self._registered(number, {"subject": subject, "version": place})

    def _names(self, number: int) -> tuple[str, str]:
        return str(number), self.guid(number)

    def _registered(self, number: int, entry: dict[str, Any]) -> dict[str, Any]:
        return {**self._schemas[number], "id": number, "guid": self.guid(number), **entry}


def _schema_in(body: bytes) -> dict[str, Any]:
    return {key: value for key, value in json.loads(body).items() if value}


def _missing(code: int, message: str) -> tuple[HTTPStatus, dict[str, Any]]:
    return HTTPStatus.NOT_FOUND, {"error_code": code, "message": message}


def _trickle(registry: RegistryServer, out: BufferedIOBase, text: bytes) -> None:
    for byte in text:
        if registry.stopped.wait(registry.pause):
            break
        try:
            out.write(bytes([byte]))
        except OSError:  # the client gave up
            break


def _handler(registry: RegistryServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers one question."""

        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(b"")

        def do_POST(self) -> None:
            self._answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

        def _answer(self, body: bytes) -> None:
            registry.headers.append(dict(self.headers))
            if registry.login not in {None, self.headers.get("Authorization")}:
                status, said = HTTPStatus.UNAUTHORIZED, {"error_code": 401, "message": "no login"}
            else:
                status, said = registry.answer(self.command, self.path, body)
            text = json.dumps(said).encode() if registry.body is None else registry.body
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if registry.pause:
                _trickle(registry, self.wfile, text)
                self.close_connection = True
            else:
                self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            del format, args

    return Handler
