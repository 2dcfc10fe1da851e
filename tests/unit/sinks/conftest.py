"""The sinks of two extensions, for what is common to sinks."""

from __future__ import annotations

from tests.unit.extensions.delta.conftest import folder, opened, sink
from tests.unit.extensions.sql.conftest import base, sinks

__all__ = ["base", "folder", "opened", "sink", "sinks"]
