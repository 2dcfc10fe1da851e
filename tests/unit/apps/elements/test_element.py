"""Elements: what is called when, what is kept, where values go, and what is refused at once."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from headrace.apps.elements import Element, Stream, element_reducer
from headrace.core.errors import PoisonRecordError
from headrace.core.imports import make
from headrace.extensions.keyed.settings import FoldSettings
from headrace.keyed import Event, Fired
from headrace.testing.keyed import KeyedTest, check_reducer

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass
class Diary(Element):
    """Emits what it is called with, and keeps how many events there were."""

    events: int = 0

    @override
    def on_create(self) -> None:
        self.emit("out", ["create", self.time], key=self.key)

    @override
    def on_event(self, event: Event[Any]) -> None:
        self.events += 1
        self.emit("out", ["event", event.value], key=self.key)
        if event.value == "close":
            self.close()

    @override
    def on_trigger(self) -> None:
        self.emit("out", ["trigger", self.events], key=self.key)

    @override
    def on_time(self) -> None:
        self.emit("out", ["time", self.time, self.now], key=self.key)

    @override
    def on_remove(self) -> None:
        self.emit("out", ["remove", self.time], key=self.key)


@dataclass
class Counter(Element):
    """Has nothing but events."""

    events: int = 0
    seen: list[str] = field(default_factory=list)

    @override
    def on_event(self, event: Event[Any]) -> None:
        self.events += 1
        self.seen.append(str(event.value))


@dataclass
class Reports(Counter):
    """Counts, and reports when a trigger fires."""

    @override
    def on_trigger(self) -> None:
        self.emit("out", self.events)


def entries(test: KeyedTest, key: str = "a") -> list[Any]:
    """Return what a diary wrote."""
    return [each.value for each in test.outputs if each.key == key]


def test_an_instance_is_created_for_each_key_and_keeps_its_fields() -> None:
    """Collections are the instance's own, unlike those of a prototype's constructor."""
    test = KeyedTest(Counter.as_reducer())
    test.send(("a", "x", 0), ("b", "y", 1))
    test.send(("a", "z", 2))
    assert test.state("a") == {"events": 2, "seen": ["x", "z"]}
    assert test.state("b") == {"events": 1, "seen": ["y"]}
    assert (test.timers("a"), test.outputs) == ({}, [])


def test_methods_are_called_in_their_order() -> None:
    """Create, event, trigger; remove after the event that closed; then the key begins again."""
    test = KeyedTest(Diary.as_reducer(every=2, interval="1h"))
    test.send(*(("a", value, at) for at, value in enumerate(["x", "y", "close", "z"])))
    assert entries(test) == [
        ["create", 0],
        ["event", "x"],
        ["event", "y"],
        ["trigger", 2],
        ["event", "close"],
        ["remove", 2],
        ["create", 3],
        ["event", "z"],
    ]
    assert test.state("a")["events"] == 1


def test_a_closed_instance_leaves_neither_state_nor_timers() -> None:
    """The changelog gets a tombstone."""
    test = KeyedTest(Diary.as_reducer(every=5, interval="1s", ttl="1h"))
    test.send(("a", "x", 0), ("a", "close", 1))
    assert (test.state("a"), test.timers("a"), test.states()) == (None, {}, {})
    assert test.tick(60_000) == []


@pytest.mark.parametrize("cuts", [1, 3, 7])
def test_a_trigger_fires_after_each_nth_event_of_its_key(cuts: int) -> None:
    """The first firing is at the nth event, whatever the micro-batches are."""
    test = KeyedTest(Reports.as_reducer(every=3))
    for at in range(0, 10, cuts):
        test.send(*(("a", "x", 0) for _ in range(at, min(10, at + cuts))))
    assert [each.value for each in test.outputs] == [3, 6, 9]


def test_a_trigger_fires_by_the_time_since_its_last_firing() -> None:
    """Not since the event before, and not with the first event; late events do not set it back."""
    test = KeyedTest(Reports.as_reducer(gap="10s"))
    times = [0, 6_000, 10_000, 19_999, 15_000, 20_000, 29_999, 30_000]
    test.send(*(("a", "x", at) for at in times))
    assert [(each.value, each.ts) for each in test.outputs] == [
        (3, 10_000),
        (6, 20_000),
        (8, 30_000),
    ]


def test_a_trigger_with_both_begins_again_with_either() -> None:
    """Count and gap are since the same firing."""
    test = KeyedTest(Reports.as_reducer(every=2, gap="10s"))
    test.send(*(("a", "x", at) for at in (0, 1_000, 2_000, 11_000, 12_000, 13_000)))
    assert [(each.value, each.ts) for each in test.outputs] == [
        (2, 1_000),
        (4, 11_000),
        (6, 13_000),
    ]


def test_time_is_called_at_the_interval_for_each_live_key() -> None:
    """First an interval after the creation; what was missed is one call, and the pace is kept."""
    test = KeyedTest(Diary.as_reducer(every=99, interval="5s"))
    test.send(("a", "x", 1_000), now=1_000)
    test.send(("b", "x", 3_000), now=3_000)
    assert test.tick(5_999) == []
    assert [each.key for each in test.tick(6_000)] == ["a"]
    assert [each.key for each in test.tick(8_000)] == ["b"]
    test.tick(22_500)
    assert entries(test)[2:] == [["time", 6_000, 6_000], ["time", 11_000, 22_500]]
    assert test.timers("a")["time"].due == 26_000


def test_an_instance_without_events_is_removed_after_its_time_to_live() -> None:
    """In stream time: by a record of another key too; each event begins it again."""
    test = KeyedTest(Diary.as_reducer(every=99, interval="1h", ttl="10s"))
    test.send(("a", "x", 0), ("a", "y", 6_000), ("b", "x", 15_999))
    assert test.state("a")["events"] == 2
    test.send(("b", "y", 16_000))
    assert entries(test)[-1] == ["remove", 16_000]
    assert test.state("a") is None


def test_a_longer_time_to_live_counts_for_instances_that_are_there() -> None:
    """A timer that was set by the shorter one removes nothing."""
    ruled: dict[str, Any] = {"every": 99, "interval": "1h"}
    state, _, _ = Diary.as_reducer(**ruled, ttl="10s")("a", None, [event("x")], 0)
    longer = Diary.as_reducer(**ruled, ttl="1m")
    state, outputs, timers = longer("a", state, [Fired("ttl", 10_000)], 0)
    assert (outputs, timers["ttl"].due) == ([], 60_000)
    assert longer("a", state, [Fired("ttl", 60_000)], 0)[0] is None


def test_fields_that_were_added_since_have_their_defaults() -> None:
    """And members that no field is named by are left out with the next event."""
    state = {"seen": ["x"], "gone": 1}
    found, _, _ = Counter.as_reducer()("a", state, [event("y")], 0)
    assert found == {"events": 1, "seen": ["x", "y"]}


def event(value: Any, ts: int = 0) -> Event[Any]:
    """Return an event."""
    return Event(value, ts, "facts", 0, 0)


# --- streams ------------------------------------------------------------------------------------


@dataclass
class Splits(Element):
    """Sends each event on, by the finders of its streams."""

    by_topic = Stream("by_topic", key="topic")
    by_both = Stream("by_both", key=("user.id", "topic"))
    by_function = Stream("by_function", key=lambda value: value["topic"].upper())
    anywhere = Stream("anywhere")

    @override
    def on_event(self, event: Event[Any]) -> None:
        for stream in (self.by_topic, self.by_both, self.by_function, self.anywhere):
            self.emit(stream, event.value)


_STREAMS = FoldSettings(
    outputs=("by_topic", "by_both", "by_function", "anywhere"), failing="dead_letter"
)


def test_a_stream_finds_the_keys_of_its_values() -> None:
    """The key is a member, several members or a function's result; without a finder it is none."""
    test = KeyedTest(Splits.as_reducer(), _STREAMS)
    found = test.send(("a", {"topic": "t", "user": {"id": 7}}, 5))
    assert [(each.to, each.key, each.ts) for each in found] == [
        ("by_topic", "t", 5),
        ("by_both", '["7","t"]', 5),
        ("by_function", "T", 5),
        ("anywhere", None, 5),
    ]


