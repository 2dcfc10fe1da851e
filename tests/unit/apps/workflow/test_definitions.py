"""Workflows are checked before anything starts; each mistake is named with its place."""

from __future__ import annotations

import sys
from math import inf, nan
from types import ModuleType
from typing import Any

import pytest
from typing_extensions import override

from headrace.apps.workflow import (
    Assignment,
    Call,
    Choice,
    DefinitionError,
    Input,
    Item,
    Loop,
    Map,
    Parallel,
    Result,
    Retry,
    Sequence,
    Sleep,
    Try,
    Wait,
    Workflow,
    Workflows,
)


def workflows(*names: str) -> Workflows:
    """Return workflows with processes of these names."""
    found = Workflows()
    for name in names:

        def process(call: Assignment, **args: Any) -> Any:
            return args, call

        process.__name__ = name
        found.process(process)
    return found


_SEVEN: Any = 7
_INNER: Any = Parallel(b=Call("a"))
_HALF: Any = 1.5
_TEXT: Any = "30s"
_UNHASHABLE: Any = ["a"]


class Sly(dict[str, Any]):
    """Raises as it is asked for what it has."""

    def __init__(self) -> None:
        super().__init__(x=1)

    @override
    def items(self) -> Any:
        raise SystemError("sly")

    @override
    def __repr__(self) -> str:
        raise KeyError("sly")


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def _within(depth: int) -> Any:
    term: Any = Call("a")
    for _ in range(depth):
        term = Sequence(s=term)
    return term


