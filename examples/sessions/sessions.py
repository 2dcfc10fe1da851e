"""How planes spend their days: flights less than eight hours apart are one session."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.keyed import Event, Fired, Output, at_event

if TYPE_CHECKING:
    from headrace.keyed import Timer

#: Milliseconds on the ground after which a session is over.
GAP = 8 * 3600 * 1000


def departed(value: bytes | None) -> int:
    """Return when a flight was to depart, in milliseconds: records are as late as their sender."""
    found = datetime.fromisoformat(json.loads(value or b"null")["at"])
    return int(found.timestamp() * 1000)


def session(
    plane: str, state: dict[str, Any] | None, facts: list[Event[Any] | Fired], now: int
) -> tuple[dict[str, Any] | None, list[Output], dict[str, Timer]]:
    """Add a flight to the plane's session; say what it was when its time is over."""
    del now  # nothing here is of the wall clock, so that old records give what new ones gave
    (fact,) = facts
    if isinstance(fact, Fired):
        assert state is not None, "a session has a timer for as long as it is open"
        times = {name: _shown(state[name]) for name in ("first", "last")}
        return None, [Output({"plane": plane, **state, **times})], {}
    before = state or {"first": fact.ts, "last": fact.ts, "flights": 0, "miles": 0, "delay": 0}
    after = {
        # a late record may be older than the first one
        "first": min(before["first"], fact.ts),
        "last": max(before["last"], fact.ts),
        "flights": before["flights"] + 1,
        "miles": before["miles"] + fact.value["distance"],
        "delay": before["delay"] + max(0, fact.value["delay"] or 0),
    }
    return after, [], {"over": at_event(after["last"] + GAP)}


def _shown(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%MZ")
