"""Sinks of users and plug-ins: called into being, and held to what a sink has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from headrace.core.errors import ImportPathError, StartError
from headrace.core.imports import make
from headrace.sinks.contract import Guarantee, Sink

if TYPE_CHECKING:
    from headrace.sinks.sections import CustomSinkConfig

_METHODS = ("open", "stored_offset", "stage", "commit", "discard", "close")


def custom_sink(section: CustomSinkConfig) -> Sink[Any]:
    """Import the factory, call it with the options, and check what it returns.

    Raises:
        ImportPathError: the factory cannot be imported, does not take the options, fails, or
            returns something that is not a sink.
        StartError: the sink promises less than the configuration demands.
    """
    try:
        made = make(section.factory, section.keyword_arguments())
    except ImportPathError as error:
        raise ImportPathError(f"sink.factory: {error}") from error
    sink = require_sink(made, f"sink.factory: {section.factory!r}")
    if section.guarantee == "exactly_once" and sink.guarantee is not Guarantee.EXACTLY_ONCE:
        raise StartError(
            f"sink.guarantee: is exactly_once, and the sink of {section.factory!r} promises "
            f"{sink.guarantee.value!r}; leave it out, or have the sink keep offsets"
        )
    return sink


def require_sink(made: object, maker: str) -> Sink[Any]:
    """Return what ``maker`` returned, which has to be a sink.

    Raises:
        ImportPathError: it is none.
    """
    if missing := _missing(made):
        raise ImportPathError(
            f"{maker} returned {_type_name(made)}, which is not a sink: {missing}; "
            "docs/sinks/custom.md says what a sink has"
        )
    return cast("Sink[Any]", made)


def _missing(made: object) -> str | None:
    """Return what an object lacks to be a sink, None if that is nothing that can be seen."""
    if isinstance(made, type):
        return "it is a class; return an instance"
    lacking = [name for name in _METHODS if not callable(getattr(made, name, None))]
    if lacking:
        return f"it has no {' and no '.join(lacking)}"
    if not isinstance(getattr(made, "guarantee", None), Guarantee):
        return "its guarantee is none of headrace.sinks.Guarantee"
    return None


def _type_name(made: object) -> str:
    if made is None or isinstance(made, type):
        return str(made)
    return f"a {type(made).__name__}"
