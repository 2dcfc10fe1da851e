"""One pass through an instance's term: what is done, and which calls are to be made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.apps.workflow.definitions import OTHERWISE, ROOT, case_name
from headrace.apps.workflow.messages import EXCEPTIONS, NO_RESULT
from headrace.core.user_text import describe_value

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Iterations that loops may end in one pass: those of them that call something are few.
_MOST_ITERATIONS = 10_000

#: What a part of a term comes to while calls of it are open.
OPEN: Any = object()


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a term cannot go on at a path. ``kind`` is the type of the failure."""

    path: str
    text: str
    kind: str = EXCEPTIONS


class _RefusedError(Exception):
    """A part cannot go on."""

    def __init__(self, path: str, text: str, kind: str = EXCEPTIONS) -> None:
        super().__init__(text)
        self.refusal = Refusal(path, text, kind)


class TermPass:
    """One pass through a term, from its root: what is done, and which calls are to be made.

    The state's returns, loops and choices are brought up to date.
    """

    def __init__(self, state: dict[str, Any]) -> None:
        self._called = {**state["called"], **state.get("waiting", {})}
        self._returns: dict[str, Any] = state["returns"]
        self._loops: dict[str, int] = state["loops"]
        self._choices: dict[str, str] = state["choices"]
        self._iterations = 0
        #: Calls to be made: their paths, the term's, and their arguments.
        self.opened: list[tuple[str, list[Any], dict[str, Any]]] = []

    def result(self, term: list[Any], inputs: Any) -> Any:
        """Return what a whole term comes to, ``OPEN`` while calls of it are, or a Refusal."""
        try:
            return self._part(term, ROOT, {}, inputs)
        except _RefusedError as error:
            return error.refusal

    def _part(self, term: list[Any], path: str, steps: dict[str, str], inputs: Any) -> Any:
        """Return what a part comes to, ``OPEN`` while calls of it are.

        ``steps`` has the paths of earlier steps by their names.
        """
        if path in self._returns:
            return self._returns[path]
        match term:
            case ["call", _, args, *_]:
                if path not in self._called:
                    self.opened.append((path, term, self._values(args, path, steps, inputs)))
                return OPEN
            case ["sequence", children]:
                return self._sequence(children, path, steps, inputs)
            case ["parallel", children]:
                found = {n: self._part(t, f"{path}.{n}", steps, inputs) for n, t in children}
                is_open = any(each is OPEN for each in found.values())
                return OPEN if is_open else self._store_result(path, found)
            case ["workflow", _, args, inner]:
                own = self._values(args, path, steps, inputs)
                return self._done_if(path, self._part(inner, f"{path}.{ROOT}", {}, own))
        part = self._choice if term[0] == "choice" else self._loop
        return part(term, path, steps, inputs)

    def _sequence(self, children: Any, path: str, steps: dict[str, str], inputs: Any) -> Any:
        found = None
        for name, child in children:
            own = f"{path}.{name}"
            found = self._part(child, own, steps, inputs)
            if found is OPEN:
                return OPEN
            steps = {**steps, name: own}
        return self._store_result(path, found)

    def _choice(self, term: list[Any], path: str, steps: dict[str, str], inputs: Any) -> Any:
        _, on, cases, otherwise = term
        if path not in self._choices:
            name = case_name(self._value(on, path, steps, inputs))
            known = any(name == each for each, _ in cases)
            if not known and otherwise is None:
                text = f"{path}: no case for {describe_value(name)}, and nothing otherwise"
                raise _RefusedError(path, text, NO_RESULT)
            self._choices[path] = name if known else OTHERWISE
        name = self._choices[path]
        child = next((each for case, each in cases if case == name), otherwise)
        return self._done_if(path, self._part(child, f"{path}.{name}", steps, inputs))

    def _loop(self, term: list[Any], path: str, steps: dict[str, str], inputs: Any) -> Any:
        _, name, body, times, until, most = term
        limit = most if times is None else self._value(times, path, steps, inputs)
        if not isinstance(limit, int) or isinstance(limit, bool):
            shown = describe_value(limit)
            raise _RefusedError(path, f"{path}: times is {shown}, which is no whole number")
        if limit < 0:
            raise _RefusedError(path, f"{path}: times is {limit}; it has to be 0 or more")
        number, found = self._loops.get(path, 0), None
        if number:
            found = self._returns.get(f"{path}[{number - 1}]")
        while number < limit:
            before = {name: f"{path}[{number - 1}]"}
            found = self._part(body, f"{path}[{number}]", {**steps, **before}, inputs)
            if found is OPEN:
                return OPEN
            self._iterations += 1
            if self._iterations > _MOST_ITERATIONS:
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
        self._returns[path] = found
        return found

    def _values(
        self, args: dict[str, Any], path: str, steps: dict[str, str], inputs: Any
    ) -> dict[str, Any]:
        return {name: self._value(value, path, steps, inputs) for name, value in args.items()}

    def _value(self, value: list[Any], path: str, steps: dict[str, str], inputs: Any) -> Any:
        if value[0] == "is":
            return value[1]
        kind, name, fields = value
        if kind == "step":
            return _field_of(self._returns.get(steps[name]), fields, path)
        if not isinstance(inputs, dict) or name not in inputs:
            raise _RefusedError(path, f"{path}: the instance was started without {name!r}")
        return _field_of(inputs[name], fields, path)


def _field_of(value: Any, fields: Sequence[str], path: str) -> Any:
    """Return a field of a value, and of that the next one. Nothing has all fields, as nothing.

    Raises:
        _RefusedError: there is no such field.
    """
    if value is None:
        return None
    for name in fields:
        if not isinstance(value, dict) or name not in value:
            raise _RefusedError(path, f"{path}: there is no field {'.'.join(fields)!r}")
        value = value[name]
    return value
