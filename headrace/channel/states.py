"""The states of a channel and of an owned partition, and which may follow which."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ChannelState(Enum):
    """The state of a channel."""

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
    """The outcome of a stop. ``left`` names what was unfinished at the deadline; empty is clean."""

    left: tuple[str, ...]

    @property
    def clean(self) -> bool:
        """Return whether everything was finished, committed and given back."""
        return not self.left


class PartitionState(Enum):
    """The state of an owned partition. It is in exactly one of these at any time."""

    STARTING = "starting"
    """Claimed; its start position is being read and committed."""

    WAITING = "waiting"
    """Nothing to do: no full batch yet, or ``max_in_flight`` batches are out."""

    BACKING_OFF = "backing_off"
    """Held back until a due time, after an error or because the processor asked for it."""

    RUNNING = "running"
    """A worker thread is inside one of its callbacks."""

    SUSPENDED = "suspended"
    """The lease is not confirmed: nothing is delivered or committed until it is."""

    PAUSED = "paused"
    """Held on to, but delivery rests until every pause reason is gone."""

    RELEASING = "releasing"
    """To be given back: fetching has ended, outstanding batches are answered and committed."""

    TERMINATING = "terminating"
    """``on_stream_termination`` was called; what it advanced is being committed."""

    TERMINATED = "terminated"
    """Released in an orderly way. Final."""

    LOST = "lost"
    """The claim ended without an orderly release. Final."""


S = PartitionState

_ACTIVE = frozenset({S.WAITING, S.BACKING_OFF, S.RUNNING, S.SUSPENDED, S.PAUSED})

#: From each state, the states that may follow. TERMINATED and LOST are final.
TRANSITIONS: dict[PartitionState, frozenset[PartitionState]] = {
    S.STARTING: frozenset({S.WAITING, S.SUSPENDED, S.TERMINATED, S.LOST}),
    S.WAITING: _ACTIVE | {S.RELEASING, S.LOST},
    S.BACKING_OFF: _ACTIVE | {S.RELEASING, S.LOST},
    S.RUNNING: _ACTIVE | {S.RELEASING, S.LOST},
    S.SUSPENDED: frozenset({S.STARTING, S.WAITING, S.PAUSED, S.LOST}),
    S.PAUSED: _ACTIVE | {S.RELEASING, S.LOST},
    S.RELEASING: frozenset({S.TERMINATING, S.LOST}),
    S.TERMINATING: frozenset({S.TERMINATED, S.LOST}),
    S.TERMINATED: frozenset(),
    S.LOST: frozenset(),
}

FINAL = frozenset({S.TERMINATED, S.LOST})

#: Being given back: nothing is delivered any more.
ENDING = frozenset({S.RELEASING, S.TERMINATING})


class EndReason(Enum):
    """The reason a partition has to end. The members' order is their strength: it only rises."""

    NONE = 0
    """It goes on."""

    RELEASE = 1
    """The coordinator gives it to another member, or the channel stops."""

    LOST = 2
    """The claim is gone: session expired, lease over, or the node was taken away."""

    ABANDONED = 3
    """A worker hung in its callback past the deadline, so that nothing of it may take effect."""
