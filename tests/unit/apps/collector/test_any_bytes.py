"""Property tests of the reducer with any bytes, in each mode."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.apps.collector import Collector, group_of
from headrace.apps.collector.events import MOST_ID, Times
from headrace.extensions.keyed.codecs import key_bytes
from headrace.extensions.keyed.settings import FoldSettings
from headrace.keyed import Event
from headrace.testing.keyed import KeyedTest, Produced, Sent

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Small ones, so that small events come near them.
_ROW, _OUTPUT = 16 << 10, 128 << 10

_CREATE, _DONE = "EventGroupCollectorCreate", "EventGroupCollectorEntityDone"

#: Milliseconds: now, the end of the year 9999, and the last that columns of microseconds have.
_TIMES = st.sampled_from([0, 1_600_000_000_000, 253_402_300_799_999, 9 * 10**15])


def collector(mode: str, **settings: Any) -> KeyedTest:
    """Return a collector under test, of which nothing may be poison."""
    chosen: dict[str, Any] = {"max_row": _ROW, "max_output": _OUTPUT, "value": "bytes"} | settings
    routes: dict[str, Any] = {} if mode == "compat" else {"routes": ["^results"]}
    return KeyedTest(
        Collector(mode=mode, outcomes="outcomes", rejected="rejected", **routes),
        FoldSettings(outputs=("outcomes", "rejected", "results.a"), **chosen),
    )


def sent(value: bytes, ts: int = 0) -> Sent:
    """Return an event under the key that it has."""
    return Sent(group_of(Event(value, ts, "t", 0, 0)), value, ts)


_CHARACTERS = st.sampled_from(
    ['"', "\\", "<", "\x00", "\x7f", "é", "\u2028", "\N{GRINNING FACE}", "a"]
)
_LONG = st.builds(lambda char, count: char * count, _CHARACTERS, st.sampled_from([0, 1, 900, 9000]))
_NAMES = st.sampled_from(["g", "h", "a", "b", "", "x" * (MOST_ID + 1), "\x00" * MOST_ID]) | _LONG
#: As they stand in JSON: numbers that grow when they are spelt, and values of all types.
_NUMBERS = st.sampled_from(
    ["1e15", "1e400", "-1e400", "1e-5", "-0.0", "9" * 400, "1E+5", "0", "-1", "2", "3.5", "1e3"]
)
_VALUES = (
    _NUMBERS
    | st.sampled_from(["null", "true", "[]", "{}", "NaN", "Infinity", r'"\ud800"', "[" * 300])
    | st.builds(json.dumps, _LONG)
    | st.builds(lambda text: json.dumps(text, ensure_ascii=False), _LONG)
    | st.builds(
        lambda number, count: f"[{','.join([number] * count)}]",
        _NUMBERS,
        st.sampled_from([3, 900, 3000]),
    )
    | st.builds(lambda depth: "[" * depth + "]" * depth, st.sampled_from([50, 199, 201, 400]))
    | st.builds(
        lambda name, value: f'{{"topic":{json.dumps(name)},"payload":{value}}}', _NAMES, _NUMBERS
    )
)
_TYPES = st.sampled_from([_CREATE, _DONE]).map(json.dumps) | _VALUES
_LISTS = st.lists(_NAMES | st.none(), max_size=4).map(json.dumps) | _VALUES
_MEMBERS = st.one_of(
    *(
        st.tuples(st.just(name), values)
        for name, values in {
            "type": _TYPES,
            "id": _NAMES.map(json.dumps) | _VALUES,
            "group": _NAMES.map(json.dumps) | _VALUES,
            "expected": _LISTS,
            "EXPECTED": _LISTS,
            "ttl": _VALUES,
            "need": _VALUES,
            "fail_fast": _VALUES,
            "result": _VALUES,
            "error": _NAMES.map(json.dumps) | _VALUES,
            "payload": _VALUES,
            "handler": _VALUES.map(lambda value: f'{{"onsuccess":{value}}}'),
        }.items()
    )
)


def _event(head: str, members: list[tuple[str, str]]) -> bytes:
    body = ",".join(f"{json.dumps(name)}:{value}" for name, value in members)
    return f"{{{head}{',' if body else ''}{body}}}".encode()


_HEADS = st.builds(
    lambda kind, group, entity: (
        f'"type":"{kind}","id":{json.dumps(entity)},"group":{json.dumps(group)}'
        if kind == _DONE
        else f'"type":"{kind}","id":{json.dumps(group)},"expected":["a","b"],"ttl":5'
    ),
    st.sampled_from([_CREATE, _DONE, _DONE]),
    st.sampled_from(["g", "h"]),
    st.sampled_from(["a", "b", "c"]),
)
_EVENTS = (
    st.builds(_event, _HEADS, st.lists(_MEMBERS, max_size=3))
    | st.builds(
        lambda members: _event("", members).replace(b"{,", b"{"), st.lists(_MEMBERS, max_size=4)
    )
    | st.binary(max_size=40)
    | st.builds(
        lambda data, at, byte: data[:at] + byte + data[at:],
        st.builds(_event, _HEADS, st.lists(_MEMBERS, max_size=1)),
        st.integers(0, 60),
        st.binary(max_size=2),
    )
)
_KEYS = st.none() | st.sampled_from(["g", "h", "", "\x00" * MOST_ID, "k" * (MOST_ID + 1)])


@pytest.mark.parametrize("mode", ["strict", "compat"])
@settings(deadline=None, max_examples=150)
@given(
    events=st.lists(st.tuples(_EVENTS, _KEYS, _TIMES), min_size=1, max_size=12),
    cut=st.integers(1, 4),
)
def test_the_reducer_does_not_raise_for_any_bytes(
    mode: str, events: list[tuple[bytes, str | None, int]], cut: int
) -> None:
    """Rows and outputs stay within the limits, under the event's key and any other."""
    test = collector(mode)
    facts = [sent(value, ts) if key is None else Sent(key, value, ts) for value, key, ts in events]
    for at in range(0, len(facts), cut):
        test.send(*facts[at : at + cut])
    test.send(Sent("", b"{}", 9 * 10**15))
    test.send(Sent("", b"{}", 9 * 10**15 + 10**12))


