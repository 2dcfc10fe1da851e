"""Reducers that come with Headrace, for ``reducer: headrace.keyed:count``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.extensions.keyed.api import Fired, Output, batched

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.extensions.keyed.api import Event, Timer


@batched
def count(
    key: Any,
    state: int | None,
    facts: list[Event[Any] | Fired],
    now: int,
) -> tuple[int | None, Sequence[Output], Mapping[str, Timer]]:
    """Count a key's facts, and say the count: once for all of its facts in a micro-batch.

    Values are not read; a timer that a former reducer left adds nothing. The state is the count,
    and so is the output, where the channel has one. It is folded in columns, which is several times
    faster than a reducer that is called for each key; what comes of it is what this function
    returns.
    """
    del key, now
    if isinstance(facts[0], Fired):
        return state, [], {}
    total = (state or 0) + len(facts)
    return total, [Output(total)], {}


@batched
def count_silently(
    key: Any,
    state: int | None,
    facts: list[Event[Any] | Fired],
    now: int,
) -> tuple[int | None, Sequence[Output], Mapping[str, Timer]]:
    """Count as :func:`count` does, for a channel without output."""
    total, _, timers = count(key, state, facts, now)
    return total, [], timers
