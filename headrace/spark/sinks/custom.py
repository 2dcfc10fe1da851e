"""A sink of one's own, made by a factory that the configuration names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from headrace.errors import ImportPathError, StartError
from headrace.importing import make
from headrace.spark.sinks.contract import Guarantee

if TYPE_CHECKING:
    from headrace.config import CustomSinkConfig
    from headrace.spark.sinks.contract import Sink

_METHODS = ("open", "stored_offset", "stage", "commit", "discard", "close")


def custom_sink(section: CustomSinkConfig) -> Sink[Any]:
    """Import the factory, call it with the options, and look at what it returns.

    Raises:
        ImportPathError: the factory cannot be imported, does not take the options, fails, or
            returns something that is not a sink.
        StartError: the sink promises less than the configuration demands.
    """
    try:
        made = make(section.factory, section.keyword_arguments())
    except ImportPathError as error:
        raise ImportPathError(f"sink.factory: {error}") from error
    if missing := _missing(made):
        raise ImportPathError(
            f"sink.factory: {section.factory!r} returned {_named(made)}, which is not a sink: "
            f"{missing}; docs/sinks.md says what a sink has"
        )
    if section.guarantee == "exactly_once" and made.guarantee is not Guarantee.EXACTLY_ONCE:
        raise StartError(
            f"sink.guarantee: is exactly_once, and the sink of {section.factory!r} promises "
            f"{made.guarantee.value!r}; leave it out, or have the sink keep offsets"
        )
    return cast("Sink[Any]", made)


def _missing(made: object) -> str | None:
    """Return what it lacks to be a sink, None if that is nothing that can be seen."""
    if isinstance(made, type):
        return "an object is wanted, and that is a class"
    lacking = [name for name in _METHODS if not callable(getattr(made, name, None))]
    if lacking:
        return f"it has no {' and no '.join(lacking)}"
    if not isinstance(getattr(made, "guarantee", None), Guarantee):
        return "its guarantee is none of headrace.spark.sinks.Guarantee"
    return None


def _named(made: object) -> str:
    if made is None or isinstance(made, type):
        return str(made)
    return f"a {type(made).__name__}"
