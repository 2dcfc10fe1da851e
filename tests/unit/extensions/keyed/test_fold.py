"""The fold of keyed reducers: order, timers, late facts, poison, and that cuts do not matter."""

from __future__ import annotations

import json
import re
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import PoisonRecordError, RetryableError
from headrace.core.letter_headers import LetterHeaders, code_of
from headrace.extensions.keyed.evaluation import MAX_FIRED
from headrace.extensions.keyed.row import KeyRow
from headrace.extensions.keyed.settings import FoldSettings
from headrace.extensions.keyed.timers import MAX_TIMERS
from headrace.keyed import Event, Fired, Output, Timer, at_clock, at_event, batched
from headrace.keyed import count as count_facts
from headrace.testing.keyed import KeyedTest, Sent, check_reducer


def tally(key: str, state: Any, facts: list[Event[Any] | Fired], now: int) -> Any:
    """Count facts and their lateness; give up a key 50 ms after its last fact."""
    del now
    outputs = []
    for fact in facts:
        if isinstance(fact, Fired):
            return None, [Output({"key": key, "closed": fact.due})], {}
        state = {"n": (state or {"n": 0})["n"] + 1, "last": fact.ts, "late": fact.late}
        outputs.append(Output({"key": key, **state}))
    return state, outputs, {"close": at_event(state["last"] + 50)}


class _Name(StrEnum):
    A = "a"


class _Due(IntEnum):
    A = 1


def _unchecked(value: Any) -> Any:
    """Return what a type checker would have found."""
    return value


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def fails_on_seven(key: str, state: Any, facts: list[Event[Any] | Fired], now: int) -> Any:
    """Do as ``tally``, but spoil the state and fail for multiples of seven."""
    result = tally(key, None if state is None else dict(state), facts, now)
    if isinstance(facts[0], Event) and facts[0].value % 7 == 0:
        if state is not None:
            state["n"] = -1
        raise ValueError("a seven")
    return result


KEYS = st.sampled_from("abcd")
FACTS = st.lists(
    st.builds(Sent, KEYS, st.integers(0, 20), st.integers(0, 300)), min_size=1, max_size=40
)


@settings(deadline=None, max_examples=40)
@given(facts=FACTS, seed=st.integers(0, 1000))
def test_results_do_not_depend_on_where_batches_are_cut(facts: list[Sent], seed: int) -> None:
    """Outputs of each key and the states are the same for any cuts, late facts and timers too."""
    check_reducer(tally, facts, runs=5, seed=seed)


@settings(deadline=None, max_examples=40)
@given(
    facts=FACTS, seed=st.integers(0, 1000), policy=st.sampled_from(["dead_letter", "quarantine"])
)
def test_poison_does_not_depend_on_where_batches_are_cut(
    facts: list[Sent], seed: int, policy: str
) -> None:
    """The same facts are set aside for any cuts, and no state has a trace of them."""
    chosen = FoldSettings(outputs=("out",), failing=policy)
    check_reducer(fails_on_seven, facts, settings=chosen, runs=5, seed=seed)


@settings(deadline=None, max_examples=40)
@given(facts=FACTS, seed=st.integers(0, 1000))
def test_time_to_live_does_not_depend_on_where_batches_are_cut(
    facts: list[Sent], seed: int
) -> None:
    """A key without facts for its time to live is deleted at the same fact for any cuts."""

    def count(key: str, state: int | None, facts: list[Any], now: int) -> Any:
        del now
        total = (state or 0) + len(facts)
        return total, [Output([key, total])], {}

    chosen = FoldSettings(outputs=("out",), ttl=40)
    check_reducer(count, facts, settings=chosen, runs=5, seed=seed)


@settings(deadline=None, max_examples=40)
@given(facts=FACTS, seed=st.integers(0, 1000), is_built_in=st.booleans())
def test_time_to_live_of_facts_that_come_together_does_not_depend_on_cuts(
    facts: list[Sent], seed: int, is_built_in: bool
) -> None:
    """A key ends between two facts of a batch as it ends between two batches, late facts too."""

    @batched
    def total(key: str, state: int | None, facts: list[Any], now: int) -> Any:
        del key, now
        return (state or 0) + len(facts), [], {}

    reducer = count_facts if is_built_in else total
    cut = seed % (len(facts) + 1)
    one, two, each = (KeyedTest(reducer, FoldSettings(outputs=("out",), ttl=20)) for _ in range(3))
    one.send(*facts)
    two.send(*facts[:cut])
    two.send(*facts[cut:])
    for fact in facts:
        each.send(fact)
    assert one.states() == two.states() == each.states()
    keys = one.states()
    assert [one.timers(key) for key in keys] == [each.timers(key) for key in keys]


