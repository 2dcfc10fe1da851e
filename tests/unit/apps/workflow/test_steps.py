"""Maps, waits, sleeps, what is tried and undone, and retries by kind of error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.apps.workflow import (
    Call,
    FailurePolicy,
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
)
from headrace.apps.workflow.messages import Assignment, cancel_message, fail_message, signal_message
from headrace.apps.workflow.reducer import WorkflowReducer
from headrace.core.user_text import describe_value
from tests.unit.apps.workflow.test_definitions import workflows
from tests.unit.apps.workflow.test_reducer import Flow, counted, phase, reducer

if TYPE_CHECKING:
    from random import Random


def arguments(flow: Flow) -> list[Any]:
    """Return the arguments of the calls that the last fact had made."""
    made = [each.value for each in flow.made if each.value["type"] == "Assignment"]
    return [each["args"] for each in made]


def signal(flow: Flow, name: str, value: Any = None, own: str | None = None) -> Flow:
    """Send a signal."""
    return flow.send("1", signal_message("1", name, value, own or f"id-{flow.now}"))


def tick(flow: Flow, now: int) -> Flow:
    """Let the time be so many milliseconds."""
    flow.made = flow.test.tick(now)
    flow.now = now
    return flow


def fail(flow: Flow, ref: str, *kinds: str, attempt: int = 1, final: bool = False) -> Flow:
    """Send a call's failure with the kinds of its error."""
    call = Assignment("1", ref, attempt, "", {})
    return flow.send("1", fail_message(call, "no", "trace", final=final, kinds=kinds))


# --- Map --------------------------------------------------------------------------------------


def test_a_map_calls_its_body_for_each_item() -> None:
    """At most ``at_once`` items are open; results are in the order of the items."""
    term = Sequence(
        legs=Map(Input("legs"), Call("a", leg=Item("leg.to")), at_once=2, item="leg"),
        end=Call("b", found=Result("legs")),
    )
    legs = [{"to": name} for name in ("x", "y", "z")]
    flow = Flow(reducer(term)).start("1", legs=legs)
    assert (flow.refs, arguments(flow)) == (
        ["0.legs[0]", "0.legs[1]"],
        [{"leg": "x"}, {"leg": "y"}],
    )
    assert flow.ret("1", "0.legs[1]", "Y").refs == ["0.legs[2]"]
    assert flow.ret("1", "0.legs[1]", "again").made == []
    assert flow.ret("1", "0.legs[2]", "Z").refs == []
    flow.ret("1", "0.legs[0]", "X")
    assert arguments(flow) == [{"found": ["X", "Y", "Z"]}]
    assert flow.test.state("1")["returns"] == {"0.legs": ["X", "Y", "Z"]}


def test_maps_are_within_each_other_and_in_loops() -> None:
    """Each item has its own path, and the items around it by their names."""
    inner = Map(Item("row"), Call("a", x=Item("cell"), of=Item("row")), item="cell")
    term = Loop(Map(Input("rows"), inner, item="row"), times=2)
    flow = Flow(reducer(term)).start("1", rows=[[1, 2], [], [3]])
    for number in range(2):
        refs = flow.refs
        assert refs == [f"0[{number}][0][0]", f"0[{number}][0][1]", f"0[{number}][2][0]"]
        for ref in refs:
            flow.ret("1", ref, ref)
    assert flow.outcomes()[0]["result"] == [["0[1][0][0]", "0[1][0][1]"], [], ["0[1][2][0]"]]


@pytest.mark.parametrize(
    ("over", "words"),
    [
        ("text", "0: over is 'text', which is no list"),
        ({"a": 1}, "which is no list"),
        (list(range(10_001)), "0: over has 10001 items, and 10000 are allowed"),
    ],
)
def test_a_map_over_what_is_no_list_fails_the_instance(over: Any, words: str) -> None:
    """The message has the path and the value."""
    flow = Flow(reducer(Map(Input("over"), Call("a")))).start("1", over=over)
    assert words in flow.outcomes()[0]["msg"]


def test_a_map_over_nothing_is_done() -> None:
    """The result is an empty list."""
    flow = Flow(reducer(Map(Input("over"), Call("a")))).start("1", over=[])
    assert flow.outcomes()[0]["result"] == []


# --- Wait -------------------------------------------------------------------------------------


