"""An instance's term as text, with what is done, open and failed."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.apps.workflow.definitions import OTHERWISE, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def drawn(instance: str, state: Mapping[str, Any]) -> list[str]:
    """Return the lines of a drawing of an instance's state."""
    began = datetime.fromtimestamp(state["started"] / 1000, UTC)
    phase = state.get("outcome") or state["phase"]
    head = f"{instance}  {state['definition']}  {phase}"
    lines = [f"{head}, calls made: {state['calls']}, started {began:%Y-%m-%dT%H:%M:%SZ}"]
    if state["term"] is not None:
        tree = _Tree(state)
        lines += _aligned(tree.lines("", state["term"], ROOT, ("", "")))
    for error in state["errors"]:
        attempt = f", attempt {error['attempt']}" if error["attempt"] else ""
        lines.append(f"failed: {error['ref']}{attempt}: {error['msg']}")
    passed = ", ".join(f"{reason} {n}" for reason, n in sorted(state["counts"].items()))
    return [*lines, *([f"passed over: {passed}"] if passed else [])]


def _aligned(lines: Iterator[tuple[str, str]]) -> list[str]:
    found = list(lines)
    width = max(len(text) for text, _ in found) + 2
    return [f"{text:{width}}{mark}".rstrip() for text, mark in found]


class _Tree:
    """Draws parts of a term: each a line with its mark, and its own parts below it."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._state = state
        self._failed = {error["ref"] for error in state["errors"]}

    def lines(
        self, name: str, term: Sequence[Any], path: str, indents: tuple[str, str]
    ) -> Iterator[tuple[str, str]]:
        """Yield the lines of a part. ``indents`` are those of the first and of the others."""
        kind = f"call {term[1]}" if term[0] == "call" else term[0]
        if term[0] == "workflow":
            kind = term[1]
        title = f"{name}: {kind}" if name else kind
        yield f"{indents[0]}{title}", self._mark(term, path)
        children = list(self._children(term, path))
        for number, (child_name, child, child_path) in enumerate(children):
            is_last = number == len(children) - 1
            first, rest = ("└ ", "  ") if is_last else ("├ ", "│ ")
            below = indents[1] + first, indents[1] + rest
            yield from self.lines(child_name, child, child_path, below)

    def _children(self, term: Sequence[Any], path: str) -> Iterator[tuple[str, Any, str]]:
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
            case ["workflow", _, _, inner]:
                yield "", inner, f"{path}.{ROOT}"

    def _mark(self, term: Sequence[Any], path: str) -> str:
        """Return what there is to say of a part."""
        state = self._state
        if path in self._failed:
            return "failed"
        called = state["called"].get(path)
        if called is not None:
            attempt, _, most, *_ = called
            return f"open, attempt {attempt} of {most}"
        if path in state.get("waiting", {}):
            attempt, _, most = state["waiting"][path]
            return f"waits for attempt {attempt + 1} of {most}"
        if self._is_done(path):
            return "done"
        if term[0] == "loop" and path in state["loops"]:
            return f"{state['loops'][path]} iterations done"
        return ""

    def _is_done(self, path: str) -> bool:
        returns = self._state["returns"]
        return path in returns or any(path.startswith((f"{p}.", f"{p}[")) for p in returns)
