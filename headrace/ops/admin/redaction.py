"""Masking of the parts of records that are not to be shown: ``admin.redact``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headrace.config.errors import MASK

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.core.letter_headers import Header


class Redaction:
    """Masks what the configuration names: ``key``, ``value``, ``value.a.b``, ``headers.name``."""

    def __init__(self, fields: Sequence[str]) -> None:
        self._whole = frozenset(fields)
        self._steps = [each.split(".")[1:] for each in fields if each.startswith("value.")]

    def key(self, data: bytes | None) -> bytes | None:
        """Return a record's key."""
        return self._masked("key", data)

    def headers(self, headers: Iterable[Header]) -> list[Header]:
        """Return its headers."""
        return [(name, self._masked(f"headers.{name}", data)) for name, data in headers]

    def value(self, data: bytes | None) -> bytes | None:
        """Return its value. One that is no JSON is masked whole where a part of it is to be."""
        value = self._masked("value", data)
        if value is None or not self._steps or "value" in self._whole:
            return value
        try:
            document = json.loads(value)
        except (ValueError, RecursionError):
            return MASK.encode()
        for steps in self._steps:
            _mask(document, steps)
        return json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")

    def _masked(self, field: str, data: bytes | None) -> bytes | None:
        return MASK.encode() if data is not None and field in self._whole else data


def _mask(document: Any, steps: Sequence[str]) -> None:
    """Mask a member of objects, in each item of lists on the way."""
    match document:
        case list():
            for each in document:
                _mask(each, steps)
        case dict() if steps[0] in document:
            if steps[1:]:
                _mask(document[steps[0]], steps[1:])
            else:
                document[steps[0]] = MASK