def test_a_wait_goes_on_with_its_signal() -> None:
    """The result is the signal's value; the events say when it began and was over."""
    term = Sequence(ok=Wait("approved"), end=Call("a", by=Result("ok.by")))
    flow = Flow(reducer(term)).start("1")
    assert flow.types == ["PiEventStart", "PiEventWait"]
    assert flow.test.timers("1") == {}
    assert signal(flow, "other").refs == []
    assert arguments(signal(flow, "approved", {"by": "ann"})) == [{"by": "ann"}]
    assert flow.types == ["PiEventSignal", "PiEventResume", "PiEventCall"]
    assert flow.ret("1", "0.end").outcomes()[0]["result"] is None


def test_a_signal_may_come_before_its_wait() -> None:
    """Each signal is taken by one Wait, in their order."""
    term = Sequence(Call("a"), Parallel(x=Wait("go"), y=Wait("go")), Wait("go"))
    flow = Flow(reducer(term)).start("1")
    for number in range(2):
        assert signal(flow, "go", number).types == ["PiEventSignal"]
    flow.ret("1", "0.0")
    assert signal(flow, "go", 2).outcomes()[0]["result"] == 2
    resumed = [e.value for e in flow.test.outputs if e.value["type"] == "PiEventResume"]
    assert [(each["ref"], each["res"]) for each in resumed] == [
        ("0.1.x", 0),
        ("0.1.y", 1),
        ("0.2", 2),
    ]


def test_a_signal_that_is_sent_again_counts_once() -> None:
    """A signal that comes after the end is late."""
    flow = Flow(reducer(Sequence(Wait("go"), Wait("go")))).start("1")
    signal(flow, "go", 1, "same")
    assert signal(flow, "go", 1, "same").made == []
    signal(flow, "go", 2, "other")
    assert signal(flow, "go", 3).made == []
    assert flow.test.state("1")["counts"] == {"duplicate_signal": 1, "late": 1}
    assert flow.outcomes()[0]["result"] == 2


def test_a_wait_without_its_signal_in_time_fails() -> None:
    """The outcome names the signal; a signal in time leaves no timer."""
    term = Wait("go", timeout=5)
    flow = Flow(reducer(term)).start("1")
    assert flow.test.timers("1")["calls"].due == 5_001
    (outcome,) = tick(flow, 5_001).outcomes()
    assert outcome["msg"] == "0: there was no signal 'go' in 5 s"
    flow = signal(Flow(reducer(Sequence(term, Wait("end")))).start("1"), "go")
    assert flow.test.timers("1") == {}


def test_a_signal_that_is_too_large_is_refused_and_harms_nothing() -> None:
    """The event says why; the instance waits on."""
    flow = Flow(reducer(Wait("go"))).start("1")
    signal(flow, "go", "x" * 460_000)
    (event,) = [each.value for each in flow.made if each.to == "results"]
    assert "bytes, and 458752 are allowed" in event["refused"]
    assert signal(flow, "go", 1).outcomes()[0]["result"] == 1


def test_a_signal_of_an_unknown_instance_is_said_to_be_of_none() -> None:
    """The event says that there is no such instance."""
    assert signal(Flow(reducer(Wait("go"))), "go").types == ["PiFailureNoSuchInstance"]


# --- Sleep ------------------------------------------------------------------------------------


def test_a_sleep_is_over_after_its_time() -> None:
    """The time is a number of seconds, an argument, or a moment."""
    for term, due in (
        (Sleep(5), 5_001),
        (Sleep(Input("s")), 2_501),
        (Sleep(until=Input("t")), 3_600_000),
        (Sleep(until="1970-01-01T01:00:00+00:00"), 3_600_000),
    ):
        names = {"s": 2.5, "t": "1970-01-01T02:00:00+01:00"}
        found = workflows("a")
        found.define("w", 1, Sequence(term, Call("a")))
        given = {name: names[name] for name in found.compiled("w").inputs}
        flow = Flow(WorkflowReducer(found.check())).start("1", **given)
        assert flow.types == ["PiEventStart", "PiEventWait"]
        assert flow.test.timers("1")["calls"].due == due
        assert tick(flow, due - 1).made == []
        assert tick(flow, due).refs == ["0.1"]
        assert flow.types == ["PiEventResume", "PiEventCall"]