@pytest.mark.parametrize(
    ("term", "words"),
    [
        (Call("c"), "workflow w@1, 0: there is no process 'c'; known are a, b, w"),
        (Sequence(), "workflow w@1, 0: has no steps"),
        (Parallel(x=Parallel()), "workflow w@1, 0.x: has no branches"),
        (Sequence(Call("a"), one=_SEVEN), "workflow w@1, 0.one: is a int; it has to be a Call"),
        (
            Sequence(one=Call("a"), two=Call("b", x=Result("three.y"))),
            "workflow w@1, 0.two: there is no earlier step 'three'; earlier ones are one",
        ),
        (
            Parallel(one=Call("a"), two=Call("b", x=Result("one"))),
            "0.two: there is no earlier step 'one'; earlier ones are none",
        ),
        (Call("a", x={1, 2}), "workflow w@1, 0: {1, 2} is nothing that JSON knows"),
        (Choice(Input("x"), {}), "workflow w@1, 0: has no cases"),
        (Choice("x", {"y": Call("a")}), "'x' is neither an Input nor a Result"),  # type: ignore[arg-type]
        (Choice(Input("x"), {"a.b": Call("a")}), "'a.b' cannot be a case"),
        (Choice(Input("x"), {"otherwise": Call("a")}), "'otherwise' cannot be a case"),
        (Loop(Call("a")), "workflow w@1, 0: a Loop takes either times or until"),
        (Loop(Call("a"), times=2, until="x"), "a Loop takes either times or until"),
        (Loop(Call("a"), times=-1), "0: times is -1; it has to be a whole number from 0 on, an"),
        (Loop(Call("a"), times=2.5), "0: times is 2.5; it has to be a whole number"),  # type: ignore[arg-type]
        (Loop(Call("a"), times=True), "0: times is True; it has to be a whole number"),
        (Loop(Call("a"), until="x", most=0), "0: most is 0; it has to be a whole number from 1 on"),
        (Loop(Call("a"), until=""), "0: until is ''; it has to be a field's name"),
        (Call("a").limited(attempts=0), "attempts is 0; it has to be a whole number from 1 on"),
        (Call("a").limited(attempts=_HALF), "attempts is 1.5; it has to be a whole number"),
        (Call("a").limited(timeout=0), "timeout is 0; it has to be a number of seconds from 0.001"),
        (Call("a").limited(timeout=0.0001), "timeout is 0.0001; it has to be a number of seconds"),
        (Call("a").limited(timeout=inf), "timeout is inf; it has to be a number of seconds"),
        (Call("a").limited(timeout=_TEXT), "timeout is '30s'; it has to be a number of seconds"),
        (Call("a").limited(backoff=-1), "backoff is -1; it has to be a number of seconds from 0"),
        (Call(_SEVEN), "0: there is no process 7; known are a, b, w"),
        (Call("a", x=Input(_SEVEN)), "0: Input(7): it has to be a name, or name.field"),
        (Call("a", x=Result("")), "0: Result(''): it has to be a name, or name.field"),
        (
            Sequence(**{"a": _INNER, "a.b": _INNER}),
            "0: 'a.b' cannot be the name of a step: take letters, digits, - and _",
        ),
        (Parallel(**{"x y": Call("a")}), "0: 'x y' cannot be the name of a branch: take letters"),
        (
            Choice(Input("x"), {"1": Call("a"), 1: Call("b")}),
            "0: 1 is a second case of the name '1'; leave one out",
        ),
        (
            Choice(Input("x"), {True: Call("a"), "true": Call("b")}),
            "0: 'true' is a second case of the name 'true'; leave one out",
        ),
        (Loop(Call("a"), until="x..y"), "0: until is 'x..y'; it has to be a field's name"),
        (Loop(Call("a"), until=_SEVEN), "0: until is 7; it has to be a field's name"),
        (Call("a", x=Input("x.")), "0: Input('x.'): it has to be a name, or name.field"),
        (Call("a", x="\ud800"), "0: '\\ud800' is nothing that JSON knows"),
        (Call("a", x=Sly()), "is nothing that JSON knows: SystemError: sly"),
        (Call("a", x=_nested(101)), "0: lists and dicts are more than 100 deep"),
        (Call("a", x=_nested(5_000)), "is nothing that JSON knows: RecursionError"),
        (_within(60), "terms are more than 60 deep within each other; have fewer"),
        (_within(5_000), "terms are more than 60 deep within each other; have fewer"),
        (Call(_UNHASHABLE), "0: there is no process ['a']; known are a, b, w"),
        (Choice(Input("x"), {_HALF: Call("a")}), "0: has the case 1.5; take a text, a whole"),
        (Choice(Input("x"), {None: Call("a")}), "0: has the case None; take a text, a whole"),  # type: ignore[dict-item]
        (Call("w"), "w@1 -> w@1: workflows call each other in a ring"),
        (
            Map(Input("x"), Call("a"), at_once=0),
            "0: at_once is 0; it has to be a whole number from",
        ),
        (Map(Input("x"), Call("a"), item="a.b"), "0: 'a.b' cannot be the name of an item"),
        (Map(_SEVEN, Call("a")), "0: over is 7; it has to be a list, or what has one"),
        (
            Map(Input("x"), Call("a", y=Item("leg"))),
            "0[0]: there is no Map with an item 'leg'; ther",
        ),
        (Call("a", y=Item("item")), "0: there is no Map with an item 'item'; there are none"),
        (Wait("a b"), "0: 'a b' cannot be the name of a signal"),
        (Wait("go", timeout=0), "0: timeout is 0; it has to be a number of seconds from 0.001"),
        (Sleep(), "0: a Sleep takes either seconds or until"),
        (Sleep(1, until="x"), "0: a Sleep takes either seconds or until"),
        (Sleep(-1), "0: seconds is -1; it has to be a number of seconds from 0"),
        (Sleep(until="2030-01-01"), "0: until is '2030-01-01'; it has to be a time with its zone"),
        (Try(Call("c")), "0.body: there is no process 'c'"),
        (Try(Call("a"), Call("b", x=Result("body"))), "0.catch: there is no earlier step 'body'"),
        (Try(Call("a"), kinds=("OSError",)), "0: has kinds and no catch; give it one"),
        (Try(Call("a"), Call("b"), kinds=_TEXT), "0: kinds is '30s'; it has to be a list of names"),
        (
            Try(Call("a"), Call("b"), kinds=("OSError", "Exception")),
            "0: kinds has 'Exception', which all errors are of; leave kinds out to take all",
        ),
        (
            Call("a").limited(retries={"BaseException": Retry(1)}),
            "0: retries has 'BaseException', which all errors are of; leave it out, and give att",
        ),
        (Sleep(10**400), "0: seconds is 1000"),
        (Call("a").limited(timeout=10**5000), "0: timeout is a int, whose __repr__ raises"),
        (Wait("go", timeout=10**400), "it has to be a number of seconds from 0.001 to 3155760000"),
        (Call("a").undone_by(Call("w")), "0.undo: Call("),
        (Call("a").undone_by(Call("b").undone_by(Call("a"))), "0.undo: what undoes a call has no"),
        (Call("a").undone_by(Call("b", x=Result("y"))), "0.undo: there is no earlier step 'y'"),
        (
            Call("a").limited(retries={"OSError": _SEVEN}),
            "0: retries has 'OSError': 7; give a Retry",
        ),
        (
            Call("a").limited(retries={"E": Retry(0)}),
            "0, retries of E: attempts is 0; it has to be",
        ),
    ],
)
def test_a_term_that_cannot_be_started_is_named(term: Any, words: str) -> None:
    """The message has the workflow, its version and the path."""
    found = workflows("a", "b")
    found.define("w", 1, term)
    with pytest.raises(DefinitionError, match=r"workflow|ring") as error:
        found.check()
    assert words in str(error.value)


@pytest.mark.parametrize("limit", [0, -1, inf, nan, "1h", True, 10**400])
def test_a_limit_is_a_number_of_seconds(limit: Any) -> None:
    """The message has the workflow and the value; a limit goes along where one is called."""
    found = workflows("a")
    found.define("w", 1, Call("a"), limit=limit)
    with pytest.raises(DefinitionError, match=r"w@1, 0: limit is .*; it has to be a number of sec"):
        found.check()
    found.define("inner", 1, Call("a"), limit=5)
    found.define("v", 1, Call("inner"))
    assert found.compiled("inner").limit == 5_000
    assert found.compiled("v").term[4:] == [5_000]