@pytest.mark.parametrize("mode", ["strict", "compat"])
@settings(deadline=None, max_examples=50)
@given(
    value=st.recursive(
        st.none() | st.floats() | st.integers() | st.text() | st.just("\ud800") | _NAMES,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["type", "id", "group", "result", "\udfff"]), inner)
        ),
    )
)
def test_any_decoded_value_is_taken_or_rejected(mode: str, value: Any) -> None:
    """The same holds for ``value: json`` in mode strict; ``group_of`` has a key for each."""
    key = group_of(Event(value, 0, "t", 0, 0))
    key_bytes(key)
    if mode == "strict":
        reducer = Collector(outcomes="outcomes", rejected="rejected")
        reducer(key, None, [Event(value, 0, "t", 0, 0)], 0)


def values(produced: Sequence[Produced], to: str) -> list[Any]:
    """Return what went to an output."""
    return [each.value for each in produced if each.to == to]


def create(group: str, expected: Sequence[str] = ("a",), payload: str = "null") -> bytes:
    """Return an event that creates a group, with a payload as JSON has it."""
    head = f'"type":"{_CREATE}","id":{json.dumps(group)},"expected":{json.dumps(expected)}'
    return f'{{{head},"payload":{payload}}}'.encode()


def test_a_number_beyond_floats_is_rejected() -> None:
    """With the number, shortened; Go's words are those of mode compat."""
    value = create("g", payload="1e400")
    (found,) = collector("strict").send(sent(value))
    assert found.value["error"] == "the event is no JSON: 1e400 is more than a number can be"
    (found,) = collector("compat").send(sent(value))
    assert found.value == (
        b"json: cannot unmarshal number 1e400 into Go struct field EventEnvelopGroup.payload of "
        b"type float64"
    )


@pytest.mark.parametrize("mode", ["strict", "compat"])
@pytest.mark.parametrize(
    "value",
    [
        create("g", payload=json.dumps("x" * 1_000_000)),
        create("x" * 1_000_000),
        create("g", payload=f"[{','.join(['1e15'] * 50_000)}]"),
        create("g", payload=json.dumps("<" * 300_000)),
        json.dumps({"type": "x" * 1_000_000, "id": "g"}).encode(),
        b"\xff" * 1_000_000,
        b'"' * 1_000_000,
    ],
    ids=["payload", "id", "numbers", "escaped", "type", "bytes", "quotes"],
)
def test_a_large_event_is_rejected_in_few_words(mode: str, value: bytes) -> None:
    """With the limits that channels have; nothing is kept of it."""
    test = collector(mode, max_row=512 << 10, max_output=1_000_000)
    (found,) = test.send(sent(value))
    text = found.value["error"] if mode == "strict" else str(found.value)
    assert (found.to, len(text) < 11_000, test.states()) == ("rejected", True, {})