def test_a_value_without_its_key_is_poison() -> None:
    """And nothing of the event is emitted."""
    test = KeyedTest(Splits.as_reducer(), _STREAMS)
    (letter,) = test.send(("a", {"user": {"id": 7}}, 5))
    assert letter.to == "headrace.dead_letters"
    message = dict(letter.headers)["headrace.message"] or b""
    assert b"stream 'by_topic': the value has no 'topic', its key" in message


@pytest.mark.parametrize("parts", [("a^b",), ("a", "b"), ("[x",), ("[x", "y"), (1, None)])
def test_a_key_of_several_parts_is_given_back_as_it_was(parts: tuple[Any, ...]) -> None:
    """No two are the same: not ``a^b`` and a, b either."""

    @dataclass
    class Echo(Element):
        @override
        def on_event(self, event: Event[Any]) -> None:
            self.emit("out", [repr(self.key)], key=self.key)

    key = parts[0] if len(parts) == 1 else parts
    first, second = KeyedTest(Echo.as_reducer()), KeyedTest(Echo.as_reducer())
    (once,) = first.send((key, 1, 0))
    assert once.value == [repr(key)]
    second.send((key, 1, 0))
    assert first.states() == second.states()


def test_a_reducer_says_which_streams_its_class_declares() -> None:
    """So that an output that is missing is known before anything starts."""
    assert Splits.as_reducer().outputs == ("anywhere", "by_both", "by_function", "by_topic")


