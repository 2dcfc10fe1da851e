"""Bearer tokens for the registry: as configured, from a file, or from a server that issues them.

Errors of theirs have no secret.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote_plus

from headrace.core.errors import RetryableError
from headrace.formats.answers import ask

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.core.clock import Clock

#: The share of a token's life after which another one is fetched, as librdkafka has it.
_SHARE = 0.8

#: Seconds that a token is kept whose answer does not say how long it lives.
_UNSAID = 60.0


class Tokens(Protocol):
    """A source of tokens. Any thread."""

    def token(self) -> str:
        """Return one that should be good now. May block.

        Raises:
            RetryableError: there is none.
        """

    def drop(self) -> None:
        """Fetch another one next time: this one was refused."""


@dataclass(frozen=True, slots=True)
class FixedToken:
    """A token that stays the same."""

    text: str = field(repr=False)

    def token(self) -> str:
        """Return it."""
        return self.text

    def drop(self) -> None:
        """Keep it: there is no other."""


@dataclass(frozen=True, slots=True)
class FileToken:
    """A token that stands in a file, which is read each time."""

    file: Path

    def token(self) -> str:
        """Return what the file has.

        Raises:
            RetryableError: it cannot be read, or has none.
        """
        try:
            found = self.file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise RetryableError(f"registry.oauth.token_file: {self.file}: {error}") from error
        if not found:
            raise RetryableError(f"registry.oauth.token_file: {self.file} is empty")
        return found

    def drop(self) -> None:
        """Keep nothing: the file is read again anyway."""


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """The address of tokens, and what it asks for."""

    url: str
    client: str
    secret: str = field(repr=False)
    scope: str | None = None
    ca_file: Path | None = None
    timeout: float = 10.0


class IssuedToken:
    """Tokens by the grant of client credentials. Each is kept for four fifths of its life."""

    def __init__(self, credentials: ClientCredentials, clock: Clock) -> None:
        self._credentials = credentials
        self._clock = clock
        self._lock = threading.Lock()
        self._kept = ""
        self._until = float("-inf")

    def token(self) -> str:
        """Return the one that is kept, or another one. Blocks while that is fetched.

        Raises:
            RetryableError: the server does not answer, or refuses.
        """
        with self._lock:
            if self._clock.monotonic() >= self._until:
                self._fetch()
            return self._kept

    def drop(self) -> None:
        """Fetch another one next time."""
        with self._lock:
            self._until = float("-inf")

    def _fetch(self) -> None:
        import ssl  # noqa: PLC0415 - few channels have a registry

        import httpx  # noqa: PLC0415 - few channels have a registry

        chosen = self._credentials
        form = {"grant_type": "client_credentials"}
        if chosen.scope is not None:
            form["scope"] = chosen.scope
        # RFC 6749 has both encoded as in a form
        login = httpx.BasicAuth(quote_plus(chosen.client), quote_plus(chosen.secret))
        try:
            trust = ssl.create_default_context(cafile=chosen.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise RetryableError(f"registry.oauth.ca_file: {chosen.ca_file}: {error}") from error
        try:
            with httpx.Client(auth=login, timeout=chosen.timeout, verify=trust) as client:
                began = self._clock.monotonic()
                answer = ask(client, chosen.url, chosen.timeout, form=form)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RetryableError(f"{chosen.url}: {str(error) or type(error).__name__}") from error
        said = answer.said or {}
        token = said.get("access_token")
        if not answer.is_success or not isinstance(token, str) or not token.isascii():
            reason = said.get("error") if isinstance(said.get("error"), str) else "no access_token"
            raise RetryableError(f"{chosen.url} answered {answer}: {reason}")
        life = _UNSAID
        with suppress(TypeError, ValueError):
            life = float(said.get("expires_in", _UNSAID))
        self._kept, self._until = token, began + life * _SHARE
