"""The fields of every section that has tokens of OAuth 2.0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from headrace.config.errors import FieldConflict
from headrace.config.models.base import OnlyWith, Reconnects, Section
from headrace.config.types.scalars import FreeText, LocalPath, Text
from headrace.config.types.secrets import SecretValue

if TYPE_CHECKING:
    from collections.abc import Iterator

TokenUrl = Annotated[
    str, Text("an address such as https://login.example/oauth2/token", r"https?://[^\s/@]+(/\S*)?")
]


class OauthTokens(Section):
    """Tokens of OAuth 2.0: fetched with client credentials, or read from a file."""

    only: ClassVar = dict.fromkeys(
        ("client_id", "client_secret", "scope", "ca_file"),
        (OnlyWith.none_of("token_url", None, example="token_url"),),
    )

    token_url: Reconnects[TokenUrl | None] = None
    """The address of tokens, for the grant of client credentials; null: token_file has one."""

    client_id: Reconnects[FreeText | None] = None
    """The name of the process at token_url."""

    client_secret: Reconnects[SecretValue | None] = None
    """The secret of client_id."""

    scope: Reconnects[FreeText | None] = None
    """The scope that is asked for; null: the one that token_url gives by itself."""

    ca_file: Reconnects[LocalPath | None] = None
    """The certificates that token_url is trusted by, in PEM form; null: those of the system."""

    token_file: Reconnects[LocalPath | None] = None
    """A file with the token itself, which something else renews, as Kubernetes does."""

    def conflicts(self) -> Iterator[FieldConflict]:
        if self.token_url is None and self.token_file is None:
            yield FieldConflict((), "says no token; give token_url, or token_file")
        elif self.token_url is not None and self.token_file is not None:
            yield FieldConflict(
                ("token_file",), "has a token, and so has token_url; leave one of them out"
            )
        for name in ("client_id", "client_secret"):
            if self.token_url is not None and getattr(self, name) is None:
                yield FieldConflict((name,), "is missing, which token_url asks for")
