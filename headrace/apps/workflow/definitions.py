"""Workflows as terms of calls, checked before anything starts.

A term is checked and made into plain JSON before anything starts, so that an instance can carry it
in its state: it goes on with the term that it was started with, whatever is defined meanwhile.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import chain
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.apps.workflow.errors import DefinitionError
from headrace.apps.workflow.terms import (
    Call,
    Choice,
    Input,
    Item,
    Loop,
    Map,
    Parallel,
    Result,
    Retry,
    Sequence,
    Sleep,
    Term,
    Try,
    Value,
    Wait,
)
from headrace.core.imports import load_object
from headrace.core.user_text import ANY_ERROR, describe_error, describe_value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The path of a workflow's whole term. Those of its parts begin with it.
ROOT = "0"

#: The names that a call has for what it returned where it is undone, and a Try for its error.
RESULT, ERROR = "result", "error"

#: What a branch of a choice is named that is taken where no case fits.
OTHERWISE = "otherwise"

_NAME = re.compile(r"[A-Za-z0-9_-]+")

#: Characters of a path that an error shows, where it is too deep.
_SHOWN = 60

#: What a name may be made of.
_LETTERS = "take letters, digits, - and _"

#: Attempts of a call, seconds for each, and seconds from the first one's failure to the second,
#: where neither it nor its workflow says.
ATTEMPTS = 3
TIMEOUT = 60.0
BACKOFF = 1.0

#: Seconds that a time-out may be: a millisecond, and a hundred years.
_LEAST_TIMEOUT, _MOST_TIMEOUT = 0.001, 3_155_760_000

#: Levels that terms may be within each other, workflows that are called among them, and those of a
#: value that is an argument or a result: together they stay below what a state may have.
MOST_TERMS, MOST_LEVELS = 60, 100

#: Bytes of the id of an instance.
MOST_ID = 500


class FailurePolicy(Enum):
    """The policy for the calls that are open when another one has failed for good."""

    WAIT_ALL = "wait_all"
    """The instance opens no more, waits for all of them, and fails then."""

    FAIL_FAST = "fail_fast"
    """They are cancelled, and the instance fails at once."""


def case_name(value: object) -> str:
    """Return how a case is named for a value."""
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True, slots=True)
class Definition:
    """One version of a workflow. ``timeout`` is in seconds and for each attempt of a call.

    ``backoff`` are the seconds from a failure to the second attempt, twice as many with each
    further one. ``limit`` are the seconds that an instance may take, None for any number.
    """

    name: str
    version: int
    term: Term
    policy: FailurePolicy = FailurePolicy.WAIT_ALL
    attempts: int = ATTEMPTS
    timeout: float = TIMEOUT
    backoff: float = BACKOFF
    limit: float | None = None

    @property
    def id(self) -> str:
        """Return name and version, as instances have them."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class Compiled:
    """A definition that was checked. ``term`` is JSON; ``inputs`` are what it needs to start.

    ``limit`` are the milliseconds that an instance may take, None for any number.
    """

    id: str
    term: list[Any]
    inputs: frozenset[str]
    policy: FailurePolicy
    limit: int | None = None

    def require(self, args: Mapping[str, Any]) -> None:
        """Check the arguments of a start.

        Raises:
            DefinitionError: one is missing, is not used, or is nothing that JSON knows.
        """
        given: object = args
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise DefinitionError(
                f"workflow {self.id}: its arguments are {describe_value(args)}; give a mapping of "
                "names to values"
            )
        missing, unknown = self.inputs - args.keys(), args.keys() - self.inputs
        if missing or unknown:
            wrong = [f"{name} is missing" for name in sorted(missing)]
            wrong += [f"{name} is not used" for name in sorted(unknown)]
            needed = ", ".join(sorted(self.inputs)) or "none"
            raise DefinitionError(f"workflow {self.id}: {'; '.join(wrong)}; it takes {needed}")
        for name, value in args.items():
            _literal(f"workflow {self.id}, argument {name}", value)