def test_a_sleep_that_is_over_already_takes_no_time() -> None:
    """No seconds, and a moment that has passed, let the next step begin at once."""
    term = Sequence(Sleep(0), Sleep(until="1960-01-01T00:00:00Z"), Call("a"))
    assert Flow(reducer(term)).start("1").refs == ["0.2"]


@pytest.mark.parametrize("seconds", [-1, "5", None, True, 1e30, 1e306, 10**400])
def test_a_sleep_for_what_is_no_time_fails(seconds: Any) -> None:
    """The message names the value."""
    flow = Flow(reducer(Sleep(Input("s")))).start("1", s=seconds)
    shown = describe_value(seconds)
    assert f"0: it is to sleep for {shown}; take seconds" in flow.outcomes()[0]["msg"]


@pytest.mark.parametrize("until", ["noon", "2030-01-01T00:00:00", 5, None])
def test_a_sleep_until_what_is_no_moment_fails(until: Any) -> None:
    """A time without its zone would be another one elsewhere."""
    flow = Flow(reducer(Sleep(until=Input("t")))).start("1", t=until)
    assert f"0: it is to sleep until {until!r}; take a time with its" in flow.outcomes()[0]["msg"]


# --- retries by kind ----------------------------------------------------------------------------


def test_attempts_and_backoff_are_those_of_the_kind_of_error() -> None:
    """The class itself comes before those that it is derived from; a time-out has its own kind."""
    retries = {
        "OSError": Retry(attempts=5, backoff=2.0),
        "FileNotFoundError": Retry(attempts=1),
        "TimeoutError": Retry(attempts=2),
    }
    call = Call("a").limited(attempts=3, timeout=9, backoff=0, retries=retries)
    flow = Flow(reducer(call)).start("1")
    fail(flow, "0", "ConnectionError", "OSError")
    assert flow.test.timers("1")["calls"].due == flow.now + 2_000
    assert tick(flow, flow.now + 2_001).refs == ["0"]
    assert fail(flow, "0", "ValueError", attempt=2).refs == ["0"]
    (outcome,) = fail(flow, "0", "FileNotFoundError", "OSError", attempt=3).outcomes()
    assert outcome["calls"] == 3
    flow = tick(Flow(reducer(call)).start("1"), 9_001)
    assert flow.refs == ["0"]
    assert tick(flow, 18_002).outcomes()[0]["msg"] == "attempt 2 was not answered in time"


# --- Try and undo -------------------------------------------------------------------------------


def booked(number: int) -> Call:
    """Return a call that books something, and what undoes it."""
    undo = Call("d", id=Result("result.id"), of=Input("who"))
    return Call("a", n=number).undone_by(undo)


_TRIP = Sequence(hotel=booked(1), flight=booked(2), car=Call("b"))


def test_done_calls_are_undone_the_last_one_first() -> None:
    """Each is undone once, with what it has returned; then what takes the error goes on."""
    term = Sequence(trip=Try(_TRIP, Call("c", why=Result("error.msg"))), end=Call("b"))
    flow = Flow(reducer(term)).start("1", who="ann")
    flow.ret("1", "0.trip.body.hotel", {"id": "h"}).ret("1", "0.trip.body.flight", {"id": "f"})
    flow.fail("1", "0.trip.body.car", "no car")
    assert (flow.refs, arguments(flow)) == (
        ["0.trip.body.flight.undo"], [{"id": "f", "of": "ann"}],
    )  # fmt: skip
    assert flow.types == ["PiFailureAtomicProcessException", "PiEventUndo", "PiEventCall"]
    assert phase(flow) == ("open", 1, 1)
    assert flow.ret("1", "0.trip.body.flight.undo").refs == ["0.trip.body.hotel.undo"]
    assert flow.ret("1", "0.trip.body.flight.undo").made == []
    flow.ret("1", "0.trip.body.hotel.undo")
    assert (flow.refs, arguments(flow)) == (["0.trip.catch"], [{"why": "no car"}])
    assert flow.ret("1", "0.trip.catch", "other").refs == ["0.end"]
    (outcome,) = flow.ret("1", "0.end").outcomes()
    assert (outcome["type"], outcome["undone"], outcome["errors"]) == ("PiEventResult", 2, [])
    assert flow.test.state("1")["returns"] == {"0": None}


