"""Applications of elements: how they are divided, what runs in one task, and what is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from typing_extensions import override

from headrace.apps.elements import SAME_KEY, App, Element, Stream
from headrace.apps.elements.added_events import AddedEvents, Bound
from headrace.apps.elements.app_test import AppTest, Emitted
from headrace.apps.elements.part_reducer import PartReducer, StreamKey, app_reducer, load_app
from headrace.core.errors import ConfigError, PoisonRecordError
from headrace.core.tables import SCHEMA
from headrace.extensions.keyed.codecs import field_of, key_bytes
from headrace.extensions.keyed.row import KeyRow
from headrace.keyed import Event, Fired
from tests.unit.apps.elements.programs import (
    Alarm,
    Basket,
    Hello,
    HelloApp,
    HelloSingleton,
    Sales,
    Shop,
    TwitterCounter,
)

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAMS = "tests.unit.apps.elements.programs"


# --- the programs of the document -----------------------------------------------------------------


def test_an_input_stream_retrieves_or_creates_the_instance_of_the_key_that_is_found() -> None:
    """Each name has an instance of its own, which keeps its count."""
    test = AppTest(HelloApp())
    found = test.send("names", {"name": "Ada"}, {"name": "Bob"}, {"name": "Ada"})
    greeted = sorted((each.value["key"], each.value["events"]) for each in found)
    assert greeted == [("Ada", 1), ("Ada", 2), ("Bob", 1)]
    assert test.state("Hello", "Ada") == {"events": 2}


def test_a_singleton_takes_all_events_whatever_they_have() -> None:
    """It is one instance for the partition."""
    test = AppTest(HelloSingleton())
    found = test.send("names", {"name": "Ada"}, {"name": "Bob"}, {"name": "Ada"})
    assert [each.value for each in found] == [{"key": "0", "events": n} for n in (1, 2, 3)]


def test_the_topics_of_texts_are_counted_and_those_with_the_most_found() -> None:
    """Three elements in three parts, with two changes of key between them."""
    test = AppTest(TwitterCounter())
    assert [part.name for part in test.plan.parts] == [
        "TopNTopics",
        "TopicCountAndReport",
        "TopicExtractor",
    ]
    texts = [{"text": "#a #b to #a"}, {"text": "#c #a #b"}]
    assert test.send("raw-status", *texts, now=1_000) == []
    assert test.hops == {"topic-seen": 6}
    assert test.tick(11_000) == []
    (top,) = test.tick(30_000)
    assert top == Emitted("top", None, [["#a", 3], ["#b", 2]], 21_000)


# --- what stays in a task -------------------------------------------------------------------------


def test_a_stream_that_keeps_the_key_stays_within_the_task() -> None:
    """It has no topic; a change of key is a topic by key."""
    test = AppTest(Shop())
    assert [(part.name, part.elements, dict(part.topics)) for part in test.plan.parts] == [
        ("Basket", ("Basket", "Alarm"), {"orders": "shop.Basket.orders.by-key"}),
        ("SalesOfGood", ("SalesOfGood",), {"goods": "shop.SalesOfGood.goods.by-key"}),
    ]
    orders = [{"customer": 7, "good": good, "price": 60} for good in ("tea", "tea", "jam")]
    found = test.send("orders", *orders, ts=5)
    assert found == [Emitted("alarms", "7", {"customer": "7", "total": 120}, 5)]
    assert test.hops == {"goods": 3}
    assert (test.state("Basket", "7"), test.state("Alarm", "7")) == (
        {"total": 180},
        {"raised": True},
    )
    assert test.state("SalesOfGood", "tea") == {"total": 120}


@dataclass
class Step(Element):
    """Sends each event on, with another key where it says so, until it has gone far enough."""

    steps = Stream("steps")

    seen: int = 0

    @override
    def on_event(self, event: Event[Any]) -> None:
        self.seen += 1
        name, left = event.value["name"], event.value["left"]
        if left:
            self.emit(self.steps, {"name": event.value.get("then", name), "left": left - 1})


class Steps(App):
    """A stream that leads back to its element, by the key finder of the input."""

    @override
    def on_init(self) -> None:
        step = self.create_element(Step)
        self.create_input_stream("begin", "name", step)
        self.create_stream("steps", "name", step)


def test_whether_the_key_stays_is_decided_event_by_event() -> None:
    """An event stays in the task if the key that the same finder finds is the instance's own."""
    test = AppTest(Steps())
    test.send("begin", {"name": "a", "left": 5})
    assert (test.hops, test.state("Step", "a")) == ({}, {"seen": 6})
    test.send("begin", {"name": "a", "left": 3, "then": "b"})
    assert (test.hops, test.state("Step", "b")) == ({"steps": 1}, {"seen": 3})


