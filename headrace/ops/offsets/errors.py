"""The errors of commands that change offsets or state."""

from __future__ import annotations

from headrace.core.errors import HeadraceError


class ChannelRunningError(HeadraceError):
    """A member consumes in the channel's group. Nothing was changed."""
