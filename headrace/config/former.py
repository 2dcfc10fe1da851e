"""Former keys and values of the configuration, and the sentence that each gets in an error.

One table of each: what a file said until a release, and what it says now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.config.errors import Steps

#: What stands in a place for the name of a channel, or of an output.
ANY = "*"

#: The keys of a channel, and of its processor.
_CHANNEL = ("channels", ANY)
_PROCESSOR = (*_CHANNEL, "processor")


def _renamed(now: str) -> Callable[[Any], str]:
    """Return what says of a key that only its name is another one now."""

    def sentence(value: Any) -> str:
        del value
        return f"is called {now} now; write {now} in its place"

    return sentence


#: Former keys by their places, and what makes the sentence of the value that a file has there.
FORMER_KEYS: Mapping[Steps, Callable[[Any], str]] = {
    ("tracing", "one_in"): _renamed("sample_one_in"),
    (*_CHANNEL, "coordinator", "safety_poll"): _renamed("resync_interval"),
}

#: Former values of keys that there still are, by their places, and each one's value now.
FORMER_VALUES: Mapping[Steps, Mapping[str, str]] = {
    (*_PROCESSOR, "engine"): {"inline": "arrow"},
}


def of_former_key(steps: Steps, value: Any) -> str | None:
    """Return the sentence on a former key, None of a key that there never was."""
    sentence = FORMER_KEYS.get(_pattern(steps, FORMER_KEYS))
    return None if sentence is None else sentence(value)


def of_former_value(steps: Steps, value: Any) -> str | None:
    """Return the sentence on a former value, None of a value that there never was."""
    now = FORMER_VALUES.get(_pattern(steps, FORMER_VALUES), {})
    if not isinstance(value, str) or value not in now:
        return None
    return f"is called {now[value]} now; write {now[value]} in its place"


def _pattern(steps: Steps, table: Mapping[Steps, Any]) -> Steps:
    """Return the place in a table that steps lead to; the steps themselves where there is none."""
    for place in table:
        if len(place) == len(steps) and all(
            wanted in {ANY, step} for wanted, step in zip(place, steps, strict=True)
        ):
            return place
    return steps