class Workflows:
    """Processes by name, and workflows by name and version: what all nodes have in common."""

    def __init__(self) -> None:
        self.processes: dict[str, Callable[..., Any]] = {}
        self.definitions: dict[str, dict[int, Definition]] = {}

    def process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Register a function for calls. It is called with an ``Assignment`` and the arguments.

        Raises:
            DefinitionError: there is another one of this name, or it is async.
        """
        name = function.__name__
        self._require_free(name)
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise DefinitionError(
                f"process {name!r} is async, and nothing would await it; leave async out"
            )
        self.processes[name] = function
        return function

    def define(  # noqa: PLR0917 - the members of a definition
        self,
        name: str,
        version: int,
        term: Term,
        policy: FailurePolicy | str = FailurePolicy.WAIT_ALL,
        attempts: int = ATTEMPTS,
        timeout: float = TIMEOUT,
        backoff: float = BACKOFF,
        limit: float | None = None,
    ) -> Definition:
        """Define a version of a workflow. Other versions of it are kept.

        ``attempts``, ``timeout`` and ``backoff`` are those of its calls, ``limit`` the seconds that
        an instance may take: then its open calls are cancelled, and it fails.

        Raises:
            DefinitionError: there is this version already, or a process of this name, or the name,
                the version or the policy is none.
        """
        if name in self.processes:
            self._require_free(name)
        if not _is_name(name) or not _is_whole(version, 1):
            raise DefinitionError(
                f"{name!r} and {version!r} are no name and version of a workflow; {_LETTERS}, and "
                "a whole number from 1 on"
            )
        try:
            chosen = FailurePolicy(policy)
        except ValueError:
            there = " and ".join(each.value for each in FailurePolicy)
            raise DefinitionError(
                f"workflow {name}@{version}: policy is {policy!r}; there are {there}"
            ) from None
        versions = self.definitions.setdefault(name, {})
        if version in versions:
            raise DefinitionError(f"{name}@{version} is defined already; give it another version")
        found = Definition(name, version, term, chosen, attempts, timeout, backoff, limit)
        versions[version] = found
        return found

    def _require_free(self, name: str) -> None:
        if name in self.processes or name in self.definitions:
            raise DefinitionError(f"there is a process or workflow {name!r} already; rename one")

    def find(self, name: str) -> Definition:
        """Return a definition by ``name``, its latest version, or ``name@version``.

        Raises:
            DefinitionError: there is none, or not this version any more.
        """
        if not isinstance(name, str):
            raise DefinitionError(
                f"{describe_value(name)} is no name of a workflow; write 'name' or 'name@version'"
            )
        base, _, version = name.partition("@")
        versions = self.definitions.get(base)
        if not versions:
            there = ", ".join(sorted(self.definitions)) or "none"
            raise DefinitionError(f"there is no workflow {base!r}; defined are {there}")
        if not version:
            return versions[max(versions)]
        if not version.isdecimal() or int(version) not in versions:
            there = ", ".join(map(str, sorted(versions)))
            raise DefinitionError(
                f"there is no version {version} of workflow {base!r}; there are {there}: define "
                "it again, or start another version"
            )
        return versions[int(version)]

    def compiled(self, name: str) -> Compiled:
        """Return a definition checked, as :meth:`find` finds it.

        Raises:
            DefinitionError: it is not there, or cannot be started.
        """
        return _Compiler(self, self.find(name), ()).compiled()

    def check(self) -> dict[str, Compiled]:
        """Return all definitions checked, by name and version.

        Raises:
            DefinitionError: one cannot be started; the text says which, where and why.
        """
        return {
            definition.id: _Compiler(self, definition, ()).compiled()
            for versions in self.definitions.values()
            for definition in versions.values()
        }


def load_workflows(path: str) -> Workflows:
    """Import the :class:`Workflows` that ``package.module:name`` names.

    Raises:
        ImportPathError: it cannot be imported.
        DefinitionError: it is something else.
    """
    found = load_object(path)
    if not isinstance(found, Workflows):
        kind = type(found).__name__
        raise DefinitionError(
            f"{path!r} is a {kind}; it has to be a headrace.apps.workflow.Workflows"
        )
    return found


class _Names(NamedTuple):
    """The names of earlier steps, and of items, that a term may use."""

    steps: frozenset[str] = frozenset()
    items: frozenset[str] = frozenset()

    def with_step(self, name: str) -> _Names:
        return self._replace(steps=self.steps | {name})

    def with_item(self, name: str) -> _Names:
        return self._replace(items=self.items | {name})


class _Compiler:
    """Makes JSON of one definition's term. ``users`` are those that it is called from."""

    def __init__(
        self,
        workflows: Workflows,
        definition: Definition,
        users: tuple[str, ...],
        level: int = 0,
    ) -> None:
        self._workflows = workflows
        self._definition = definition
        self._users = users
        self._level = level
        self._inputs: set[str] = set()

    def compiled(self) -> Compiled:
        """Return what the definition comes to."""
        definition = self._definition
        if definition.id in self._users:
            ring = " -> ".join([*self._users[self._users.index(definition.id) :], definition.id])
            raise DefinitionError(f"{ring}: workflows call each other in a ring; take a Loop")
        self._limits(Call(""), ROOT)
        term = self._term(definition.term, ROOT, _Names())
        inputs = frozenset(self._inputs)
        return Compiled(definition.id, term, inputs, definition.policy, self._limit())

    def _level_of(self, path: str) -> int:
        """Return how many terms there are around what is at a path, in workflows around it too."""
        return self._level + path.count(".") + path.count("[")

    def _term(  # noqa: C901, PLR0911 - one case for each kind
        self, term: Any, path: str, names: _Names
    ) -> list[Any]:
        if self._level_of(path) >= MOST_TERMS:
            text = f"terms are more than {MOST_TERMS} deep within each other; have fewer"
            raise self._error(f"{path[:_SHOWN]}…", text)
        match term:
            case Call():
                return self._call(term, path, names)
            case Sequence(steps=children):
                self._require_some(children, path, "steps")
                self._require_names(children, path, "a step")
                return ["sequence", list(self._sequence(children, path, names))]
            case Parallel(branches=children):
                self._require_some(children, path, "branches")
                self._require_names(children, path, "a branch")
                named = [
                    [n, self._term(each, f"{path}.{n}", names)] for n, each in children.items()
                ]
                return ["parallel", named]
            case Choice():
                return self._choice(term, path, names)
            case Loop():
                return self._loop(term, path, names)
            case Map():
                return self._map(term, path, names)
            case Wait():
                return self._wait(term, path)
            case Sleep():
                return self._sleep(term, path, names)
            case Try():
                return self._try(term, path, names)
        kind = type(term).__name__
        text = f"is a {kind}; it has to be a Call, Sequence, Parallel, Map, Choice, Loop, Wait, "
        raise self._error(path, f"{text}Sleep or Try")

    def _sequence(
        self, children: Mapping[str, Term], path: str, names: _Names
    ) -> Iterator[list[Any]]:
        for name, child in children.items():
            yield [name, self._term(child, f"{path}.{name}", names)]
            names = names.with_step(name)

    def _call(self, call: Call, path: str, names: _Names) -> list[Any]:
        args = {name: self._value(value, path, names) for name, value in call.args.items()}
        workflows = self._workflows
        known: object = call.process  # by a user without a type checker
        if not isinstance(known, str) or known not in workflows.processes:
            base = known.partition("@")[0] if isinstance(known, str) else None
            if base not in workflows.definitions:
                there = ", ".join(sorted([*workflows.processes, *workflows.definitions])) or "none"
                shown = describe_value(known)
                raise self._error(path, f"there is no process {shown}; known are {there}")
            return self._workflow(call, path, args)
        self._require_arguments(call, path)
        extras = self._extras(call, path, names)
        return [
            "call",
            call.process,
            args,
            *self._limits(call, path),
            *([extras] if extras else []),
        ]

    def _extras(self, call: Call, path: str, names: _Names) -> dict[str, Any]:
        """Return what undoes a call, and its limits by kinds of error, where it has any."""
        found: dict[str, Any] = {}
        retries = self._retries(call, path)
        if retries:
            found["retries"] = retries
        if call.undo is not None:
            found["undo"] = self._undo(call.undo, f"{path}.undo", names)
        return found

    def _retries(self, call: Call, path: str) -> dict[str, list[int]]:
        given: Any = call.retries
        if not isinstance(given, Mapping):
            raise self._error(path, f"retries is {given!r}; give a Retry by kind of error")
        found = {}
        for kind, retry in given.items():
            if not isinstance(kind, str) or not isinstance(retry, Retry):
                text = f"retries has {describe_value(kind)}: {describe_value(retry)}"
                raise self._error(path, f"{text}; give a Retry by the name of an error's class")
            if kind in ANY_ERROR:
                text = f"retries has {kind!r}, which all errors are of; leave it out, and give"
                raise self._error(path, f"{text} attempts and backoff for all")
            other = call.limited(
                attempts=call.attempts if retry.attempts is None else retry.attempts,
                backoff=call.backoff if retry.backoff is None else retry.backoff,
            )
            attempts, _, backoff = self._limits(other, f"{path}, retries of {kind}")
            found[kind] = [attempts, backoff]
        return found

    def _undo(self, undo: object, path: str, names: _Names) -> list[Any]:
        """Return the call that undoes another one: its process, arguments and limits."""
        if not isinstance(undo, Call) or undo.process not in self._workflows.processes:
            there = ", ".join(sorted(self._workflows.processes)) or "none"
            text = f"{describe_value(undo)} is no Call of a process; known are {there}"
            raise self._error(path, text)
        if undo.undo is not None or undo.retries:
            raise self._error(path, "what undoes a call has no undo and no retries of its own")
        self._require_arguments(undo, path)
        args = {name: self._undo_value(each, path, names) for name, each in undo.args.items()}
        return [undo.process, args, *self._limits(undo, path)]

    def _undo_value(self, value: Value, path: str, names: _Names) -> list[Any]:
        if isinstance(value, Result):
            found = self._reference(value, path, names.with_step(RESULT))
            return ["own", found[2]] if found[1] == RESULT else found
        return self._value(value, path, names)

    def _workflow(self, call: Call, path: str, args: dict[str, Any]) -> list[Any]:
        if (call.attempts, call.timeout, call.backoff) != (None, None, None) or call.retries:
            raise self._error(path, "is a workflow, whose own calls have attempts and time-outs")
        if call.undo is not None:
            raise self._error(path, "is a workflow, whose own calls say what undoes them")
        found = self._workflows.find(call.process)
        users, level = (*self._users, self._definition.id), self._level_of(path) + 1
        inner = _Compiler(self._workflows, found, users, level).compiled()
        try:
            inner.require(dict.fromkeys(args))
        except DefinitionError as error:
            raise self._error(path, str(error)) from None
        limit = [] if inner.limit is None else [inner.limit]
        return ["workflow", inner.id, args, inner.term, *limit]

    def _map(self, each: Map, path: str, names: _Names) -> list[Any]:
        if not _is_whole(each.at_once, 1):
            shown = describe_value(each.at_once)
            raise self._error(path, f"at_once is {shown}; it has to be a whole number from 1 on")
        if not _is_name(each.item):
            raise self._error(path, f"{each.item!r} cannot be the name of an item: {_LETTERS}")
        if not isinstance(each.over, (Input, Result, Item, list)):
            shown = describe_value(each.over)
            raise self._error(path, f"over is {shown}; it has to be a list, or what has one")
        over = self._value(each.over, path, names)
        body = self._term(each.body, f"{path}[0]", names.with_item(each.item))
        return ["map", each.item, over, body, each.at_once]

    def _wait(self, wait: Wait, path: str) -> list[Any]:
        if not _is_name(wait.signal):
            raise self._error(path, f"{wait.signal!r} cannot be the name of a signal: {_LETTERS}")
        if wait.timeout is None:
            return ["wait", wait.signal, None]
        return ["wait", wait.signal, self._seconds(path, "timeout", wait.timeout, _LEAST_TIMEOUT)]

    def _sleep(self, sleep: Sleep, path: str, names: _Names) -> list[Any]:
        if (sleep.seconds is None) == (sleep.until is None):
            raise self._error(path, "a Sleep takes either seconds or until")
        if sleep.until is not None:
            is_text = isinstance(sleep.until, str)
            if is_text and not _is_moment(sleep.until):
                text = "it has to be a time with its zone, such as 2030-01-31T08:00:00Z"
                raise self._error(path, f"until is {describe_value(sleep.until)}; {text}")
            return ["sleep", None, self._value(sleep.until, path, names)]
        if not isinstance(sleep.seconds, (Input, Result, Item)):
            self._seconds(path, "seconds", sleep.seconds, 0)
        return ["sleep", self._value(sleep.seconds, path, names), None]

    def _try(self, each: Try, path: str, names: _Names) -> list[Any]:
        kinds: object = each.kinds
        if not isinstance(kinds, (tuple, list)) or not all(isinstance(kind, str) for kind in kinds):
            text = "it has to be a list of names of errors' classes"
            raise self._error(path, f"kinds is {describe_value(kinds)}; {text}")
        wide = next((kind for kind in kinds if kind in ANY_ERROR), None)
        if wide is not None:
            text = f"kinds has {wide!r}, which all errors are of; leave kinds out to take all"
            raise self._error(path, text)
        if kinds and each.catch is None:
            raise self._error(path, "has kinds and no catch; give it one, or leave them out")
        body = self._term(each.body, f"{path}.body", names)
        catch = each.catch
        rest = None if catch is None else self._term(catch, f"{path}.catch", names.with_step(ERROR))
        return ["try", body, rest, list(each.kinds)]

    def _choice(self, choice: Choice, path: str, names: _Names) -> list[Any]:
        self._require_some(choice.cases, path, "cases")
        on = self._reference(choice.on, path, names)
        cases: list[list[Any]] = []
        for value, child in choice.cases.items():
            if not isinstance(value, (str, int)):
                text = (
                    f"has the case {describe_value(value)}; take a text, a whole number or a bool"
                )
                raise self._error(path, text)
            name = case_name(value)
            if not _is_name(name) or name == OTHERWISE:
                raise self._error(path, f"{name!r} cannot be a case: {_LETTERS}")
            if any(name == other for other, _ in cases):
                text = f"{value!r} is a second case of the name {name!r}; leave one out"
                raise self._error(path, text)
            cases.append([name, self._term(child, f"{path}.{name}", names)])
        other = choice.otherwise
        rest = None if other is None else self._term(other, f"{path}.{OTHERWISE}", names)
        return ["choice", on, cases, rest]

    def _loop(self, loop: Loop, path: str, names: _Names) -> list[Any]:
        if (loop.times is None) == (loop.until is None):
            raise self._error(path, "a Loop takes either times or until")
        if not isinstance(loop.times, (Input, Result, Item, NoneType)) and not _is_whole(
            loop.times, 0
        ):
            text = "it has to be a whole number from 0 on, an Input or a Result"
            raise self._error(path, f"times is {describe_value(loop.times)}; {text}")
        if not _is_whole(loop.most, 1):
            shown = describe_value(loop.most)
            raise self._error(path, f"most is {shown}; it has to be a whole number from 1 on")
        if loop.until is not None and not _is_place(loop.until):
            shown = describe_value(loop.until)
            text = "it has to be a field's name, with those of fields in it after dots"
            raise self._error(path, f"until is {shown}; {text}")
        name = own_name(path)
        times = None if loop.times is None else self._value(loop.times, path, names)
        body = self._term(loop.body, f"{path}[0]", names.with_step(name))
        until = None if loop.until is None else loop.until.split(".")
        return ["loop", name, body, times, until, loop.most]

    def _value(self, value: Value, path: str, names: _Names) -> list[Any]:
        if isinstance(value, (Input, Result, Item)):
            return self._reference(value, path, names)
        return ["is", _literal(f"workflow {self._definition.id}, {path}", value)]

    def _reference(self, value: object, path: str, names: _Names) -> list[Any]:
        if not isinstance(value, (Input, Result, Item)):
            raise self._error(path, f"{describe_value(value)} is neither an Input nor a Result")
        if not _is_place(value.name):
            kind, shown = type(value).__name__, describe_value(value.name)
            raise self._error(path, f"{kind}({shown}): it has to be a name, or name.field")
        name, *fields = value.name.split(".")
        if isinstance(value, Input):
            self._inputs.add(name)
            return ["input", name, fields]
        if isinstance(value, Item):
            if name not in names.items:
                there = ", ".join(sorted(names.items)) or "none"
                raise self._error(path, f"there is no Map with an item {name!r}; there are {there}")
            return ["item", name, fields]
        if name not in names.steps:
            there = ", ".join(sorted(names.steps)) or "none"
            raise self._error(path, f"there is no earlier step {name!r}; earlier ones are {there}")
        return ["step", name, fields]

    def _require_some(self, children: Mapping[Any, Term], path: str, what: str) -> None:
        if not children:
            raise self._error(path, f"has no {what}; give it one, or leave it out")

    def _require_names(self, children: Mapping[str, Term], path: str, what: str) -> None:
        for name in children:
            if not _is_name(name):
                raise self._error(path, f"{name!r} cannot be the name of {what}: {_LETTERS}")

    def _require_arguments(self, call: Call, path: str) -> None:
        """Check that a process can be called with the arguments of a call."""
        try:
            signature = inspect.signature(self._workflows.processes[call.process])
        except ValueError:  # as of functions in C, which do not say
            return
        try:
            signature.bind(None, **call.args)
        except TypeError as error:
            text = f"{call.process}{signature} cannot be called with these arguments: {error}"
            raise self._error(path, text) from None

    def _limits(self, call: Call, path: str) -> list[int]:
        """Return attempts, time-out and backoff of a call, in milliseconds."""
        found = self._definition
        attempts = found.attempts if call.attempts is None else call.attempts
        timeout = found.timeout if call.timeout is None else call.timeout
        backoff = found.backoff if call.backoff is None else call.backoff
        if not _is_whole(attempts, 1):
            text = f"attempts is {attempts!r}; it has to be a whole number from 1 on"
            raise self._error(path, text)
        return [
            attempts,
            self._seconds(path, "timeout", timeout, _LEAST_TIMEOUT),
            self._seconds(path, "backoff", backoff, 0),
        ]

    def _limit(self) -> int | None:
        """Return the milliseconds that an instance may take, None for any number."""
        limit = self._definition.limit
        return None if limit is None else self._seconds(ROOT, "limit", limit, _LEAST_TIMEOUT)

    def _seconds(self, path: str, what: str, value: Any, least: float) -> int:
        """Return a number of seconds in milliseconds."""
        known: float = value if _is_number(value) else -1.0
        if not least <= known <= _MOST_TIMEOUT:
            text = f"it has to be a number of seconds from {least} to {_MOST_TIMEOUT}"
            raise self._error(path, f"{what} is {describe_value(value)}; {text}")
        return round(known * 1000)

    def _error(self, path: str, text: str) -> DefinitionError:
        return DefinitionError(f"workflow {self._definition.id}, {path}: {text}")


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def _is_place(value: object) -> bool:
    """Return whether a value is a name, or several with dots between them."""
    return isinstance(value, str) and all(value.split("."))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_moment(value: object) -> bool:
    """Return whether a text is a time with its zone."""
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def own_name(path: str) -> str:
    """Return the name of what is at a path, without the number of its iteration."""
    return path.rpartition(".")[2].partition("[")[0]