def test_events_that_go_round_within_a_task_are_refused() -> None:
    """The record that leads to more than 10,000 is poison, and the text names the stream."""
    with pytest.raises(PoisonRecordError, match="stream 'steps': one record led to"):
        AppTest(Steps()).send("begin", {"name": "a", "left": 10_001})


def test_values_within_a_task_are_as_they_would_be_in_a_topic() -> None:
    """A value that is no JSON is refused there too, and a key of another task has no topic."""

    @dataclass
    class Wrong(Element):
        sums = Stream("sums")

        @override
        def on_event(self, event: Event[Any]) -> None:
            if event.value["what"] == "set":
                self.emit(self.sums, {1, 2})
            self.emit(self.sums, {}, key="another")

    class Wrongs(App):
        @override
        def on_init(self) -> None:
            wrong, sales = self.create_element(Wrong), self.create_element(Sales)
            self.create_input_stream("in", SAME_KEY, wrong)
            self.create_stream("sums", SAME_KEY, sales)

    with pytest.raises(PoisonRecordError, match="a value for stream 'sums'"):
        AppTest(Wrongs()).send("in", {"what": "set"}, key="a")
    with pytest.raises(PoisonRecordError, match="stream 'sums' keeps the key, and has no topic"):
        AppTest(Wrongs()).send("in", {"what": "key"}, key="a")


def test_timers_are_those_of_their_element() -> None:
    """Two elements of a key each have their own, and one that is gone does nothing."""
    reducer = app_reducer(f"{PROGRAMS}:TwitterCounter", "TopicCountAndReport")
    topic = next(iter(reducer.part.topics.values()))
    event = Event({"topic": "#a"}, 5, topic, 0, 0)
    state, _, timers = reducer("#a", None, [event], 1_000)
    assert state == {"TopicCountAndReport": {"count": 1, "_element": {"due": 11_000}}}
    assert list(timers) == ["TopicCountAndReport/time"]
    _, outputs, _ = reducer("#a", state, [Fired("TopicCountAndReport/time", 11_000)], 11_000)
    assert [(each.to, each.key) for each in outputs] == [
        ("aggregated-topic-seen", "aggregationKey")
    ]
    assert reducer("#a", state, [Fired("Gone/time", 11_000)], 11_000)[1] == []


def test_what_an_element_left_that_is_gone_stays_until_it_returns() -> None:
    """A part that an element was taken out of keeps its state."""
    plan = HelloApp().plan()
    reducer = PartReducer(plan, plan.parts[0])
    event = Event({"name": "Ada"}, 5, plan.parts[0].topics["names"], 0, 0)
    state, _, _ = reducer("Ada", {"Former": {"x": 1}}, [event], 0)
    assert state == {"Former": {"x": 1}, "Hello": {"events": 1}}


# --- singletons, and a class twice ----------------------------------------------------------------


@dataclass
class Total(Element):
    """Counts all that there is, and tells it in an interval; refuses a bad event."""

    totals = Stream("totals")

    events: int = 0

    @override
    def on_event(self, event: Event[Any]) -> None:
        self.events += 1
        if event.value == "bad":
            raise ValueError("a bad event")

    @override
    def on_time(self) -> None:
        self.emit(self.totals, self.events)


