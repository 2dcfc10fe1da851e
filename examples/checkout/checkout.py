"""What became of each order of a shop: its status by its events, and by what does not come."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from headrace.keyed import Event, Fired, Output, at_event

if TYPE_CHECKING:
    from headrace.keyed import Timer

_MINUTE, _DAY = 60_000, 86_400_000

#: What follows a status if nothing else does: after how many milliseconds, and as what.
DEADLINES = {"placed": (30 * _MINUTE, "abandoned"), "paid": (2 * _DAY, "overdue")}

#: From what status an event leads on. Others are told as they come, and change nothing.
STEPS: dict[str, set[str | None]] = {
    "placed": {None},
    "paid": {"placed"},
    "shipped": {"paid", "overdue"},
}


def happened(value: bytes | None) -> int:
    """Return when an event happened, in milliseconds."""
    at: int = json.loads(value or b"null")["at"]
    return at


def status(
    order: str, state: dict[str, Any] | None, facts: list[Event[Any] | Fired], now: int
) -> tuple[dict[str, Any] | None, list[Output], dict[str, Timer]]:
    """Follow an order; an event that was told twice is one."""
    del now
    (fact,) = facts
    before = None if state is None else state["status"]
    if isinstance(fact, Fired):
        after, at, cents = fact.name, fact.due, 0 if state is None else state["cents"]
    else:
        after, at = fact.value["event"], fact.ts
        cents = fact.value.get("cents", 0 if state is None else state["cents"])
        if before not in STEPS.get(after, set()):
            open_until = {} if state is None else _deadline(before, state["since"])
            again = [] if after == before else [Output(_told(order, before, at, refused=after))]
            return state, again, open_until
    told = [Output(_told(order, after, at, cents=cents))]
    if after in {"abandoned", "shipped"}:
        return None, told, {}
    return {"status": after, "since": at, "cents": cents}, told, _deadline(after, at)


def _deadline(status: str | None, since: int) -> dict[str, Timer]:
    if status not in DEADLINES:
        return {}
    after, then = DEADLINES[status]
    return {then: at_event(since + after)}


def _told(order: str, status: str | None, at: int, **more: Any) -> dict[str, Any]:
    return {"order": order, "status": status, "at": at, **more}
