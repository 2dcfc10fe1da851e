"""The terms that workflows are made of, and the values that arguments may be."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias

from headrace.apps.workflow.errors import DefinitionError

if TYPE_CHECKING:
    from collections.abc import Mapping

#: Iterations of a loop, where it does not say.
MOST_ITERATIONS = 100

#: Items of a Map that are worked on at once, where it does not say.
AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Input:
    """An argument of the workflow. After dots, fields of it: ``Input("flight.tailnum")``."""

    name: str


@dataclass(frozen=True, slots=True)
class Result:
    """The result of an earlier step, by its name. After dots, fields of it.

    Steps are those of the sequences around the term, from the innermost on. In the body of a loop,
    the loop's own name is the result of the iteration before, None in the first.
    """

    name: str


@dataclass(frozen=True, slots=True)
class Item:
    """The item of a Map around, by the name that it has there. After dots, fields of it."""

    name: str


Value: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Retry:
    """Other limits of a call for errors of one kind; None leaves what the call has.

    ``attempts`` are those of the call in all, ``backoff`` the seconds from a failure to the second
    attempt, twice as many with each further one.
    """

    attempts: int | None = None
    backoff: float | None = None


@dataclass(frozen=True, slots=True, init=False)
class Call:
    """A call of a process, or of another workflow, with arguments by name.

    Arguments are what JSON knows, or an :class:`Input`, :class:`Result` or :class:`Item`. A
    workflow is named as ``name`` (its latest version) or ``name@version``.
    """

    process: str
    args: Mapping[str, Value]
    attempts: int | None
    timeout: float | None
    backoff: float | None
    retries: Mapping[str, Retry]
    undo: Call | None

    def __init__(self, process: str, /, **args: Value) -> None:
        self._set(process, args, None, None, None, {}, None)

    def _set(self, *values: Any) -> None:
        for member, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, member.name, value)

    def _changed(self, **changes: Any) -> Call:
        other = Call(self.process)
        members = {each.name: getattr(self, each.name) for each in fields(self)}
        other._set(*(members | changes).values())
        return other

    def limited(
        self,
        *,
        attempts: int | None = None,
        timeout: float | None = None,
        backoff: float | None = None,
        retries: Mapping[str, Retry] | None = None,
    ) -> Call:
        """Return the call with other attempts than the workflow's.

        ``timeout`` are the seconds of each, ``backoff`` those from a failure to the second attempt,
        twice as many with each further one. ``retries`` has others by the kind of error: the name
        of its class, or of one that this is derived from, ``TimeoutError`` for what is not answered
        in time; of several, that of the class itself is taken.
        """
        return self._changed(
            attempts=attempts, timeout=timeout, backoff=backoff, retries=retries or {}
        )

    def undone_by(self, undo: Call) -> Call:
        """Return the call with what undoes it, once it is done and what is around it fails.

        In the arguments of ``undo``, ``Result("result")`` is what this call has returned.
        """
        return self._changed(undo=undo)


@dataclass(frozen=True, slots=True, init=False)
class Sequence:
    """One step after the other; its result is that of the last.

    A step without a name has its number, from 0 on.

    Raises:
        DefinitionError: a name is one of those numbers.
    """

    steps: Mapping[str, Term]

    def __init__(self, *steps: Term, **named: Term) -> None:
        object.__setattr__(self, "steps", _name_parts("step", steps, named))


@dataclass(frozen=True, slots=True, init=False)
class Parallel:
    """All branches at once; its result is a mapping of their names to their results.

    A branch without a name has its number, from 0 on.

    Raises:
        DefinitionError: a name is one of those numbers.
    """

    branches: Mapping[str, Term]

    def __init__(self, *branches: Term, **named: Term) -> None:
        object.__setattr__(self, "branches", _name_parts("branch", branches, named))


@dataclass(frozen=True, slots=True)
class Choice:
    """The case that ``on`` has the value of; its result is that case's.

    Cases are texts, whole numbers, true or false. Without ``otherwise``, an instance whose value no
    case fits fails.
    """

    on: Input | Result | Item
    cases: Mapping[str | int | bool, Term]
    otherwise: Term | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    """The body again and again; its result is that of the last iteration.

    So many ``times``, a whole number from 0 on, or ``until`` that field of the body's result is
    true, in ``most`` iterations: without it by then, the instance fails, as it does where the field
    is neither true nor false, nor null.
    """

    body: Term
    times: int | Input | Result | Item | None = None
    until: str | None = None
    most: int = MOST_ITERATIONS


@dataclass(frozen=True, slots=True)
class Map:
    """The body for each item of a list, at most ``at_once`` of them at a time.

    Its result is the list of theirs, in the order of the items. In the body, ``Item(item)`` is the
    item.
    """

    over: Input | Result | Item | list[Value]
    body: Term
    at_once: int = AT_ONCE
    item: str = "item"


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause until the instance gets a signal of this name; its result is the signal's value.

    Signals that came before are taken first, each by one Wait. Without one in ``timeout`` seconds
    it fails, with an error of the kind ``TimeoutError``.
    """

    signal: str
    timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Sleep:
    """A pause for so many ``seconds``, or ``until`` a time as ISO 8601 has it, with its zone.

    Its result is nothing.
    """

    seconds: float | Input | Result | Item | None = None
    until: str | Input | Result | Item | None = None


@dataclass(frozen=True, slots=True)
class Try:
    """The body; where that fails, its done calls are undone, and ``catch`` goes on in its place.

    ``kinds`` are those of the errors that are taken, all if there are none: names of classes, or of
    those that they are derived from, ``TimeoutError``, or ``TermError`` for a term that cannot go
    on. What is not taken fails what is around, as it does where a call could not be undone. In
    ``catch``, ``Result("error")`` has the error's ``msg``, ``ref`` and ``kinds``.
    """

    body: Term
    catch: Term | None = None
    kinds: tuple[str, ...] = ()


Term: TypeAlias = "Call | Sequence | Parallel | Map | Choice | Loop | Wait | Sleep | Try"


def _name_parts(what: str, terms: tuple[Term, ...], named: dict[str, Term]) -> dict[str, Term]:
    """Return parts by their names, those without one first."""
    numbered = {str(number): term for number, term in enumerate(terms)}
    for name in numbered.keys() & named.keys():
        raise DefinitionError(
            f"{what} {name!r} is there twice, as the number of one without a name too; rename it"
        )
    return numbered | named
