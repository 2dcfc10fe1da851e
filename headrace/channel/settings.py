"""What a channel runs with now: its configuration, and what its parts read from that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.channel.buffer import Limits
from headrace.channel.failures import Backoff

if TYPE_CHECKING:
    from headrace.config import ChannelConfig


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """One configuration, and values derived from it that are read for every batch."""

    config: ChannelConfig
    limits: Limits
    max_in_flight: int
    backoff: Backoff

    @classmethod
    def of(cls, config: ChannelConfig) -> ChannelSettings:
        """Derive the values."""
        batch, on_error = config.batch, config.on_error
        return cls(
            config,
            Limits(batch.max_records, batch.max_bytes, batch.linger),
            config.max_in_flight,
            Backoff(on_error.backoff, on_error.max_backoff),
        )


class LiveSettings:
    """Where the parts of a channel find its settings whenever they need them.

    Read on any thread; who reads ``now`` once has values that belong together. Replaced by the
    channel only.
    """

    __slots__ = ("now",)

    def __init__(self, config: ChannelConfig) -> None:
        self.now = ChannelSettings.of(config)

    def replace(self, config: ChannelConfig) -> None:
        """Go on with ``config``."""
        self.now = ChannelSettings.of(config)

    @property
    def config(self) -> ChannelConfig:
        """The configuration at this moment."""
        return self.now.config