def test_a_timer_fires_before_its_key_ends_at_the_same_time() -> None:
    """A timer that is due when the time to live ends is called first, with the state."""
    seen = []

    def note(key: str, state: Any, facts: list[Any], now: int) -> Any:
        del key, now
        if isinstance(facts[0], Fired):
            seen.append(state)
            return state, [], {}
        return 1, [], {"t": at_event(facts[0].ts + 20)}

    test = KeyedTest(note, FoldSettings(outputs=("out",), ttl=20))
    test.send(("a", 1, 10), ("b", 1, 30))
    assert seen == [1]
    assert test.state("a") is None


@settings(deadline=None, max_examples=40)
@given(facts=FACTS, cut=st.integers(1, 40))
def test_a_batched_reducer_gives_what_one_at_a_time_gives(facts: list[Sent], cut: int) -> None:
    """Facts that come together lead to the state that they lead to one by one."""

    def total(key: str, state: int | None, facts: list[Any], now: int) -> Any:
        del key, now
        return (state or 0) + sum(fact.value for fact in facts), [], {}

    @batched
    def total_of_all(key: str, state: int | None, facts: list[Any], now: int) -> Any:
        return total(key, state, facts, now)

    single, together = KeyedTest(total), KeyedTest(total_of_all)
    single.send(*facts)
    together.send(*facts[:cut])
    together.send(*facts[cut:])
    assert single.states() == together.states()


@pytest.mark.parametrize(("at", "fired"), [(59, []), (60, [60]), (61, [60])])
def test_a_timer_fires_before_the_record_that_reaches_its_time(at: int, fired: list[int]) -> None:
    """A timer due at 60 fires before a record at 60 or later, and not before one at 59."""
    test = KeyedTest(tally)
    test.send(("a", 1, 10))
    produced = test.send(("a", 1, at))
    closed = [each.value["closed"] for each in produced if "closed" in each.value]
    assert closed == fired
    assert produced[-1].value["n"] == (1 if fired else 2)


def test_a_timer_of_a_key_without_records_fires_when_another_key_moves_the_time() -> None:
    """Stream time is the partition's: a record of one key closes another one."""
    test = KeyedTest(tally)
    test.send(("a", 1, 10))
    assert [each.key for each in test.send(("b", 1, 60))] == ["b", "a"]
    assert test.state("a") is None


def test_timers_fire_in_the_order_of_due_and_name() -> None:
    """The smaller name comes first among timers with the same due time."""
    wanted = {"z": at_event(5), "b": at_event(7), "a": at_event(7)}

    def three(key: str, state: Any, facts: list[Any], now: int) -> Any:
        """Keep those timers that did not fire yet."""
        del key, now
        seen = list(state or [])
        if isinstance(facts[0], Fired):
            seen.append(facts[0].name)
        return seen, [], {name: timer for name, timer in wanted.items() if name not in seen}

    test = KeyedTest(three)
    test.send(("k", 1, 1), ("k", 1, 4))
    test.send(("other", 1, 9))
    assert test.state("k") == ["z", "a", "b"]


def test_a_timer_that_is_not_returned_again_is_cancelled() -> None:
    """The returned timers are the whole set: one that is left out does not fire."""

    def once(key: str, state: Any, facts: list[Any], now: int) -> Any:
        del key, now
        if isinstance(facts[0], Fired):
            return state, [Output("fired")], {}
        return (state or 0) + 1, [], {"first": at_event(20)} if state is None else {}

    test = KeyedTest(once)
    test.send(("a", 1, 1), ("a", 1, 2))
    assert test.send(("a", 1, 99)) == []