class Totals(App):
    """One instance of the member."""

    @override
    def on_init(self) -> None:
        self.create_input_stream(
            "in", self.create_element(Total, singleton="member", interval="5s")
        )
        self.create_output_stream("totals")


def test_a_singleton_of_a_member_takes_the_events_of_all_its_partitions() -> None:
    """The timer fires once, whichever partition comes first; no state of it is stored."""
    plan = Totals().plan()
    reducer = PartReducer(plan, plan.parts[0])
    events = [Event("x", 5, "in", number, 7) for number in range(3)]
    for number, event in enumerate(events):
        state, _, timers = reducer(str(number), None, [event], 1_000)
        assert (state, timers["Total/time"].due) == (None, 6_000)
    fired = Fired("Total/time", 6_000)
    made = [reducer(str(number), None, [fired], 6_500) for number in range(3)]
    assert [[each.value for each in outputs] for _, outputs, _ in made] == [[3], [], []]
    assert [timers["Total/time"].due for *_, timers in made] == [11_000] * 3


def test_an_event_that_fails_leaves_no_trace_in_a_singleton_of_a_member() -> None:
    """Though its instance is not read from what is stored."""
    plan = Totals().plan()
    reducer = PartReducer(plan, plan.parts[0])
    good, bad = (Event(value, 5, "in", 0, 7) for value in ("x", "bad"))
    reducer("0", None, [good], 0)
    with pytest.raises(ValueError, match="a bad event"):
        reducer("0", None, [good, bad], 0)
    reducer("0", None, [good], 0)
    assert reducer("0", None, [Fired("Total/time", 5_000)], 5_000)[1][0].value == 2


def test_a_class_may_be_there_twice_with_other_rules() -> None:
    """Each has a name, a state and timers of its own."""

    class Twice(App):
        @override
        def on_init(self) -> None:
            often = self.create_element(Total, "Often", interval="5s")
            seldom = self.create_element(Total, "Seldom", interval="1h")
            self.create_input_stream("in", SAME_KEY, often, seldom)
            self.create_output_stream("totals", SAME_KEY)

    test = AppTest(Twice())
    test.send("in", "x", "y", key="a", now=1_000)
    assert test.state("Often", "a")["_element"] == {"due": 6_000}
    assert test.state("Seldom", "a") == {"events": 2, "_element": {"due": 3_601_000}}
    assert [each.value for each in test.tick(6_000)] == [2]


# --- every instance, and a bound on them ----------------------------------------------------------


@dataclass
class Visit(Element):
    """Counts, is told of a price, and says goodbye."""

    ends = Stream("ends")

    events: int = 0
    price: int = 0

    @override
    def on_event(self, event: Event[Any]) -> None:
        if event.value == "close":
            self.close()
        elif isinstance(event.value, dict):
            self.price = event.value["price"]
            self.emit(self.ends, {"key": self.key, "price": self.price})
        else:
            self.events += 1

    @override
    def on_remove(self) -> None:
        self.emit(self.ends, {"key": self.key, "end": self.events, "at": self.time})


class Visits(App):
    """Instances by key, all of which hear of prices."""

    def __init__(self, **options: Any) -> None:
        self._options = options

    @override
    def on_init(self) -> None:
        visit = self.create_element(Visit, **self._options)
        self.create_input_stream("visits", SAME_KEY, visit)
        self.create_input_stream("prices", visit)
        self.create_output_stream("ends")


def _keys(found: list[Emitted]) -> list[str]:
    return [each.value["key"] for each in found]


def test_an_event_without_a_key_finder_goes_to_every_instance_that_there_is() -> None:
    """To those of earlier micro-batches, and to none that was closed or never was."""
    test = AppTest(Visits())
    assert test.send("prices", {"price": 1}) == []
    for key in "abc":
        test.send("visits", "x", key=key)
    test.send("visits", "close", key="b")
    assert sorted(_keys(test.send("prices", {"price": 2}, {"price": 3}))) == ["a", "a", "c", "c"]
    assert [test.state("Visit", key) for key in "abc"] == [
        {"events": 1, "price": 3},
        None,
        {"events": 1, "price": 3},
    ]
    assert test.plan.parts[0].topics["prices"] == "visits.Visit.prices.by-key"


