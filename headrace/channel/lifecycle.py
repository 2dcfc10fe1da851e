"""The states of a channel, and what its end leaves to say."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ChannelState(Enum):
    """What a channel is doing."""

    NEW = "new"
    """Built; it has no thread and no claim."""

    STARTING = "starting"
    """Its processor gets ready and its topics are looked up, or are already; nothing is claimed."""

    RUNNING = "running"
    """A member of its group."""

    STOPPING = "stopping"
    """Giving its partitions back."""

    STOPPED = "stopped"
    """Gone from the group, every thread ended. Final."""

    FAILED = "failed"
    """Something happened after which it must not go on; it still has to be stopped."""


CHANNEL_TRANSITIONS: dict[ChannelState, frozenset[ChannelState]] = {
    ChannelState.NEW: frozenset({ChannelState.STARTING, ChannelState.STOPPED}),
    ChannelState.STARTING: frozenset(
        {ChannelState.RUNNING, ChannelState.STOPPING, ChannelState.FAILED}
    ),
    ChannelState.RUNNING: frozenset({ChannelState.STOPPING, ChannelState.FAILED}),
    ChannelState.FAILED: frozenset({ChannelState.STOPPING}),
    ChannelState.STOPPING: frozenset({ChannelState.STOPPED}),
    ChannelState.STOPPED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class StopReport:
    """How a stop ended. ``left`` names what was not finished by the deadline; empty is clean."""

    left: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Whether everything was finished, committed and given back."""
        return not self.left
