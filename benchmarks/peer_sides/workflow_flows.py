"""The workflow of ``workflow`` for Headrace's workers and reducers."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from benchmarks.peer_sides.workflow_work import STEPS, Effects
from headrace.apps.workflow import Call, Input, Result, Sequence, Workflows

if TYPE_CHECKING:
    from headrace.apps.workflow import Assignment

flows = Workflows()

#: Seconds that a call may take, with what it waits: longer than a round.
_TIMEOUT = 600.0


@cache
def _effects() -> Effects:
    return Effects()


def _made(call: Assignment, n: int, pause: float) -> int:
    _effects().call(call.instance, call.process, call.call, pause)
    return STEPS[call.process](n)


@flows.process
def reserve(call: Assignment, n: int, pause: float) -> int:
    """Reserve what is ordered."""
    return _made(call, n, pause)


@flows.process
def charge(call: Assignment, n: int, pause: float) -> int:
    """Charge the customer."""
    return _made(call, n, pause)


@flows.process
def ship(call: Assignment, n: int, pause: float) -> int:
    """Ship it."""
    return _made(call, n, pause)


flows.define(
    "order",
    1,
    Sequence(
        reserve=Call("reserve", n=Input("n"), pause=Input("pause")),
        charge=Call("charge", n=Result("reserve"), pause=Input("pause")),
        ship=Call("ship", n=Result("charge"), pause=Input("pause")),
    ),
    timeout=_TIMEOUT,
)