def test_missed_intervals_of_the_wall_clock_are_one_call() -> None:
    """A timer that renews itself fires once in a micro-batch, however many intervals are over."""

    def every_ten(key: str, state: Any, facts: list[Any], now: int) -> Any:
        del key, state, now
        due = facts[0].due if isinstance(facts[0], Fired) else 0
        outputs = [Output(due)] if isinstance(facts[0], Fired) else []
        return 1, outputs, {"tick": at_clock(due + 10)}

    test = KeyedTest(every_ten)
    test.send(("a", 1, 0), now=0)
    assert [each.value for each in test.tick(45)] == [10]
    assert [each.value for each in test.tick(45)] == [20]
    assert test.timers("a") == {"tick": at_clock(30)}


def test_a_record_is_late_by_its_own_time_which_is_not_raised() -> None:
    """A fact older than the stream time before it says so, and keeps its own time."""
    test = KeyedTest(tally)
    test.send(("a", 1, 30), ("b", 1, 10))
    assert test.state("b") == {"n": 1, "last": 10, "late": True}
    assert test.stream_time == 30


@pytest.mark.parametrize(("late", "states", "letters"), [("skip", 1, 0), ("dead_letter", 1, 1)])
def test_facts_past_grace_are_not_reduced(late: str, states: int, letters: int) -> None:
    """A fact that is late by more than grace is dropped and counted, or set aside."""
    test = KeyedTest(tally, FoldSettings(outputs=("out",), grace=5, late=late))
    test.send(("a", 1, 30), ("b", 1, 25), ("c", 1, 24))
    assert (len(test.states()), len(test.dead_letters)) == (states + 1, letters)
    assert (test.counts[-1].late, test.counts[-1].dropped) == (2, 1 - letters)


def test_a_value_that_is_not_json_names_its_record() -> None:
    """With failing: fail the error names partition and offset, so that policies find it."""
    test = KeyedTest(tally)
    with pytest.raises(
        PoisonRecordError, match=r"record at offset 1: key 'a': .*JSONDecodeError"
    ) as raised:
        test.send(("a", 1, 1), ("a", b"{", 2), ("a", 1, 3))
    assert raised.value.offset == 1


def test_a_dead_letter_says_where_it_comes_from_and_leaves_the_neighbours_alone() -> None:
    """A poison record goes to the dead letters with its cause; the others of the key count."""
    test = KeyedTest(tally, FoldSettings(outputs=("out",), failing="dead_letter"))
    test.send(("a", 1, 1), ("a", b"{", 2), ("a", 1, 3), ("b", 1, 4))
    assert test.state("a")["n"] == 2
    (letter,) = test.dead_letters
    headers = dict(letter.headers)
    assert (letter.key, letter.value) == ("a", b"{")
    assert headers["headrace.offset"] == b"1"
    assert b"JSONDecodeError" in (headers["headrace.message"] or b"")


def test_dead_letters_have_kafka_connects_names_where_that_is_said() -> None:
    """Letters of values, of facts and of timers have the place and the error."""
    chosen = FoldSettings(
        ("out",), failing="dead_letter", letters=LetterHeaders("connect", "group")
    )
    test = KeyedTest(fails_on_seven, chosen)
    test.send(("a", b"{", 1), ("a", 7, 2))
    found = [dict(letter.headers) for letter in test.dead_letters]
    prefix = "__connect.errors."
    assert [each[f"{prefix}offset"] for each in found] == [b"0", b"1"]
    assert [each[f"{prefix}stage"] for each in found] == [b"VALUE_CONVERTER", b"TASK_PUT"]
    assert {each[f"{prefix}class.name"] for each in found} == {
        b"tests.unit.extensions.keyed.test_fold.fails_on_seven"
    }
    assert [each[f"{prefix}exception.class.name"] for each in found] == [
        b"json.decoder.JSONDecodeError",
        b"ValueError",
    ]
    assert not any(name.startswith("headrace.") for each in found for name in each)


def test_a_skipped_record_is_counted_and_leaves_no_trace() -> None:
    """With failing: skip a poison record makes no dead letter, also without a key."""
    test = KeyedTest(fails_on_seven, FoldSettings(outputs=("out",), failing="skip"))
    test.send(("a", 1, 1), ("a", 7, 2), ("a", b"{", 3), ("a", 2, 4), ("b", 7, 5))
    assert test.dead_letters == []
    assert test.state("a")["n"] == 2
    assert test.state("b") is None


