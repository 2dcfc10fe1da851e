"""Mode compat: the collector byte for byte as the Go program, by what that printed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.apps.collector import Collector, go_json, group_of
from headrace.apps.collector.errors import EventRefusedError
from headrace.extensions.keyed.settings import FoldSettings
from headrace.keyed import Event
from headrace.testing.keyed import KeyedTest, Sent, check_reducer

_GOLDEN = Path(__file__).parent / "golden"

_SETTINGS = FoldSettings(outputs=("outcomes", "errors"), value="bytes")

_TIME = re.compile(r'"(created|resolved)":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"')


def event(value: bytes, ts: int = 0) -> Event[bytes]:
    """Return a record as a reducer and the key's function get it."""
    return Event(value, ts, "eventbus-collector", 0, 0)


def sent(value: bytes, ts: int = 0) -> Sent:
    """Return a fact under the key that it has."""
    return Sent(group_of(event(value)), value, ts)


def create(group: str, *expected: str, **members: Any) -> bytes:
    """Return the event that creates a group."""
    kind = "EventGroupCollectorCreate"
    return json.dumps({"id": group, "type": kind, "expected": expected, **members}).encode()


def done(group: str, entity: str, **members: Any) -> bytes:
    """Return the event of an entity that is done."""
    kind = "EventGroupCollectorEntityDone"
    return json.dumps({"id": entity, "type": kind, "group": group, **members}).encode()


def printed(cases: list[bytes]) -> list[str]:
    """Return what the reducer makes of cases, as the original printed it, times masked.

    The state of each group goes through its bytes between any two events.
    """
    reducer = Collector(mode="compat", outcomes="outcomes", rejected="errors")
    states: dict[str, bytes] = {}
    lines = []
    for case in cases:
        fact = event(case)
        key = group_of(fact)
        before = states.pop(key, None)
        state, outputs, _ = reducer(key, None if before is None else json.loads(before), [fact], 0)
        if state is not None:
            states[key] = json.dumps(state).encode()
        lines.append(f"IN  {case.decode()}")
        for each in outputs:
            mark = "OUT" if each.to == "outcomes" else "ERR"
            lines.append(f"{mark} {_TIME.sub(_masked, each.value)}")
    return lines


def mismatch(kind: str, field: str, wanted: str) -> str:
    """Return what Go says of a member of another type."""
    return f"json: cannot unmarshal {kind} into Go struct field {field} of type {wanted}"


def _masked(found: re.Match[str]) -> str:
    return f'"{found[1]}":"TIME"'


def test_outcomes_and_errors_are_those_of_the_original() -> None:
    """38 events: names without case, floats, escapes, half pairs, refusals, all to the byte."""
    cases = (_GOLDEN / "cases.jsonl").read_bytes().splitlines()
    expected = (_GOLDEN / "expected.txt").read_text(encoding="utf-8").split("\n")
    assert len(cases) == 38
    assert printed(cases) == [line for line in expected if line]


@pytest.mark.parametrize(
    ("case", "error"),
    [
        (b"", "unexpected end of JSON input"),
        (b'{"a":1', "unexpected end of JSON input"),
        (b'{"a":1,}', "invalid character '}' looking for beginning of object key string"),
        (b'{"a" 1}', "invalid character '1' after object key"),
        (b'{"a":1 "b"}', "invalid character '\"' after object key:value pair"),
        (b"[1 2]", "invalid character '2' after array element"),
        (b"[1,]", "invalid character ']' looking for beginning of value"),
        (b"01", "invalid character '1' after top-level value"),
        (b"-", "invalid character ' ' in numeric literal"),
        (b"1.e", "invalid character 'e' after decimal point in numeric literal"),
        (b"1e+", "invalid character ' ' in exponent of numeric literal"),
        (b"NaN", "invalid character 'N' looking for beginning of value"),
        (rb'"\x"', "invalid character 'x' in string escape code"),
        (rb'"\u00g0"', r"invalid character 'g' in \u hexadecimal character escape"),
        (b'"a\tb"', r"invalid character '\t' in string literal"),
        (b"'", r"invalid character '\'' looking for beginning of value"),
        (b"\x7f", r"invalid character '\x7f' looking for beginning of value"),
        ("é".encode(), "invalid character 'Ã' looking for beginning of value"),
        (b"\x85", r"invalid character '\u0085' looking for beginning of value"),
        (b"7", "json: cannot unmarshal number into Go value of type main.EventEnvelop"),
        (
            create("g", handler=5),
            mismatch("number", "EventEnvelopGroup.handler", "map[string]main.EnvelopGroupHandler"),
        ),
        (
            create("g", handler={"onsuccess": {"topic": 5}}),
            mismatch("number", "EnvelopGroupHandler.handler.topic", "string"),
        ),
        (
            create("g", 1),  # type: ignore[arg-type]
            mismatch("number", "EventEnvelopGroup.expected", "string"),
        ),
        (
            create("g", results=[]),
            mismatch("array", "EventEnvelopGroup.results", "map[string]interface {}"),
        ),
        (
            done("g", "a", error=7),
            mismatch("number", "EventEnvelopEntityDone.error", "string"),
        ),
        (
            create("g").replace(b"[]", b"[]," + b'"ttl":' + b"9" * 5000),
            mismatch(f"number {'9' * 5000}", "EventEnvelopGroup.ttl", "int"),
        ),
    ],
)
def test_an_event_is_refused_in_the_words_of_the_original(case: bytes, error: str) -> None:
    """The words are those of Go's decoder, as a program with the same structs printed them."""
    reducer = Collector(mode="compat", outcomes="outcomes", rejected="errors")
    _, outputs, _ = reducer("", None, [event(case)], 0)
    assert [(each.to, each.value) for each in outputs] == [("errors", error)]


