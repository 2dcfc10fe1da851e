"""One pass through an instance's term: what is done, and what is to be begun."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.apps.workflow.definitions import OTHERWISE, ROOT, case_name
from headrace.apps.workflow.messages import EXCEPTIONS, NO_RESULT
from headrace.apps.workflow.phases import ScopePhase
from headrace.core.user_text import describe_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: Iterations that loops may end by one fact: those of them that call something are few.
_MOST_ITERATIONS = 10_000

#: Items of a list that a Map may have: each pass looks at all of them.
_MOST_ITEMS = 10_000

#: The last time (ms) that there is, and the most that a Sleep may last: the year 9999.
LAST_MS = 253_402_300_799_000

#: What a part of a term comes to while something of it is open.
OPEN: Any = object()

#: The kinds of error that a part has that cannot go on, and one whose time is over.
_TERM_KINDS, TIMEOUT_KINDS = ("TermError",), ("TimeoutError",)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a term cannot go on at a path. ``kind`` is the type of the failure.

    ``kinds`` are the names by which a Try may take it. What is open at the path is cancelled where
    it ``cancels``.
    """

    path: str
    text: str
    kind: str = EXCEPTIONS
    kinds: tuple[str, ...] = _TERM_KINDS
    cancels: bool = False


class _RefusedError(Exception):
    """A part cannot go on."""

    def __init__(
        self,
        path: str,
        text: str,
        kind: str = EXCEPTIONS,
        *,
        kinds: tuple[str, ...] = _TERM_KINDS,
        cancels: bool = False,
    ) -> None:
        super().__init__(text)
        self.refusal = Refusal(path, text, kind, kinds, cancels)


class _Scope(NamedTuple):
    """The values that arguments may be of: steps have their paths by their names."""

    inputs: Any
    steps: Mapping[str, str]
    items: Mapping[str, Any]

    def with_step(self, name: str, path: str) -> _Scope:
        return self._replace(steps={**self.steps, name: path})

    def with_item(self, name: str, item: Any) -> _Scope:
        return self._replace(items={**self.items, name: item})


class Opened(NamedTuple):
    """A call to be made: the term's, its arguments, and what undoes it, if anything does.

    Of an undo, an argument is ``["is", value]``, or ``["own", fields]`` of the call's result.
    """

    path: str
    call: list[Any]
    args: dict[str, Any]
    undo: list[Any] | None


