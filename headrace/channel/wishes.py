"""What a channel asks of its group: how partitions are shared, and of which topics."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from headrace.coordinators.factory import member_info, pace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.config import ChannelConfig
    from headrace.coordinators.coordinator import Coordinator


class Wishes:
    """Tells the coordinator both together, whichever of them changed. Any thread; never blocks."""

    def __init__(self, config: ChannelConfig, coordinator: Coordinator) -> None:
        self._config = config
        self._coordinator = coordinator
        self._topics = frozenset(config.subscription.names)
        self._lock = Lock()

    def topics_are(self, counts: Mapping[str, int]) -> None:
        """Ask for partitions of these topics, which have so many each."""
        with self._lock:
            self._topics = frozenset(counts)
            self._coordinator.update(member_info(self._config, self._topics))
            self._coordinator.set_partitions(counts)

    def share_as(self, config: ChannelConfig) -> None:
        """Have partitions shared as ``config.coordinator`` says."""
        with self._lock:
            self._config = config
            self._coordinator.update(member_info(config, self._topics), pace(config))