@pytest.mark.parametrize(
    ("undecodable", "failing", "letters"),
    [
        ("fail", "dead_letter", [b"{", 7]),
        ("skip", "dead_letter", [7]),
        ("dead_letter", "skip", [b"{"]),
        ("quarantine", "skip", [b"{", 7, 2]),
        ("skip", "quarantine", [7, 2]),
    ],
)
def test_a_value_that_cannot_be_read_has_a_policy_of_its_own(
    undecodable: str, failing: str, letters: list[Any]
) -> None:
    """With fail it goes by that of facts that the reducer fails on."""
    chosen = FoldSettings(outputs=("out",), undecodable=undecodable, failing=failing)
    test = KeyedTest(fails_on_seven, chosen)
    test.send(("a", b"{", 1), ("a", 7, 2), ("a", 2, 3))
    assert [letter.value for letter in test.dead_letters] == letters


def test_a_quarantined_key_has_its_later_facts_set_aside_in_order() -> None:
    """After poison with failing: quarantine a key keeps its state, and its facts are letters."""
    test = KeyedTest(fails_on_seven, FoldSettings(outputs=("out",), failing="quarantine"))
    test.send(("a", 1, 1), ("a", 7, 2), ("a", 2, 3))
    test.send(("a", 3, 4), ("b", 1, 500))
    assert [letter.value for letter in test.dead_letters] == [7, 2, 3]
    assert test.state("a")["n"] == 1


def test_a_quarantined_key_meets_the_policy_that_there_is_now() -> None:
    """Without a topic for dead letters its facts fail, with its name and the way out, or go."""
    test = KeyedTest(fails_on_seven, FoldSettings(outputs=("out",), failing="quarantine"))
    test.send(("a", 1, 1), ("a", 7, 2))
    test.reconfigure(FoldSettings(outputs=("out",), failing="fail"))
    with pytest.raises(PoisonRecordError, match=r"'a': the key is quarantined: .* state release"):
        test.send(("a", 2, 3))
    test.reconfigure(FoldSettings(outputs=("out",), failing="skip"))
    test.send(("a", 2, 3), ("b", 1, 4))
    assert len(test.dead_letters) == 1
    assert [test.state(key)["n"] for key in "ab"] == [1, 1]


