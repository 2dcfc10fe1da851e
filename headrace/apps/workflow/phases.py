"""The phases of an instance, and which of them follow each other."""

from __future__ import annotations

from enum import Enum


class InstancePhase(Enum):
    """The phase that an instance's state is in, as it is written there."""

    OPEN = "open"
    """Its term goes on."""

    FAILING = "failing"
    """A call has failed for good; those that are open are waited for."""

    CLOSED = "closed"
    """It has an outcome; it is remembered for a while, to know late answers."""


#: What may follow a phase.
NEXT: dict[InstancePhase, frozenset[InstancePhase]] = {
    InstancePhase.OPEN: frozenset({InstancePhase.FAILING, InstancePhase.CLOSED}),
    InstancePhase.FAILING: frozenset({InstancePhase.CLOSED}),
    InstancePhase.CLOSED: frozenset(),
}
