"""The phases of an instance, and of each Try in it, and which of them follow each other."""

from __future__ import annotations

from enum import Enum


class ScopePhase(Enum):
    """The phase that an instance or a Try is in, as it is written in the instance's state."""

    OPEN = "open"
    """Its term goes on."""

    FAILING = "failing"
    """Something in it has failed for good; calls that are open are waited for."""

    UNDOING = "undoing"
    """Its done calls are undone, the last one first."""

    CATCHING = "catching"
    """The term that takes a failure goes on; of a Try only."""

    CLOSED = "closed"
    """The instance has an outcome; it is remembered for a while, to know late answers. Of a Try
    there is no record any more.
    """


#: What may follow a phase.
NEXT: dict[ScopePhase, frozenset[ScopePhase]] = {
    ScopePhase.OPEN: frozenset({ScopePhase.FAILING, ScopePhase.CLOSED}),
    ScopePhase.FAILING: frozenset({ScopePhase.UNDOING, ScopePhase.CATCHING, ScopePhase.CLOSED}),
    ScopePhase.UNDOING: frozenset({ScopePhase.CATCHING, ScopePhase.CLOSED}),
    ScopePhase.CATCHING: frozenset({ScopePhase.CLOSED}),
    ScopePhase.CLOSED: frozenset(),
}
