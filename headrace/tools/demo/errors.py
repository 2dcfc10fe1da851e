"""What can go wrong with the demo itself; every message ends with the next step."""

from __future__ import annotations

from headrace.core.errors import HeadraceError


class DemoError(HeadraceError):
    """The demo cannot run, or did not come to its end."""
