"""The reducer of workflows: the key is an instance, its state how far its term has got."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.apps.workflow.definitions import Compiled, load_workflows
from headrace.apps.workflow.errors import DefinitionError
from headrace.apps.workflow.instance import (
    ASSIGNMENTS,
    FREE,
    HISTORY,
    OUTCOMES,
    RESULTS,
    Instance,
)
from headrace.apps.workflow.messages import CANCELLED, EVENT_RESULT, TERMINATED
from headrace.apps.workflow.phases import ScopePhase
from headrace.extensions.keyed.codecs import to_json
from headrace.keyed import Event, Fired, Output, Phase, Phases, Timer, batched

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Milliseconds for which a closed instance is remembered.
_KEEP = 600_000

#: Bytes that a row and an output may have, where the channel does not say.
_MAX_ROW, _MAX_OUTPUT = 512 << 10, 1_000_000


def Workflow(  # noqa: N802 - a factory, named as a configuration names one
    *, workflows: str, history: bool = False, keep: str = "10m"
) -> WorkflowReducer:
    """Return the reducer of the workflows that an import path names.

    ``history`` has it write an instance's state after each step; ``keep`` is for how long a closed
    instance is remembered, a duration such as ``10m``.

    Raises:
        ImportPathError, DefinitionError: the workflows cannot be imported, or cannot be started.
        ValueError: ``keep`` is no duration.
    """
    from headrace.config.types.units import (  # noqa: PLC0415 - no worker needs pydantic for it
        parse_duration,
    )

    given: object = keep
    seconds = parse_duration(given) if isinstance(given, str) else None
    if seconds is None:
        raise ValueError(f"keep is {keep!r}; it has to be a duration such as 30s or 10m")
    compiled = load_workflows(workflows).check()
    return WorkflowReducer(compiled, history=history, keep=round(seconds * 1000))


#: How an attempt may end that is not open any more. A result that comes after its attempt's time
#: was over is counted as ``answered_late``, and the attempt that is open then as cancelled.
_OUTCOMES = ("returned", "failed", "timed_out", "cancelled")


#: What a closed instance counts as, by its outcome, where it has not failed.
_ENDS = {EVENT_RESULT: "completed", CANCELLED: "cancelled", TERMINATED: "cancelled"}


def phase_of(state: Mapping[str, Any]) -> Phase:
    """Return what an instance counts as in metrics and status."""
    is_closed = ScopePhase(state["phase"]) is ScopePhase.CLOSED
    name = _ENDS.get(state["outcome"], "failed") if is_closed else state["phase"]
    ended = state.get("attempts", {})
    passed = state["counts"]
    late = passed.get("answered_late", 0)
    return Phase(
        name,
        None if is_closed else state["started"],
        (len(state["called"]),),
        (
            1,
            name == "completed",
            name == "failed",
            name == "cancelled",
            state["calls"],
            *[ended.get(each, 0) for each in _OUTCOMES],
            late,
            sum(passed.values()) - late,
        ),
    )


@batched
@dataclass(frozen=True, slots=True)
class WorkflowReducer:
    """Applies starts, answers and time-outs to instances. ``keep`` is in milliseconds.

    ``max_row`` and ``max_output`` are the bytes that the channel lets a state and an output have.

    Raises:
        DefinitionError: a term would take too much of a state.
    """

    definitions: Mapping[str, Compiled]
    history: bool = False
    keep: int = _KEEP
    max_row: int = _MAX_ROW
    max_output: int = _MAX_OUTPUT

    phases: ClassVar[Phases] = Phases(
        phase_of,
        ("open", "failing", "undoing", "completed", "failed", "cancelled"),
        ("calls_in_flight",),
        (
            "instances_started",
            "instances_completed",
            "instances_failed",
            "instances_cancelled",
            "attempts",
            *(f"attempts_{each}" for each in _OUTCOMES),
            "answered_late",
            "passed_over",
        ),
    )

    def __post_init__(self) -> None:
        most = self.state_room // 2
        for each in self.definitions.values():
            size = len(to_json(each.term))
            if size > most:
                raise DefinitionError(
                    f"workflow {each.id}: its term has {size} bytes, and {most} are allowed; "
                    "make what is large an argument, or raise state.max_row"
                )

    def with_limits(self, *, max_row: int, max_output: int) -> WorkflowReducer:
        """Return the reducer for a channel with these limits."""
        return replace(self, max_row=max_row, max_output=max_output)

    @property
    def state_room(self) -> int:
        """Return the bytes that the state of an open instance may have: that of a failing one has
        errors.
        """
        most = min(self.max_row, self.max_output) if self.history else self.max_row
        return most - most // FREE

    @property
    def value_room(self) -> int:
        """Return the most bytes of a call's or an instance's arguments or result."""
        return self.max_output - self.max_output // FREE

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the outputs that the channel has to have."""
        return ASSIGNMENTS, RESULTS, OUTCOMES, *((HISTORY,) if self.history else ())

    def __call__(
        self, key: str, state: dict[str, Any] | None, facts: Sequence[Event[Any] | Fired], now: int
    ) -> tuple[dict[str, Any] | None, list[Output], dict[str, Timer]]:
        """Return what becomes of an instance."""
        instance = Instance(self, key, state, now)
        for fact in facts:
            if isinstance(fact, Fired):
                instance.fire(fact)
            else:
                instance.take(fact)
        return instance.state, instance.outputs, instance.timers()