def test_an_event_that_is_nested_too_deeply_is_refused() -> None:
    """At 200 levels rather than the 10,000 of Go, and with Go's words."""
    deep = b"[" * 201 + b"]" * 401
    with pytest.raises(EventRefusedError, match=r"^invalid character '\[' exceeded max depth$"):
        go_json.parse(deep)
    nested = b'{"a":' * 199 + b"[]" + b"}" * 199
    assert go_json.write(go_json.parse(nested)).encode() == nested


@pytest.mark.parametrize(
    ("given", "written"),
    [
        (b'"\\ud800\\ud83d\\ude00\\ude00"', '"\ufffd😀\ufffd"'),
        (b'"\\\\ud800"', '"\\\\ud800"'),
        (b'"\xff\xe2\x82x\xed\xa0\x80"', '"\ufffd\ufffd\ufffdx\ufffd\ufffd\ufffd"'),
        (b'"\\u007f\\b\\f\\r\\u000b/"', '"\x7f\\b\\f\\r\\u000b/"'),
        (b"[1e-6,9.5e-7,999999999999999868928]", "[0.000001,9.5e-7,999999999999999900000]"),
        (b"[5e-324,1.7976931348623157e308,-0]", "[5e-324,1.7976931348623157e+308,-0]"),
        (b'{"b":1,"a":{"b":[],"B":true},"b":null}', '{"a":{"B":true,"b":[]},"b":null}'),
    ],
)  # fmt: skip
def test_values_are_written_as_go_writes_them(given: bytes, written: str) -> None:
    """Digits, exponents, escapes, replaced bytes, the order of members and which of two counts."""
    assert go_json.write(go_json.parse(given)) == written


@settings(deadline=None)
@given(
    value=st.recursive(
        st.none()
        | st.booleans()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(st.characters(exclude_categories=["Cs"])),
        lambda inner: st.lists(inner) | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"])), inner
        ),
        max_leaves=20,
    )
)  # fmt: skip
def test_any_value_is_written_the_same_again(value: Any) -> None:
    """A value survives writing and reading, and its bytes do not change after that."""
    written = go_json.write(value)
    assert json.loads(written, parse_int=float) == value
    assert go_json.write(go_json.parse(written.encode())) == written


def test_a_group_times_out_with_the_time_that_it_had() -> None:
    """A millisecond past created + ttl it fails with what is known, also by default after 30 s."""
    test = KeyedTest(Collector(mode="compat", outcomes="outcomes"), _SETTINGS)
    test.send(sent(create("g", "a", "b", ttl=-1), 500), sent(done("g", "a", result=1), 30_500))
    assert test.outputs == []
    (failure,) = test.send(sent(create("other"), 30_501))
    assert failure.value == {
        "type": "EventGroupCollectorFailure",
        "id": "g",
        "entity": "g",
        "error": "Operation timed out after 30 seconds",
        "created": "1970-01-01T00:00:00Z",
        "resolved": "1970-01-01T00:00:30Z",
        "results": {"a": 1},
        "payload": None,
    }
    assert test.state("g") is None


def test_without_an_output_for_them_errors_are_passed_over() -> None:
    """Errors are skipped, as the original goes on after a line in its log."""
    test = KeyedTest(Collector(mode="compat"), FoldSettings(outputs=("out",), value="bytes"))
    assert test.send(sent(b"not json"), sent(done("nope", "a"))) == []


def test_a_value_that_was_decoded_is_no_bytes_to_read() -> None:
    """The error names the setting of the channel."""
    reducer = Collector(mode="compat")
    with pytest.raises(TypeError, match="set value: bytes for the channel's processor"):
        reducer("g", None, [event({"id": "g"})], 0)  # type: ignore[arg-type]


_EVENTS = st.builds(
    sent,
    st.builds(create, st.sampled_from("gh"), st.sampled_from("abc"), st.sampled_from("abc"),
              ttl=st.sampled_from([None, 1, 2]))
    | st.builds(done, st.sampled_from("gh"), st.sampled_from("abcx"),
                error=st.sampled_from(["", "", "", "no space"]))
    | st.sampled_from([b"null", b"[", b'{"type":"EventGroupCollectorSuccess"}']),
    st.integers(0, 5000),
)  # fmt: skip


@settings(deadline=None, max_examples=40)
@given(facts=st.lists(_EVENTS, min_size=1, max_size=30), seed=st.integers(0, 1000))
def test_outcomes_do_not_depend_on_where_batches_are_cut(facts: list[Sent], seed: int) -> None:
    """A restart between any two events, late ones too: the same outcomes, errors and states."""
    reducer = Collector(mode="compat", outcomes="outcomes", rejected="errors")
    check_reducer(reducer, facts, settings=_SETTINGS, runs=4, seed=seed)
