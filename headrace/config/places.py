"""The way from pydantic's locations and types back to places in the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from pydantic import SecretStr

from headrace.config.kinds.base import Kind
from headrace.config.kinds.properties import Options, Properties
from headrace.config.kinds.secrets import looks_secret
from headrace.config.model.base import Section

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from headrace.config.wording import Steps


@dataclass(frozen=True, slots=True)
class Shape:
    """A type of the models, taken apart. ``nullable`` tells that null is allowed too."""

    type: Any
    metadata: tuple[Any, ...] = ()
    nullable: bool = False

    @property
    def kind(self) -> Kind | None:
        """The kind that reads the value, None for what pydantic reads."""
        return next((item for item in self.metadata if isinstance(item, Kind)), None)

    @property
    def sections(self) -> tuple[type[Section], ...]:
        """The sections the value can be: one, several told apart by ``type``, or none."""
        members = get_args(self.type) if is_union(self.type) else (self.type,)
        return tuple(m for m in members if isinstance(m, type) and issubclass(m, Section))

    @property
    def is_mapping(self) -> bool:
        """Whether the value maps free names to something."""
        return get_origin(self.type) is Mapping

    def keys(self) -> Shape:
        """Return the shape of a mapping's keys."""
        return shape(get_args(self.type)[0])

    def items(self) -> Shape:
        """Return the shape of a mapping's or list's items."""
        return shape(get_args(self.type)[1 if self.is_mapping else 0])


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the file, what belongs there (None: nothing), and the section around it."""

    steps: Steps
    shape: Shape | None
    section: type[Section]

    @property
    def secret(self) -> bool:
        """Whether what stands there may be a secret or hold one."""
        last = self.steps[-1] if self.steps else ""
        return self.shape is None or holds_secret(self.shape) or looks_secret(str(last))


def is_union(annotation: Any) -> bool:
    """Whether the type is a union, however it was spelt."""
    return get_origin(annotation) in (Union, UnionType)


def shape(annotation: Any, metadata: tuple[Any, ...] = ()) -> Shape:
    """Take a type apart."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return shape(inner, (*more, *metadata))
    members = get_args(annotation) if is_union(annotation) else ()
    if NoneType in members:
        rest = reduce(or_, [member for member in members if member is not NoneType])
        return replace(shape(rest, metadata), nullable=True)
    return Shape(annotation, metadata)


def field_shape(field: FieldInfo) -> Shape:
    """Return the shape of a field."""
    return shape(field.annotation, tuple(field.metadata))


def fields(section: type[Section]) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the fields under the names they have in the file."""
    for name, field in section.model_fields.items():
        yield field.alias or name, field


def by_type(sections: tuple[type[Section], ...]) -> dict[str, type[Section]]:
    """Return the members of a union by the ``type`` that chooses them."""
    return {str(section.model_fields["type"].default): section for section in sections}


def holds_secret(value: Shape) -> bool:
    """Whether a secret belongs somewhere in a value of this shape."""
    if isinstance(value.kind, (Properties, Options)) or value.type is SecretStr:
        return True
    if value.kind is not None:
        return False
    if value.is_mapping or get_origin(value.type) is tuple:
        return holds_secret(value.items())
    return any(
        holds_secret(field_shape(field))
        for section in value.sections
        for _, field in fields(section)
    )


def locate(root: type[Section], location: Steps) -> Place:
    """Return the place that pydantic's location names, without the tags it puts into it."""
    place = Place((), Shape(root), root)
    for step in location:
        place = _descend(place, step)
    return place


def _descend(place: Place, step: str | int) -> Place:
    steps, current = (*place.steps, step), place.shape
    if current is None:
        return Place(steps, None, place.section)
    sections = by_type(current.sections) if len(current.sections) > 1 else {}
    if step in sections:
        chosen = sections[str(step)]
        return Place(place.steps, Shape(chosen), chosen)
    if current.sections:
        section = current.sections[0]
        field = dict(fields(section)).get(str(step))
        return Place(steps, None if field is None else field_shape(field), section)
    if current.kind is None and get_args(current.type):
        return Place(steps, current.items(), place.section)
    return Place(steps, None, place.section)
