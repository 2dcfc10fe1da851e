"""What keeps all partitions of a channel from delivery: pause reasons, and a silent ZooKeeper."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event, Lock


class Pauses:
    """Why a channel is paused: a set, so that one resume ends only its own pause.

    Safe on any thread.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._reasons: set[str] = set()

    @property
    def active(self) -> bool:
        """Whether there is any reason."""
        return bool(self._reasons)

    @property
    def reasons(self) -> frozenset[str]:
        """The reasons at this moment."""
        with self._lock:
            return frozenset(self._reasons)

    def add(self, reason: str) -> None:
        """Pause for ``reason``; again for the same one changes nothing."""
        with self._lock:
            self._reasons.add(reason)

    def remove(self, reason: str) -> None:
        """End the pause for ``reason``; delivery rests on while others remain."""
        with self._lock:
            self._reasons.discard(reason)


@dataclass(frozen=True, slots=True)
class Gates:
    """The gates that every delivery of a channel passes. Safe on any thread."""

    pauses: Pauses = field(default_factory=Pauses)
    suspended: Event = field(default_factory=Event)
