"""The differences between two configurations, and the effect that each of them has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from headrace.config.errors import dotted
from headrace.config.models.base import ReloadEffect, Section
from headrace.config.show import document

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.config.errors import Steps


class ChangeKind(Enum):
    """The kind of change of a value."""

    ADDED = "added"
    """A key of a free mapping, such as a channel, that was not there."""
    REMOVED = "removed"
    """A key of a free mapping that is not there any more."""
    CHANGED = "changed"
    """Another value in the same place."""
    CODE = "code"
    """Other content of the files that a processor's code is in; no value of the configuration."""


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One difference. ``steps`` lead to it.

    ``before`` and ``after`` are what a file would have there, with secrets masked; None stands
    for what is not there.
    """

    steps: Steps
    kind: ChangeKind
    before: Any
    after: Any
    effect: ReloadEffect

    @property
    def path(self) -> str:
        """Return the place as people write it: ``channels.flights.batch.linger``."""
        return dotted(self.steps)

    @property
    def channel(self) -> str | None:
        """Return the name of the channel it is in; None for what all channels share."""
        inside = len(self.steps) > 1 and self.steps[0] == "channels"
        return str(self.steps[1]) if inside else None


def diff(before: Section, after: Section, *, at: Steps = ()) -> tuple[ConfigChange, ...]:
    """Return what ``after`` has otherwise than ``before``, in the order of the fields.

    The two are of one type, and stand at ``at`` in the file. A change is as deep as its place has
    a name: an item of a list has none, so a list changes as a whole, and so does a section that
    becomes one of another type. What differs in a topology shows in the channels that it becomes.
    """
    both = _Pair(before, after, document(before), document(after))
    return tuple(each for each in _sections(at, both) if each.steps[0] != "topologies")


@dataclass(frozen=True, slots=True)
class _Pair:
    """The values of one place, and both as a file would have them."""

    before: Any
    after: Any
    old: Any
    new: Any

    def change(self, at: Steps, kind: ChangeKind, effect: ReloadEffect) -> ConfigChange:
        return ConfigChange(at, kind, self.old, self.new, effect)

    @property
    def both_are_mappings(self) -> bool:
        return isinstance(self.before, Mapping) and isinstance(self.after, Mapping)


def _sections(at: Steps, pair: _Pair) -> Iterator[ConfigChange]:
    # a section that does not exist with the other values of either side is in neither file
    old, new = pair.old or {}, pair.new or {}
    if not old and not new:
        return
    for attribute, field in type(pair.before).model_fields.items():
        name = field.alias or attribute
        inner = _Pair(
            getattr(pair.before, attribute),
            getattr(pair.after, attribute),
            old.get(name),
            new.get(name),
        )
        yield from _values((*at, name), inner, pair.after.effect_of(attribute))


def _values(at: Steps, pair: _Pair, effect: ReloadEffect) -> Iterator[ConfigChange]:
    if isinstance(pair.before, Section) and type(pair.before) is type(pair.after):
        yield from _sections(at, pair)
    elif pair.both_are_mappings:
        yield from _mappings(at, pair, effect)
    elif not _is_same(pair.before, pair.after):
        yield pair.change(at, ChangeKind.CHANGED, effect)


def _mappings(at: Steps, pair: _Pair, effect: ReloadEffect) -> Iterator[ConfigChange]:
    for key in [*pair.before, *(key for key in pair.after if key not in pair.before)]:
        steps = (*at, key)
        inner = _Pair(*(side.get(key) for side in (pair.before, pair.after, pair.old, pair.new)))
        if key not in pair.after:
            yield inner.change(steps, ChangeKind.REMOVED, effect)
        elif key not in pair.before:
            yield inner.change(steps, ChangeKind.ADDED, effect)
        else:
            yield from _values(steps, inner, effect)


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same also to whom true and 1 are not."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_is_same, one, other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def adopt(before: Section, after: Section, changes: Iterable[ConfigChange]) -> Any:
    """Return ``before`` with the values of ``after`` in the places of ``changes``."""
    adopted: Any = before
    for change in changes:
        if change.kind is ChangeKind.CODE:
            continue
        adopted = _adopt(adopted, after, change.steps)
    return adopted


def _adopt(before: Any, after: Any, steps: Steps) -> Any:
    if not steps:
        return after
    first, rest = steps[0], steps[1:]
    if isinstance(before, Section):
        name = next(
            n for n, field in type(before).model_fields.items() if first in (n, field.alias)
        )
        value = _adopt(getattr(before, name), getattr(after, name), rest)
        return before.model_copy(update={name: value})
    if first not in after:
        return {key: value for key, value in before.items() if key != first}
    return {**before, first: _adopt(before.get(first), after[first], rest)}
