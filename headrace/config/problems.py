"""From pydantic's errors to sentences that name the place, the value and what would be accepted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import reduce
from operator import or_
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import MinLen
from pydantic import SecretStr

from headrace.config.errors import either, quoted, subject
from headrace.config.expand import Expanded
from headrace.config.former import of_former_key, of_former_value
from headrace.config.kind_table import KindTable, OneKind
from headrace.config.models.base import Section
from headrace.config.types.scalars import FieldType
from headrace.config.types.secrets import FreeMapping, has_password, looks_secret

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic.fields import FieldInfo
    from pydantic_core import ErrorDetails

    from headrace.config.errors import ConfigProblem, Steps


def describe_type(shape: Shape, *, null: bool = True) -> str:
    """Return what fits, to follow "is not". ``null`` tells whether to mention that null does."""
    text = _describe_type(shape)
    return f"{text} or null" if shape.nullable and null else text


def _describe_type(shape: Shape) -> str:
    if shape.field_type is not None:
        return shape.field_type.description
    if get_origin(shape.type) is Literal:
        return either(choices(shape))
    if len(shape.sections) > 1 and "type" in shape.sections[0].model_fields:
        return f"a mapping with type: {either(by_tag(shape.sections))}"
    if shape.sections or shape.is_mapping:
        return f"a mapping{_not_empty(shape.metadata)}"
    return f"a list{_not_empty(shape.metadata)}, each item {describe_type(shape.items())}"


def choices(shape: Shape) -> tuple[str, ...]:
    """Return the words of a choice, nothing where there is no choice."""
    if get_origin(shape.type) is Literal:
        return tuple(str(word) for word in get_args(shape.type))
    return tuple(by_tag(shape.sections)) if len(shape.sections) > 1 else ()


def _not_empty(metadata: tuple[Any, ...]) -> str:
    return " with at least one entry" if any(isinstance(m, MinLen) for m in metadata) else ""


@dataclass(frozen=True, slots=True)
class Shape:
    """A type of the models, taken apart. ``nullable`` tells that null is allowed too."""

    type: Any
    metadata: tuple[Any, ...] = ()
    nullable: bool = False

    @property
    def field_type(self) -> FieldType | None:
        """Return the type that reads the value, None for what pydantic reads."""
        return next((item for item in self.metadata if isinstance(item, FieldType)), None)

    @property
    def sections(self) -> tuple[type[Section], ...]:
        """Return the sections that the value can be: one, several told apart by a tag, or none."""
        for each in self.metadata:
            if isinstance(each, KindTable | OneKind):
                return each.known()
        members = get_args(self.type) if is_union(self.type) else (self.type,)
        bare = (get_args(m)[0] if get_origin(m) is Annotated else m for m in members)
        return tuple(m for m in bare if isinstance(m, type) and issubclass(m, Section))

    @property
    def is_mapping(self) -> bool:
        """Return whether the value maps free names to something."""
        return get_origin(self.type) is Mapping

    def keys(self) -> Shape:
        """Return the shape of a mapping's keys."""
        return shape(get_args(self.type)[0])

    def items(self) -> Shape:
        """Return the shape of a mapping's or list's items."""
        return shape(get_args(self.type)[1 if self.is_mapping else 0])


@dataclass(frozen=True, slots=True)
class FieldPlace:
    """A place in the file, what belongs there (None: nothing), and the section around it.

    ``others`` are the sections that could be around it, by what would choose them.
    """

    steps: Steps
    shape: Shape | None
    section: type[Section]
    others: Mapping[str, type[Section]] = field(default_factory=dict)

    @property
    def secret(self) -> bool:
        """Return whether what stands there may be a secret or hold one."""
        last = self.steps[-1] if self.steps else ""
        return self.shape is None or holds_secret(self.shape) or looks_secret(str(last))


def is_union(annotation: Any) -> bool:
    """Return whether the type is a union, however it was spelt."""
    return get_origin(annotation) in (Union, UnionType)


def shape(annotation: Any, metadata: tuple[Any, ...] = ()) -> Shape:
    """Return the parts of a type."""
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
    for name, info in section.model_fields.items():
        yield info.alias or name, info


def by_tag(sections: tuple[type[Section], ...]) -> dict[str, type[Section]]:
    """Return the members of a union by what chooses them: their ``type``, or the processor's."""
    return {section.tag(): section for section in sections}


def holds_secret(value: Shape) -> bool:
    """Return whether a secret belongs somewhere in a value of this shape."""
    if isinstance(value.field_type, FreeMapping) or value.type is SecretStr:
        return True
    if value.field_type is not None:
        return False
    if value.is_mapping or get_origin(value.type) is tuple:
        return holds_secret(value.items())
    return any(
        holds_secret(field_shape(field))
        for section in value.sections
        for _, field in fields(section)
    )