def test_an_event_for_every_instance_counts_in_its_order_among_others() -> None:
    """An instance of the same micro-batch hears what came after its first event."""
    added = AddedEvents({"all"}, {})
    rows = [("in", b"a"), ("all", None), ("in", b"b"), ("all", b"x"), ("in", None)]
    table = records(*rows)
    found = added(table, lambda _: {b"old": KeyRow(b"{}")})
    assert list(zip(*(found.column(n).to_pylist() for n in ("topic", "key")), strict=True)) == [
        ("in", b"a"),
        ("all", b"old"),
        ("all", b"a"),
        ("in", b"b"),
        ("all", b"old"),
        ("all", b"a"),
        ("all", b"b"),
        ("in", None),
    ]
    none = records(("in", b"a"))
    assert added(none, lambda _: {}) is none


def records(*rows: tuple[str, bytes | None]) -> pa.Table:
    """Return records of one partition."""
    made = [
        {"topic": topic, "partition": 0, "offset": at, "timestamp": at, "key": key, "value": b"1"}
        for at, (topic, key) in enumerate(rows)
    ]
    return pa.Table.from_pylist(made, schema=SCHEMA)


def test_the_least_recently_used_instances_end_where_there_are_too_many() -> None:
    """With on_remove, at the time of the latest event; a key that returns is used again."""
    test = AppTest(Visits(max_instances=2))
    assert test.send("visits", "x", key="a", ts=1) == []
    assert test.send("visits", "x", key="b", ts=2) == []
    test.send("visits", "x", key="a", ts=3)
    (end,) = test.send("visits", "x", key="c", ts=4)
    assert end == Emitted("ends", None, {"key": "b", "end": 1, "at": 4}, 4)
    assert [test.state("Visit", key) is None for key in "abc"] == [False, True, False]
    assert _keys(test.send("visits", "x", key="b", ts=5)) == ["a"]
    test.send("visits", "close", key="c", ts=6)
    assert test.send("visits", "x", key="a", ts=7) == []


def test_a_micro_batch_with_more_keys_than_instances_keeps_its_last() -> None:
    """Each key is taken before those that are too many end; what is not counted yet is read."""
    ended = AddedEvents((), {"Visit": Bound(2, frozenset({"in"}))})
    state = {"Visit": {"events": 1, "_element": {"last": 5}}}
    rows = {b"old": KeyRow(json.dumps(state).encode()), b"other": KeyRow(b'{"Another":{}}')}
    found = ended(records(*(("in", key) for key in (b"a", b"b", b"c", b"b"))), lambda _: rows)
    added = found.slice(4).to_pylist()
    assert [(each["key"], each["value"], each["offset"]) for each in added] == [
        (b"old", b'"Visit"', 3),
        (b"a", b'"Visit"', 3),
    ]


def test_only_events_of_its_own_count_for_the_bound_of_an_element() -> None:
    """A key that another element of the part had an event of neither counts nor is used by it."""
    ended = AddedEvents((), {"Visit": Bound(2, frozenset({"in"}))})
    rows = {b"o": KeyRow(b'{"Other":{}}')}
    came = [("in", b"a"), ("in", b"b"), ("other", b"a"), ("other", b"c"), ("in", b"d")]
    found = ended(records(*came), lambda _: rows)
    assert [each["key"] for each in found.slice(len(came)).to_pylist()] == [b"a"]


@dataclass
class Guest(Element):
    """Counts, and tells of its events and its end, by the same key."""

    ends = Stream("ends")
    told = Stream("told")

    events: int = 0

    @override
    def on_event(self, event: Event[Any]) -> None:
        self.events += 1
        if event.value == {"k": self.key, "tell": True}:
            self.emit(self.told, {})

    @override
    def on_remove(self) -> None:
        self.emit(self.ends, {"key": self.key})
        self.emit(self.told, {})


