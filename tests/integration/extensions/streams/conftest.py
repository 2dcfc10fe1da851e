"""Sites on the shared servers, as for other daemons."""

from __future__ import annotations

from tests.integration.daemon.conftest import broker, site

__all__ = ["broker", "site"]
