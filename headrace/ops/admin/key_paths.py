"""Keys in the paths of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    from collections.abc import Mapping


def place_of_key(key: str) -> tuple[str, Mapping[str, str]]:
    """Return a key as a request's path has it, and what its query says of that.

    Dots alone are taken for folders by clients and proxies, escaped ones as well, and lines for the
    ends of names: such keys are given by the digits of their bytes.
    """
    if key in {".", ".."} or not key.isprintable():
        return key.encode("utf-8", "surrogateescape").hex(), {"hex": "true"}
    return quote(key, safe=""), {}


def is_text(path: bytes) -> bool:
    """Return whether what is escaped in a path is UTF-8."""
    try:
        unquote(path.decode("ascii"), errors="strict")
    except UnicodeDecodeError:
        return False
    return True