def locate(root: type[Section], location: Steps) -> FieldPlace:
    """Return the place that pydantic's location names, without the tags it puts into it."""
    place = FieldPlace((), Shape(root), root)
    for step in location:
        place = _descend(place, step)
    return place


def _descend(place: FieldPlace, step: str | int) -> FieldPlace:
    steps, current = (*place.steps, step), place.shape
    if current is None:
        return FieldPlace(steps, None, place.section)
    sections = by_tag(current.sections) if len(current.sections) > 1 else {}
    if step in sections:
        chosen = sections[str(step)]
        return FieldPlace(place.steps, Shape(chosen), chosen, sections)
    if current.sections:
        section = current.sections[0]
        found = dict(fields(section)).get(str(step))
        inner = None if found is None else field_shape(found)
        return FieldPlace(steps, inner, section, place.others if section is place.section else {})
    if current.field_type is None and get_args(current.type):
        return FieldPlace(steps, current.items(), place.section)
    return FieldPlace(steps, None, place.section)


#: What pydantic appends to the location when the key of a mapping is refused.
_KEY = "[key]"


def problems(error: ValidationError, root: type[Section]) -> Iterator[ConfigProblem]:
    """Yield each mistake in a value of ``root``, in the order of the fields."""
    for detail in error.errors(include_url=False):
        # pydantic counts a list as too short also because its items were refused
        if detail["type"] != "too_short" or not detail["input"]:
            yield from _problems(detail, root)


def _problems(detail: ErrorDetails, root: type[Section]) -> Iterator[ConfigProblem]:
    if detail["loc"] and detail["loc"][-1] == _KEY:
        yield _bad_key(detail["loc"], root)
        return
    place, value = locate(root, detail["loc"]), detail["input"]
    match detail["type"]:
        case "conflict":
            for steps, sentence in detail["ctx"]["found"]:
                yield (*place.steps, *steps), sentence
        case "missing":
            yield place.steps, f"is missing; give {_accepted_there(place, value)}"
        case "extra_forbidden":
            yield place.steps, _unknown_key(place, value)
        case "union_tag_not_found":
            yield (*place.steps, "type"), f"is missing; give {either(_choices(place))}"
        case "union_tag_invalid":
            yield (*place.steps, "type"), _bad_type(place, value)
        case "refused":
            yield place.steps, f"{_subject(place, value)} {detail['msg']}"
        case _:
            former = of_former_value(place.steps, value)
            yield place.steps, former or f"{_subject(place, value)} {_is_not(place, value)}"


def _subject(place: FieldPlace, value: Any) -> str:
    """Return the value for a sentence; a URL with a password is masked wherever it stands."""
    secret = place.secret or (isinstance(value, str) and has_password(value))
    return subject(value, secret=secret)


def _is_not(place: FieldPlace, value: Any) -> str:
    if value is None and place.shape is not None and place.shape.sections:
        return "is not a mapping; fill it in, or leave the key out"
    sections = place.shape is not None and place.shape.sections
    near = "" if sections else _suggest_near(value, _choices(place))
    return f"is not {_accepted_there(place, value)}{near}"


def _accepted_there(place: FieldPlace, value: Any) -> str:
    assert place.shape is not None, "only known keys are missing or have a wrong value"
    return describe_type(place.shape, null=not isinstance(value, Expanded))


def _choices(place: FieldPlace) -> tuple[str, ...]:
    return () if place.shape is None else choices(place.shape)


def _unknown_key(place: FieldPlace, value: Any) -> str:
    former = of_former_key(place.steps, value, place.section.tag())
    if former is not None:
        return former
    names = [name for name, _ in fields(place.section)]
    key = str(place.steps[-1])
    having = [tag for tag, each in place.others.items() if key in dict(fields(each))]
    if having:
        types = [kind for tag in having for kind in tag.split("|")]
        kind = "type" if "type" in names else "a processor of type"
        return f"is not a known key here; it is one with {kind}: {either(types)}"
    near = get_close_matches(str(place.steps[-1]), names, n=1)
    if near:
        return f"is not a known key; did you mean {near[0]}?"
    return f"is not a known key; known here: {', '.join(names)}"


def _bad_key(location: Steps, root: type[Section]) -> ConfigProblem:
    place, key = locate(root, location[:-2]), location[-2]
    assert place.shape is not None, "only mappings have free keys"
    return (*place.steps, key), f"the key {quoted(key)} is not {describe_type(place.shape.keys())}"


def _bad_type(place: FieldPlace, value: dict[str, Any]) -> str:
    given, types = value["type"], _choices(place)
    return f"{subject(given)} is not {either(types)}{_suggest_near(given, types)}"


def _suggest_near(value: Any, words: tuple[str, ...]) -> str:
    if not isinstance(value, str) or isinstance(value, Expanded):
        return ""
    near = get_close_matches(value, words, n=1)
    return f"; did you mean {near[0]}?" if near else ""