def test_a_failing_instance_is_undone_as_well() -> None:
    """The outcome is the first error, and says how many calls were undone."""
    flow = Flow(reducer(_TRIP)).start("1", who="ann")
    flow.ret("1", "0.hotel", {"id": "h"}).ret("1", "0.flight", {"id": "f"}).fail("1", "0.car")
    assert phase(flow) == ("undoing", 1, 1)
    flow.ret("1", "0.flight.undo").ret("1", "0.hotel.undo")
    (outcome,) = flow.outcomes()
    assert (outcome["msg"], outcome["undone"]) == ("no", 2)
    assert phase(flow) == ("failed", None, 0)


def test_only_errors_of_the_kinds_are_taken() -> None:
    """Others fail what is around, once all is undone; a Try around takes them."""
    inner = Try(_TRIP, Call("c"), kinds=("OSError",))
    for kinds, ref in ((("ValueError",), "0.catch"), (("KeyError", "OSError"), "0.body.catch")):
        flow = Flow(reducer(Try(inner, Call("b")))).start("1", who="ann")
        flow.ret("1", "0.body.body.hotel", {"id": "h"})
        fail(flow, "0.body.body.flight", *kinds, final=True)
        assert flow.refs == ["0.body.body.hotel.undo"]
        assert flow.ret("1", "0.body.body.hotel.undo").refs == [ref]
        assert flow.ret("1", ref, 7).outcomes()[0]["result"] == 7


def test_what_an_inner_try_has_done_is_undone_by_the_outer_one() -> None:
    """The calls of its catch are undone as well."""
    inner = Try(Sequence(x=booked(1), y=Call("b")), booked(2))
    flow = Flow(reducer(Try(Sequence(i=inner, j=inner, k=Call("b")), Call("c")))).start("1", who=1)
    flow.ret("1", "0.body.i.body.x", {"id": 1}).ret("1", "0.body.i.body.y")
    flow.ret("1", "0.body.j.body.x", {"id": 2}).fail("1", "0.body.j.body.y")
    flow.ret("1", "0.body.j.body.x.undo").ret("1", "0.body.j.catch", {"id": 3})
    flow.fail("1", "0.body.k")
    assert arguments(flow) == [{"id": 3, "of": 1}]
    assert arguments(flow.ret("1", "0.body.j.catch.undo")) == [{"id": 1, "of": 1}]
    assert flow.ret("1", "0.body.i.body.x.undo").refs == ["0.catch"]


@pytest.mark.parametrize("policy", list(FailurePolicy))
def test_a_failing_try_waits_for_its_open_calls_or_cancels_them(policy: Any) -> None:
    """A call that is waited for and done is undone too; what is around goes on meanwhile."""
    body = Parallel(x=booked(1), y=Call("b"))
    term = Parallel(t=Try(body, Call("c")), other=Sequence(Call("a"), Call("b")))
    flow = Flow(reducer(term, policy=policy)).start("1", who=1).fail("1", "0.t.body.y")
    if policy is FailurePolicy.WAIT_ALL:
        assert flow.refs == []
        assert flow.ret("1", "0.other.0").refs == ["0.other.1"]
        assert flow.ret("1", "0.t.body.x", {"id": 5}).refs == ["0.t.body.x.undo"]
        assert flow.ret("1", "0.t.body.x.undo").refs == ["0.t.catch"]
    else:
        assert (flow.cancelled, flow.refs) == (["0.t.body.x"], ["0.t.catch"])
        assert flow.ret("1", "0.other.0").refs == ["0.other.1"]
    flow.ret("1", "0.t.catch", 1).ret("1", "0.other.1", 2)
    assert flow.outcomes()[0]["result"] == {"t": 1, "other": 2}
    counts = counted(flow)
    ended = ("returned", "failed", "timed_out", "cancelled")
    assert counts["attempts"] == sum(counts[f"attempts_{each}"] for each in ended)


_LACKING = Parallel(x=Call("a").undone_by(Call("d", x=Result("result.id"))), y=Call("b"))


