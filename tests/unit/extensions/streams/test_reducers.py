"""Keyed reducers as steps of a topology: states, timers, rows, and what fails."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from headrace.core.errors import PoisonRecordError, ReducerError, RetryableError
from headrace.keyed import Event, Fired, Output, Timer, at_clock, at_event
from headrace.streams import Field, Row, StreamsTest, Topology
from headrace.testing.streams import check_topology

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Ping(Row):
    host: Field[str]
    load: Field[int]


class Alarm(Row):
    host: Field[str]
    what: Field[str]
    load: Field[int | None]


State = dict[str, int]
Found = tuple["State | None", "Sequence[Alarm | Output]", "Mapping[str, Timer]"]


def watch(host: str, state: State | None, facts: list[Event[Ping] | Fired], now: int) -> Any:
    """Tell a host that was quiet for ten seconds, and one whose load doubled."""
    (fact,) = facts
    if isinstance(fact, Fired):
        assert fact.due <= now
        if fact.name == "forget":
            return None, [Output(None)], {}
        return (
            state,
            [Alarm(host=host, what="quiet", load=None)],
            {"forget": at_event(fact.due + 5)},
        )
    load, rows = fact.value.load, []
    if state is not None and load >= 2 * state["load"]:
        rows.append(Output(Alarm(host=host, what="load", load=load), ts=fact.ts + 1))
    return {"load": load, "seen": fact.ts}, rows, {"quiet": at_event(fact.ts + 10)}


def alarms(reducer: Any = watch) -> Topology:
    """Return a topology with a reducer between other operators."""
    app = Topology()
    pings = app.stream("pings", Ping).filter(Ping.load >= 0).key_by(Ping.host, name="hosts")
    found = pings.reduce(reducer, name="watch", rows=Alarm)
    found.filter(Alarm.what == "quiet").to("quiet")
    found.to("alarms")
    return app


def ping(test: StreamsTest, host: str, load: int, time: int) -> None:
    """Pipe a record."""
    test.pipe("pings", Ping(host=host, load=load), time=time)


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_rows_and_timers_come_in_the_order_of_the_task(batch: int) -> None:
    """A timer fires before the record with which it is due, by due time, key and name."""
    test = StreamsTest(alarms(), batch=batch)
    ping(test, "b", 1, 100)
    ping(test, "a", 4, 100)
    ping(test, "a", 9, 103)
    ping(test, "c", 1, 112)
    ping(test, "b", 5, 101)
    ping(test, "c", 1, 140)
    found = [
        (out.key, out.value and (out.value["what"], out.value["load"]), out.time)
        for out in test.read("alarms")
    ]
    assert found == [
        ("a", ("load", 9), 104),
        ("b", ("quiet", None), 110),
        ("b", ("load", 5), 102),
        ("b", ("quiet", None), 111),
        ("a", ("quiet", None), 113),
        ("b", None, 116),
        ("a", None, 118),
        ("c", ("quiet", None), 122),
        ("c", None, 127),
    ]
    assert [out.key for out in test.read("quiet")] == ["b", "b", "a", "c"]
    assert test.store("watch") == {"c": {"load": 1, "seen": 140}}
    assert test.time("watch") == 140


def test_results_and_rows_do_not_depend_on_cuts_restarts_and_failures() -> None:
    """Timers that were set before a restart fire after it, each once."""
    random = Random(7)
    records = [
        (
            "pings",
            "x",
            {"host": random.choice("abcdef"), "load": random.randrange(-1, 9)},
            4 * at + random.randrange(20),
        )
        for at in range(250)
    ]
    check_topology(alarms, records, runs=15)


class Seen(Row):
    key: Field[str]
    place: Field[str]
    late: Field[bool]


def test_a_fact_says_where_its_record_is_and_whether_it_is_late() -> None:
    """The topic, the offset, the key and the time of the record are those of its topic by key."""

    def see(key: str, state: Any, facts: list[Event[Ping] | Fired], now: int) -> Any:
        (fact,) = facts
        assert isinstance(fact, Event)
        place = f"{fact.source}-{fact.partition}@{fact.offset}:{fact.ts}/{now}"
        return state, [Seen(key=key, place=place, late=fact.late)], {}

    app = Topology()
    pings = app.stream("pings", Ping).key_by(Ping.host, name="hosts")
    pings.reduce(see, name="see", rows=Seen).to("seen")
    test = StreamsTest(app, batch=10)
    ping(test, "a", 1, 5)
    ping(test, "b", 1, 3)
    assert [tuple(out.value.values()) for out in test.read("seen")] == [
        ("a", "topology.hosts.by-key-0@0:5/5", False),
        ("b", "topology.hosts.by-key-0@1:3/5", True),
    ]


class Part(Row):
    shop: Field[str]
    number: Field[int]


class Named(Row):
    of: Field[str]


def test_a_key_of_several_parts_is_a_tuple() -> None:
    """The reducer gets the values that the rows were grouped by."""
    app = Topology()
    parts = app.stream("parts", Part).key_by(Part.shop, Part.number, name="by-number")
    parts.reduce(
        lambda key, state, facts, now: (1, [Named(of=repr(key))], {}), name="named", rows=Named
    ).to("out")
    test = StreamsTest(app)
    test.pipe("parts", {"shop": "é", "number": 3})
    assert [out.value["of"] for out in test.read("out")] == ["('é', 3)"]


#: What a reducer returns for a load of 7 in place of what it should: state, rows and timers.
WRONG: dict[str, Any] = {
    "row": lambda state: (state, [Ping(host="a", load=1)], {}),
    "field": lambda state: (state, [Alarm(host="a", what=None, load=1)], {}),  # type: ignore[arg-type]
    "topic": lambda state: (state, [Output(None, to="other")], {}),
    "time": lambda state: (state, [Output(None, ts=-1)], {}),
    "clock": lambda state: (state, [], {"t": at_clock(1)}),
    "state": lambda state: ({1, 2}, [], {}),
    "raises": lambda state: 1 // 0,
}


def failing(kind: str) -> Any:
    """Return a reducer that fails for a load of 7, or for a timer, in a way of its own."""

    def reduce(host: str, state: list[int] | None, facts: list[Any], now: int) -> Any:
        (fact,) = facts
        state = [] if state is None else state
        if isinstance(fact, Fired):
            return state, [], {"again": at_event(fact.due // (kind == "again"))}
        state.append(fact.value.load)
        if fact.value.load == 7:
            return WRONG[kind](state)
        timers = {"again": at_event(fact.ts + 1)} if kind in {"timer", "again"} else {}
        return state, [Alarm(host=host, what="sum", load=sum(state))], timers

    return reduce


@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("raises", "reduce 'watch': ZeroDivisionError"),
        ("row", "of type Ping, was returned, and Alarm is expected"),
        ("field", "Alarm.what: None was returned"),
        ("topic", "an output of a topology has a value and a time"),
        ("time", "its time has to be from 1970"),
        ("clock", "timer 't' is of the wall clock, which a topology does not have"),
        ("state", "set"),
    ],
)
def test_a_failing_call_keeps_state_and_timers(kind: str, text: str, batch: int) -> None:
    """The record is poison, whatever the reducer did to its state before; others go on."""
    test = StreamsTest(alarms(failing(kind)), batch=batch, on_poison="drop")
    for load in (1, 7, 2):
        ping(test, "a", load, load)
    assert [out.value["load"] for out in test.read("alarms")] == [1, 3]
    assert test.store("watch") == {"a": [1, 2]}
    (error,) = test.poison
    assert text in str(error)
    with pytest.raises(PoisonRecordError):
        ping(StreamsTest(alarms(failing(kind))), "a", 7, 7)


@pytest.mark.parametrize(
    ("kind", "text"),
    [("timer", "timer 'again' of key b'a', due at 2, fails"), ("again", "a time that has passed")],
)
def test_a_timer_that_fails_fails_the_micro_batch(kind: str, text: str) -> None:
    """No record is to blame for it, so none is left out."""
    test = StreamsTest(alarms(failing(kind)), on_poison="drop")
    ping(test, "a", 1, 1)
    with pytest.raises(ReducerError, match=text):
        ping(test, "b", 1, 5)


def test_a_reducer_may_say_that_it_cannot_work_now() -> None:
    """The error passes, so that the micro-batch is delivered again."""

    def wait(key: str, state: Any, facts: Any, now: int) -> Any:
        raise RetryableError("later")

    with pytest.raises(RetryableError, match="later"):
        ping(StreamsTest(alarms(wait), on_poison="drop"), "a", 1, 1)


def test_many_keys_may_have_timers_for_the_same_time() -> None:
    """Each fires once, in the order of the keys."""
    test = StreamsTest(alarms(), batch=10_000)
    for number in range(1500):
        ping(test, f"{number:04d}", 1, 0)
    ping(test, "z", 1, 10)
    assert [out.key for out in test.read("quiet")] == [f"{number:04d}" for number in range(1500)]