class TermPass:
    """One pass through a term, from its root: what is done, and what is to be begun.

    The state's returns, loops, choices, pauses, signals and scopes are brought up to date. A part
    that cannot go on is among the ``refusals``, and the others are looked at all the same. ``now``
    is in ms; ``iterations`` are those of loops that passes by the same fact have ended before.
    """

    def __init__(self, state: dict[str, Any], now: int, iterations: int = 0) -> None:
        self._state = state
        self._now = now
        self._called = {**state["called"], **state.get("waiting", {})}
        self._returns: dict[str, Any] = state["returns"]
        self._loops: dict[str, int] = state["loops"]
        self._choices: dict[str, str] = state["choices"]
        self.iterations = iterations
        self.opened: list[Opened] = []
        self.refusals: list[Refusal] = []
        #: Waits and sleeps that have begun: their paths, the signal, and when they are over (ms).
        self.paused: list[tuple[str, str | None, int | None]] = []
        #: Those that are over, with their results.
        self.resumed: list[tuple[str, Any]] = []

    def result(self) -> Any:
        """Return what the whole term comes to, ``OPEN`` while something of it is."""
        return self._part(self._state["term"], ROOT, _Scope(self._state["args"], {}, {}))

    def _part(self, term: list[Any], path: str, scope: _Scope) -> Any:
        """Return what a part comes to, ``OPEN`` while something of it is."""
        if path in self._returns:
            return self._returns[path]
        try:
            part: Callable[[list[Any], str, _Scope], Any] = getattr(self, f"_{term[0]}")
            return part(term, path, scope)
        except _RefusedError as error:
            self.refusals.append(error.refusal)
            return OPEN

    def _call(self, term: list[Any], path: str, scope: _Scope) -> Any:
        if path not in self._called:
            undo = extras_of(term).get("undo")
            if undo is not None:
                process, args, *limits = undo
                undo = [process, self._undo_values(args, path, scope), *limits]
            args = self._values(term[2], path, scope)
            self.opened.append(Opened(path, term, args, undo))
        return OPEN

    def _sequence(self, term: list[Any], path: str, scope: _Scope) -> Any:
        found = None
        for name, child in term[1]:
            own = f"{path}.{name}"
            found = self._part(child, own, scope)
            if found is OPEN:
                return OPEN
            scope = scope.with_step(name, own)
        return self._store_result(path, found)

    def _parallel(self, term: list[Any], path: str, scope: _Scope) -> Any:
        found = {name: self._part(part, f"{path}.{name}", scope) for name, part in term[1]}
        is_open = any(each is OPEN for each in found.values())
        return OPEN if is_open else self._store_result(path, found)

    def _map(self, term: list[Any], path: str, scope: _Scope) -> Any:
        _, item, over, body, at_once = term
        items = self._value(over, path, scope)
        if not isinstance(items, list):
            raise _RefusedError(path, f"{path}: over is {describe_value(items)}, which is no list")
        if len(items) > _MOST_ITEMS:
            text = f"{path}: over has {len(items)} items, and {_MOST_ITEMS} are allowed"
            raise _RefusedError(path, text)
        found: list[Any] = []
        is_open = 0
        for number, each in enumerate(items):
            if is_open == at_once:
                break
            result = self._part(body, f"{path}[{number}]", scope.with_item(item, each))
            found.append(result)
            is_open += result is OPEN
        return OPEN if is_open else self._store_result(path, found)

    def _workflow(self, term: list[Any], path: str, scope: _Scope) -> Any:
        _, name, args, inner, *limit = term
        own = self._values(args, path, scope)
        found = self._part(inner, f"{path}.{ROOT}", _Scope(own, {}, {}))
        if found is OPEN and limit:
            due = self._pauses.setdefault(path, self._now + limit[0])
            if due <= self._now:
                text = f"{path}: the time limit of {limit[0] / 1000:g} s of {name} is over"
                raise _RefusedError(path, text, kinds=TIMEOUT_KINDS, cancels=True)
        return self._done_if(path, found)

    def _choice(self, term: list[Any], path: str, scope: _Scope) -> Any:
        _, on, cases, otherwise = term
        if path not in self._choices:
            name = case_name(self._value(on, path, scope))
            known = any(name == each for each, _ in cases)
            if not known and otherwise is None:
                text = f"{path}: no case for {describe_value(name)}, and nothing otherwise"
                raise _RefusedError(path, text, NO_RESULT)
            self._choices[path] = name if known else OTHERWISE
        name = self._choices[path]
        child = next((each for case, each in cases if case == name), otherwise)
        return self._done_if(path, self._part(child, f"{path}.{name}", scope))

    def _loop(self, term: list[Any], path: str, scope: _Scope) -> Any:
        _, name, body, times, until, most = term
        limit = most if times is None else self._value(times, path, scope)
        if not isinstance(limit, int) or isinstance(limit, bool):
            shown = describe_value(limit)
            raise _RefusedError(path, f"{path}: times is {shown}, which is no whole number")
        if limit < 0:
            raise _RefusedError(path, f"{path}: times is {limit}; it has to be 0 or more")
        number, found = self._loops.get(path, 0), None
        if number:
            found = self._returns.get(f"{path}[{number - 1}]")
        while number < limit:
            before = scope.with_step(name, f"{path}[{number - 1}]")
            found = self._part(body, f"{path}[{number}]", before)
            if found is OPEN:
                return OPEN
            self.iterations += 1
            if self.iterations > _MOST_ITERATIONS:
                text = f"{path}: more than {_MOST_ITERATIONS} iterations without a call"
                raise _RefusedError(path, text)
            self._forget_iteration(f"{path}[{number}]")
            self._returns.pop(f"{path}[{number - 1}]", None)
            number += 1
            self._loops[path] = number
            if until is not None and self._is_reached(found, until, path):
                return self._store_result(path, found)
        if until is not None:
            text = f"{path}: {'.'.join(until)!r} was not reached in {limit} iterations"
            raise _RefusedError(path, text)
        return self._store_result(path, found)

    @staticmethod
    def _is_reached(found: Any, until: Sequence[str], path: str) -> bool:
        """Return whether a field is true; raises a _RefusedError if it is no truth value."""
        said = _field_of(found, until, path)
        if said is None or isinstance(said, bool):
            return bool(said)
        text = f"{path}: {'.'.join(until)!r} is {describe_value(said)}; it has to be true or false"
        raise _RefusedError(path, text)

    def _try(self, term: list[Any], path: str, scope: _Scope) -> Any:
        _, body, catch, kinds = term
        scopes = self._state.setdefault("scopes", {})
        own = scopes.setdefault(path, {"phase": ScopePhase.OPEN.value})
        if catch is not None:
            own.setdefault("catches", kinds)
        match ScopePhase(own["phase"]):
            case ScopePhase.OPEN:
                found = self._part(body, f"{path}.{BODY}", scope)
            case ScopePhase.CATCHING:
                around = scope.with_step(ERROR, f"{path}.{ERROR}")
                found = self._part(catch, f"{path}.{CATCH}", around)
            case _:
                return OPEN
        if found is OPEN:
            return OPEN
        del scopes[path]
        return self._store_result(path, found)

    # --- waits and sleeps -------------------------------------------------------------------

    @property
    def _pauses(self) -> dict[str, Any]:
        """Return when waits, sleeps and workflows with a limit are over (ms), by their paths."""
        pauses: dict[str, Any] = self._state.setdefault("pauses", {})
        return pauses

    def _wait(self, term: list[Any], path: str, scope: _Scope) -> Any:
        del scope
        _, name, timeout = term
        signals = self._state.get("signals", {})
        if name in signals:
            value, *left = signals.pop(name)
            if left:
                signals[name] = left
            return self._resume(path, value)
        due = self._pause(path, name, None if timeout is None else self._now + timeout)
        if due is not None and due <= self._now:
            text = f"{path}: there was no signal {name!r} in {timeout / 1000:g} s"
            raise _RefusedError(path, text, kinds=TIMEOUT_KINDS)
        return OPEN

    def _sleep(self, term: list[Any], path: str, scope: _Scope) -> Any:
        if path in self._pauses:
            due = self._pauses[path]
        else:
            _, seconds, until = term
            if until is None:
                found = self._value(seconds, path, scope)
                due = self._now + _milliseconds(found, path)
            else:
                due = _moment(self._value(until, path, scope), path)
            self._pause(path, None, due)
        return self._resume(path, None) if due <= self._now else OPEN

    def _pause(self, path: str, signal: str | None, due: int | None) -> int | None:
        """Return when a wait or a sleep is over, which begins here unless it has begun."""
        if path not in self._pauses:
            self._pauses[path] = due
            self.paused.append((path, signal, due))
        found: int | None = self._pauses[path]
        return found

    def _resume(self, path: str, value: Any) -> Any:
        """Return the result of a wait or a sleep that is over."""
        self._pauses.pop(path, None)
        self._returns[path] = value
        self.resumed.append((path, value))
        return value

    # --- results ----------------------------------------------------------------------------

    def _forget_iteration(self, path: str) -> None:
        """Delete the records of an iteration that is done, except its result."""
        for noted in (self._returns, self._loops, self._choices):
            for each in [each for each in noted if each.startswith((f"{path}.", f"{path}["))]:
                del noted[each]
        self._loops.pop(path, None)  # its body may be a loop itself, or a choice
        self._choices.pop(path, None)

    def _done_if(self, path: str, found: Any) -> Any:
        return OPEN if found is OPEN else self._store_result(path, found)

    def _store_result(self, path: str, found: Any) -> Any:
        """Store a part's result in place of those of its own parts."""
        for each in [each for each in self._returns if each.startswith((f"{path}.", f"{path}["))]:
            del self._returns[each]
        self._state.get("pauses", {}).pop(path, None)  # it was a workflow with a limit
        self._returns[path] = found
        return found

    # --- values -----------------------------------------------------------------------------

    def _values(self, args: dict[str, Any], path: str, scope: _Scope) -> dict[str, Any]:
        return {name: self._value(value, path, scope) for name, value in args.items()}

    def _undo_values(self, args: dict[str, Any], path: str, scope: _Scope) -> dict[str, Any]:
        return {
            name: value if value[0] == "own" else ["is", self._value(value, path, scope)]
            for name, value in args.items()
        }

    def _value(self, value: list[Any], path: str, scope: _Scope) -> Any:
        if value[0] == "is":
            return value[1]
        kind, name, fields = value
        if kind == "step":
            return _field_of(self._returns.get(scope.steps[name]), fields, path)
        if kind == "item":
            return _field_of(scope.items[name], fields, path)
        if not isinstance(scope.inputs, dict) or name not in scope.inputs:
            raise _RefusedError(path, f"{path}: the instance was started without {name!r}")
        return _field_of(scope.inputs[name], fields, path)