def test_a_rejection_has_all_of_an_event_that_it_has_room_for() -> None:
    """And the beginning, with how much there was, of others."""
    test = collector("strict", max_row=512 << 10, max_output=1_000_000)
    small, large = json.dumps({"type": "x" * 5_000}), json.dumps({"type": "x" * 600_000})
    first, second = test.send(sent(small.encode()), sent(large.encode()))
    assert first.value["event"] == small
    assert second.value["event"].endswith(f"xxx … ({len(large)} characters in all)")
    assert first.value["error"].startswith("Unable to parse 'xxx")
    assert len(first.value["error"]) < 1_100


@pytest.mark.parametrize(("mode", "count"), [("strict", 300), ("compat", 600)])
def test_a_group_that_would_be_too_large_ends_by_its_time(mode: str, count: int) -> None:
    """Events beyond the limit are rejected; numbers count as they are spelt."""
    test = collector(mode)
    test.send(sent(create("g", ["a", "b"])))
    one = f'{{"type":"{_DONE}","id":"%s","group":"g","result":[{",".join(["1e15"] * count)}]}}'
    produced = test.send(sent((one % "a").encode()), sent((one % "b").encode()))
    produced += test.send(sent((one % "b").encode()), Sent("", b"{}", 31_000))
    (outcome,) = values(produced, "outcomes")
    assert outcome["error"] == "Operation timed out after 30 seconds"
    assert list(outcome["results"]) == ["a"]
    rejected = [str(each) for each in values(produced, "rejected")]
    assert sum("are kept of one" in each for each in rejected) == 2


def test_a_handler_without_an_output_of_its_name_is_not_routed() -> None:
    """A pattern admits it, and the channel has no such output: no event fails for it."""
    handler = b',"handler":{"onsuccess":{"topic":"results.unknown"}},"expected":[]}'
    produced = collector("strict").send(sent(create("g")[:-1] + handler))
    (rejected,) = values(produced, "rejected")
    assert rejected["error"] == (
        "No output of the channel is named 'results.unknown', the topic of onsuccess"
    )
    assert len(values(produced, "outcomes")) == 1


def test_a_row_in_which_no_group_has_room_is_refused() -> None:
    """When the channel starts, or is reloaded."""
    with pytest.raises(ValueError, match=r"state\.max_row is 1000, and the collector takes 16384"):
        collector("strict", max_row=1000)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (253_402_300_799_999, "9999-12-31T23:59:59Z"),
        (253_402_300_800_000, "10000-01-01T00:00:00Z"),
        (9_000_000_000_000_000, "287168-08-24T16:00:00Z"),
    ],
)
def test_times_after_the_year_9999_are_written_as_go_does(ms: int, text: str) -> None:
    """With as many digits as the year has: ``time.UnixMilli(ms).UTC()`` as RFC 3339."""
    assert Times.RFC3339.text(ms) == text
    assert Times.GO.text(ms).startswith(text[:-1].replace("T", " "))


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ('"expected":["a","b"],"expected":null', []),
        ('"expected":["a","b"],"expected":[null]', ["a"]),
        (
            '"expected":["a","b","c"],"expected":["x"],"expected":[null,null,null,null]',
            ["x", "b", "c", ""],
        ),
        ('"expected":["a","b"],"EXPECTED":[null,"z",null]', ["a", "z", ""]),
        ('"expected":["a","b"],"expected":[],"expected":[null,null]', ["", ""]),
        ('"expected":["a","b"],"expected":null,"expected":[null,null]', ["", ""]),
        (
            '"expected":["a","b","c"],"expected":["x"],"expected":["y",null,null,null,null]',
            ["y", "b", "c", "", ""],
        ),
        ('"expected":[null,"b"]', ["", "b"]),
    ],
)
def test_a_list_that_comes_twice_is_read_into_the_one_before(
    members: str, expected: list[str]
) -> None:
    """Go 1.26 reads null into a slice that keeps its memory, also beyond its length."""
    value = f'{{"type":"{_CREATE}","id":"g",{members}}}'.encode()
    test = collector("compat")
    test.send(sent(value))
    assert test.state("g")["expected"] == expected