class Guests(App):
    """Two elements by the same key, one of which is bounded; ``told`` are those that hear."""

    def __init__(self, *told: str) -> None:
        self._told = told

    @override
    def on_init(self) -> None:
        few = self.create_element(Guest, "Few", max_instances=2)
        many = self.create_element(Guest, "Many")
        told = [each for each in (few, many) if each.name in self._told]
        if told:
            self.create_stream("told", SAME_KEY, *told)
        else:
            self.create_output_stream("told")
        self.create_input_stream("few", "k", few)
        self.create_input_stream("many", "k", many)
        self.create_input_stream("both", "k", few, many)
        self.create_input_stream("all", few, many)
        self.create_output_stream("ends")


def _instances(test: AppTest, element: str) -> set[str]:
    return {key for key in "klmno" if test.state(element, key) is not None}


@given(
    st.sampled_from([(), ("Few",), ("Many",), ("Few", "Many")]),
    st.lists(
        st.tuples(
            st.sampled_from(["few", "many", "both", "all"]),
            st.lists(st.sampled_from("klmno"), min_size=1, max_size=4),
        ),
        max_size=8,
    ),
)
def test_a_bound_holds_after_each_micro_batch_and_counts_its_own_element_alone(
    told: tuple[str, ...], batches: list[tuple[str, list[str]]]
) -> None:
    """The instances that are too many end, those without an event for longest; others keep all."""
    test = AppTest(Guests(*told))
    few: dict[str, int] = {}  # by key the latest event
    many: set[str] = set()
    for time, (stream, keys) in enumerate(batches):
        found = test.send(stream, *({"k": key} for key in keys), ts=time)
        ended = _keys([each for each in found if each.stream == "ends"])
        if stream in {"few", "both"}:
            few |= dict.fromkeys(keys, time)
        if stream == "all":
            few = dict.fromkeys(few, time)
        if stream in {"many", "both"}:
            many |= {*keys}
        assert len(ended) == max(0, len(few) - 2)
        oldest = [few.pop(key) for key in ended]
        assert max(oldest, default=0) <= min(few.values(), default=0)
        many |= {*ended} if "Many" in told else set()
        assert (_instances(test, "Few"), _instances(test, "Many")) == ({*few}, many)


def test_instances_that_another_element_makes_are_counted_with_the_next_micro_batch() -> None:
    """They do not show before: nothing that is there ends for what may come of an event."""
    test = AppTest(Guests("Few"))
    test.send("few", {"k": "k"}, {"k": "l"}, ts=1)
    test.send("many", {"k": "m"}, {"k": "n"}, ts=2)
    assert _instances(test, "Few") == {"k", "l"}
    test.send("many", *({"k": key, "tell": True} for key in "mn"), ts=3)
    test.send("many", {"k": "o"}, ts=4)
    assert _instances(test, "Few") == {"m", "n"}


# --- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("finder", "one", "other"),
    [
        ("a", {"a": 7}, {"a": "7"}),
        (("a", "b"), {"a": 7, "b": True}, {"a": "7", "b": "true"}),
        (lambda value: [value["a"]], {"a": 1.5}, {"a": "1.5"}),
        (("a",), {"a": 7}, {"a": "7"}),
    ],
)
def test_a_number_and_its_text_are_one_key(finder: Any, one: Any, other: Any) -> None:
    """Parts of several are so, too, and one part alone is a key by itself."""
    stream = Stream("s", key=finder)
    assert stream.key_of(one) == stream.key_of(other)


_json = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(_json)
@example(["a"])
@example([7, "7"])
@example("[x")
def test_a_name_finds_the_key_that_a_channel_finds_by_the_name(value: Any) -> None:
    """An event has one key, whether it comes in by the intake or from an element."""
    found = key_bytes(Stream("s", key="k.l").key_of({"k": {"l": value}}))
    assert found == key_bytes(field_of({"k": {"l": value}}, ["k", "l"]))


