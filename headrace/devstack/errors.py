"""What can go wrong with the local stack; every message ends with the next step."""

from __future__ import annotations

from headrace.core.errors import HeadraceError


class LocalStackError(HeadraceError):
    """The local stack, or one of its servers, cannot do what was asked."""


class JavaMissingError(LocalStackError):
    """No Java of the needed version was found on this machine."""


class JarsError(LocalStackError):
    """Jars could not be fetched, or are not the ones that this version of Headrace pins."""


class ServerStartError(LocalStackError):
    """A server process ended, or did not answer, before its deadline."""


class PortTakenError(ServerStartError):
    """Another process took the server's port first; another port would do."""