def test_a_call_that_cannot_be_undone_is_not_taken() -> None:
    """The others are undone all the same, and the outcome counts it."""
    undo = Call("d").limited(attempts=2, backoff=0)
    body = Sequence(booked(1), Call("a").undone_by(undo), Call("b"))
    flow = Flow(reducer(Try(body, Call("c")))).start("1", who=1)
    flow.ret("1", "0.body.0", {"id": 1}).ret("1", "0.body.1").fail("1", "0.body.2", "no car")
    assert flow.fail("1", "0.body.1.undo", final=False).refs == ["0.body.1.undo"]
    assert flow.fail("1", "0.body.1.undo", "gone", attempt=2).refs == ["0.body.0.undo"]
    (outcome,) = flow.ret("1", "0.body.0.undo").outcomes()
    assert (outcome["undone"], outcome["not_undone"]) == (1, 1)
    assert outcome["msg"] == "no car; 0.body.1 was not undone: gone"


def test_what_undoes_calls_has_no_more_room_than_the_state() -> None:
    """Each call that is done is undone, or is counted and named; no answer is poison."""
    undone = Call("a").undone_by(Call("d", x=Result("result")))
    flow = Flow(reducer(Parallel(*[undone] * 10, Call("b")))).start("1").fail("1", "0.10")
    for number in range(10):
        flow.ret("1", f"0.{number}", "x" * 100_000)
    while not flow.outcomes():
        (ref,) = flow.refs
        flow.ret("1", ref)
    (outcome,) = flow.outcomes()
    assert (outcome["undone"], outcome["not_undone"]) == (4, 6)
    named = [each["ref"] for each in outcome["errors"]]
    assert named == ["0.10", *(f"0.{number}.undo" for number in range(4, 10))]
    assert "0.4.undo" not in outcome["msg"]
    assert "bytes, and 458752 are allowed" in outcome["errors"][1]["msg"]


def test_what_undoes_a_large_result_gets_what_it_needs_of_it() -> None:
    """The failure says how large the result is; one that is needed whole is not undone."""
    large = {"id": 7, "rest": "x" * 900_000}
    for field, words in (("id", None), ("rest", "0 was not undone: 0: what undoes it")):
        call = Call("a").undone_by(Call("d", x=Result(f"result.{field}")))
        flow = Flow(reducer(call)).start("1").ret("1", "0", large)
        if words is None:
            assert arguments(flow) == [{"x": 7}]
            flow.ret("1", "0.undo")
        (outcome,) = flow.outcomes()
        assert outcome["msg"].startswith("0: what it returned has 900")
        assert (words or "") in outcome["msg"]
        assert outcome.get("undone", 0) + outcome.get("not_undone", 0) == 1
    middle = Call("a").undone_by(Call("d", x=Result("result.rest")))
    flow = Flow(reducer(middle)).start("1").ret("1", "0", {"rest": "x" * 600_000})
    assert "the state with what undoes it has 600" in flow.outcomes()[0]["msg"]


@pytest.mark.parametrize(
    ("term", "failed"),
    [
        (Try(_LACKING, Call("c")), ["x", "0.body.y"]),
        (Try(_LACKING, Call("c")), ["0.body.y", "x"]),
        (
            Try(Parallel(t=Try(_LACKING), z=Call("b")), Call("c")),
            ["x", "0.body.z", "0.body.t.body.y"],
        ),
    ],
)
def test_a_result_that_lacks_what_undoes_its_call_is_not_taken(
    term: Any, failed: list[str]
) -> None:
    """The error names the call, and no Try takes it, nor does one around that fails meanwhile."""
    flow = Flow(reducer(term)).start("1")
    (lacking,) = [each for each in flow.refs if each.endswith(".x")]
    for ref in failed:
        flow.ret("1", lacking, {"other": 1}) if ref == "x" else flow.fail("1", ref)
    (outcome,) = flow.outcomes()
    assert outcome["not_undone"] == 1
    assert f"{lacking} was not undone: {lacking}: there is no field 'id'" in outcome["msg"]


def test_a_term_that_cannot_go_on_is_taken() -> None:
    """The error and that of a wait without its signal are taken by their kinds."""
    for body, kind in ((Call("a", x=Result("s.n")), "TermError"), (Wait("go", 1), "TimeoutError")):
        term = Sequence(s=Call("b"), t=Try(body, Call("c", e=Result("error.kinds")), kinds=(kind,)))
        flow = Flow(reducer(term)).start("1").ret("1", "0.s", {"m": 1})
        if kind == "TimeoutError":
            tick(flow, 2_000)
        assert arguments(flow) == [{"e": [kind]}]