# --- purity -------------------------------------------------------------------------------------

_VALUES = st.sampled_from(["x", "y", "close"])
_FACTS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c"]), _VALUES, st.integers(0, 40_000)),
    min_size=2,
    max_size=25,
)


@settings(max_examples=40)
@given(_FACTS, st.sampled_from([None, "7s"]))
def test_the_outcome_does_not_depend_on_the_cut_of_batches(
    facts: list[tuple[str, str, int]], ttl: str | None
) -> None:
    """Triggers by count and gap, closing, times to live and late events take part."""
    reducer = Diary.as_reducer(every=3, gap="9s", interval="1h", ttl=ttl)
    check_reducer(reducer, [*facts, ("z", "x", 60_000)], runs=5)


# --- what methods may set ------------------------------------------------------------------------


class Place(TypedDict):
    """Members of a field."""

    x: int
    y: NotRequired[float]


@dataclass
class Fields(Element):
    """Has fields of many types, and sets whichever an event names to its value."""

    number: int = 0
    share: float = 0.5
    text: str = ""
    maybe: str | None = None
    names: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    deep: dict[str, list[int | None]] = field(default_factory=dict)
    kind: Literal["a", 1] = "a"
    place: Place | None = None
    free: Any = None
    bare: list[Any] = field(default_factory=list)

    @property
    def half(self) -> float:
        """Half of the number."""
        return self.number / 2

    @half.setter
    def half(self, value: int) -> None:
        self.number = value * 2

    @override
    def on_event(self, event: Event[Any]) -> None:
        name, value = event.value
        setattr(self, name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("number", 5), ("number", True), ("share", 1), ("share", 1.5), ("half", 4)),
        *(("text", "x"), ("maybe", None), ("maybe", "x"), ("names", []), ("names", ["x"])),
        *(("counts", {"a": 1}), ("deep", {"a": [1, None]}), ("kind", "a"), ("kind", 1)),
        *(("place", {"x": 1}), ("place", {"x": 1, "y": 2, "z": "more"}), ("place", None)),
        *(("free", {"a": [1, "x", None]}), ("bare", [1, "x", {}])),
    ],
)
def test_a_field_takes_what_its_type_has(name: str, value: Any) -> None:
    """Types match as for type checkers: an int is a float, too."""
    test = KeyedTest(Fields.as_reducer())
    test.send(("a", [name, value], 0))
    assert test.state("a")[{"half": "number"}.get(name, name)] == (8 if name == "half" else value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("number", "5", "field 'number' is of the type int, and not.* '5', a str; write one, or"),
        ("number", 1.5, "and not, with all its parts, 1.5, a float"),
        ("number", None, "None, a NoneType"),
        ("share", "x", "is of the type float"),
        ("maybe", 5, r"is of the type str \| None"),
        ("names", {}, r"is of the type list\[str\]"),
        ("names", ["x", 5], r"\['x', 5\], a list"),
        ("counts", {"a": "x"}, r"dict\[str, int\]"),
        ("deep", {"a": [1, "x"]}, "field 'deep'"),
        ("kind", "b", "Literal"),
        ("kind", True, "Literal"),
        ("place", {"y": 1.5}, "Place"),
        ("place", {"x": "x"}, "Place"),
        ("nmber", 5, "'nmber' is no field, and would be gone.*write nmber: TYPE = DEFAULT"),
        ("_hidden", 5, "'_hidden' is no field"),
        ("on_event", 5, "'on_event' is no field"),
    ],
)
@pytest.mark.parametrize("later", [0, 2])
def test_a_value_that_no_field_takes_is_refused_as_it_is_set(
    name: str, value: Any, words: str, later: int
) -> None:
    """The event that sets it fails, and the other events of the batch count."""
    test = KeyedTest(Fields.as_reducer(), FoldSettings(outputs=("out",), failing="dead_letter"))
    good = [("a", ["number", 7], at) for at in range(later + 1)]
    test.send(good[0], ("a", [name, value], 5), *good[1:])
    (letter,) = test.dead_letters
    message = (dict(letter.headers)["headrace.message"] or b"").decode()
    assert re.search(words, message), message
    assert dict(letter.headers)["headrace.offset"] == b"1"
    assert test.state("a")["number"] == 7


