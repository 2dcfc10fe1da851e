"""URLs of databases, as SQLAlchemy has them. They may hold a password, so they never print."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, SecretStr, ValidationInfo

from headrace.config.kinds.base import refuse
from headrace.config.kinds.secrets import SecretText
from headrace.config.origin import origin_of

_SCHEME = re.compile(r"(?P<dialect>[a-z][a-z0-9_]*)(\+[a-z0-9_]+)?://")
_SQLITE_FILE = re.compile(r"sqlite(\+[a-z0-9_]+)?:///")


#: What stands behind the scheme, as SQLAlchemy reads it.
_AUTHORITY = re.compile(
    r"(?:[^:/]*(?::(?P<password>[^@]*))?@)?(?:\[[^/?]+\]|[^/:?]*)(?::(?P<port>[^/?]*))?"
)
_HIGHEST_PORT = 65535

_KIND = SecretText("a URL such as postgresql+psycopg://user@host/database")


def _checked(url: SecretStr, info: ValidationInfo) -> SecretStr:
    """Return the URL; a relative file of SQLite starts from the configuration's folder."""
    text = url.get_secret_value()
    if _SCHEME.match(text) is None:
        raise _KIND.not_accepted()
    port = _authority(text)["port"]
    if port and not (port.isdecimal() and int(port) <= _HIGHEST_PORT):
        raise refuse(f"has a port that is not a whole number from 0 to {_HIGHEST_PORT}")
    match = _SQLITE_FILE.match(text)
    file = text[match.end() :] if match else ""
    if match is None or file.startswith(("/", "file:", ":", "?")) or not file:
        return url
    folder = PurePosixPath(origin_of(info).folder)
    return SecretStr(f"{match[0]}{folder / file}")


def _authority(text: str) -> re.Match[str]:
    _, _, rest = text.partition("://")
    match = _AUTHORITY.match(rest)
    assert match is not None, "each part of it may be missing"
    return match


def has_own_password(url: SecretStr) -> bool:
    """Whether the URL says a password."""
    return bool(_authority(url.get_secret_value())["password"])


def scheme_of(url: SecretStr) -> str:
    """Return the name of the dialect, which is no secret."""
    match = _SCHEME.match(url.get_secret_value())
    assert match is not None, "the URL was checked"
    return match["dialect"]


DatabaseUrl = Annotated[SecretStr, _KIND, AfterValidator(_checked)]
