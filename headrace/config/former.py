"""Former keys and values of the configuration, and the sentence that each gets in an error.

One table of each: what a file said until a release, and what it says now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import yaml

if TYPE_CHECKING:
    from headrace.config.errors import Steps

#: What stands in a place for the name of a channel, or of an output.
ANY = "*"

#: The keys of a channel, and of its processor.
_CHANNEL = ("channels", ANY)
_PROCESSOR = (*_CHANNEL, "processor")


#: What a channel has in place of a former key: values by key, in mappings as in the file.
_Now: TypeAlias = dict[str, Any]


def _renamed(now: str) -> Callable[[Any, str], str]:
    """Return what says of a key that only its name is another one now."""

    def sentence(value: Any, kind: str) -> str:
        del value, kind
        return f"is called {now} now; write {now} in its place"

    return sentence


def _moved(translate: Callable[[Any, str], _Now]) -> Callable[[Any, str], str]:
    """Return what says which keys of the channel have taken a key's place, with its value."""

    def sentence(value: Any, kind: str) -> str:
        now = {key: inner for key, inner in translate(value, kind).items() if inner != {}}
        if not now:
            return "is no key any more; leave it out, which is the same"
        parts = [f"{key}: {_flow(inner)}" for key, inner in now.items()]
        return f"is in other keys of the channel now; write {' and '.join(parts)} in its place"

    return sentence


def _flow(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000)
    return str(text).removesuffix("\n").removesuffix("\n...").strip()


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def of_on_error(value: Any, kind: str) -> _Now:
    """Return what stands in place of ``on_error``."""
    del kind
    former = _mapping(value)
    policy = former.get("policy", "retry")
    retry = {name: former[name] for name in ("backoff", "max_backoff") if name in former}
    if former.get("max_attempts") is not None:
        retry = {"attempts": former["max_attempts"], **retry}
    elif policy == "stop":
        retry = {"attempts": 5, **retry}
    letters = dict(_mapping(former.get("dead_letter")))
    if letters.get("headers") == "both":
        letters["headers"] = "connect"
    failing = {"failing": policy} if policy in {"skip", "dead_letter"} else {}
    return {"retry": retry, "rejects": {**failing, **letters}}


def of_undecodable(value: Any, kind: str) -> _Now:
    """Return what stands in place of ``processor.undecodable``."""
    del kind
    return {"rejects": {} if value == "fail" else {"undecodable": value}}


def of_on_poison(value: Any, kind: str) -> _Now:
    """Return what stands in place of ``processor.on_poison``."""
    name = "undecodable" if kind == "rekey" else "failing"
    return {"rejects": {} if value == "fail" else {name: "skip" if value == "drop" else value}}


def of_late(value: Any, kind: str) -> _Now:
    """Return what stands in place of ``processor.late``."""
    del kind
    return {"rejects": {} if value == "deliver" else {"late": "skip" if value == "drop" else value}}


def of_letter_topic(value: Any, kind: str) -> _Now:
    """Return what stands in place of ``processor.dead_letter``."""
    del kind
    return {"rejects": {"topic": value}}


def of_letter_headers(value: Any, kind: str) -> _Now:
    """Return what stands in place of ``processor.dead_letter_headers``."""
    del kind
    return {"rejects": {"headers": "connect" if value == "both" else value}}


def of_admission(value: Any, kind: str) -> _Now:
    """Return what stands in place of ``processor.admission``."""
    del kind
    former = _mapping(value)
    policy = former.get("policy", "blocking")
    now: dict[str, Any] = {}
    if policy == "throttling":
        now["processor"] = {"max_rate": former.get("max_rate", 200_000)}
    if policy == "shedding" or former.get("overflow") == "shed":
        rejects = {"overflow": "dead_letter" if former.get("to") else "skip"}
        names = {"max_pending": "max_pending", "shed": "overflow_choice", "to": "topic"}
        now["rejects"] = rejects | {
            name: former[before] for before, name in names.items() if former.get(before) is not None
        }
    return now


#: Former keys by their places, and what makes the sentence of the value that a file has there, and
#: of the type of the section that it is in.
FORMER_KEYS: Mapping[Steps, Callable[[Any, str], str]] = {
    ("tracing", "one_in"): _renamed("sample_one_in"),
    (*_CHANNEL, "coordinator", "safety_poll"): _renamed("resync_interval"),
    (*_CHANNEL, "on_error"): _moved(of_on_error),
    (*_PROCESSOR, "undecodable"): _moved(of_undecodable),
    (*_PROCESSOR, "on_poison"): _moved(of_on_poison),
    (*_PROCESSOR, "late"): _moved(of_late),
    (*_PROCESSOR, "dead_letter"): _moved(of_letter_topic),
    (*_PROCESSOR, "dead_letter_headers"): _moved(of_letter_headers),
    (*_PROCESSOR, "admission"): _moved(of_admission),
}

#: Former values of keys that there still are, by their places, and each one's value now.
FORMER_VALUES: Mapping[Steps, Mapping[str, str]] = {
    (*_PROCESSOR, "engine"): {"inline": "arrow"},
}


def of_former_key(steps: Steps, value: Any, kind: str = "") -> str | None:
    """Return the sentence on a former key in a section of a type, None of any other key."""
    sentence = FORMER_KEYS.get(_pattern(steps, FORMER_KEYS))
    return None if sentence is None else sentence(value, kind)


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