def test_the_key_of_an_input_is_found_by_its_stream() -> None:
    """A re-keying channel gets the function; a value without the key is refused by name."""
    key = StreamKey(HelloApp().plan(), "names")
    assert key(Event({"name": "Ada"}, 0, "names", 0, 0)) == "Ada"
    with pytest.raises(ValueError, match="has no stream 'nmes'; it has names, greetings"):
        StreamKey(HelloApp().plan(), "nmes")


# --- a plan is a value ----------------------------------------------------------------------------


def test_a_changed_application_has_another_digest_and_a_channel_of_the_former_does_not_start() -> (
    None
):
    """The same code has the same one each time."""
    digest = Shop().plan().digest
    assert (Shop().plan().digest, Shop().plan("other").digest != digest) == (digest, True)
    assert app_reducer(f"{PROGRAMS}:Shop", "Basket", plan=digest).outputs == ("alarms", "goods")
    with pytest.raises(ValueError, match=f"application shop is {digest} now, and the channel was"):
        app_reducer(f"{PROGRAMS}:Shop", "Basket", plan="0")
    with pytest.raises(ConfigError, match="application shop has no part Alarm; it has Basket, Sal"):
        app_reducer(f"{PROGRAMS}:Shop", "Alarm")


def test_an_application_is_drawn_with_its_parts_and_the_topics_between_them() -> None:
    """The text has a paragraph for each part, the picture a box."""
    plan = Shop().plan()
    assert list(plan.lines())[1:] == [
        "",
        "part Basket: group shop.Basket, an instance for each key",
        "  reads orders from shop.Basket.orders.by-key, which has orders by customer",
        "  element Basket",
        "    goods -> goods by good, to shop.SalesOfGood.goods.by-key",
        "    sums -> sums, within the task",
        "  element Alarm",
        "    alarms -> alarms by the same key, to shop-alarms",
        "",
        "part SalesOfGood: group shop.SalesOfGood, an instance for each key",
        "  reads goods from shop.SalesOfGood.goods.by-key",
        "  element SalesOfGood",
    ]
    picture = plan.mermaid()
    assert "e0 -->|sums| e1" in picture
    assert 't1[("shop.SalesOfGood.goods.by-key")]' in picture


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (f"{PROGRAMS}:Hello", "is a Hello, and no application; name a class that is derived"),
        (f"{PROGRAMS}:dataclass", "no application"),
        (f"{PROGRAMS}:field", "is a Field, and no application"),
        ("json:loads", "cannot be called"),
    ],
)
def test_what_is_no_application_is_refused_by_its_path(path: str, words: str) -> None:
    """A class, an object or a function of one is an application."""
    with pytest.raises(ValueError, match=words):
        load_app(path)


# --- what does not fit ----------------------------------------------------------------------------


def wired(wire: Callable[[App], Any]) -> App:
    """Return an application that is wired by a function."""

    class Wiring(App):
        @override
        def on_init(self) -> None:
            wire(self)

    return Wiring()


def _hello(app: App, **options: Any) -> None:
    app.create_input_stream("names", "name", app.create_element(Hello, **options))