def test_a_cancelled_instance_is_undone_and_takes_nothing() -> None:
    """The running call is cancelled; a second cancel and a signal are passed over."""
    flow = Flow(reducer(Try(_TRIP, Call("c")))).start("1", who=1)
    flow.ret("1", "0.body.hotel", {"id": "h"}).cancel("1", "no need")
    assert (flow.cancelled, flow.refs) == (["0.body.flight"], ["0.body.hotel.undo"])
    assert flow.cancel("1").made == signal(flow, "go").made == []
    assert phase(flow) == ("undoing", 1, 1)
    (outcome,) = flow.ret("1", "0.body.hotel.undo").outcomes()
    assert (outcome["type"], outcome["reason"], outcome["undone"]) == (
        "PiFailureCancelled", "no need", 1,
    )  # fmt: skip


def test_a_terminated_instance_is_not_undone() -> None:
    """The outcome says how many calls were not undone, also where that had begun."""
    terminate = cancel_message("1", "now", "me", terminate=True)
    flow = Flow(reducer(_TRIP)).start("1", who=1).ret("1", "0.hotel", {"id": "h"})
    flow.send("1", terminate)
    (outcome,) = flow.outcomes()
    assert (outcome["type"], outcome["not_undone"]) == ("PiFailureTerminated", 1)
    assert phase(flow)[0] == "cancelled"
    flow = Flow(reducer(_TRIP)).start("1", who=1).ret("1", "0.hotel", {"id": "h"}).cancel("1")
    assert flow.send("1", terminate).cancelled == ["0.hotel.undo"]
    assert flow.outcomes()[0]["type"] == "PiFailureCancelled"
    assert flow.ret("1", "0.hotel.undo").made == []


def test_an_undo_that_is_open_as_the_instance_ends_is_waited_for() -> None:
    """The undo is made once, by either policy."""
    term = Parallel(t=Try(Sequence(booked(1), Call("b")), Call("c")), u=Call("b"))
    for policy in FailurePolicy:
        flow = (
            Flow(reducer(term, policy=policy)).start("1", who=1).ret("1", "0.t.body.0", {"id": 1})
        )
        flow.fail("1", "0.t.body.1")
        assert flow.refs == ["0.t.body.0.undo"]
        assert flow.fail("1", "0.u").refs == []
        (outcome,) = flow.ret("1", "0.t.body.0.undo").outcomes()
        assert (outcome["ref"], outcome["undone"]) == ("0.u", 1)


def test_a_workflow_that_is_called_has_its_limit() -> None:
    """The open calls are cancelled, and what is around may take the error."""
    found = workflows("a", "b")
    found.define("inner", 1, Sequence(Call("a"), Call("a")), limit=5)
    found.define("w", 1, Try(Call("inner"), Call("b")))
    flow = Flow(WorkflowReducer(found.check())).start("1")
    flow.ret("1", "0.body.0.0")
    tick(flow, 5_001)
    assert (flow.cancelled, flow.refs) == (["0.body.0.1"], ["0.catch"])
    flow = Flow(WorkflowReducer(found.check())).start("1").ret("1", "0.body.0.0", 1)
    assert flow.ret("1", "0.body.0.1", 2).outcomes()[0]["result"] == 2
    assert list(flow.test.timers("1")) == ["grave"]


@pytest.mark.parametrize("at_once", [1, 500])
def test_any_number_of_items_that_cannot_go_on_is_taken(at_once: int) -> None:
    """Each is taken by its own Try, also where what takes it is over at once; others go on."""
    legs: list[Any] = [{}] * 300 + [{"x": 1}, {}]
    term = Map(Input("legs"), Try(Call("a", x=Item("item.x")), Sleep(0)), at_once=at_once)
    flow = Flow(reducer(term)).start("1", legs=legs)
    assert flow.refs == ["0[300].body"]
    found = flow.ret("1", "0[300].body", 7).outcomes()[0]
    assert (found["type"], found["errors"]) == ("PiEventResult", [])
    assert found["result"] == [None] * 300 + [7, None]


def test_a_loop_that_takes_errors_without_a_call_ends() -> None:
    """The iterations of all passes count together."""
    body = Try(Call("a", x=Input("x.y")), Sleep(0))
    flow = Flow(reducer(Loop(body, times=10**9))).start("1", x={})
    assert "0: more than 10000 iterations without a call" in flow.outcomes()[0]["msg"]


