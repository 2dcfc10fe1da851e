"""The issuer of tokens on loopback: OAuth 2.0 for client credentials, and keys to verify them.

It signs with RS256 and serves ``/token``, ``/jwks`` and ``/.well-known/openid-configuration``. Its
key and its client's secret stay in its folder, so tokens outlive a restart of the issuer.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote_plus

import httpx

from headrace.core.extras import Extra, required
from headrace.core.files import write_whole
from headrace.core.processes import python_command
from headrace.devstack.server import LOOPBACK, LocalServer, free_port

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.core.clock import Deadline

#: The one client, which is the user of the brokers too, and whom tokens are for.
CLIENT, AUDIENCE = "headrace", "kafka"

_KEY, _SECRET = "key.json", "client-secret"
_TOKEN, _KEYS, _ABOUT = "/token", "/jwks", "/.well-known/openid-configuration"
_GRANT = "client_credentials"

#: Bytes of a request that is read at the most.
_MOST = 16_384


class TokenIssuer(LocalServer):
    """The issuer, whose tokens live so many seconds."""

    def __init__(self, directory: Path, *, port: int | None = None, seconds: int) -> None:
        super().__init__("issuer", directory)
        self.port = free_port() if port is None else port
        self._seconds = seconds

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def url(self) -> str:
        """Return its own name in tokens."""
        return f"http://{self.address}"

    @property
    def token_url(self) -> str:
        """Return the address at which clients fetch tokens."""
        return f"{self.url}{_TOKEN}"

    @property
    def keys_url(self) -> str:
        """Return the address at which brokers fetch the keys."""
        return f"{self.url}{_KEYS}"

    @property
    def secret_file(self) -> Path:
        """Return the file with the client's secret."""
        return self.directory / _SECRET

    def prepare(self) -> None:
        """Make the key and the secret, unless they are there.

        Raises:
            StartError: what signs tokens is not installed.
        """
        with required(Extra.TOKENS, "an issuer of tokens"):
            from joserfc.jwk import RSAKey  # noqa: PLC0415 - an extra
        self.directory.mkdir(parents=True, exist_ok=True)
        if not self.secret_file.exists():
            write_whole(self.secret_file, f"{secrets.token_urlsafe(24)}\n")
        if not (self.directory / _KEY).exists():
            key = RSAKey.generate_key(2048, {"use": "sig", "alg": "RS256"}, auto_kid=True)
            write_whole(self.directory / _KEY, json.dumps(key.as_dict(private=True)))

    def _command(self, deadline: Deadline) -> list[str]:
        del deadline
        self.prepare()
        return python_command(
            "import pathlib; from headrace.devstack.issuer import serve; "
            "serve(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))",
            str(self.directory),
            str(self.port),
            str(self._seconds),
        )

    def _answers(self, seconds: float) -> bool:
        try:
            return httpx.get(self.keys_url, timeout=seconds, trust_env=False).is_success
        except httpx.HTTPError:
            return False


def serve(directory: Path, port: int, seconds: int) -> None:
    """Serve what the folder has, until the process ends."""
    from joserfc.jwk import RSAKey  # noqa: PLC0415 - an extra

    secret = (directory / _SECRET).read_text(encoding="ascii").strip()
    key = RSAKey.import_key(json.loads((directory / _KEY).read_text(encoding="utf-8")))
    with _Server(port, key, secret, seconds) as server:
        server.serve_forever()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, key: Any, secret: str, seconds: int) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.url = f"http://{LOOPBACK}:{port}"
        self.key = key
        self.secret = secret
        self.seconds = seconds

    def token(self) -> str:
        """Return a signed token that begins now."""
        from joserfc import jwt  # noqa: PLC0415 - an extra

        now = int(time.time())
        claims = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": CLIENT,
            "scope": AUDIENCE,
            "iat": now,
            "exp": now + self.seconds,
            "jti": secrets.token_hex(8),
        }
        return jwt.encode({"alg": "RS256", "kid": self.key.kid}, claims, self.key)

    def about(self) -> dict[str, object]:
        """Return what OpenID Connect has clients find the rest by."""
        return {
            "issuer": self.url,
            "token_endpoint": f"{self.url}{_TOKEN}",
            "jwks_uri": f"{self.url}{_KEYS}",
            "grant_types_supported": [_GRANT],
            "token_endpoint_auth_methods_supported": ["client_secret_basic", "client_secret_post"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    #: Seconds that a connection may be silent.
    timeout = 30

    def do_GET(self) -> None:
        if self.path == _KEYS:
            self._answer(HTTPStatus.OK, {"keys": [self.server.key.as_dict(private=False)]})
        elif self.path == _ABOUT:
            self._answer(HTTPStatus.OK, self.server.about())
        else:
            self._answer(HTTPStatus.NOT_FOUND, {"error": "not_found"})

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MOST:
            self.close_connection = True
            self._answer(HTTPStatus.BAD_REQUEST, {"error": "invalid_request"})
            return
        form = parse_qs(self.rfile.read(int(length)).decode("utf-8", "replace"))
        given = {name: values[0] for name, values in form.items()}
        if self.path != _TOKEN:
            self._answer(HTTPStatus.NOT_FOUND, {"error": "not_found"})
        elif given.get("grant_type") != _GRANT:
            self._answer(HTTPStatus.BAD_REQUEST, {"error": "unsupported_grant_type"})
        elif not self._is_client(given):
            self._answer(HTTPStatus.UNAUTHORIZED, {"error": "invalid_client"})
        else:
            document = {
                "access_token": self.server.token(),
                "token_type": "Bearer",
                "expires_in": self.server.seconds,
            }
            self._answer(HTTPStatus.OK, document)

    def _is_client(self, given: dict[str, str]) -> bool:
        """Return whether the client says its name and secret, in the header or in the form."""
        name, secret = given.get("client_id", ""), given.get("client_secret", "")
        kind, _, encoded = self.headers.get("Authorization", "").partition(" ")
        if kind.lower() == "basic":
            try:
                text = base64.b64decode(encoded, validate=True).decode()
            except (binascii.Error, ValueError):
                return False
            name, _, secret = (unquote_plus(part) for part in text.partition(":"))
        right = hmac.compare_digest(secret.encode(), self.server.secret.encode())
        return name == CLIENT and right

    def _answer(self, status: HTTPStatus, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)
