"""A token that stands in a file, for clients that log in with OAUTHBEARER."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.core.clock import SYSTEM_CLOCK
from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: The property by which the Python client is given a callback for tokens.
TOKEN_CALLBACK = "oauth_cb"  # noqa: S105 - a property's name

#: What a token in the form of a JWT has between its dots.
_PARTS = 3


@dataclass(frozen=True, slots=True)
class TokenFile:
    """The callback of a client: reads the token again each time that one is wanted.

    librdkafka wants the next one when four fifths of a token's life are over, and 10 s after an
    error. It calls this on a thread of its own, so that clients need no poll for it.
    """

    path: Path
    extensions: Mapping[str, str]

    def __call__(self, _: str) -> tuple[str, float, str, dict[str, str]]:
        """Return the token, the seconds since 1970 at which it ends, its subject, extensions.

        Raises:
            ConfigError: the file cannot be read, or has no token that says when it ends, or one
                that has ended.
        """
        try:
            token = self.path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise self._fault(f"cannot be read: {error}") from error
        claims = self._claims(token)
        end, subject = claims.get("exp"), claims.get("sub")
        if not isinstance(end, (int, float)) or isinstance(end, bool):
            raise self._fault("has a token that does not say when it ends (exp)")
        if (over := SYSTEM_CLOCK.time() - end) >= 0:
            raise self._fault(
                f"has a token that ended {round(over)} s ago; see to what renews the file"
            )
        return token, float(end), subject if isinstance(subject, str) else "", dict(self.extensions)

    def _claims(self, token: str) -> Mapping[str, Any]:
        parts = token.split(".")
        if len(parts) != _PARTS:
            raise self._fault("holds no JWT")
        try:
            claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=="))
        except (binascii.Error, ValueError):
            # what it holds may be a secret, so its cause is not told either
            claims = None
        if not isinstance(claims, dict):
            raise self._fault("holds no JWT")
        return claims

    def _fault(self, what: str) -> ConfigError:
        return ConfigError([f"kafka.oauth.token_file: {self.path} {what}"])
