"""From pydantic's errors to sentences that name the place, the value and what would be accepted."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from headrace.config.accepted import accepted, choices
from headrace.config.expand import Expanded
from headrace.config.kinds.secrets import has_password
from headrace.config.places import Place, fields, locate
from headrace.config.wording import either, quoted, subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

    from headrace.config.model.base import Section
    from headrace.config.wording import Problem, Steps

#: What pydantic appends to the location when the key of a mapping is refused.
_KEY = "[key]"


def problems(error: ValidationError, root: type[Section]) -> Iterator[Problem]:
    """Yield each mistake in a value of ``root``, in the order of the fields."""
    for detail in error.errors(include_url=False):
        if not _follows_from_another(detail):
            yield from _problems(detail, root)


def _follows_from_another(detail: ErrorDetails) -> bool:
    """Whether pydantic counted a list as too short only because its items were refused."""
    return detail["type"] == "too_short" and bool(detail["input"])


def _problems(detail: ErrorDetails, root: type[Section]) -> Iterator[Problem]:
    if detail["loc"] and detail["loc"][-1] == _KEY:
        yield _bad_key(detail["loc"], root)
        return
    place, value = locate(root, detail["loc"]), detail["input"]
    match detail["type"]:
        case "contradiction":
            for steps, sentence in detail["ctx"]["found"]:
                yield (*place.steps, *steps), sentence
        case "missing":
            yield place.steps, f"is missing; give {_accepted(place, value)}"
        case "extra_forbidden":
            yield place.steps, _unknown_key(place)
        case "union_tag_not_found":
            yield (*place.steps, "type"), f"is missing; give {either(_choices(place))}"
        case "union_tag_invalid":
            yield (*place.steps, "type"), _bad_type(place, value)
        case "refused":
            yield place.steps, f"{_subject(place, value)} {detail['msg']}"
        case _:
            yield place.steps, f"{_subject(place, value)} {_is_not(place, value)}"


def _subject(place: Place, value: Any) -> str:
    """Return the value for a sentence; a URL with a password is masked wherever it stands."""
    secret = place.secret or (isinstance(value, str) and has_password(value))
    return subject(value, secret=secret)


def _is_not(place: Place, value: Any) -> str:
    if value is None and place.shape is not None and place.shape.sections:
        return "is not a mapping; fill it in, or leave the key out"
    sections = place.shape is not None and place.shape.sections
    near = "" if sections else _near(value, _choices(place))
    return f"is not {_accepted(place, value)}{near}"


def _accepted(place: Place, value: Any) -> str:
    assert place.shape is not None, "only known keys are missing or have a wrong value"
    return accepted(place.shape, null=not isinstance(value, Expanded))


def _choices(place: Place) -> tuple[str, ...]:
    return () if place.shape is None else choices(place.shape)


def _unknown_key(place: Place) -> str:
    names = [name for name, _ in fields(place.section)]
    near = get_close_matches(str(place.steps[-1]), names, n=1)
    if near:
        return f"is not a known key; did you mean {near[0]}?"
    return f"is not a known key; known here: {', '.join(names)}"


def _bad_key(location: Steps, root: type[Section]) -> Problem:
    place, key = locate(root, location[:-2]), location[-2]
    assert place.shape is not None, "only mappings have free keys"
    return (*place.steps, key), f"the key {quoted(key)} is not {accepted(place.shape.keys())}"


def _bad_type(place: Place, value: dict[str, Any]) -> str:
    given, types = value["type"], _choices(place)
    return f"{subject(given)} is not {either(types)}{_near(given, types)}"


def _near(value: Any, words: tuple[str, ...]) -> str:
    if not isinstance(value, str) or isinstance(value, Expanded):
        return ""
    near = get_close_matches(value, words, n=1)
    return f"; did you mean {near[0]}?" if near else ""