def _literal(where: str, value: Any) -> Any:
    """Return a value as JSON gives it back.

    Raises:
        DefinitionError: it is nothing that JSON knows, or too deep.
    """
    try:
        data = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        found = json.loads(data)
    except Exception as error:  # noqa: BLE001 - of the user's own types, which may be dicts
        raise DefinitionError(
            f"{where}: {describe_value(value)} is nothing that JSON knows: {describe_error(error)}"
        ) from None
    if is_deeper(found, MOST_LEVELS):
        raise DefinitionError(
            f"{where}: lists and dicts are more than {MOST_LEVELS} deep within each other; keep "
            "what it says flat"
        )
    return found


def is_deeper(value: Any, levels: int) -> bool:
    """Return whether a JSON value nests more lists and dicts than that."""
    found = [value]
    for _ in range(levels + 1):
        found = [each for each in found if isinstance(each, (dict, list))]
        if not found:
            return False
        parts = (each.values() if isinstance(each, dict) else each for each in found)
        found = list(chain.from_iterable(parts))
    return True


def require_signal(name: object, value: object) -> None:
    """Check the name and the value of a signal.

    Raises:
        DefinitionError: the name is none, or the value is nothing that JSON knows.
    """
    if not _is_name(name):
        raise DefinitionError(f"{describe_value(name)} cannot be the name of a signal: {_LETTERS}")
    _literal(f"signal {name}", value)


def require_text(what: str, value: object) -> None:
    """Check a text that goes along with a signal, or with the end of an instance.

    Raises:
        DefinitionError: it is no text, or none that UTF-8 can write.
    """
    try:
        is_text = isinstance(value, str) and value.encode() is not None
    except UnicodeEncodeError:
        is_text = False
    if not is_text:
        raise DefinitionError(f"{what} is {describe_value(value)}; it has to be a text in UTF-8")


def require_id(instance: object) -> str:
    """Return the id of an instance.

    Raises:
        DefinitionError: it is none; the text says what it has to be.
    """
    try:
        size = len(instance.encode()) if isinstance(instance, str) else 0
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= MOST_ID or not isinstance(instance, str):
        of = f" of {size} bytes" if size else ""
        raise DefinitionError(
            f"the id {describe_value(instance)}{of} cannot be an instance's; take a text of 1 to "
            f"{MOST_ID} bytes in UTF-8"
        )
    return instance