def test_timers_of_a_key_in_quarantine_stay_and_do_not_fire() -> None:
    """Earlier timers and the failed one stay until the key is released."""

    def fails(key: str, state: Any, facts: list[Any], now: int) -> Any:
        del state, now
        if isinstance(facts[0], Fired):
            raise TypeError("a timer")
        if key != "a":
            return 1, [], {}
        return 1, [], {"t": at_event(20), "u": at_event(90), "c": at_clock(500)}

    test = KeyedTest(fails, FoldSettings(outputs=("out",), failing="quarantine"))
    test.send(("a", 1, 1), ("b", 1, 50), now=60)
    assert [letter.ts for letter in test.dead_letters] == [20]
    wanted = {"t": at_event(20), "u": at_event(90), "c": at_clock(500)}
    assert test.timers("a") == wanted
    test.tick(1000)
    assert test.timers("a") == wanted
    assert test.send(("c", 1, 95)) == []


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "the reducer returned a NoneType, and state, outputs and timers are expected"),
        ({"n": 1}, "the reducer returned a dict, and state"),
        ({"a": 1, "b": 2, "c": 3}, "the reducer returned a dict, and state"),
        ("abc", "the reducer returned a str, and state"),
        ((1, []), "the reducer returned a tuple of 2, and state"),
        ((1, ["x"], {}), "an output is a str"),
        ((1, [Output(1, to="other")], {}), "there is no output 'other'; the outputs are out"),
        ((1, [Output(object())], {}), "not JSON serializable"),
        ((1, [], {"t": 5}), "make it with at_event or at_clock"),
        ((1, [], {"headrace.x": at_event(5)}), "are reserved"),
        ((1, [], {str(n): at_event(9) for n in range(MAX_TIMERS + 1)}), "a key may have 100"),
        (({1, 2}, [], {}), "not JSON serializable"),
        (("x" * 600_000, [], {}), "max_row is 524288"),
        ((1, [Output("x" * 1_000_001)], {}), "1000000 are allowed"),
        (
            (1, [], {"t": at_event(_unchecked(2.5))}),
            "at 2.5, a float; it has to be an int",
        ),
        ((1, [], {"t": at_clock(True)}), "timer 't' is at True, a bool"),
        (
            (1, [], {"t": at_event(_unchecked(np.int64(5)))}),
            "a int64; it has to be an int",
        ),
        ((1, [], {"t": at_event(2**70)}), "that is further off than"),
        ((1, [], {5: at_event(5)}), "a timer's name is 5"),
        ((1, [], {"\ud800": at_event(5)}), "surrogates not allowed"),
        ((1, [Output(1, ts=_unchecked("x"))], {}), "an output is at 'x', a str"),
        ((1, [Output(1, ts=_unchecked(1.5))], {}), "an output is at 1.5, a float"),
        ((1, [Output(1, ts=2**70)], {}), "that is further off than"),
        ((1, [Output(1, ts=-1)], {}), "its time has to be in 1970 or later"),
        (
            (1, [Output(1, headers=[_unchecked(("h", 1))])], {}),
            "header 'h' is 1; a header is",
        ),
        ((1, [Output(1, headers=[_unchecked((1, b""))])], {}), "header 1 is b''"),
        ((1, [Output(1, headers=[("\ud800", b"")])], {}), "surrogates not allowed"),
        ((_nested(100_000), [], {}), "the state has lists and dicts more than 300 deep"),
        ((1, [Output(_nested(100_000))], {}), "an output's value has lists and dicts more than"),
        ((1, [], {"t" * 1001: at_event(5)}), "a timer's name has 1001 bytes, and 1000 are"),
        (({5: 1}, [], {}), "the state has the name 5, an int, of which JSON makes a text"),
        ((1, [Output({"a": (1,)})], {}), r"an output's value\['a'\] is a tuple"),
        ((1, [], {_unchecked(_Name.A): at_event(5)}), "a timer's name is .*, a _Name; it has"),
        ((1, [], {"t": Timer(5, _unchecked("event"))}), "timer 't' has a str as its clock"),
        ((1, [], {"t": Timer(_unchecked(_Due.A))}), "a _Due; it has to be an int"),
    ],
)
def test_a_wrong_return_value_of_a_reducer_names_the_record(returned: Any, words: str) -> None:
    """Another shape, an unknown output or too large a row makes the record poison."""
    with pytest.raises(PoisonRecordError, match=words):
        KeyedTest(lambda *_: returned).send(("a", 1, 1))
    test = KeyedTest(
        lambda key, *_: returned if key == "a" else (1, [], {}),
        FoldSettings(outputs=("out",), failing="dead_letter"),
    )
    test.send(("a", 1, 1), ("b", 1, 1))
    assert (len(test.dead_letters), set(test.states())) == (1, {b"b"})


@pytest.mark.parametrize("policy", ["dead_letter", "quarantine"])
@pytest.mark.parametrize("others", [0, 3])
def test_timers_and_the_key_are_part_of_a_row(policy: str, others: int) -> None:
    """So that the changelog takes each: what makes it too large is poison, with its parts."""

    def sets(key: str, state: Any, facts: list[Any], now: int) -> Any:
        del key, now
        count = facts[0].value
        return state, [], {f"{n:0900}": at_event(10**9) for n in range(count)}

    chosen = FoldSettings(outputs=("out",), failing=policy, max_row=20_000)
    test = KeyedTest(sets, chosen)
    key = "k" * 500
    test.send(*((key, 1, n) for n in range(others)), (key, 20, 5), (key, 25, 6))
    letter = test.dead_letters[0]
    said = dict(letter.headers)["headrace.message"] or b""
    assert re.search(rb"the row has \d+ bytes, 500 of them the key, 0 the state and 2\d+ its", said)
    assert dict(letter.headers)["headrace.offset"] == str(others + 1).encode()
    ((_, row),) = test.states().items()
    assert len(key) + len(row.state or b"") + len(row.extra or b"") <= 20_000
    assert len(test.timers(key)) == 20


