"""Describe users' errors and values: whatever their own code does while it is asked for its text.

``__str__``, ``__repr__``, properties and metaclasses of a reducer's or an activity's exceptions are
users' code. It may raise, exit, return a text that cannot be written, or one without end.
"""

from __future__ import annotations

import traceback
from typing import Any

from headrace.core.errors import ReducerError, RetryableError

#: Characters of an error's text that are shown, and of a value's.
ERROR_LENGTH, VALUE_LENGTH = 4000, 100

#: The names of the classes that all errors are of, which are not among an error's kinds.
ANY_ERROR = frozenset({"Exception", "BaseException", "object"})

_NAME: Any = type.__dict__["__name__"]
_QUALNAME: Any = type.__dict__["__qualname__"]
_MRO: Any = type.__dict__["__mro__"]
_MODULE: Any = type.__dict__["__module__"]


def kind_of(value: object) -> str:
    """Return the name of a value's class, which asks no code of the class itself."""
    return plain_text(_NAME.__get__(type(value)), VALUE_LENGTH)


def kinds_of(error: BaseException) -> list[str]:
    """Return the names of an error's class and of those that it is derived from, but for those of
    all errors; this asks no code of the classes themselves.
    """
    classes = [each for each in _MRO.__get__(type(error)) if not _is_any_error(each)]
    return [plain_text(_NAME.__get__(each), VALUE_LENGTH) for each in classes]


def _is_any_error(kind: type) -> bool:
    return kind is Exception or kind is BaseException or kind is object


def describe_value(value: object, length: int = VALUE_LENGTH) -> str:
    """Return the beginning and the end of a value's ``repr``."""
    try:
        return plain_text(repr(value), length)
    except BaseException as error:  # noqa: BLE001 - users' code, which may exit
        return f"a {kind_of(value)}, whose __repr__ raises {kind_of(error)}"


def message_of(error: BaseException, length: int = ERROR_LENGTH) -> str:
    """Return an error's text without its class."""
    try:
        return plain_text(str(error), length)
    except BaseException as other:  # noqa: BLE001 - users' code, which may exit
        return f"(its __str__ raises {kind_of(other)})"


def describe_error(error: BaseException, length: int = ERROR_LENGTH) -> str:
    """Return an error's class and text, as ``ValueError: it is negative``."""
    message = message_of(error, length)
    return f"{kind_of(error)}: {message}" if message else kind_of(error)


def trace_of(error: BaseException, length: int = ERROR_LENGTH) -> str:
    """Return the end of an error's traceback, with those of its causes."""
    try:
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except BaseException:  # noqa: BLE001 - users' code, which may exit
        frames = "".join(traceback.format_tb(error.__traceback__))
        text = f"{frames}{describe_error(error)}\n"
    return plain_text(text[-length:])


def plain_error(error: BaseException) -> BaseException:
    """Return an error that logs, spans and letters can show, and that says of what type it is.

    That is the error itself, unless its own code or that of a cause raises where it is asked for
    its text or its class, or what it says cannot be written.
    """
    if not _is_plain(error):
        is_retryable = issubclass(type(error), RetryableError)
        made = (RetryableError if is_retryable else ReducerError)(describe_error(error))
        return made.with_traceback(error.__traceback__)
    seen = {id(error)}
    link: BaseException = error
    while (cause := link.__cause__ or link.__context__) is not None and id(cause) not in seen:
        seen.add(id(cause))
        if not _is_plain(cause):
            # what is printed with the error is its own text, and no more of what led to it
            link.__cause__, link.__context__ = None, None
            break
        link = cause
    return error


def _is_plain(error: BaseException) -> bool:
    """Return whether an error has a text, a class and names as others have them."""
    try:
        str(error).encode()
        repr(error)
        said = [error.__class__ is type(error)]
        said += [isinstance(each, str) for each in getattr(error, "__notes__", ())]
        names = type(error).__name__, type(error).__qualname__, type(error).__module__
    except BaseException:  # noqa: BLE001 - users' code, which may exit
        return False
    return all(said) and all(isinstance(name, str) for name in names)


def plain_text(text: str, length: int | None = None) -> str:
    """Return a text that UTF-8 can write; of a longer one than ``length`` its beginning and end."""
    plain = str.__str__(text)
    if length is not None and len(plain) > length:
        half = max(0, length // 2 - 2)
        plain = f"{plain[:half]} … {plain[len(plain) - half :]}"
    return plain if plain.isascii() else plain.encode("utf-8", "replace").decode()
