"""The event-group collector: one outcome for all the answers that a group waits for.

docs/collector.md is the guide. ``Collector`` is the ``factory`` of a keyed channel, ``group_of``
its ``key``.
"""

from __future__ import annotations

from headrace.apps.collector.collector import Collector
from headrace.apps.collector.events import group_of

__all__ = ["Collector", "group_of"]