# --- properties ---------------------------------------------------------------------------------

_LEAVES = st.one_of(
    st.sampled_from("abc").map(Call),
    st.sampled_from("abc").map(lambda name: Call(name).undone_by(Call("d"))),
    st.sampled_from("gh").map(Wait),
    st.integers(0, 2).map(Sleep),
)
_TERMS: Any = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda each: Sequence(*each)),
        st.lists(inner, min_size=1, max_size=3).map(lambda each: Parallel(*each)),
        st.tuples(inner, st.integers(1, 2)).map(
            lambda each: Map([1, 2, 3], each[0], at_once=each[1])
        ),
        st.tuples(inner, st.integers(0, 2)).map(lambda each: Loop(each[0], times=each[1])),
        st.tuples(inner, inner).map(lambda each: Try(*each)),
        inner.map(Try),
    ),
    max_leaves=8,
)


@settings(max_examples=80, deadline=None)
@given(_TERMS, st.sampled_from(list(FailurePolicy)), st.randoms(use_true_random=False))
def test_any_term_has_one_outcome_and_each_done_call_is_undone_at_most_once(
    term: Any, policy: FailurePolicy, random: Random
) -> None:
    """Failures, repeated answers, signals, cancels and time leave one outcome of any term."""
    flow = Flow(reducer(term, policy=policy, attempts=2, backoff=0)).start("1")
    made = list(flow.made)
    answered: list[Any] = []
    for _ in range(2_000):
        if flow.outcomes():
            break
        done = {(each["ref"], each["attempt"]) for each in answered}
        calls = [each.value for each in made if each.value["type"] == "Assignment"]
        gone = [each.value for each in made if each.value["type"] == "Cancel"]
        done |= {(each["ref"], each["attempt"]) for each in gone}
        waiting = [each for each in calls if (each["ref"], each["attempt"]) not in done]
        what = random.random()
        if what < 0.02:
            made += flow.cancel("1").made
        elif what < 0.2 or not waiting:
            made += signal(flow, random.choice("gh")).made
            made += tick(flow, flow.now + 500).made
        else:
            call = random.choice(answered if answered and what < 0.3 else waiting)
            answered.append(call)
            if random.random() < 0.15:
                flow.fail("1", call["ref"], attempt=call["attempt"], final=random.random() < 0.5)
            else:
                flow.ret("1", call["ref"], 1, call["attempt"])
            made += flow.made
    (outcome,) = flow.outcomes()
    calls = [each.value for each in made if each.value["type"] == "Assignment"]
    assert len({(each["ref"], each["attempt"]) for each in calls}) == len(calls)
    counts = counted(flow)
    ended = ("returned", "failed", "timed_out", "cancelled")
    assert counts["attempts"] == len(calls) == sum(counts[f"attempts_{each}"] for each in ended)
    events = [each.value for each in made if each.to == "results"]
    returned = [each["ref"] for each in events if each["type"] == "PiEventReturn"]
    assert len(returned) == len(set(returned))
    undone = [ref for ref in returned if ref.endswith(".undo")]
    assert outcome.get("undone", 0) == len(undone)
    assert {ref.removesuffix(".undo") for ref in undone} <= set(returned)
    if outcome["type"] != "PiEventResult":  # all that was done and can be undone is
        kinds = {each["ref"]: each["proc"] for each in calls}
        assert all(f"{ref}.undo" in kinds for ref in returned if _has_undo(flow, ref))
    state = flow.test.state("1")
    assert state["called"] == {}
    assert not {"pauses", "scopes", "undos", "undo_of", "signals"} & state.keys()


def _has_undo(flow: Flow, ref: str) -> bool:
    """Return whether the term says what undoes the call at a path."""
    term = flow.test.state("1")["term"]
    for step in ref.replace("[", ".[").split(".")[1:]:
        match term:
            case ["sequence" | "parallel", parts]:
                term = dict(parts).get(step)
            case ["map", _, _, body, _] | ["loop", _, body, *_]:
                term = body
            case ["try", body, catch, _]:
                term = body if step == "body" else catch
            case _:
                return False
    return term[0] == "call" and len(term) > 6
