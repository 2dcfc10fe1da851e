"""JSON that comes back as it was, and what is refused with the part that does not."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, defaultdict
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import PoisonRecordError
from headrace.extensions.keyed.codecs import ENCODERS, from_json, key_bytes, output_bytes
from headrace.extensions.keyed.exact import MAX_DEPTH, exact_json
from headrace.extensions.keyed.settings import FoldSettings
from headrace.keyed import Event, Fired, Output
from headrace.testing.keyed import KeyedTest


class Text(StrEnum):
    """A text that is none."""

    A = "a"


class Number(IntEnum):
    """A number that is none."""

    ONE = 1


class Pair(NamedTuple):
    """A tuple with names."""

    first: int = 1
    second: int = 2


class Plain(str):
    """A text of another type."""

    __slots__ = ()


def nested(depth: int) -> Any:
    """Return a list in so many lists."""
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def endless() -> Any:
    """Return a dict that has itself."""
    found: dict[str, Any] = {}
    found["it"] = [found]
    return found


#: What JSON gives back as it is.
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.sampled_from([-0.0, 1e23, 5e-324, 10**400, "\ufeff", "\u2028", "\x00"])
)
EXACT = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)

#: What it changes, or does not know.
OTHERS = st.sampled_from(
    [
        *(float("nan"), float("inf"), -float("inf"), b"x", bytearray(), "\ud800", "a\udfff"),
        *((1, 2), (), Pair(), {1}, frozenset(), Text.A, Number.ONE, Plain("x")),
        *(
            Counter("a"),
            OrderedDict(a=1),
            defaultdict(int),
            np.float64(1),
            np.int64(1),
            ...,
            object,
        ),
    ]
)
NAMES = st.sampled_from(
    [5, 1.5, True, None, Number.ONE, Text.A, Plain("x"), "\ud800", (1,), b"x", "plain"]
)
ANYTHING = st.recursive(
    SCALARS | OTHERS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, and of the same types in all their parts, names too."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(
            same(*names) and same(one[names[0]], other[names[1]])
            for names in zip(one, other, strict=True)
        )
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)


@given(EXACT)
def test_a_json_value_is_written_as_the_standard_library_does(value: Any) -> None:
    """The value is accepted and read back the same; the bytes are the standard library's."""
    data = exact_json(value)
    assert data == json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    assert same(from_json(data), value)


@given(ANYTHING)
def test_a_value_that_json_would_change_is_refused(value: Any) -> None:
    """An accepted value comes back equal and of the same types; others raise as poison does."""
    try:
        data = exact_json(value)
    except (TypeError, ValueError) as error:
        assert str(error).startswith("the value")  # noqa: PT017 - any of them
    else:
        assert same(from_json(data), value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"n": {5: 1}}, r"\['n'\] has the name 5, an int, of which JSON makes a text.*str\(...\)"),
        ({True: 1}, "has the name True, a bool"),
        ({Text.A: 1}, "has a name that is a Text, and not a plain text"),
        ({(1, 2): 1}, "has a name that is a tuple"),
        (
            {"a": [0, (1, 2)]},
            r"\['a'\]\[1\] is a tuple, which JSON gives back as a list; write list",
        ),
        ({"a": Pair()}, r"\['a'\] is a Pair, which JSON gives back as a list"),
        (Counter("a"), r"is a Counter, which JSON gives back as a dict; write dict\(...\)"),
        ([Text.A], r"\[0\] is a Text, which JSON gives back as something else; write its .value"),
        ([np.float64(1)], r"is a float64, which JSON gives back as a float; write float\(...\)"),
        ([np.int64(1)], "is an int64, which is not JSON serializable; write None, bool, int"),
        ({"x": float("nan")}, r"\['x'\] is nan, which JSON has no number for; write None"),
        ([b"x"], "is a bytes, which is not JSON serializable; write a text, such as its hex"),
        ([{1}], "is a set, which is not JSON serializable; write a sorted list"),
        ([10**5000], "is a number of more than 4300 digits, which is not read again"),
        ({10**5000: 1}, "has the name …, an int"),
        ({"\ud800": 1}, r"has a name with '\\ud800' at character 0, one half of a pair"),
        (["x\udfff"], r"is a text with '\\udfff' at character 1"),
        (nested(MAX_DEPTH + 2), f"has lists and dicts more than {MAX_DEPTH} deep"),
        (endless(), "deep, within each other or themselves"),
    ],
)
def test_a_refusal_says_which_part_and_what_to_write(value: Any, words: str) -> None:
    """With the way to the part, its type, and what to write in its place."""
    with pytest.raises((TypeError, ValueError), match=words):
        exact_json(value, "the state")


