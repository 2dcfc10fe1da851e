"""The errors that users of workflows meet, and those that a process may raise for a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.core.errors import HeadraceError, StartError

if TYPE_CHECKING:
    from collections.abc import Mapping


class DefinitionError(StartError):
    """A workflow cannot be started as it is defined: the text says where, and what to do."""


class WorkflowFailedError(HeadraceError):
    """An instance has failed. ``outcome`` is its record, with all errors of its calls."""

    def __init__(self, outcome: Mapping[str, Any]) -> None:
        super().__init__(
            f"instance {outcome.get('instance')} of {outcome.get('definition')} failed at "
            f"{outcome.get('ref')}: {outcome.get('msg')}"
        )
        self.outcome = outcome


class NoOutcomeError(HeadraceError, TimeoutError):
    """An instance had no outcome by the deadline; it may have one later."""


class CallFailedError(HeadraceError):
    """A process cannot do what it was called for, and no further attempt would: raised by it."""