def test_an_end_of_a_key_is_part_of_its_row() -> None:
    """A state that leaves no room for it is refused."""
    chosen = FoldSettings(outputs=("out",), max_row=100, ttl=5)
    for size, is_taken in ((50, True), (70, False)):
        test = KeyedTest(lambda *_, size=size: ("x" * size, [], {}), chosen)
        if is_taken:
            test.send(("a", 1, 1))
        else:
            with pytest.raises(PoisonRecordError, match="the row has"):
                test.send(("a", 1, 1))


@pytest.mark.parametrize("text", ["\ud800", "x" * 500_000, "\x00" * 500_000])
def test_the_reason_of_a_quarantine_has_room_in_the_row(text: str) -> None:
    """A long error is shortened to fit the row."""

    def fails(key: str, state: Any, facts: list[Any], now: int) -> Any:
        del key, state, now
        if facts[0].value:
            raise ValueError(text)
        return "x" * 900, [], {}

    test = KeyedTest(fails, FoldSettings(outputs=("out",), failing="quarantine", max_row=1000))
    test.send(("a", 0, 1))
    test.send(("a", 1, 2), ("b", 1, 2))
    assert len(test.dead_letters) == 2
    for row in test.states().values():
        assert len(row.state or b"") + len(row.extra or b"") <= 1700
        assert "ValueError" in json.loads(row.extra or b"{}")["quarantined"]


def test_headers_are_part_of_an_output() -> None:
    """A few large ones would be more than the brokers take."""
    headers = [("h", b"x" * 300_000)] * 4
    test = KeyedTest(lambda *_: (1, [Output(1, headers=headers)], {}))
    with pytest.raises(PoisonRecordError, match="an output to out has 1200046 bytes"):
        test.send(("a", 1, 1))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "[EMPTY] the value is empty; JSON is expected"),
        (b" \n", "[EMPTY] the value is 2 bytes of white space; JSON is expected"),
        (b"{", "[NOT_JSON] at byte 1: property name enclosed in double quotes is expected"),
        ("{é}".encode("utf-16"), "[NOT_JSON] at byte 4: property name enclosed in double quotes"),
        (b'{"e":"\xc3\xa9",}', "[NOT_JSON] at byte "),
        (b"[" * 100_000, "[NOT_JSON] the value is nested too deeply to be read"),
        (b'"\xff"', "byte 0xff in position 1: invalid start byte [NOT_UTF8]"),
    ],
)
def test_a_letter_of_an_undecodable_value_says_what_is_expected(value: bytes, message: str) -> None:
    """The message has the byte and the code by which letters are counted, as without keys."""
    test = KeyedTest(tally, FoldSettings(outputs=("out",), undecodable="dead_letter"))
    test.send(Sent("a", value, 0))
    said = (dict(test.dead_letters[0].headers)["headrace.message"] or b"").decode()
    assert message in said
    assert code_of(said) is not None


def test_a_letter_of_a_value_that_a_decoder_of_users_refuses_has_its_code() -> None:
    """The decoder's own words are kept."""

    def refuse(value: bytes) -> Any:
        raise ValueError(f"no magic byte in {value!r}")

    settings = FoldSettings(outputs=("out",), undecodable="dead_letter", decoder=refuse)
    test = KeyedTest(tally, settings)
    test.send(Sent("a", b"x", 0))
    message = (dict(test.dead_letters[0].headers)["headrace.message"] or b"").decode()
    assert code_of(message) == "DECODER"
    assert "no magic byte in b'x'" in message


def test_a_value_nested_too_deeply_is_poison() -> None:
    """A value that exceeds the interpreter's recursion is set aside as undecodable."""
    test = KeyedTest(tally, FoldSettings(outputs=("out",), failing="dead_letter"))
    test.send(("a", b"[" * 100_000 + b"]" * 100_000, 1), ("a", 1, 2))
    assert b"RecursionError" in (dict(test.dead_letters[0].headers)["headrace.message"] or b"")
    assert test.state("a")["n"] == 1


def test_a_row_that_is_larger_than_is_allowed_now_stays_as_it_is() -> None:
    """After max_row was lowered, a refused fact leaves the stored row alone."""

    def refuses(key: str, state: Any, facts: list[Any], now: int) -> Any:
        del key, now
        if facts[0].value == 7:
            raise ValueError("a seven")
        return (state or "") + "x" * 50, [], {}

    test = KeyedTest(refuses, FoldSettings(outputs=("out",), failing="dead_letter"))
    test.send(("a", 1, 1))
    small = FoldSettings(outputs=("out",), failing="dead_letter", max_row=20)
    test.reconfigure(small)
    test.send(("a", 7, 2), ("a", 1, 3), ("b", 7, 3))
    assert test.state("a") == "x" * 50
    assert len(test.dead_letters) == 3