@dataclass
class Sly(Element):
    """Changes its fields without setting them."""

    counts: dict[str, int] = field(default_factory=dict)

    @override
    def on_event(self, event: Event[Any]) -> None:
        if event.value == "more":
            vars(self)["more"] = 1
        else:
            self.counts["x"] = event.value


@pytest.mark.parametrize(
    ("value", "words"),
    [("more", "'more' is no field"), ("text", "field 'counts' is of the type"), (5.5, "field")],
)
def test_a_value_changed_inside_of_a_field_is_checked_too(value: Any, words: str) -> None:
    """The check follows the event's methods, and covers values set past the class."""
    with pytest.raises(PoisonRecordError, match=words):
        KeyedTest(Sly.as_reducer()).send(("a", value, 0))


def test_a_field_of_another_type_is_read_as_it_was_stored() -> None:
    """So that a method can make the new type of it; otherwise the event is refused by the field."""
    reducer = Fields.as_reducer()
    state, _, _ = reducer("a", {"number": "5"}, [event(["number", 5])], 0)
    assert state is not None
    assert state["number"] == 5
    with pytest.raises(ValueError, match=r"field 'number' is of the type int, and not.* '5'"):
        reducer("a", {"number": "5"}, [event(["text", ""])], 0)


# --- what is refused ----------------------------------------------------------------------------


def plain(**members: Any) -> type[Element]:
    """Return an element class with these members, as @dataclass makes it."""
    body = {"on_event": lambda self, event: None, **members}  # noqa: ARG005
    return dataclass(type("Made", (Element,), body))


def field_of(hint: Any, default: Any) -> type[Element]:
    """Return an element class with one field."""
    return plain(__annotations__={"it": hint}, it=default)


def no_dataclass() -> type[Element]:
    """Return a class without the decorator."""

    class Bare(Element):
        it: int = 0

        @override
        def on_event(self, event: Event[Any]) -> None:
            """Do nothing."""

    return Bare


def half_a_dataclass() -> type[Element]:
    """Return a class whose base only has the decorator."""

    class More(Counter):
        it: int = 0

    return More


class Bytes(TypedDict):
    """Members of a type that JSON does not have."""

    it: bytes


def adds(self: Any) -> None:
    """Set what is no field."""
    self.more = 1


def without_default() -> type[Element]:
    """Return a class that cannot be made from nothing."""
    return plain(__annotations__={"it": int})


