"""The engine of a part of a topology: which operators run in Spark's workers, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from headrace.core.extras import Extra
from headrace.extensions.streams.inline.stage import stage_of, why_rows
from headrace.extensions.streams.operators import Aggregate

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.extensions.streams.inline.stage import Stage
    from headrace.extensions.streams.plan import Channel, Plan
    from headrace.extensions.streams.section import EngineChoice


class Engine(NamedTuple):
    """The engine of a part, and a sentence for people with the reason."""

    name: Literal["arrow", "spark"]
    reason: str


def choose_engine(choice: EngineChoice, plan: Plan, part: Channel) -> Engine:
    """Return the engine of a part.

    ``auto`` is Spark where operators without state call Python functions, and Spark is installed:
    these hold this process up. Expressions are computed here faster than records are sent.
    """
    if choice == "arrow":
        return Engine("arrow", "engine arrow: all operators run in the daemon")
    stage = stage_of(plan, part)
    labels = [plan.operators[each].label for each in sorted(stage.operators)]
    rest = len(labels) < len(part.operators)
    in_workers = ", ".join(labels) or "reading"
    reason = f"engine spark: in Spark's workers {in_workers}"
    reason += "; the rest, which needs state, in the daemon" if rest else ""
    reason += "".join(f"; {each}" for each in _what_comes_back(plan, stage))
    if choice == "spark":
        return Engine("spark", reason)
    if not stage.functions:
        why = "no operator without state calls a Python function"
        return Engine("arrow", f"engine arrow, by auto: {why}, so all operators run in the daemon")
    function = plan.operators[stage.functions[0]].label
    if not Extra.SPARK.installed:
        why = f"{function} calls a Python function, and Spark is not installed"
        return Engine("arrow", f"engine arrow, by auto: {why}; {Extra.SPARK.advice}")
    return Engine("spark", f"{reason} (auto: {function} calls a Python function)")


def _what_comes_back(plan: Plan, stage: Stage) -> Iterator[str]:
    """Yield what comes back from workers for each aggregate that reads the stage, and why."""
    for place, readers in sorted(stage.readers.items()):
        for each in readers:
            operator = plan.operators[each]
            if not isinstance(operator, Aggregate):
                continue
            why = why_rows(plan, each)
            if place in stage.groups:
                yield f"groups come back for {operator.label}, or rows where groups are many"
            elif why is not None:
                yield f"rows come back for {operator.label}: {why}"
            else:
                others = [plan.operators[other].label for other in readers if why_rows(plan, other)]
                yield f"rows come back for {operator.label}: {others[0]} needs them"
