"""A channel's configuration as it is now: a reload may bring another one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.extensions.keyed.section import StateProcessorConfig

if TYPE_CHECKING:
    from headrace.config import ChannelConfig


def state_settings(channel: ChannelConfig) -> StateProcessorConfig:
    """Return what the configuration of a channel with state says of its processor."""
    chosen = channel.processor
    assert isinstance(chosen, StateProcessorConfig), "another processor is another class"
    return chosen


class CurrentChannel:
    """The configuration of a channel with state. Any thread reads it, and sees the last one."""

    def __init__(self, channel: ChannelConfig) -> None:
        self._channel = channel

    def follow(self, channel: ChannelConfig) -> None:
        """Replace the configuration with ``channel``."""
        self._channel = channel

    @property
    def channel(self) -> ChannelConfig:
        """Return all of it."""
        return self._channel

    @property
    def settings(self) -> StateProcessorConfig:
        """Return the settings of the processor."""
        return state_settings(self._channel)

    @property
    def topic(self) -> str:
        """Return the topic that is read; of several the first, which names the changelog."""
        return self._channel.topics[0]

    @property
    def topics(self) -> tuple[str, ...]:
        """Return all topics that are read."""
        return self._channel.topics

    @property
    def group(self) -> str:
        """Return the group that reads it."""
        return self._channel.group
