"""The readers of a table: in which ways its changes come out, and whether its rows are needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.extensions.streams.operators import Emitted, Filter, Lookup, TableJoin

if TYPE_CHECKING:
    from headrace.extensions.streams.kernels.rows import Emit
    from headrace.extensions.streams.plan import Plan


def emits_of(plan: Plan, place: int) -> frozenset[Emit]:
    """Return in which ways the rows of a table come out."""
    found: set[Emit] = set()
    for at, operator in enumerate(plan.operators):
        if place not in operator.inputs:
            continue
        if isinstance(operator, Emitted):
            found.add(operator.emit)
        elif isinstance(operator, Filter):
            found |= emits_of(plan, at)
    return frozenset(found)


def is_looked_up(plan: Plan, place: int) -> bool:
    """Return whether rows of a table are looked up by key, so that all of them are needed."""
    for at, operator in enumerate(plan.operators):
        if place not in operator.inputs:
            continue
        is_table = operator.inputs.index(place) == 1 or isinstance(operator, TableJoin)
        if isinstance(operator, Lookup | TableJoin) and is_table:
            return True
        if isinstance(operator, Filter) and is_looked_up(plan, at):
            return True
    return False


def is_streamed(plan: Plan, place: int) -> bool:
    """Return whether nothing but a stream of changes is read of a table without windows."""
    readers = (each for each in plan.operators if place in each.inputs)
    return all(isinstance(each, Emitted) for each in readers)
