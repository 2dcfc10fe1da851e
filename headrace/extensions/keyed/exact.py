"""JSON that comes back as it was: what a state, an output or a key may have, and what is refused.

Within a micro-batch a reducer gets the state that it returned, and after it the one that was read.
Where JSON makes another value of a part, the two differ, and what comes of a key depends on where
batches are cut.
"""

from __future__ import annotations

import json
import math
import sys
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: Lists and dicts within each other that a state, an output or a key may have. What is written far
#: from the interpreter's own limit can be read wherever it is read.
MAX_DEPTH = 300

#: Types that JSON gives back as they were, but for lists and dicts of them.
_SCALARS = frozenset({str, int, float, bool, type(None)})
_are_scalars = _SCALARS.issuperset

#: Characters of a name, and of the way to a part, that an error shows.
_NAME_SHOWN, _PLACE_SHOWN = 40, 100


def exact_json(value: Any, what: str = "the value") -> bytes:
    """Return compact JSON, in UTF-8, of what comes back from it equal and of the same types.

    Raises:
        TypeError, ValueError: it would come back as something else, or cannot be written; the text
            says which part of ``what``, and what to write in its place.
    """
    try:
        if type(value) is int:  # as a count is; the encoder takes ten times as long to begin
            return b"%d" % value
        if type(value) in _SCALARS or _is_exact(value, MAX_DEPTH):
            return _encode(value)
    except (TypeError, ValueError, RecursionError):
        pass  # which part it is, is found out below
    raise _inexact(value, what)


def exact_text(text: str, what: str) -> bytes:
    """Return a text in UTF-8.

    Raises:
        TypeError, ValueError: it is no plain text, or cannot be written; as :func:`exact_json`.
    """
    try:
        if type(text) is str:
            return text.encode()
    except UnicodeEncodeError:
        pass
    raise _inexact(text, what)


def _unknown(value: Any) -> Any:
    raise TypeError(type(value).__name__)


def _prepared() -> Callable[[Any], bytes]:
    """Return the standard library's encoder, made once: to make it takes longer than most states.

    It does not look for what contains itself: that is too deep, and refused before.
    """
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        whole = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return lambda value: whole.encode(value).encode()
    text = getattr(json.encoder, "encode_basestring")  # noqa: B009 - typeshed does not know it
    # markers, default, encoder, indent, separators; sort_keys, skipkeys, allow_nan
    chunks = make(None, _unknown, text, None, ":", ",", False, False, False)
    return lambda value: "".join(chunks(value, 0)).encode()


_encode = _prepared()


def _is_exact(value: Any, room: int) -> bool:
    """Return whether a list or dict holds only what JSON gives back, no deeper than ``room``."""
    if type(value) is dict:
        for name, each in value.items():
            if type(name) is not str:
                return False
            if type(each) not in _SCALARS and not (room and _is_exact(each, room - 1)):
                return False
        return True
    if type(value) is not list:
        return False
    if not _are_scalars(map(type, value)):
        for each in value:
            if type(each) not in _SCALARS and not (room and _is_exact(each, room - 1)):
                return False
    return True


# --- what is wrong ------------------------------------------------------------------------------


def _inexact(value: Any, what: str) -> Exception:
    """Return the error that says which part of a value JSON does not give back."""
    if type(value) not in {dict, list}:
        problem = _problem_of(value)
        return _located(problem, what, "") or ValueError(f"{what} cannot be written as JSON")
    waiting: list[tuple[str, Any, int]] = [("", value, MAX_DEPTH)]
    while waiting:
        place, holder, room = waiting.pop()
        if room < 0:
            return ValueError(
                f"{what} has lists and dicts more than {MAX_DEPTH} deep, within each other or "
                "themselves; keep what it says flat"
            )
        is_dict = type(holder) is dict
        found = next(filter(None, map(_problem_of_name, holder if is_dict else ())), None)
        if found is not None:
            return _located(found, what, place) or found
        for name, part in holder.items() if is_dict else enumerate(holder):
            inner = f"{place}[{_shorten(name)}]"
            if type(part) in {dict, list}:
                waiting.append((inner, part, room - 1))
            elif (found := _problem_of(part)) is not None:
                return _located(found, what, inner) or found
    return ValueError(f"{what} cannot be written as JSON")


def _located(problem: Exception | None, what: str, place: str) -> Exception | None:
    """Return a problem with the part that has it."""
    if problem is None:
        return None
    return type(problem)(f"{what}{place[:_PLACE_SHOWN]} {problem}")


def _shorten(name: object) -> str:
    """Return the beginning of the text of a name."""
    try:
        text = repr(name)
    except ValueError:  # a number of very many digits
        return "…"
    return text if len(text) <= _NAME_SHOWN else f"{text[:_NAME_SHOWN]}…"


def _problem_of_name(name: object) -> Exception | None:
    """Return what JSON changes of a name of a member, None if nothing."""
    if type(name) is str:
        return _problem_of_text(name, "has a name")
    kind = _a(type(name).__name__)
    if type(name) in _SCALARS:
        return TypeError(
            f"has the name {_shorten(name)}, {kind}, of which JSON makes a text, another name: "
            "write a text, such as str(...) of it"
        )
    return TypeError(f"has a name that is {kind}, and not a plain text; write a text")


#: What to write in place of what is like another type.
_LIKE: tuple[tuple[type, str], ...] = (
    (Enum, "which JSON gives back as something else; write its .value"),
    (str, "which JSON gives back as a str; write str(...) of it"),
    (int, "which JSON gives back as an int; write int(...) of it"),
    (float, "which JSON gives back as a float; write float(...) of it"),
    (dict, "which JSON gives back as a dict; write dict(...) of it"),
    (list, "which JSON gives back as a list; write list(...) of it"),
    (tuple, "which JSON gives back as a list; write list(...) of it"),
    (set, "which is not JSON serializable; write a sorted list"),
    (frozenset, "which is not JSON serializable; write a sorted list"),
    (bytes, "which is not JSON serializable; write a text, such as its hex()"),
    (object, "which is not JSON serializable; write None, bool, int, float, str, list or dict"),
)


def _problem_of(value: object) -> Exception | None:
    """Return what JSON changes of a value that is neither a list nor a dict, None if nothing."""
    if type(value) is str:
        return _problem_of_text(value, "is a text")
    if type(value) is int:
        return _problem_of_number(value)
    if type(value) is float and not math.isfinite(value):
        return ValueError(f"is {value!r}, which JSON has no number for; write None, or a text")
    if type(value) in _SCALARS:
        return None
    name = _a(type(value).__name__)
    said = next(said for kind, said in _LIKE if issubclass(type(value), kind))
    return TypeError(f"is {name}, {said}")


def _problem_of_number(number: int) -> Exception | None:
    try:
        str(number)
    except ValueError:
        digits = sys.get_int_max_str_digits()
        return ValueError(
            f"is a number of more than {digits} digits, which is not read again; write it in "
            "another way, such as hex(...)"
        )
    return None


def _problem_of_text(text: str, said: str) -> Exception | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return ValueError(
            f"{said} with {text[error.start]!a} at character {error.start}, one half of a pair: "
            "surrogates not allowed in UTF-8; replace it, as "
            'text.encode("utf-8", "replace").decode() does'
        )
    return None


def _a(name: str) -> str:
    return f"{'an' if name[:1].lower() in {*'aeiou'} else 'a'} {name}"
