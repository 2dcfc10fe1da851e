"""Instances that are chosen by definition, phase, age and arguments."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.apps.workflow.reducer import phase_of

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The phases of instances that have an outcome.
FINISHED = frozenset({"completed", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Selection:
    """The conditions on instances; what is None or empty takes all.

    ``definition`` is a workflow's ``name``, of any version, or ``name@version``. ``older_than`` are
    the seconds since the instance was started. ``args`` are the texts that arguments have to be, or
    their JSON; an instance has its arguments while it is open. ``limit`` takes the oldest.
    """

    definition: str | None = None
    phases: frozenset[str] = frozenset()
    older_than: float | None = None
    args: Mapping[str, str] = field(default_factory=dict)
    limit: int | None = None

    def takes(self, state: Mapping[str, Any], now: float) -> bool:
        """Return whether an instance with a state is one of them. ``now`` is in seconds."""
        known = state["definition"]
        if self.definition not in {None, known, known.partition("@")[0]}:
            return False
        if self.phases and phase_of(state).name not in self.phases:
            return False
        if self.older_than is not None and state["started"] / 1000 > now - self.older_than:
            return False
        given = state["args"] if isinstance(state["args"], dict) else {}
        return all(name in given and _is(given[name], text) for name, text in self.args.items())

    def unfinished(self, states: Mapping[str, Mapping[str, Any]], now: float) -> list[str]:
        """Return those of some instances that it takes and that have no outcome, oldest first."""
        ages = sorted((state["started"], name) for name, state in states.items())
        taken = (name for _, name in ages if self.takes(states[name], now))
        return [name for name in taken if phase_of(states[name]).name not in FINISHED][: self.limit]


def _is(value: Any, text: str) -> bool:
    """Return whether an argument is what a text says, as it is or as JSON."""
    return text in {value if isinstance(value, str) else None, json.dumps(value)}