def _twice(app: App) -> None:
    sales = app.create_element(Sales)
    app.create_input_stream("one", SAME_KEY, sales, topic="t")
    app.create_input_stream("two", SAME_KEY, sales, topic="t")


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        (lambda app: app.create_element(Hello, evry=3), "element Hello: there is no option 'evry'"),
        (lambda app: app.create_element(int), "element int: .* is no element; give a class"),
        (lambda app: app.create_element(Hello, every=0), "element Hello: every is 0"),
        (
            lambda app: app.create_element(Hello, every=3),
            "element Hello: .* there is no on_trig",
        ),
        (lambda app: app.create_element(Hello, "a/b"), "element a/b: the name becomes part of a"),
        (
            lambda app: app.create_element(Hello, singleton=True),
            "element Hello: singleton is True; write singleton='partition'.* or 'member'",
        ),
        (
            lambda app: app.create_element(Hello, singleton="member", ttl="5s"),
            "element Hello: ttl goes by the stream time of a partition, and the instance is one",
        ),
        (
            lambda app: app.create_element(Hello, singleton="member", max_instances=5),
            "element Hello: max_instances is given, and there is one instance for each member",
        ),
        (
            lambda app: app.create_element(Hello, max_instances=0),
            "element Hello: max_instances is 0; it has to be a number of instances for each part",
        ),
        (
            lambda app: app.create_element(Hello, greetings="greetings"),
            "element Hello: greetings is a str, and it has to be a stream",
        ),
        (
            lambda app: (app.create_element(Hello), app.create_element(Hello)),
            "element Hello is there already; give one of the two another name",
        ),
        (
            lambda app: app.create_stream("s", "k", Hello),
            "stream s: .* is no element of this application; give what create_element returns",
        ),
        (lambda app: app.create_stream("s", ""), "stream 's': key is ''"),
        (lambda app: app.create_output_stream("s", topic="a b"), "stream s: topic is 'a b'"),
        (_hello, "element Hello: its stream 'greetings' leads nowhere; give create_element"),
        (
            lambda app: _hello(app, greetings=Stream("greetings")),
            "element Hello: greetings is stream greetings, which is none of this application's",
        ),
        (
            lambda app: _hello(app, greetings=app.create_input_stream("more", "k")),
            "element Hello: greetings is stream more, which comes in from others",
        ),
        (str, "the application has no element; call create_element in on_init"),
        (lambda app: app.create_element(Sales), "element Sales: no stream leads to it; name it in"),
        (lambda app: app.create_stream("s", "k"), "stream s: no element takes it; name one after"),
        (lambda app: app.create_output_stream("s"), "stream s: no element emits to it; bind one's"),
        (
            lambda app: app.create_stream("s", "k", app.create_element(Sales)),
            "the application has no input stream, so nothing comes in",
        ),
        (
            lambda app: app.create_input_stream("s", app.create_element(Sales)),
            "element Sales: only streams without a key finder lead to it, which go to inst",
        ),
        (
            lambda app: app.create_input_stream(
                "s", "k", app.create_element(Sales, singleton="partition")
            ),
            "stream s: it has a key finder, and element Sales is one for each partition",
        ),
        (
            lambda app: app.create_input_stream(
                "s", SAME_KEY, app.create_element(Sales, singleton="partition")
            ),
            "stream s: it has the key of its records, and element Sales is one for each partition",
        ),
        (
            _twice,
            "stream two: topic t is read by another stream of the same part, Sales",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_name_and_the_next_step(
    wire: Callable[[App], Any], words: str
) -> None:
    """The error names it, in a call or when all is known."""
    with pytest.raises(ConfigError, match=words):
        wired(wire).plan()


def test_elements_with_other_instances_cannot_share_a_task() -> None:
    """A stream that keeps the key would lead from one of a partition to one of a key."""

    def wire(app: App) -> None:
        basket = app.create_element(Basket, singleton="partition")
        app.create_input_stream("orders", basket)
        app.create_stream("sums", SAME_KEY, app.create_element(Alarm))
        app.create_stream("goods", "good", app.create_element(Sales))
        app.create_output_stream("alarms")

    with pytest.raises(ConfigError, match=r"elements Basket \(partition\), Alarm \(key\) are conn"):
        wired(wire).plan()


def test_a_name_that_no_topic_can_have_is_refused() -> None:
    """Groups and topics begin with it."""
    with pytest.raises(ConfigError, match="the name 'a b' cannot be part of a topic's"):
        Shop().plan("a b")
    with pytest.raises(ValueError, match="there is no input stream 'goods'; there are orders"):
        AppTest(Shop()).send("goods", {})