def test_workflows_that_call_each_other_in_a_ring_are_named() -> None:
    """All of the ring, in its order."""
    found = workflows("a")
    found.define("one", 1, Call("two"))
    found.define("two", 1, Sequence(Call("a"), Call("three")))
    found.define("three", 1, Call("one"))
    with pytest.raises(DefinitionError, match=r"one@1 -> two@1 -> three@1 -> one@1"):
        found.compiled("one")


def test_versions_are_kept_and_the_latest_is_found() -> None:
    """A version that is not there is an error that names those that are."""
    found = workflows("a", "b")
    found.define("w", 1, Call("a"))
    found.define("w", 3, Call("b"))
    assert found.compiled("w").id == "w@3"
    assert found.compiled("w@1").term[1] == "a"
    with pytest.raises(DefinitionError, match=r"no version 2 of workflow 'w'; there are 1, 3"):
        found.find("w@2")
    with pytest.raises(DefinitionError, match=r"there is no workflow 'v'; defined are w"):
        found.find("v@1")


def test_names_are_taken_once() -> None:
    """A name of a process, a workflow or a version of it is refused the second time."""
    found = workflows("a")
    found.define("w", 1, Call("a"))
    with pytest.raises(DefinitionError, match="w@1 is defined already"):
        found.define("w", 1, Call("a"))
    with pytest.raises(DefinitionError, match="a process or workflow 'a' already"):
        found.define("a", 1, Call("a"))
    with pytest.raises(DefinitionError, match="a process or workflow 'a' already"):
        found.process(found.processes["a"])
    for name, version in (("w@", 1), ("v", "1"), ("v", 0), ("v", True), (None, 1)):
        with pytest.raises(DefinitionError, match="are no name and version of a workflow; take"):
            found.define(name, version, Call("a"))  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="v@1: policy is 'x'; there are wait_all and fail_fa"):
        found.define("v", 1, Call("a"), policy="x")
    assert "v" not in found.definitions
    with pytest.raises(DefinitionError, match=r"step '0' is there twice, .*; rename it"):
        Sequence(Call("a"), **{"0": Call("b")})
    with pytest.raises(DefinitionError, match=r"branch '1' is there twice, .*; rename it"):
        Parallel(Call("a"), Call("a"), **{"1": Call("b")})


def test_a_process_is_called_with_what_it_takes() -> None:
    """Arguments that are missing, or that it has not, are named; one that is async is refused."""
    found = Workflows()

    @found.process
    def fill(call: Assignment, liters: int, *, slow: bool = False) -> None:
        """Take one argument, and another one if it is given."""

    found.define("w", 1, Call("fill", liters=1, slow=True))
    found.define("v", 1, Call("fill", gallons=1))
    found.define("u", 1, Sequence(a=Call("fill", liters=1, call=2)))
    assert found.compiled("w").id == "w@1"
    with pytest.raises(DefinitionError, match=r"v@1, 0: fill\(call.*\) .*: missing .*'liters'"):
        found.compiled("v")
    with pytest.raises(DefinitionError, match=r"u@1, 0\.a: fill\(.*: multiple values .*'call'"):
        found.compiled("u")

    async def later(call: Assignment) -> None:
        """Stand for an async process, which would never be awaited."""

    with pytest.raises(DefinitionError, match="process 'later' is async, and nothing would await"):
        found.process(later)
    assert list(found.processes) == ["fill"]


def test_arguments_of_a_start_are_those_that_the_term_uses() -> None:
    """Those of a workflow that is called as well; the message names all that are wrong."""
    found = workflows("a")
    found.define("inner", 1, Call("a", x=Input("x"), y=Input("y.z")))
    found.define("w", 1, Call("inner", x=1, y=Input("flight")))
    assert found.compiled("w").inputs == {"flight"}
    with pytest.raises(DefinitionError, match="flight is missing; tail is not used"):
        found.compiled("w").require({"tail": 1})
    with pytest.raises(DefinitionError, match=r"argument flight: .* nothing that JSON knows"):
        found.compiled("w").require({"flight": float("nan")})
    found.define("v", 1, Call("inner", x=1))
    with pytest.raises(DefinitionError, match=r"v@1, 0: workflow inner@1: y is missing"):
        found.compiled("v")


def test_a_reducer_s_workflows_are_found_by_their_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """And are checked when it is made."""
    module: Any = ModuleType("some_workflows")
    module.flows, module.other = workflows("a"), 7
    module.flows.define("w", 1, Call("c"))
    monkeypatch.setitem(sys.modules, "some_workflows", module)
    with pytest.raises(DefinitionError, match="no process 'c'"):
        Workflow(workflows="some_workflows:flows")
    with pytest.raises(DefinitionError, match="'some_workflows:other' is a int"):
        Workflow(workflows="some_workflows:other")
    with pytest.raises(ValueError, match="keep is 'long'; it has to be a duration"):
        Workflow(workflows="some_workflows:flows", keep="long")
