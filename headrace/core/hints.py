"""Suggestions of known names for an unknown one."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def did_you_mean(names: Iterable[str], known: Collection[str]) -> str:
    """Return ``; did you mean …?`` with the known name next to each, "" where none is near."""
    near = {match for name in names for match in get_close_matches(name, known, n=1)}
    return f"; did you mean {' and '.join(sorted(near))}?" if near else ""
