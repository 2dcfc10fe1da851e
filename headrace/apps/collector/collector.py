"""The reducer of a keyed channel, made of its options."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from headrace.apps.collector.compat import Compat
from headrace.apps.collector.events import Outputs, Times
from headrace.apps.collector.strict import Strict

if TYPE_CHECKING:
    from collections.abc import Sequence


def Collector(  # noqa: N802 - a factory, named as a configuration names one
    *,
    mode: str = "strict",
    outcomes: str | None = None,
    rejected: str | None = None,
    times: str = "rfc3339",
    routes: Sequence[str] = (),
    orphan_ttl: str | None = None,
    late_ttl: str | None = None,
) -> Compat | Strict:
    """Return the reducer for these options of a channel.

    ``outcomes`` and ``rejected`` name outputs of the channel, ``routes`` are patterns of the topics
    that a group's handlers may name, each an output as well. ``orphan_ttl`` and ``late_ttl`` are
    durations such as ``30s``.

    Raises:
        ValueError: an option is wrong; the text says which, and what it has to be.
    """
    if mode not in {"strict", "compat"}:
        raise ValueError(f"mode is {mode!r}; it has to be strict or compat")
    if outcomes is None and (rejected is not None or routes):
        raise ValueError(
            f"outcomes is not given, and {'rejected' if rejected is not None else 'routes'} is: "
            "the channel has several outputs then, so name the one of the outcomes"
        )
    if rejected is not None and rejected == outcomes:
        raise ValueError(f"outcomes and rejected are both {rejected!r}; name two outputs")
    outputs = Outputs(outcomes, rejected, _times(times))
    if mode == "compat":
        for name, given in (("routes", routes), ("orphan_ttl", orphan_ttl), ("late_ttl", late_ttl)):
            if given is not None and given not in ((), []):
                raise ValueError(
                    f"{name} is {given!r}, and mode: compat has none, as the original; leave it "
                    "out, or set mode: strict"
                )
        return Compat(outputs)
    return Strict(
        outputs,
        _patterns(routes),
        _milliseconds("orphan_ttl", "30s" if orphan_ttl is None else orphan_ttl),
        _milliseconds("late_ttl", "10m" if late_ttl is None else late_ttl),
    )


def _times(value: Any) -> Times:
    try:
        return Times(value)
    except ValueError:
        accepted = ", ".join(each.value for each in Times)
        raise ValueError(f"times is {value!r}; it has to be one of {accepted}") from None


def _patterns(routes: Any) -> tuple[re.Pattern[str], ...]:
    if isinstance(routes, str) or not all(isinstance(route, str) for route in routes):
        raise ValueError(f"routes is {routes!r}; it has to be a list of regular expressions")
    found = []
    for route in routes:
        try:
            found.append(re.compile(route))
        except re.error as error:
            raise ValueError(f"routes: {route!r} is no regular expression: {error}") from None
    return tuple(found)


def _milliseconds(name: str, value: Any) -> int:
    from headrace.config.types.units import (  # noqa: PLC0415 - no worker needs pydantic for it
        parse_duration,
    )

    seconds = parse_duration(value) if isinstance(value, str) else None
    if seconds is None:
        raise ValueError(f"{name} is {value!r}; it has to be a duration such as 30s or 10m")
    return round(seconds * 1000)
