"""The context that a thread works in at the moment, in every line that it logs."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextvars import Token

    from structlog.typing import EventDict, WrappedLogger

_NOTHING: Mapping[str, Any] = {}
_bound: ContextVar[Mapping[str, Any]] = ContextVar("headrace_log_context", default=_NOTHING)


class Bound:
    """Binds fields to what the thread logs in a block, over those bound around it.

    One variable for all fields, because a worker binds twice for each batch: structlog's own, with
    one for each field, take ten times as long.
    """

    __slots__ = ("_fields", "_token")

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def __enter__(self) -> None:
        self._token: Token[Mapping[str, Any]] = _bound.set({**_bound.get(), **self._fields})

    def __exit__(self, *_: object) -> None:
        _bound.reset(self._token)


def bound_fields() -> Mapping[str, Any]:
    """Return what is bound on this thread."""
    return _bound.get()


def merge_bound(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Add what is bound to an event, which wins where it says the same itself."""
    for name, value in _bound.get().items():
        event.setdefault(name, value)
    return event
