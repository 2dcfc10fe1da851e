"""What keeps all partitions of a channel from delivery: pause reasons, and a silent ZooKeeper."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Event

from headrace.channel.pauses import Pauses


@dataclass(frozen=True, slots=True)
class Gates:
    """The gates that every delivery of a channel passes. Safe on any thread."""

    pauses: Pauses = field(default_factory=Pauses)
    suspended: Event = field(default_factory=Event)
