"""Questions to the stores of a running topology, as programs and people ask them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection


class KeyQuestion(NamedTuple):
    """Keys, and of their windows those from ``since`` on and before ``until``, in milliseconds.

    What counts is the start of tumbling and hopping windows, and the end of others.
    """

    keys: Collection[bytes]
    since: int | None = None
    until: int | None = None


class PageQuestion(NamedTuple):
    """The first ``limit`` rows from ``first`` on whose keys begin with ``prefix``.

    ``window`` is the one time whose windows are wanted, as of :class:`KeyQuestion`. ``first`` is
    what the page before said, and belongs to the same prefix and window.
    """

    prefix: bytes = b""
    window: int | None = None
    first: bytes = b""
    limit: int = 100
