from __future__ import annotations

import base64
import json
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import pytest

from headrace.config.models.registry import RegistryConfig
from headrace.formats.errors import RegistryError
from headrace.formats.registry import WAITS, SchemaRegistry, settings_of
from headrace.testing import FakeClock
from headrace.testing.registry import RegistryServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Seconds that an issued token lives.
LIFE = 100


class Issuer(ThreadingHTTPServer):
    """Issues a token with a number for each question; ``answer`` is one in place of it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.status = HTTPStatus.OK
        self.answer: object = None

    @property
    def url(self) -> str:
        """Return the address of tokens."""
        return f"http://127.0.0.1:{self.server_address[1]}/token"


class _Handler(BaseHTTPRequestHandler):
    server: Issuer

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        login = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
        self.server.asked.append((login, dict(parse_qsl(form))))
        said = self.server.answer
        if said is None:
            said = {"access_token": f"t{len(self.server.asked)}", "expires_in": LIFE}
        body = json.dumps(said).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        del format, args


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    """An issuer that answers."""
    with Issuer() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.05,))
        thread.start()
        yield made
        made.shutdown()
        thread.join(10)


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    """A registry with three schemas."""
    with RegistryServer() as made:
        for kind in ("long", "int", "string"):
            made.register("orders-value", json.dumps(kind))
        yield made


def client(server: RegistryServer, clock: FakeClock, **more: Any) -> SchemaRegistry:
    """Return a client with this in its section."""
    section = {"url": server.url, **more}
    return SchemaRegistry(settings_of(RegistryConfig.model_validate(section)), clock)


def credentials(issuer: Issuer) -> dict[str, Any]:
    """Return the login of a client."""
    secret = "s:/secret"
    return {"token_url": issuer.url, "client_id": "me", "client_secret": secret, "scope": "read"}


def test_a_token_is_fetched_and_kept_for_four_fifths_of_its_life(
    server: RegistryServer, issuer: Issuer
) -> None:
    """The grant has the client's name, its secret and the scope; a token is for many questions."""
    clock = FakeClock()
    registry = client(server, clock, oauth=credentials(issuer))
    server.login = "Bearer t1"
    registry.schema(1)
    clock.advance(0.79 * LIFE)
    registry.schema(2)
    assert issuer.asked == [
        ("me:s%3A%2Fsecret", {"grant_type": "client_credentials", "scope": "read"})
    ]
    clock.advance(0.02 * LIFE)
    server.login = "Bearer t2"
    registry.schema(3)
    assert len(issuer.asked) == 2


def test_another_token_is_fetched_where_one_was_refused(
    server: RegistryServer, issuer: Issuer
) -> None:
    """A token that the registry refuses makes the batch wait once, and is not sent again."""
    registry = client(server, FakeClock(), oauth=credentials(issuer))
    server.login = "Bearer t2"
    with pytest.raises(RegistryError, match="401"):
        registry.schema(1)
    assert registry.schema(1).text == '"long"'


@pytest.mark.parametrize(
    ("status", "answer", "words"),
    [
        (HTTPStatus.UNAUTHORIZED, {"error": "invalid_client"}, "401 Unauthorized: invalid_client"),
        (HTTPStatus.OK, {"token": "x"}, "200 OK: no access_token"),
        (HTTPStatus.OK, ["x"], "with what is no object of JSON: no access_token"),
        (HTTPStatus.OK, {"access_token": 5}, "no access_token"),
    ],
)
def test_an_issuer_without_a_token_makes_batches_wait(
    server: RegistryServer, issuer: Issuer, status: HTTPStatus, answer: object, words: str
) -> None:
    """The error says what the issuer answered, and has no secret."""
    issuer.status, issuer.answer = status, answer
    registry = client(server, FakeClock(), oauth=credentials(issuer))
    with pytest.raises(RegistryError, match=WAITS) as raised:
        registry.schema(1)
    assert issuer.url in str(raised.value)
    assert words in str(raised.value)
    assert "secret" not in str(raised.value)
    issuer.status, issuer.answer = HTTPStatus.OK, None
    assert registry.schema(1).text == '"long"'


def test_an_issuer_that_is_away_makes_batches_wait(server: RegistryServer, issuer: Issuer) -> None:
    """A refused connection is told with the issuer's address."""
    given = credentials(issuer) | {"token_url": "http://127.0.0.1:9/token"}
    with pytest.raises(RegistryError, match=r"no token now: http://127\.0\.0\.1:9/token: "):
        client(server, FakeClock(), oauth=given).schema(1)


def test_a_token_in_a_file_is_read_again(server: RegistryServer, tmp_path: Path) -> None:
    """A file that something else renews needs no reload, and one that is missing makes wait."""
    file = tmp_path / "token"
    registry = client(server, FakeClock(), oauth={"token_file": str(file)})
    with pytest.raises(RegistryError, match=r"registry\.oauth\.token_file: .*No such file"):
        registry.schema(1)
    for number, token in enumerate(("first", "second"), 1):
        file.write_text(f"{token}\n", encoding="ascii")
        server.login = f"Bearer {token}"
        assert registry.schema(number).number == number
    file.write_text("\n", encoding="ascii")
    with pytest.raises(RegistryError, match="is empty"):
        registry.schema(3)


def test_headers_are_sent_with_each_question(server: RegistryServer) -> None:
    """Headers of the section go along, as clusters with several registries ask for."""
    registry = client(server, FakeClock(), headers={"target-sr-cluster": "lsrc-1", "X-N": 5})
    assert registry.schema(1).number == 1
    (headers,) = server.headers
    assert (headers["target-sr-cluster"], headers["X-N"]) == ("lsrc-1", "5")