def test_depth_is_bounded_and_not_by_the_interpreter() -> None:
    """A value of the greatest depth is written and read."""
    deepest = nested(MAX_DEPTH + 1)
    assert from_json(exact_json(deepest)) == deepest


@pytest.mark.parametrize("value", [Text.A, Plain("x"), "\ud800", b"x", 5])
def test_a_state_of_text_is_a_plain_text(value: Any) -> None:
    """Values of types that are only like a text are refused, as they would be read as text."""
    with pytest.raises((TypeError, ValueError), match="the state is"):
        ENCODERS["string"](value)


def test_a_state_of_bytes_is_plain_bytes() -> None:
    """And no array of them."""
    with pytest.raises(TypeError, match="encoding: bytes needs plain bytes"):
        ENCODERS["bytes"](bytearray(b"x"))


def test_parts_of_keys_and_outputs_are_held_to_the_same() -> None:
    """A part of a key that JSON changes would be the key of another one."""
    with pytest.raises(TypeError, match=r"a key\[1\] is a tuple"):
        key_bytes(("a", ("b",)))
    with pytest.raises(TypeError, match=r"a key\[0\] has the name 5"):
        key_bytes([{5: 1}])
    with pytest.raises(ValueError, match="a key is a text with"):
        key_bytes("\ud800")
    assert key_bytes(Text.A) == b"a"
    with pytest.raises(TypeError, match=r"an output's value\['a'\] is a tuple"):
        output_bytes({"a": ()})
    assert output_bytes(Text.A) == b"a"


# --- in a fold ----------------------------------------------------------------------------------


def by_value(key: str, state: Any, facts: list[Event[Any] | Fired], now: int) -> Any:
    """Count facts by their value, with that as the name of a member."""
    del key, now
    state = state or {}
    for fact in facts:
        name = fact.value if isinstance(fact, Event) else fact.name
        state[name] = state.get(name, 0) + 1
    return state, [], {}


@pytest.mark.parametrize("value", [5, 1.5, True, None])
@pytest.mark.parametrize("cut", [1, 3])
def test_a_name_that_is_no_text_is_poison_wherever_batches_are_cut(value: Any, cut: int) -> None:
    """And never two members, one as it was named and one as it was read."""
    test = KeyedTest(by_value, FoldSettings(outputs=("out",), failing="dead_letter"))
    facts = [("a", "x", 0), ("a", value, 1), ("a", value, 2), ("a", "x", 3)]
    for at in range(0, len(facts), cut):
        test.send(*facts[at : at + cut])
    assert test.state("a") == {"x": 2}
    assert len(test.dead_letters) == 2
    message = dict(test.dead_letters[0].headers)["headrace.message"] or b""
    assert f"the state has the name {value!r}".encode() in message


def test_an_output_that_json_changes_is_poison() -> None:
    """With the record at fault, and the part."""
    test = KeyedTest(lambda *_: (1, [Output({"at": [(1, 2)]})], {}))
    with pytest.raises(PoisonRecordError, match=r"an output's value\['at'\]\[0\] is a tuple"):
        test.send(("a", 1, 0))