@pytest.mark.parametrize(
    ("element", "rules", "message"),
    [
        (no_dataclass, {}, "is no dataclass; write @dataclass above it"),
        (half_a_dataclass, {}, "it is no field yet; write @dataclass"),
        (lambda: dataclass(frozen=True)(no_dataclass()), {}, "is frozen"),
        (without_default, {}, "field 'it' has no default"),
        (lambda: field_of(set[str], None), {}, "field 'it' has a set"),
        (lambda: field_of(tuple[int, ...], ()), {}, "field 'it' has a tuple"),
        (lambda: field_of(dict[int, str], None), {}, "dict with keys of int"),
        (lambda: field_of(list[bytes] | None, None), {}, "field 'it' has a bytes"),
        (lambda: field_of(Any, (1, 2)), {}, "the default of 'it' is not for JSON: it is a tuple"),
        (lambda: field_of(Any, b"x"), {}, "the default of 'it' is not for JSON"),
        (lambda: field_of(float, float("nan")), {}, "the default of 'it' is not for JSON"),
        (lambda: field_of(Literal[b"x"], b"x"), {}, "field 'it' has a bytes"),
        (lambda: field_of(Bytes, None), {}, "field 'it' has a bytes"),
        (
            lambda: field_of(str, None),
            {},
            "field 'it' is of the type str, and not.* None, a NoneType",
        ),
        (lambda: plain(it=cached_property(id)), {}, "it is a cached_property.*; write property"),
        (
            lambda: plain(__post_init__=adds),
            {},
            "cannot be made: ValueError: .*'more' is no field",
        ),
        (lambda: plain(__annotations__={"key": str}, key=""), {}, "the name 'key'"),
        (lambda: plain(__annotations__={"_it": str}, _it=""), {}, "the name '_it'"),
        (lambda: field_of("Nowhere", None), {}, "types cannot be read: NameError"),
        (lambda: plain(on_event=Element.on_event), {}, "has no on_event"),
        (lambda: plain(on_event=lambda self: None), {}, r"on_event is called with \(self, event\)"),  # noqa: ARG005
        (lambda: plain(on_tigger=print), {}, "nothing calls on_tigger; did you mean on_trigger"),
        (lambda: Reports, {}, "on_trigger is never called without every or gap"),
        (lambda: Counter, {"every": 5}, "every is given, and there is no on_trigger"),
        (lambda: Counter, {"gap": "5s"}, "gap is given, and there is no on_trigger"),
        (lambda: Counter, {"interval": "5s"}, "interval is given, and there is no on_time"),
        (lambda: Reports, {"every": 0}, "every is 0; it has to be a number of events"),
        (lambda: Reports, {"every": True}, "every is True"),
        (lambda: Reports, {"gap": 5}, "gap is 5; it has to be a duration such as 30s"),
        (lambda: Reports, {"gap": "0"}, "gap is '0'; it has to be a duration"),
        (lambda: Counter, {"ttl": "soon"}, "ttl is 'soon'; it has to be a duration"),
    ],
)
def test_a_class_that_is_no_element_is_refused(
    element: Callable[[], type[Element]], rules: dict[str, Any], message: str
) -> None:
    """The refusal comes with the reducer, and not with the first event."""
    with pytest.raises(ValueError, match=message):
        element().as_reducer(**rules)


def test_an_async_method_is_refused() -> None:
    """An async method would never be awaited."""

    async def on_event(self: Element, event: Event[Any]) -> None:
        """Do nothing."""

    with pytest.raises(ValueError, match="on_event is async"):
        plain(on_event=on_event).as_reducer()


@pytest.mark.parametrize(
    ("key", "message"), [("", "key is ''"), ([], r"key is \[\]"), (["a", ""], "key is")]
)
def test_a_stream_with_an_impossible_key_is_refused(key: Any, message: str) -> None:
    """When it is declared."""
    with pytest.raises(ValueError, match=message):
        Stream("out", key=key)


def test_a_configuration_names_an_element_and_its_rules() -> None:
    """The element's reducer is made by the factory of a keyed channel."""
    path = "headrace.apps.elements:element_reducer"
    reducer = make(path, {"element": f"{__name__}:Reports", "every": 2})
    test = KeyedTest(reducer)
    assert [each.value for each in test.send(("a", 1, 0), ("a", 2, 0))] == [2]
    assert reducer.__module__ == __name__


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"element": f"{__name__}:Reports", "evry": 2}, "there is no rule 'evry'"),
        ({"element": f"{__name__}:plain"}, "is no element; name a class"),
    ],
)
def test_a_configuration_that_names_none_is_refused(options: dict[str, Any], message: str) -> None:
    """The message names the faulty option."""
    with pytest.raises(ValueError, match=message):
        element_reducer(**options)
