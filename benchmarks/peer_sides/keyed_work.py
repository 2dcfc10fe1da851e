"""What channels with state do to the records of a round: they count by key, in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from headrace.keyed import Output, batched

if TYPE_CHECKING:
    from headrace.keyed import Event, Fired

    Facts = list[Event[Any] | Fired]


@batched
def count(
    key: str, state: int | None, facts: Facts, now: int
) -> tuple[int, list[Output], dict[str, Any]]:
    """Count, and say the count once for all records of the micro-batch."""
    del key, now
    total = (state or 0) + len(facts)
    return total, [Output(total)], {}


def count_each(
    key: str, state: int | None, facts: Facts, now: int
) -> tuple[int, list[Output], dict[str, Any]]:
    """Count, and say the count at each record."""
    del key, now
    total = (state or 0) + len(facts)
    return total, [Output(total)], {}


@batched
def touch(
    key: str, state: dict[str, Any] | None, facts: Facts, now: int
) -> tuple[dict[str, Any], list[Output], dict[str, Any]]:
    """Count within a larger state, and say the count."""
    del key, now
    before = state or {"n": 0}
    total = before["n"] + len(facts)
    return {**before, "n": total}, [Output(total)], {}


@batched
def name_task(
    key: str, state: dict[str, Any] | None, facts: Facts, now: int
) -> tuple[dict[str, Any], list[Output], dict[str, Any]]:
    """Say which task the last record names, and count."""
    del key, now
    last = cast("Event[str]", facts[-1])
    return {"n": (state or {"n": 0})["n"] + 1}, [Output(last.value)], {}