#: The names of a Try's parts in paths, and of its error in the term that takes it.
BODY, CATCH, ERROR = "body", "catch", "error"


def extras_of(call: Sequence[Any]) -> Mapping[str, Any]:
    """Return what a call of a term has beside its limits: its ``undo`` and its ``retries``."""
    found: Mapping[str, Any] = call[6] if len(call) > 6 else {}  # noqa: PLR2004 - a former version has 5 or 6
    return found


def undo_args(undo: Sequence[Any], result: Any, path: str) -> dict[str, Any] | Refusal:
    """Return the arguments of what undoes a call that has returned ``result``."""
    try:
        return {
            name: value[1] if value[0] == "is" else _field_of(result, value[1], path)
            for name, value in undo[1].items()
        }
    except _RefusedError as error:
        return error.refusal


def _field_of(value: Any, fields: Sequence[str], path: str) -> Any:
    """Return a field of a value, and of that the next one. Nothing has all fields, as nothing."""
    if value is None:
        return None
    for name in fields:
        if not isinstance(value, dict) or name not in value:
            raise _RefusedError(path, f"{path}: there is no field {'.'.join(fields)!r}")
        value = value[name]
    return value


def _milliseconds(seconds: Any, path: str) -> int:
    """Return a number of seconds in milliseconds."""
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    # first compared, as a whole number may be too large to multiply with, or to be a float
    if not is_number or not 0 <= seconds <= LAST_MS // 1000:
        text = f"{path}: it is to sleep for {describe_value(seconds)}; take seconds, 0 or more"
        raise _RefusedError(path, text)
    found: int = round(seconds * 1000)
    return found


def _moment(until: Any, path: str) -> int:
    """Return a time as ISO 8601 has it, with its zone, in milliseconds since 1970."""
    try:
        found = datetime.fromisoformat(until)
        if found.tzinfo is not None:
            return round(found.timestamp() * 1000)
    except (TypeError, ValueError, OverflowError):
        pass
    raise _RefusedError(
        path,
        f"{path}: it is to sleep until {describe_value(until)}; take a time with its zone, such as "
        "2030-01-31T08:00:00Z",
    )
