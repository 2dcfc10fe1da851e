"""The types of reducers with state, as a user's checker sees them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

#: A reducer of a user, and each exported name where it belongs.
_RIGHT = """
from collections.abc import Mapping, Sequence
from typing import TypedDict

from headrace.keyed import (
    Event,
    Fired,
    KeyedReducer,
    Output,
    Timer,
    at_clock,
    at_event,
    batched,
)
from headrace.testing.keyed import KeyedTest, Sent, check_reducer


class Order(TypedDict):
    n: int


class Fact(TypedDict):
    amount: int


def status(
    key: str, state: Order | None, facts: list[Event[Fact] | Fired], now: int
) -> tuple[Order | None, Sequence[Output], Mapping[str, Timer]]:
    total = state["n"] if state else 0
    for fact in facts:
        if isinstance(fact, Fired):
            return None, [Output({"order": key, "due": fact.due}, to="failed")], {}
        total += fact.value["amount"] + fact.offset
    return {"n": total}, [], {"a": at_event(now + 1), "b": at_clock(now)}


@batched
def total(
    key: bytes, state: int | None, facts: list[Event[int] | Fired], now: int
) -> tuple[int | None, list[Output], dict[str, Timer]]:
    return (state or 0) + sum(f.value for f in facts if isinstance(f, Event)), [], {}


keyed: KeyedReducer[str, Order, Fact] = status
counting: KeyedReducer[bytes, int, int] = total
check_reducer(status, [("a", {"amount": 1}, 0)])
KeyedTest(total).send(Sent("a", 1, 0))
"""

#: What is wrong in a user's code, and what is to be said of it.
_WRONG = {
    "key": ("x: KeyedReducer[bytes, Order, Fact] = status", "Incompatible types in assignment"),
    "state": ("y: KeyedReducer[str, int, Fact] = status", "Incompatible types in assignment"),
    "value": ("z: KeyedReducer[str, Order, int] = status", "Incompatible types in assignment"),
    "batched": ("total('k', None, [], 0)", 'Argument 1 to "total" has incompatible type "str"'),
    "timer": ("Timer('soon')", 'Argument 1 to "Timer" has incompatible type "str"'),
    "due": ("at_event('soon')", 'Argument 1 to "at_event" has incompatible type "str"'),
    "output": ("Output(1, headers=[('a', 1)])", "List item 0 has incompatible type"),
    "fired": ("Fired('t', 1).value", 'has no attribute "value"'),
    "reducer": ("check_reducer(len, [])", 'Argument 1 to "check_reducer" has incompatible type'),
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_checker_accepts_right_reducers_and_reports_wrong_ones(tmp_path: Path) -> None:
    """Mypy has no message on right reducers, and one on each wrong one."""
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(_RIGHT, encoding="utf-8")
    lines = [line for line, _ in _WRONG.values()]
    wrong.write_text("\n".join([_RIGHT, *lines, ""]), encoding="utf-8")
    settings = tmp_path / "mypy.ini"
    settings.write_text("[mypy]\nstrict = True\nshow_error_codes = True\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", str(settings)]
    cache = ["--cache-dir", str(tmp_path / "cache"), "--follow-imports", "silent"]
    checked = [
        subprocess.run(
            [*command, *cache, str(file)], capture_output=True, text=True, check=False, cwd=tmp_path
        ).stdout
        for file in (right, wrong)
    ]
    assert checked[0].startswith("Success"), checked[0]
    numbers = wrong.read_text(encoding="utf-8").splitlines()
    for line, said in _WRONG.values():
        number = numbers.index(line) + 1
        found = [text for text in checked[1].splitlines() if text.startswith(f"wrong.py:{number}:")]
        assert any(said in text for text in found), f"{line}: {found or checked[1]}"
