"""The environment of a channel's parts: its name, settings, metrics, clock, and a way to fail."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.channel.settings import Backoff, LiveSettings
    from headrace.config import ChannelConfig
    from headrace.core.clock import Clock
    from headrace.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class ChannelEnvironment:
    """The same for all parts of one channel. ``fail`` stops the whole channel, on any thread."""

    name: str
    settings: LiveSettings
    metrics: Metrics
    clock: Clock
    fail: Callable[[BaseException], None]

    @property
    def config(self) -> ChannelConfig:
        """Return the channel's configuration at this moment."""
        return self.settings.config

    @property
    def backoff(self) -> Backoff:
        """Return how long to wait before something is tried again, as configured at this moment."""
        return self.settings.now.backoff
