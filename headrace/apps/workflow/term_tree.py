"""An instance's term as text, with what is done, open and failed."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

from headrace.apps.workflow.definitions import OTHERWISE, ROOT
from headrace.apps.workflow.phases import ScopePhase
from headrace.apps.workflow.term_pass import BODY, CATCH, LAST_MS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: What an instance counts of calls that were to be undone.
_UNDONE = ("undone", "not_undone")


def drawn(instance: str, state: Mapping[str, Any]) -> list[str]:
    """Return the lines of a drawing of an instance's state."""
    phase = state.get("outcome") or state["phase"]
    head = f"{instance}  {state['definition']}  {phase}"
    lines = [f"{head}, calls made: {state['calls']}, started {_moment(state['started'])}"]
    if state["term"] is not None:
        tree = _Tree(state)
        lines += _aligned(tree.lines("", state["term"], ROOT, ("", "")))
    for error in state["errors"]:
        attempt = f", attempt {error['attempt']}" if error["attempt"] else ""
        lines.append(f"failed: {error['ref']}{attempt}: {error['msg']}")
    undone = [f"{name.replace('_', ' ')} {state[name]}" for name in _UNDONE if name in state]
    lines += [f"calls that were {', '.join(undone)}"] if undone else []
    passed = ", ".join(f"{reason} {n}" for reason, n in sorted(state["counts"].items()))
    return [*lines, *([f"passed over: {passed}"] if passed else [])]


def _moment(ms: int) -> str:
    # a sleep of some thousand years may be over later than there are dates
    return f"{datetime.fromtimestamp(min(ms, LAST_MS) / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _aligned(lines: Iterator[tuple[str, str]]) -> list[str]:
    found = list(lines)
    width = max(len(text) for text, _ in found) + 2
    return [f"{text:{width}}{mark}".rstrip() for text, mark in found]


class _Tree:
    """Draws parts of a term: each a line with its mark, and its own parts below it."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state
        self._failed = {error["ref"] for error in state["errors"]}
        scopes = state.get("scopes", {}).values()
        self._failed |= {each["error"]["ref"] for each in scopes if "error" in each}
        self._undos = {undo[0] for undo in state.get("undos", [])}

    def lines(
        self, name: str, term: Sequence[Any], path: str, indents: tuple[str, str]
    ) -> Iterator[tuple[str, str]]:
        """Yield the lines of a part. ``indents`` are those of the first and of the others."""
        kind = term[0]
        match term:
            case ["call" | "wait", what, *_]:
                kind = f"{kind} {what}" if kind == "call" else f"wait for {what}"
            case ["workflow", what, *_]:
                kind = what
        title = f"{name}: {kind}" if name else kind
        yield f"{indents[0]}{title}", self._mark(term, path)
        children = list(self._children(term, path))
        for number, (child_name, child, child_path) in enumerate(children):
            is_last = number == len(children) - 1
            first, rest = ("└ ", "  ") if is_last else ("├ ", "│ ")
            below = indents[1] + first, indents[1] + rest
            yield from self.lines(child_name, child, child_path, below)

    def _children(  # noqa: C901 - one case for each kind
        self, term: Sequence[Any], path: str
    ) -> Iterator[tuple[str, Any, str]]:
        match term:
            case ["sequence" | "parallel", parts]:
                yield from ((name, part, f"{path}.{name}") for name, part in parts)
            case ["choice", _, cases, otherwise]:
                rest = [] if otherwise is None else [[OTHERWISE, otherwise]]
                taken = self._state["choices"].get(path)
                for name, part in [*cases, *rest]:
                    if taken in {None, name}:
                        yield name, part, f"{path}.{name}"
            case ["loop", _, body, *_]:
                done = self._state["loops"].get(path, 0)
                number = max(0, done - 1) if self._is_done(path) else done
                yield f"[{number}]", body, f"{path}[{number}]"
            case ["map", _, _, body, _]:
                for number in self._items(path):
                    yield f"[{number}]", body, f"{path}[{number}]"
            case ["try", body, catch, _]:
                yield BODY, body, f"{path}.{BODY}"
                if catch is not None:
                    yield CATCH, catch, f"{path}.{CATCH}"
            case ["workflow", _, _, inner, *_]:
                yield "", inner, f"{path}.{ROOT}"

    def _items(self, path: str) -> list[int]:
        """Return the items of a Map that something is known of: those that are not in it are done,
        or have not begun.
        """
        state = self._state
        known = chain(state["called"], state.get("waiting", {}), state.get("pauses", {}))
        known = chain(known, state["returns"], self._failed)
        parts = (each[len(path) + 1 :] for each in known if each.startswith(f"{path}["))
        return sorted({int(each.partition("]")[0]) for each in parts})

    def _mark(  # noqa: PLR0911 - one for each thing that there is to say
        self, term: Sequence[Any], path: str
    ) -> str:
        """Return what there is to say of a part."""
        state = self._state
        if path in self._failed:
            return "failed"
        if f"{path}.undo" in state["called"]:
            return "is being undone"
        called = state["called"].get(path)
        if called is not None:
            attempt, _, most, *_ = called
            return f"open, attempt {attempt} of {most}"
        if path in state.get("waiting", {}):
            attempt, _, most = state["waiting"][path]
            return f"waits for attempt {attempt + 1} of {most}"
        if self._is_done(path):
            return "done, to be undone" if path in self._undos else "done"
        if path in state.get("pauses", {}):
            due = state["pauses"][path]
            return "waits" if due is None else f"waits until {_moment(due)}"
        if path in state.get("scopes", {}):
            phase = state["scopes"][path]["phase"]
            return "" if phase == ScopePhase.OPEN.value else phase
        if term[0] == "loop" and path in state["loops"]:
            return f"{state['loops'][path]} iterations done"
        return ""

    def _is_done(self, path: str) -> bool:
        returns = self._state["returns"]
        return path in returns or any(path.startswith((f"{p}.", f"{p}[")) for p in returns)