def test_a_batched_reducer_may_not_have_timers_of_event_time() -> None:
    """When they fire would depend on where batches are cut, so they are refused."""
    with pytest.raises(PoisonRecordError, match="leave @batched out"):
        KeyedTest(batched(lambda *_: (1, [], {"t": at_event(5)}))).send(("a", 1, 1))


def test_timers_that_set_each_other_without_end_are_refused() -> None:
    """A timer that comes again at its own time is stopped, and the error names it."""
    said = "timer 't', due at 0: 1000 timers fired at 0 or before"
    with pytest.raises(RetryableError, match=said) as raised:
        KeyedTest(lambda *_: (1, [], {"t": at_event(0)})).send(("a", 1, 1))
    assert isinstance(raised.value, RetryableError), "no policy may look for a record"


def test_a_timer_that_sets_itself_for_later_fires_through_any_gap() -> None:
    """Before the key's next record all of its timers fire; after it some, and the others next."""

    def each_ms(key: str, state: Any, facts: list[Any], now: int) -> Any:
        del key, now
        (fact,) = facts
        if isinstance(fact, Fired):
            return state + 1, [], {"t": at_event(fact.due + 1)}
        return (state or 0), [Output(state)], {"t": at_event(fact.ts + 1)}

    test = KeyedTest(each_ms)
    test.send(("a", 1, 0))
    gap = 2 * MAX_FIRED + 5
    test.send(("other", 1, gap))
    assert test.state("a") == MAX_FIRED
    test.tick(gap)
    assert test.state("a") == 2 * MAX_FIRED
    assert [each.value for each in test.send(("a", 1, 2 * gap))] == [2 * gap]


def test_values_that_a_reducer_changes_are_read_again_where_a_timer_is_set() -> None:
    """A value that is kept as the state, and changed, counts once, whatever comes together."""

    def keeps(key: str, state: Any, facts: list[Any], now: int) -> Any:
        del key, now
        (fact,) = facts
        if isinstance(fact, Fired):
            return state, [], {}
        if state is None:
            state = fact.value
        else:
            state["n"] += fact.value["n"]
        timers = {"t": at_event(500)} if state["n"] >= 3 else {}
        return state, [Output(state["n"])], timers

    test = KeyedTest(keeps)
    produced = test.send(*(("a", {"n": 1}, at) for at in range(3)))
    assert [each.value for each in produced] == [1, 2, 3]
    assert test.state("a") == {"n": 3}


def test_a_state_that_did_not_change_writes_nothing() -> None:
    """A reducer that returns the state as it was touches the key and changes nothing."""
    test = KeyedTest(lambda _key, state, *_: (state or {"x": 1}, [], {}))
    test.send(("a", 1, 1))
    test.send(("a", 2, 2))
    assert [(each.touched, each.changed) for each in test.counts] == [(1, 1), (1, 0)]


def test_a_row_without_state_keeps_its_timers() -> None:
    """A key without state may have timers; without them it is gone."""
    test = KeyedTest(lambda *_: (None, [], {"t": at_event(50)}))
    test.send(("a", 1, 1))
    assert test.timers("a") == {"t": at_event(50)}
    assert test.state("a") is None


@given(
    state=st.none() | st.binary(max_size=20),
    timers=st.dictionaries(
        st.text(max_size=5),
        st.builds(at_event, st.integers(0, 2**60)) | st.builds(at_clock, st.integers(0, 2**60)),
    ),
    quarantined=st.none() | st.text(max_size=10),
)
def test_a_row_is_read_as_it_was_written(
    state: bytes | None, timers: Any, quarantined: str | None
) -> None:
    """Timers and quarantine survive the header that they are written to."""
    row = KeyRow.of(state, timers, quarantined)
    assert row.read_extra() == (timers, quarantined)
    if state is not None or row.extra is not None:
        assert KeyRow.read(row.value, row.extra) == row
    if row.extra is not None:
        json.loads(row.extra)
