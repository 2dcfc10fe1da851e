"""The errors of the local stack; every message ends with the next step."""

from __future__ import annotations

from headrace.core.errors import HeadraceError


class LocalStackError(HeadraceError):
    """The local stack, or one of its servers, cannot do what was asked."""


class PortTakenError(LocalStackError):
    """Another process took the server's port first; another port would do."""
