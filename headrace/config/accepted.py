"""What a field accepts, in words: for errors and for the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from annotated_types import MinLen

from headrace.config.places import by_type
from headrace.config.wording import either

if TYPE_CHECKING:
    from headrace.config.places import Shape


def accepted(shape: Shape, *, null: bool = True) -> str:
    """Return what fits, to follow "is not". ``null`` tells whether to mention that null does."""
    text = _accepted(shape)
    return f"{text} or null" if shape.nullable and null else text


def _accepted(shape: Shape) -> str:
    if shape.kind is not None:
        return shape.kind.accepted
    if get_origin(shape.type) is Literal:
        return either(choices(shape))
    if len(shape.sections) > 1:
        return f"a mapping with type: {either(by_type(shape.sections))}"
    if shape.sections or shape.is_mapping:
        return f"a mapping{_not_empty(shape.metadata)}"
    return f"a list{_not_empty(shape.metadata)}, each item {accepted(shape.items())}"


def choices(shape: Shape) -> tuple[str, ...]:
    """Return the words of a choice, nothing where there is no choice."""
    if get_origin(shape.type) is Literal:
        return tuple(str(word) for word in get_args(shape.type))
    return tuple(by_type(shape.sections)) if len(shape.sections) > 1 else ()


def _not_empty(metadata: tuple[Any, ...]) -> str:
    return " with at least one entry" if any(isinstance(m, MinLen) for m in metadata) else ""
