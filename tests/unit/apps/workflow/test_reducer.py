"""Instances, step by step: what is called, what is answered, and how they end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.apps.workflow import (
    Call,
    Choice,
    DefinitionError,
    FailurePolicy,
    Input,
    Loop,
    Parallel,
    Result,
    Sequence,
)
from headrace.apps.workflow.messages import (
    Assignment,
    cancel_message,
    fail_message,
    return_message,
    start_message,
)
from headrace.apps.workflow.reducer import WorkflowReducer, phase_of
from headrace.core.errors import PoisonRecordError
from headrace.extensions.keyed.api import is_batched
from headrace.extensions.keyed.codecs import to_json
from headrace.extensions.keyed.settings import FoldSettings
from headrace.extensions.keyed.tables import DEAD_LETTERS
from headrace.keyed import Event, Fired
from headrace.testing.keyed import KeyedTest, Produced, Sent, check_reducer
from tests.unit.apps.workflow.test_definitions import workflows

_OUTPUTS = FoldSettings(outputs=("assignments", "results", "outcomes", "history"))

#: As the channels of a node have it: what is poison is no exception.
_LETTERS = replace(_OUTPUTS, failing="dead_letter")

_TERMINAL = {
    "PiEventResult",
    "PiFailureNoResult",
    "PiFailureUnknownProcess",
    "PiFailureExceptions",
    "PiFailureCancelled",
    "PiFailureTimedOut",
}


def reducer(term: Any, *, history: bool = False, **definition: Any) -> WorkflowReducer:
    """Return the reducer of one workflow, ``w``, of the processes ``a`` to ``d``."""
    found = workflows("a", "b", "c", "d")
    found.define("w", 1, term, **definition)
    return WorkflowReducer(found.check(), history=history)


@dataclass
class Flow:
    """A reducer with the facts that a test sends; its time goes on by one with each."""

    reducer: WorkflowReducer
    settings: FoldSettings = _OUTPUTS
    now: int = 0
    made: list[Produced] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.test = KeyedTest(self.reducer, self.settings)

    def send(self, instance: str, message: Any) -> Flow:
        """Send one message under its instance."""
        self.now += 1
        self.made = self.test.send((instance, message, self.now))
        return self

    def start(self, *instances: str, **args: Any) -> Flow:
        """Start instances; what is made is that of the last."""
        for each in instances:
            self.send(each, start_message(each, "w@1", args))
        return self

    def ret(self, instance: str, ref: str, obj: Any = None, attempt: int = 1) -> Flow:
        """Send a call's return."""
        return self.send(instance, return_message(Assignment(instance, ref, attempt, "", {}), obj))

    def fail(
        self, instance: str, ref: str, text: str = "no", attempt: int = 1, **given: Any
    ) -> Flow:
        """Send a call's failure."""
        call = Assignment(instance, ref, attempt, "", {})
        final = given.get("final", True)
        return self.send(instance, fail_message(call, text, "trace", final=final))

    def cancel(self, instance: str, reason: str = "no need", by: str = "me") -> Flow:
        """Cancel an instance."""
        return self.send(instance, cancel_message(instance, reason, by))

    @property
    def cancelled(self) -> list[str]:
        """The calls that the last fact cancelled."""
        return [each.value["ref"] for each in self.made if each.value["type"] == "Cancel"]

    @property
    def refs(self) -> list[str]:
        """The calls that the last fact had made."""
        found = (each for each in self.made if each.value["type"] == "Assignment")
        return [each.value["ref"] for each in found]

    @property
    def types(self) -> list[str]:
        """The types of the events that the last fact made."""
        return [each.value["type"] for each in self.made if each.to == "results"]

    def outcomes(self, made: list[Produced] | None = None) -> list[Any]:
        """Return all outcomes so far, or those among some outputs."""
        found = self.test.outputs if made is None else made
        return [each.value for each in found if each.to == "outcomes"]


# --- terms ------------------------------------------------------------------------------------


def test_a_sequence_calls_one_step_after_the_other() -> None:
    """With the arguments and earlier results; its result is that of the last step."""
    term = Sequence(one=Call("a", x=Input("x.y"), z=[1]), two=Call("b", r=Result("one.n")))
    flow = Flow(reducer(term)).start("i", x={"y": 5})
    (assignment,) = [each for each in flow.made if each.to == "assignments"]
    assert assignment.key == '["i","0.one",1]'
    assert assignment.value == {
        "type": "Assignment",
        "instance": "i",
        "ref": "0.one",
        "attempt": 1,
        "proc": "a",
        "args": {"x": 5, "z": [1]},
        "issued": 1,
        "timeout": 60_000,
    }
    assert flow.types == ["PiEventStart", "PiEventCall"]
    flow.ret("i", "0.one", {"n": 7})
    assert [each.value["args"] for each in flow.made if each.to == "assignments"] == [{"r": 7}]
    assert flow.ret("i", "0.two", "end").types == ["PiEventReturn", "PiEventResult"]
    (outcome,) = flow.outcomes()
    assert outcome == {
        "type": "PiEventResult",
        "instance": "i",
        "definition": "w@1",
        "result": "end",
        "started": 1,
        "ended": 3,
        "calls": 2,
        "errors": [],
    }


def test_paths_do_not_depend_on_the_order_of_answers() -> None:
    """Branches answered in any order lead to the same calls and the same result."""
    term = Sequence(
        both=Parallel(x=Sequence(Call("a"), Call("b")), y=Call("c")),
        end=Call("d", v=Result("both.x")),
    )
    for order in (["x.0", "x.1", "y"], ["y", "x.0", "x.1"], ["x.0", "y", "x.1"]):
        flow = Flow(reducer(term)).start("i")
        assert flow.refs == ["0.both.x.0", "0.both.y"]
        for step in order:
            flow.ret("i", f"0.both.{step}", step)
        assert flow.refs == ["0.end"]
        flow.ret("i", "0.end", 1)
        calls = [each.value for each in flow.test.outputs if each.value["type"] == "Assignment"]
        assert {each["ref"] for each in calls} == {"0.both.x.0", "0.both.x.1", "0.both.y", "0.end"}
        assert calls[-1]["args"] == {"v": "x.1"}


@pytest.mark.parametrize(
    ("value", "called"), [("de", "0.de"), (True, "0.true"), (3, "0.3"), ("fr", "0.otherwise")]
)
def test_a_choice_takes_the_case_of_its_value(value: Any, called: str) -> None:
    """Texts, truth values and numbers; what no case has goes otherwise."""
    cases: Any = {"de": Call("a"), True: Call("b"), 3: Call("c")}
    flow = Flow(reducer(Choice(Input("land"), cases, Call("d")))).start("i", land=value)
    assert flow.refs == [called]
    assert flow.ret("i", called, "x").outcomes()[0]["result"] == "x"


def test_a_choice_without_a_case_is_a_failure_without_result() -> None:
    """The instance fails before anything is called."""
    flow = Flow(reducer(Choice(Input("land"), {"de": Call("a")}))).start("i", land="fr")
    assert flow.types == ["PiEventStart", "PiFailureNoResult"]
    (outcome,) = flow.outcomes()
    assert outcome["msg"] == "0: no case for 'fr', and nothing otherwise"


def test_a_loop_goes_on_until_its_body_says_so() -> None:
    """Each iteration has a path of its own, and the result of the one before under its name."""
    body = Sequence(q=Call("a", last=Result("poll.n")), p=Call("b", q=Result("q")))
    flow = Flow(reducer(Sequence(poll=Loop(body, until="ready"), end=Call("c", r=Result("poll")))))
    assert flow.start("i").refs == ["0.poll[0].q"]
    assert flow.ret("i", "0.poll[0].q", "x").refs == ["0.poll[0].p"]
    assert flow.ret("i", "0.poll[0].p", {"ready": False, "n": 1}).refs == ["0.poll[1].q"]
    assert flow.made[1].value["args"] == {"last": 1}
    flow.ret("i", "0.poll[1].q")
    assert flow.ret("i", "0.poll[1].p", {"ready": True, "n": 2}).refs == ["0.end"]
    assert flow.made[1].value["args"] == {"r": {"ready": True, "n": 2}}
    assert flow.test.state("i")["returns"] == {"0.poll": {"ready": True, "n": 2}}


def test_a_loop_ends_after_its_times_or_fails_after_the_most() -> None:
    """So many times, none as well; without ``until`` reached, it is a failure."""
    flow = Flow(reducer(Loop(Call("a"), times=Input("n")))).start("i", n=2)
    assert flow.ret("i", "0[0]", 1).refs == ["0[1]"]
    assert flow.ret("i", "0[1]", 2).outcomes()[0]["result"] == 2
    assert flow.start("j", n=0).outcomes(flow.made)[0]["result"] is None
    flow = Flow(reducer(Loop(Call("a"), until="ok", most=1))).start("i")
    flow.ret("i", "0[0]", {"ok": False})
    assert flow.outcomes()[0]["msg"] == "0: 'ok' was not reached in 1 iterations"
    for wrong in ("two", True):
        flow = Flow(reducer(Loop(Call("a"), times=Input("n")))).start("i", n=wrong)
        assert flow.outcomes()[0]["msg"] == f"0: times is {wrong!r}, which is no whole number"
    flow = Flow(reducer(Loop(Call("a"), times=Input("n")))).start("i", n=-1)
    assert flow.outcomes()[0]["msg"] == "0: times is -1; it has to be 0 or more"


@pytest.mark.parametrize("said", ["no", 1, [], {}])
def test_until_is_a_truth_value(said: Any) -> None:
    """A text such as ``no`` would end the loop; null is as good as false."""
    flow = Flow(reducer(Loop(Call("a"), until="done.well"))).start("i")
    flow.ret("i", "0[0]", {"done": {"well": None}}).ret("i", "0[1]", {"done": {"well": said}})
    expected = f"0: 'done.well' is {said!r}; it has to be true or false"
    assert flow.outcomes()[0]["msg"] == expected


def test_loops_that_call_nothing_come_to_an_end() -> None:
    """A loop without calls ends at a limit, so that the reducer serves other instances."""
    term = Loop(Loop(Call("a"), times=Input("m")), times=Input("n"))
    flow = Flow(reducer(term)).start("i", m=0, n=10**9)
    assert flow.outcomes()[0]["msg"] == "0: more than 10000 iterations without a call"
    assert flow.start("j", m=0, n=9_999).outcomes(flow.made)[0]["type"] == "PiEventResult"
    assert flow.start("k", m=1, n=10**9).refs == ["0[0][0]"]


def test_a_loop_in_a_loop_forgets_former_iterations() -> None:
    """The state has the current iterations only, and all are called."""
    inner = Loop(Parallel(x=Call("a"), y=Call("b")), times=2)
    flow = Flow(reducer(Loop(Sequence(l=inner, e=Call("c")), times=3))).start("i")
    called: list[str] = []
    while flow.refs:
        called += (refs := flow.refs)
        for ref in refs:
            flow.ret("i", ref, ref)
        assert len(flow.test.state("i")["loops"]) <= 2
        assert len(flow.test.state("i")["returns"]) <= 4
    assert len(called) == len(set(called)) == 3 * (2 * 2 + 1)
    assert flow.outcomes()[0]["result"] == "0[2].e"
    assert flow.test.state("i")["returns"] == {"0": None}


@pytest.mark.parametrize("nested", [False, True])
def test_a_loop_forgets_the_choices_and_loops_that_its_body_was(nested: bool) -> None:
    """After many iterations the state is not larger than after the first."""
    body = Loop(Call("a"), times=1) if nested else Choice(Input("x"), {"y": Call("a")})
    flow = Flow(reducer(Loop(body, times=60))).start("i", x="y")
    for _ in range(50):
        (ref,) = flow.refs
        flow.ret("i", ref)
    state = flow.test.state("i")
    assert len(state["choices"]) <= 1
    assert len(state["loops"]) <= 2


def test_a_workflow_is_called_as_a_process() -> None:
    """With its arguments in the place of the instance's; its result is the call's."""
    found = workflows("a", "b")
    found.define("inner", 1, Sequence(s=Call("a", x=Input("x")), t=Call("b", y=Result("s"))))
    found.define("w", 1, Parallel(one=Call("inner", x=Input("v")), two=Call("inner@1", x=2)))
    flow = Flow(WorkflowReducer(found.check())).start("i", v=1)
    assert flow.refs == ["0.one.0.s", "0.two.0.s"]
    calls = [each.value for each in flow.made if each.to == "assignments"]
    assert [each["args"] for each in calls] == [{"x": 1}, {"x": 2}]
    for branch in ("one", "two"):
        flow.ret("i", f"0.{branch}.0.s", branch).ret("i", f"0.{branch}.0.t", branch.upper())
    assert flow.outcomes()[0]["result"] == {"one": "ONE", "two": "TWO"}


def test_a_missing_field_fails_the_instance_and_not_the_channel() -> None:
    """An argument that another producer's start lacks fails the instance too."""
    flow = Flow(reducer(Sequence(one=Call("a"), two=Call("b", x=Result("one.n"))))).start("i")
    flow.ret("i", "0.one", {"m": 1})
    assert flow.outcomes()[0]["msg"] == "0.two: there is no field 'n'"
    flow = Flow(reducer(Call("a", x=Input("x")))).start("i")
    assert flow.outcomes()[0]["msg"] == "0: the instance was started without 'x'"


def test_a_version_that_is_gone_ends_the_instance_with_a_failure() -> None:
    """It is an outcome of that instance, and no exception: others go on."""
    flow = Flow(reducer(Call("a"))).send("i", start_message("i", "w@9", {}))
    assert flow.types == ["PiEventStart", "PiFailureUnknownProcess"]
    assert flow.outcomes()[0]["msg"] == "the reducer has no workflow 'w@9'; it has w@1"
    assert flow.start("j").refs == ["0"]


def test_an_instance_goes_on_with_the_term_that_it_was_started_with() -> None:
    """Another reducer, which has only another version, brings it to its end."""
    flow = Flow(reducer(Sequence(Call("a"), Call("b")))).start("i")
    found = workflows("a")
    found.define("w", 2, Call("a"))
    other = WorkflowReducer(found.check())
    message = return_message(Assignment("i", "0.0", 1, "", {}), None)
    fact = flow_event(message)
    _, outputs, _ = other("i", flow.test.state("i"), [fact], 9)
    assert [each.value["ref"] for each in outputs if each.to == "assignments"] == ["0.1"]


def flow_event(message: Any) -> Any:
    """Return a message as a reducer gets it."""
    from headrace.keyed import Event  # noqa: PLC0415 - for this test only

    return Event(message, 9, "workflow", 0, 0)


@pytest.mark.parametrize(
    "message", [7, {"type": "Stop"}, start_message("j", "w@1", {}), {"instance": "i"}]
)
def test_an_event_of_another_kind_or_instance_is_poison(message: Any) -> None:
    """The channel's policy decides, and the error has the reason."""
    with pytest.raises(PoisonRecordError, match=r"type is|is of instance"):
        Flow(reducer(Call("a"))).send("i", message)


# --- the Sequencer's scenarios ----------------------------------------------------------------

_TWO_STEPS = Sequence(Call("a"), Call("b"))
_TWO_CALLS = Sequence(Parallel(x=Call("a"), y=Call("b")), Call("c"))


def test_one_update_and_one_request_are_one_reduction() -> None:
    """1U + 1S: the answer is applied as it is read, and opens the next call."""
    assert Flow(reducer(_TWO_STEPS)).start("1").ret("1", "0.0").refs == ["0.1"]


def test_an_instance_without_an_answer_gets_no_redundant_pass() -> None:
    """U1 U2 S1, and 4U of two instances with 1S: only the answered one goes on."""
    flow = Flow(reducer(_TWO_STEPS)).start("1", "2")
    before = flow.test.states()[b"2"]
    assert flow.ret("1", "0.0").refs == ["0.1"]
    assert {each.value["instance"] for each in flow.made} == {"1"}
    assert flow.test.states()[b"2"] == before
    flow = Flow(reducer(_TWO_CALLS)).start("1", "2").ret("1", "0.0.x").ret("2", "0.0.x")
    assert flow.ret("1", "0.0.y").refs == ["0.1"]
    assert {each.value["instance"] for each in flow.made} == {"1"}


def test_answers_of_other_instances_change_nothing() -> None:
    """U and S of different instances: the answer of the unknown one is said to be of none."""
    flow = Flow(reducer(_TWO_STEPS)).start("1")
    before = flow.test.states()
    flow.ret("2", "0.0")
    assert flow.types == ["PiFailureNoSuchInstance"]
    assert flow.test.states() == before


def test_answers_in_another_partition_change_nothing() -> None:
    """Each partition has its own states, and an answer in another one finds no instance."""
    partitions = [Flow(reducer(_TWO_STEPS)), Flow(reducer(_TWO_STEPS)).start("2")]
    partitions[0].start("1")
    before = [each.test.states() for each in partitions]
    assert partitions[1].ret("1", "0.0").types == ["PiFailureNoSuchInstance"]
    assert [each.test.states() for each in partitions] == before
    assert partitions[0].ret("1", "0.0").refs == partitions[1].ret("2", "0.0").refs == ["0.1"]


def test_a_failure_is_one_event_of_the_instance() -> None:
    """U + failure: one terminal event, with the message and trace of the call's."""
    flow = Flow(reducer(_TWO_STEPS)).start("1").fail("1", "0.0", "no fuel")
    assert flow.types == ["PiFailureAtomicProcessException", "PiFailureExceptions"]
    (outcome,) = flow.outcomes()
    assert (outcome["ref"], outcome["msg"], outcome["trace"]) == ("0.0", "no fuel", "trace")


def test_a_tangled_failure_lets_the_other_instance_go_on() -> None:
    """A failed instance waits for its own calls; the other's answers are applied meanwhile."""
    flow = Flow(reducer(_TWO_CALLS)).start("1", "2").fail("1", "0.0.x", "no")
    assert flow.types == ["PiFailureAtomicProcessException"]
    assert flow.ret("2", "0.0.x").outcomes() == []
    assert flow.ret("2", "0.0.y").refs == ["0.1"]
    assert flow.ret("1", "0.0.y").types == ["PiEventReturn", "PiFailureExceptions"]
    assert flow.refs == []


def test_a_partial_failure_stays_where_it_is() -> None:
    """The original wrote it back to the log whenever another instance had it flush."""
    flow = Flow(reducer(_TWO_CALLS)).start("1", "2").fail("1", "0.0.x")
    before = flow.test.states()[b"1"]
    flow.ret("2", "0.0.x").ret("2", "0.0.y")
    assert flow.test.states()[b"1"] == before
    assert flow.ret("1", "0.0.y").outcomes()[0]["instance"] == "1"


def test_the_first_error_is_the_instance_s() -> None:
    """And all are in the outcome; a failing instance makes no further attempts."""
    flow = Flow(reducer(_TWO_CALLS, attempts=3)).start("1").fail("1", "0.0.x", "first")
    assert flow.fail("1", "0.0.y", "second", final=False).refs == []
    (outcome,) = flow.outcomes()
    assert (outcome["ref"], outcome["msg"]) == ("0.0.x", "first")
    assert [each["msg"] for each in outcome["errors"]] == ["first", "second"]


def test_the_worked_history_has_one_reduction_for_each_answer() -> None:
    """S1 S1 U1 | U1 S2 S1 U2 | ...: each S is applied once, whatever else is on its way."""
    flow = Flow(reducer(Loop(Call("a"), times=9))).start("1", "2", "3")
    history = "1 1 | 2 1 | 1 2 | 2 | 3".replace("|", "").split()
    done: dict[str, int] = {}
    for instance in history:
        number = done.get(instance, 0)
        assert flow.ret(instance, f"0[{number}]").refs == [f"0[{number + 1}]"]
        assert {each.value["instance"] for each in flow.made} == {instance}
        done[instance] = number + 1


@pytest.mark.parametrize("orphan", ["of nobody", "of one that is over"])
def test_an_orphan_does_not_hold_up_a_thousand_others(orphan: str) -> None:
    """The original wrote nothing more after an answer whose instance was over; here all 1,000."""
    flow = Flow(reducer(Call("a")))
    if orphan == "of one that is over":
        flow.start("orphan").ret("orphan", "0")
    flow.ret("orphan", "0")
    names = [f"i{number}" for number in range(1000)]
    facts = [Sent(name, start_message(name, "w@1", {}), 10) for name in names]
    facts += [
        Sent(name, return_message(Assignment(name, "0", 1, "", {}), name), 11) for name in names
    ]
    made = flow.test.send(*facts)
    assert sorted(each["instance"] for each in flow.outcomes(made)) == sorted(names)


# --- what is counted of instances ---------------------------------------------------------------


def phase(flow: Flow) -> tuple[str, int | None, int]:
    """Return an instance's phase, since when it is open, and how many calls are in flight."""
    name, since, (in_flight,), _ = phase_of(flow.test.state("1"))
    return name, since, in_flight


def counted(flow: Flow) -> dict[str, int]:
    """Return the counts of an instance by their names."""
    found = phase_of(flow.test.state("1")).counts
    return dict(zip(flow.reducer.phases.counts, map(int, found), strict=True))


def test_an_instance_goes_from_open_to_completed_or_failed() -> None:
    """It has an age until it is over, also while it waits for its open calls to fail."""
    both = Parallel(x=Call("a"), y=Call("b"))
    flow = Flow(reducer(both)).start("1")
    assert phase(flow) == ("open", 1, 2)
    assert phase(flow.fail("1", "0.x")) == ("failing", 1, 1)
    assert phase(flow.ret("1", "0.y")) == ("failed", None, 0)
    assert phase(Flow(reducer(Call("a"))).start("1").ret("1", "0")) == ("completed", None, 0)
    assert {name for name, *_ in map(phase, [flow])} < set(flow.reducer.phases.names)


def test_attempts_are_counted_by_how_they_ended() -> None:
    """One whose time is over; the one made in its place, which an answer to the first cancels."""
    both = Parallel(x=Call("a").limited(timeout=5), y=Call("b"))
    flow = Flow(reducer(both, backoff=0)).start("1").fail("1", "0.y", final=False)
    flow.test.tick(5_001)
    assert phase(flow) == ("open", 1, 2)
    flow.ret("1", "0.x", attempt=1).ret("1", "0.x", attempt=2).ret("1", "0.y", attempt=2)
    assert counted(flow) == {
        "instances_started": 1,
        "instances_completed": 1,
        "instances_failed": 0,
        "instances_cancelled": 0,
        "attempts": 4,
        "attempts_returned": 1,
        "attempts_failed": 1,
        "attempts_timed_out": 1,
        "attempts_cancelled": 1,
        "answered_late": 1,
        "passed_over": 1,
    }


def test_calls_that_fail_fast_gives_up_are_cancelled_attempts() -> None:
    """They are not in flight any more, and nothing else becomes of them."""
    both = Parallel(x=Call("a"), y=Call("b"), z=Call("c"))
    flow = Flow(reducer(both, policy="fail_fast")).start("1").fail("1", "0.y")
    counts = counted(flow)
    assert phase(flow) == ("failed", None, 0)
    assert (counts["attempts_failed"], counts["attempts_cancelled"]) == (1, 2)


def test_an_instance_of_a_former_version_is_counted_from_now_on() -> None:
    """The former state has no counts of ended attempts."""
    flow = Flow(reducer(Sequence(Call("a"), Call("b")))).start("1").ret("1", "0.0")
    state = flow.test.state("1")
    del state["attempts"]
    assert phase_of(state).counts[5:9] == (0, 0, 0, 0)
    fact = Event(return_message(Assignment("1", "0.1", 1, "", {}), 1), 9, "workflow", 0, 9)
    ended, _, _ = flow.reducer("1", state, [fact], 9)
    assert phase_of(ended or {}).counts[5:9] == (1, 0, 0, 0)


# --- what comes twice, late or not at all -----------------------------------------------------


def test_a_repeated_event_is_counted_and_changes_nothing() -> None:
    """A second start or answer counts, one of an unmade call, and one after the end."""
    flow = Flow(reducer(_TWO_STEPS)).start("1").start("1")
    assert flow.made == []
    assert flow.ret("1", "0.0").ret("1", "0.0").made == []
    assert flow.ret("1", "0.7").made == []
    flow.ret("1", "0.1")
    assert flow.ret("1", "0.1").made == flow.fail("1", "0.0").made == []
    counts = {"duplicate_start": 1, "duplicate": 1, "unknown": 1, "late": 2}
    assert flow.test.state("1")["counts"] == counts


def test_answers_to_done_calls_are_duplicates() -> None:
    """Calls of a joined branch and of a former iteration are included."""
    both = Parallel(x=Call("a"), y=Call("b"))
    flow = Flow(reducer(Sequence(p=both, l=Loop(Call("c"), times=3)))).start("1")
    flow.ret("1", "0.p.x").ret("1", "0.p.y").ret("1", "0.l[0]").ret("1", "0.l[1]")
    assert flow.ret("1", "0.p.x").ret("1", "0.l[0]").ret("1", "0.l[1]").made == []
    assert flow.test.state("1")["counts"] == {"duplicate": 3}


def test_a_call_is_attempted_again_until_it_is_given_up() -> None:
    """Each attempt has its number; a failure of an earlier one is passed over."""
    one = reducer(Call("a", x=1), attempts=2, backoff=0)
    flow = Flow(one).start("1").fail("1", "0", final=False)
    assert flow.types == ["PiFailureAtomicProcessException", "PiEventCall"]
    assert [each.value["attempt"] for each in flow.made if each.to == "assignments"] == [2]
    assert flow.fail("1", "0", attempt=1).made == []
    assert flow.fail("1", "0", attempt=2, final=False).outcomes()[0]["errors"][0]["attempt"] == 2
    assert flow.outcomes()[0]["calls"] == 2


def test_a_call_that_is_not_answered_in_time_is_made_again() -> None:
    """The hung attempt is cancelled; after the last one the instance fails."""
    flow = Flow(reducer(Call("a").limited(timeout=5, attempts=2, backoff=0))).start("1")
    assert flow.test.tick(5_000) == []
    made = flow.test.tick(5_001)
    cancel, assignment = (each for each in made if each.to == "assignments")
    assert cancel.value == {"type": "Cancel", "instance": "1", "ref": "0", "attempt": 1}
    assert (cancel.key, assignment.key) == ('["1","0",1]', '["1","0",2]')
    assert assignment.value["attempt"] == 2
    assert assignment.value["issued"] == 5_001
    (outcome,) = flow.outcomes(flow.test.tick(20_000))
    assert outcome["msg"] == "attempt 2 was not answered in time"
    assert flow.ret("1", "0", attempt=1).made == []


@pytest.mark.parametrize("times_out", [1, 2])
def test_an_attempt_s_own_error_is_kept_where_a_later_one_times_out(times_out: int) -> None:
    """The outcome has the last answer of a worker, with its trace, and what came after."""
    call = Call("a").limited(timeout=5, attempts=1 + times_out, backoff=0)
    flow = Flow(reducer(call)).start("1").fail("1", "0", "no disk", final=False)
    for number in range(times_out):
        flow.test.tick(10_000 * (number + 1))
    (outcome,) = flow.outcomes()
    last = 1 + times_out
    text = f"attempt {last} was not answered in time; attempt 1 failed: no disk"
    assert (outcome["msg"], outcome["trace"]) == (text, "trace")
    assert outcome["errors"] == [
        {"type": "PiFailureExceptions", "ref": "0", "attempt": last, "msg": text, "trace": "trace"}
    ]


def test_own_errors_of_attempts_have_little_room() -> None:
    """The errors' room is bounded for any number of calls that wait for another attempt."""
    calls = {f"c{number}": Call("a") for number in range(40)}
    flow = Flow(reducer(Parallel(**calls)), _LETTERS).start("1")
    for name in calls:
        call = Assignment("1", f"0.{name}", 1, "", {})
        flow.send("1", fail_message(call, name + "\x00" * 9_000, "t" * 9_000, final=False))
    assert flow.test.dead_letters == []
    assert len(to_json(flow.test.state("1")["own_errors"])) <= 8192


def test_an_answer_after_its_time_counts_while_the_call_is_open() -> None:
    """It is the result; the attempt made in its place is cancelled, and its answer passed over."""
    flow = Flow(reducer(Call("a").limited(timeout=5, backoff=0))).start("1")
    flow.test.tick(5_001)
    flow.ret("1", "0", "late", attempt=1)
    (cancel,) = (each for each in flow.made if each.to == "assignments")
    assert (cancel.value["type"], cancel.value["attempt"]) == ("Cancel", 2)
    assert cancel.key == '["1","0",2]'
    assert flow.outcomes()[0]["result"] == "late"
    assert flow.ret("1", "0", "second", attempt=2).made == []


def test_calls_have_times_of_their_own() -> None:
    """One timer for all; each fires when it is due."""
    both = Parallel(x=Call("a").limited(timeout=5), y=Call("b").limited(timeout=9, attempts=1))
    flow = Flow(reducer(both, backoff=0)).start("1")
    made = flow.test.tick(5_001)
    assert [each.value["ref"] for each in made if each.value["type"] == "Cancel"] == ["0.x"]
    made = flow.test.tick(9_001)
    assert [each.value["ref"] for each in made if each.value["type"] == "Cancel"] == ["0.y"]
    assert flow.outcomes(made) == []
    (outcome,) = flow.outcomes(flow.test.tick(10_001))
    assert [each["ref"] for each in outcome["errors"]] == ["0.y", "0.x"]


def test_another_attempt_waits_longer_each_time() -> None:
    """Twice as long, for a minute at most; each is made for another worker to have it."""
    flow = Flow(reducer(Call("a"), attempts=9)).start("1")
    made, waited = [], []
    for attempt in range(1, 9):
        assert flow.fail("1", "0", attempt=attempt, final=False).refs == []
        assert phase(flow) == ("open", 1, 0)
        due = flow.test.timers("1")["calls"].due
        waited.append(round(due - flow.now, -1))
        assert flow.test.tick(due - 1) == []
        made += [each for each in flow.test.tick(due) if each.to == "assignments"]
        flow.now = due
    assert waited == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]
    assert [each.key for each in made] == [f'["1","0",{number}]' for number in range(2, 10)]
    flow.fail("1", "0", attempt=9, final=False)
    assert (flow.outcomes()[0]["calls"], counted(flow)["attempts_failed"]) == (9, 9)
    flow = Flow(reducer(Call("a").limited(backoff=90))).start("1")
    for attempt in (1, 2):
        flow.fail("1", "0", attempt=attempt, final=False)
        assert round(flow.test.timers("1")["calls"].due - flow.now, -1) == 90_000
        flow.test.tick(flow.now + 90_000)
        flow.now += 90_000


def test_a_call_that_waits_for_its_next_attempt_takes_late_answers() -> None:
    """A late result ends the call, a failure is ignored, and another call's end is its own."""
    flow = Flow(reducer(Sequence(Call("a").limited(timeout=5), Call("b")))).start("1")
    made = flow.test.tick(5_001)
    assert [each.value["type"] for each in made if each.to == "assignments"] == ["Cancel"]
    flow.now = 5_001
    assert flow.fail("1", "0.0").made == []
    assert flow.ret("1", "0.0", "late").refs == ["0.1"]
    assert flow.test.state("1")["waiting"] == {}
    assert flow.ret("1", "0.0", "again").made == []
    assert flow.test.state("1")["counts"] == {"answered_late": 1, "duplicate": 1, "stale": 1}
    for policy in FailurePolicy:
        flow = Flow(reducer(_TWO_CALLS, policy=policy)).start("1").fail("1", "0.0.x", final=False)
        assert flow.fail("1", "0.0.y", "end").outcomes()[0]["msg"] == "end"
        assert list(flow.test.timers("1")) == ["grave"]
        assert flow.test.tick(2_000) == []


def test_an_instance_of_a_former_version_makes_its_attempts_at_once() -> None:
    """The former term has no backoff, and the former state no calls that wait."""
    flow = Flow(reducer(Parallel(x=Call("a"), y=Call("b")))).start("1")
    state = flow.test.state("1")
    del state["waiting"], state["size"]
    for _, call in state["term"][1]:
        del call[5:]
    for call in state["called"].values():
        del call[3:]
    fact = flow_event(fail_message(Assignment("1", "0.x", 1, "", {}), "no", final=False))
    state, outputs, timers = flow.reducer("1", state, [fact], 9)
    (made,) = (each.value for each in outputs if each.to == "assignments")
    assert (made["ref"], made["attempt"]) == ("0.x", 2)
    assert state is not None
    assert (state["called"]["0.x"], list(timers)) == ([2, 60_009, 3], ["calls"])


def test_fail_fast_cancels_open_calls() -> None:
    """The instance fails at once, also when two calls end at the same time."""
    both = Parallel(x=Call("a"), y=Call("b"), z=Call("c"))
    flow = Flow(reducer(both, policy="fail_fast")).start("1").fail("1", "0.y", "no")
    cancelled = [each.value["ref"] for each in flow.made if each.value["type"] == "Cancel"]
    assert cancelled == ["0.x", "0.z"]
    assert flow.outcomes()[0]["msg"] == "no"
    assert flow.ret("1", "0.x").made == []
    flow = Flow(reducer(both, policy="fail_fast", attempts=1)).start("1")
    assert len(flow.outcomes(flow.test.tick(60_001))) == 1


def test_a_closed_instance_is_remembered_for_a_while() -> None:
    """Then nothing of it is left."""
    flow = Flow(reducer(Call("a"))).start("1").ret("1", "0")
    assert flow.test.state("1")["phase"] == "closed"
    flow.test.tick(599_999)
    assert flow.test.state("1") is not None
    flow.test.tick(600_003)
    assert flow.test.states() == {}


def test_the_history_has_the_state_after_each_step() -> None:
    """An event without effect adds no entry."""
    flow = Flow(reducer(_TWO_STEPS, history=True)).start("1")
    (update,) = [each.value for each in flow.made if each.to == "history"]
    assert update["type"] == "PiiUpdate"
    assert update["pii"]["called"] == {"0.0": [1, 60_001, 3, 1_000]}
    flow.ret("1", "0.0").ret("1", "0.0").ret("1", "0.1")
    phases = [each.value["pii"]["phase"] for each in flow.test.outputs if each.to == "history"]
    assert phases == ["open", "open", "closed"]


# --- ends before their time ---------------------------------------------------------------------


@pytest.mark.parametrize("policy", list(FailurePolicy))
def test_a_cancelled_instance_ends_at_once(policy: Any) -> None:
    """Open calls are cancelled, waiting ones withdrawn; the outcome says by whom and why."""
    both = Parallel(x=Call("a"), y=Call("b"), z=Call("c"))
    flow = Flow(reducer(Sequence(both, Call("d")), policy=policy)).start("1")
    flow.fail("1", "0.0.x", final=False).ret("1", "0.0.y").cancel("1", "wrong tail", "ann@ops")
    assert (flow.cancelled, flow.refs) == (["0.0.z"], [])
    assert flow.types == ["PiFailureCancelled"]
    (outcome,) = flow.outcomes()
    assert (outcome["type"], outcome["by"], outcome["reason"]) == (
        "PiFailureCancelled", "ann@ops", "wrong tail",
    )  # fmt: skip
    assert outcome["msg"] == "cancelled by ann@ops: wrong tail"
    assert phase(flow) == ("cancelled", None, 0)
    counts = counted(flow)
    assert (counts["instances_cancelled"], counts["instances_failed"]) == (1, 0)
    assert (counts["attempts"], counts["attempts_cancelled"]) == (3, 1)
    assert list(flow.test.timers("1")) == ["grave"]
    assert flow.ret("1", "0.0.z").made == flow.cancel("1").made == []
    assert flow.test.tick(2_000) == []
    assert flow.test.state("1")["counts"] == {"late": 2}


def test_a_failing_instance_that_is_cancelled_ends_with_its_first_error() -> None:
    """The instance waits for its open calls no longer."""
    flow = Flow(reducer(_TWO_CALLS)).start("1").fail("1", "0.0.x", "first").cancel("1")
    assert flow.cancelled == ["0.0.y"]
    (outcome,) = flow.outcomes()
    assert (outcome["type"], outcome["msg"]) == ("PiFailureExceptions", "first")
    assert [each["type"] for each in outcome["errors"]] == [
        "PiFailureExceptions", "PiFailureCancelled",
    ]  # fmt: skip
    assert phase(flow) == ("failed", None, 0)


def test_an_unknown_instance_is_not_cancelled() -> None:
    """The cancel leaves nothing: one that is started later goes on."""
    flow = Flow(reducer(Call("a"))).cancel("1")
    assert flow.types == ["PiFailureNoSuchInstance"]
    assert flow.start("1").refs == ["0"]


def test_an_instance_ends_at_its_limit() -> None:
    """The open call is cancelled; an instance that ends in time keeps its outcome."""
    term = Call("a").limited(timeout=600)
    flow = Flow(reducer(term, limit=90.5)).start("1")
    assert flow.test.timers("1")["limit"].due == 90_501
    assert flow.test.tick(90_500) == []
    flow.made = flow.test.tick(90_501)
    assert (flow.cancelled, flow.types) == (["0"], ["PiFailureTimedOut"])
    (outcome,) = flow.outcomes()
    assert outcome["msg"] == "the instance's time limit of 90.5 s is over"
    assert phase(flow) == ("failed", None, 0)
    flow = Flow(reducer(term, limit=90)).start("1").ret("1", "0")
    assert list(flow.test.timers("1")) == ["grave"]


def test_a_limit_and_a_call_s_time_at_once_are_one_outcome() -> None:
    """The timers may fire in any order."""
    call = Call("a").limited(timeout=5, attempts=1)
    for policy in FailurePolicy:
        both = Parallel(x=call, y=Call("b"))
        flow = Flow(reducer(both, limit=5, policy=policy)).start("1")
        assert len(flow.outcomes(flow.test.tick(5_001))) == 1
        assert counted(flow)["attempts"] == 2


def test_an_instance_of_a_former_version_is_cancelled() -> None:
    """The former state has no limit, and needs none."""
    flow = Flow(reducer(Call("a"))).start("1")
    state = flow.test.state("1")
    del state["waiting"], state["attempts"]
    found, outputs, _ = flow.reducer("1", state, [flow_event(cancel_message("1", "r", "me"))], 9)
    assert found is not None
    assert found["phase"] == "closed"
    assert [each.to for each in outputs] == ["assignments", "results", "outcomes"]


# --- what is too large --------------------------------------------------------------------------


def too_large(flow: Flow) -> Any:
    """Return the one outcome of an instance that has failed; nothing was poison, all is closed."""
    (outcome,) = flow.outcomes()
    assert outcome["type"] == "PiFailureExceptions"
    assert flow.test.dead_letters == []
    assert flow.test.state("1")["phase"] == "closed"
    kinds = [each.value["type"] for each in flow.test.outputs if each.to == "results"]
    assert [kind for kind in kinds if kind in _TERMINAL] == ["PiFailureExceptions"]
    counts = counted(flow)
    ended = ("returned", "failed", "timed_out", "cancelled")
    assert counts["attempts"] == sum(counts[f"attempts_{each}"] for each in ended)
    return outcome


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (600_000, " bytes, and 458752 are allowed; keep what is large elsewhere, and say where"),
        (990_000, "0: what it is started with has 990008 bytes, and 875000 are allowed"),
    ],
)
def test_an_instance_with_arguments_that_are_too_large_fails(size: int, words: str) -> None:
    """It calls nothing; the message has the size and the limit."""
    flow = Flow(reducer(Call("a", x=Input("x"))), _LETTERS).start("1", x="x" * size)
    assert flow.refs == []
    assert words in too_large(flow)["msg"]


@pytest.mark.parametrize("size", [600_000, 999_900])
def test_an_instance_whose_call_returns_too_much_fails(size: int) -> None:
    """The call is not made again; what is its result at once may be larger than a state."""
    flow = Flow(reducer(_TWO_STEPS), _LETTERS).start("1").ret("1", "0.0", "x" * size)
    assert flow.refs == []
    outcome = too_large(flow)
    assert (outcome["ref"], outcome["calls"]) == ("0.0", 1)
    assert "bytes, and " in outcome["msg"]
    assert flow.ret("1", "0.0").made == []
    flow = Flow(reducer(Call("a")), _LETTERS).start("1").ret("1", "0", "x" * 600_000)
    assert flow.outcomes()[0]["result"] == "x" * 600_000
    assert flow.test.state("1")["returns"] == {"0": None}


@pytest.mark.parametrize("policy", list(FailurePolicy))
def test_a_large_result_next_to_open_calls_fails_by_the_policy(policy: Any) -> None:
    """Open calls are waited for or cancelled, and their results are not kept."""
    flow = Flow(reducer(_TWO_CALLS, policy=policy), _LETTERS).start("1")
    flow.ret("1", "0.0.x", "x" * 300_000).ret("1", "0.0.y", "y" * 300_000)
    assert too_large(flow)["ref"] == "0.0.y"
    both = Parallel(x=Call("a"), y=Call("b"), z=Call("c"))
    flow = Flow(reducer(both, policy=policy), _LETTERS).start("1").ret("1", "0.x", "x" * 500_000)
    if policy is FailurePolicy.WAIT_ALL:
        assert phase(flow) == ("failing", 1, 2)
        flow.ret("1", "0.y", "y" * 500_000)
        flow.fail("1", "0.z")
    assert "bytes, and 458752 are allowed" in too_large(flow)["errors"][0]["msg"]


def test_an_instance_whose_call_takes_too_much_fails() -> None:
    """Arguments that are taken several times, in one assignment."""
    value = Input("x")
    term = Sequence(Call("a"), Call("b", p=value, q=value, r=value))
    flow = Flow(reducer(term), _LETTERS).start("1", x="x" * 400_000).ret("1", "0.0")
    assert flow.refs == []
    outcome = too_large(flow)
    assert outcome["ref"] == "0.1"
    assert "1200022 bytes, and 875000 are allowed" in outcome["msg"]


def test_a_hanging_call_next_to_a_nearly_full_state_is_given_up() -> None:
    """The error finds room, because the arguments are dropped with the failure."""
    both = Parallel(x=Call("a", x=Input("x")).limited(timeout=5, attempts=1), y=Call("b"))
    flow = Flow(reducer(both), _LETTERS).start("1", x="x" * 458_000)
    assert flow.refs == ["0.x", "0.y"]
    flow.test.tick(5_001)
    assert phase(flow) == ("failing", 1, 1)
    flow.ret("1", "0.y")
    assert too_large(flow)["msg"] == "attempt 1 was not answered in time"


def test_an_instance_of_a_former_version_may_be_nearly_full() -> None:
    """The former state exceeds today's limit; the timer's own call needs no more room."""
    both = Parallel(x=Call("a", x=Input("x")).limited(timeout=5, attempts=1), y=Call("b"))
    flow = Flow(reducer(both)).start("1", x="")
    state = flow.test.state("1")
    state["args"]["x"] = "x" * (524_280 - len(to_json(state)))
    found, _, timers = flow.reducer("1", state, [Fired("calls", 5_001)], 5_001)
    assert found is not None
    assert found["phase"] == "failing"
    assert len(to_json(found)) < 2_000
    assert list(timers) == ["calls"]


def test_any_number_of_errors_fits() -> None:
    """The oldest traces are left out first, then errors, and the first error last."""
    calls = {f"c{number}": Call("a") for number in range(40)}
    flow = Flow(reducer(Parallel(**calls)), _LETTERS).start("1")
    traces = []
    for name in calls:
        call = Assignment("1", f"0.{name}", 1, "", {})
        flow.send("1", fail_message(call, name + "é" * 3_000, "t" * 9_000, final=True))
        traces.append([len(each["trace"]) for each in flow.test.state("1")["errors"]])
    assert traces[3] == [4_000] * 4
    assert traces[5] == [4_000, 0, 0, 0, 4_000, 4_000]
    outcome = too_large(flow)
    assert len(to_json(outcome["errors"])) <= 49_152
    assert outcome["msg"].startswith("c0é")
    refs = [each["ref"] for each in outcome["errors"]]
    assert refs == ["0.c0", *(f"0.c{n}" for n in range(33, 40))]


def test_values_that_json_does_not_know_fail_the_instance() -> None:
    """A producer of another kind may write them: they cannot be written again."""
    start = b'{"type":"Start","instance":"1","definition":"w@1","args":{"x":NaN}}'
    flow = Flow(reducer(Call("a", x=Input("x"))), _LETTERS).send("1", start)
    assert "is nothing that JSON knows" in too_large(flow)["msg"]
    answer = b'{"type":"Return","instance":"1","ref":"0.0","attempt":1,"obj":"\\ud800"}'
    flow = Flow(reducer(_TWO_STEPS), _LETTERS).start("1").send("1", answer)
    assert "is nothing that JSON knows" in too_large(flow)["msg"]


def test_values_that_are_too_deep_fail_the_instance() -> None:
    """Some readers could not parse the state and its outputs."""
    deep: Any = 1
    for _ in range(102):
        deep = [deep]
    flow = Flow(reducer(Call("a", x=Input("x"))), _LETTERS).start("1", x=deep)
    assert "lists and dicts more than 100 deep" in too_large(flow)["msg"]
    flow = Flow(reducer(_TWO_STEPS), _LETTERS).start("1").ret("1", "0.0", deep)
    assert "what it returned has lists and dicts more than 100 deep" in too_large(flow)["msg"]


def test_the_deepest_term_that_is_taken_runs_through() -> None:
    """With the deepest values in it, and in the one around it."""
    deep: Any = 1
    for _ in range(100):
        deep = [deep]
    term: Any = Call("a", x=deep)
    for _ in range(29):
        term = Sequence(s=term)
    found = workflows("a")
    found.define("inner", 1, term)
    outer: Any = Call("inner")
    for _ in range(29):
        outer = Parallel(p=outer)
    found.define("w", 1, outer)
    flow = Flow(WorkflowReducer(found.check(), history=True)).start("1")
    (ref,) = flow.refs
    (outcome,) = flow.ret("1", ref, deep).outcomes()
    assert outcome["type"] == "PiEventResult"


def test_an_id_that_is_too_long_is_poison() -> None:
    """The id is that of another producer's start; an executor refuses it."""
    long = "x" * 501
    flow = Flow(reducer(Call("a")), _LETTERS).send(long, start_message(long, "w@1", {}))
    (letter,) = flow.test.dead_letters
    said = dict(letter.headers)["headrace.message"] or b""
    assert b"the instance's id has 501 bytes, and 500 are allowed" in said


def test_a_channel_s_limits_are_the_reducer_s() -> None:
    """Also where they are small, or rows may be larger than an output that has the state."""
    small = replace(_LETTERS, max_row=4_096)
    flow = Flow(reducer(Call("a", x=Input("x"))), small).start("1", x="x" * 4_000)
    assert "bytes, and 3584 are allowed" in too_large(flow)["msg"]
    message = fail_message(Assignment("1", "0", 1, "", {}), "é" * 4_000, "t" * 4_000, final=True)
    flow = Flow(reducer(Call("a")), small).start("1").send("1", message)
    assert too_large(flow)["msg"] == "é" * 48
    large = replace(_LETTERS, max_row=4 << 20)
    flow = Flow(reducer(_TWO_CALLS), large).start("1", x=1)
    flow.ret("1", "0.0.x", "x" * 800_000).ret("1", "0.0.y", "y" * 800_000)
    assert flow.refs == ["0.1"]
    flow = Flow(reducer(_TWO_CALLS, history=True), large).start("1", x=1)
    assert flow.ret("1", "0.0.x", "x" * 800_000).ret("1", "0.0.y", "y" * 800_000).refs == []
    assert "bytes, and 875000 are allowed" in too_large(flow)["msg"]


def test_a_definition_that_leaves_no_room_is_refused_at_the_start() -> None:
    """Each instance carries its term."""
    with pytest.raises(DefinitionError, match=r"w@1: .* 3000\d\d bytes, and 229376 are"):
        Flow(reducer(Call("a", x="x" * 300_000)))


# --- several facts together ---------------------------------------------------------------------


@pytest.mark.parametrize("poison", [0, 1])
def test_answers_of_one_micro_batch_are_applied_together(poison: int) -> None:
    """Each has its own time, event and state in the history, whatever else is among them."""
    flow = Flow(reducer(_TWO_CALLS, history=True), _LETTERS).start("1")
    assert is_batched(flow.reducer)
    calls = [Assignment("1", ref, 1, "", {}) for ref in ("0.0.x", "0.0.y", "0.1")]
    facts: list[Any] = [Sent("1", return_message(call, 7), 5 + n) for n, call in enumerate(calls)]
    facts[2:2] = [Sent("1", {"type": "Stop"}, 9)] * poison
    made = flow.test.send(*facts)
    assert [each.to for each in flow.test.dead_letters] == [DEAD_LETTERS] * poison
    events = [each for each in made if each.to == "results"]
    returned = [each for each in events if each.value["type"] == "PiEventReturn"]
    assert [(each.value["ref"], each.ts) for each in returned] == [
        ("0.0.x", 5), ("0.0.y", 6), ("0.1", 7),
    ]  # fmt: skip
    updates = [each for each in made if each.to == "history"]
    assert [list(each.value["pii"]["called"]) for each in updates] == [["0.0.y"], ["0.1"], []]
    assert [each.ts for each in updates] == [5, 6, 7]


# --- properties -------------------------------------------------------------------------------


def test_results_do_not_depend_on_where_batches_are_cut() -> None:
    """The same calls, events and outcomes, twice the same."""
    facts = []
    for number in range(6):
        name = f"i{number}"
        facts.append(Sent(name, start_message(name, "w@1", {}), number))
        for ref in ("0.0.x", "0.0.y", "0.0.y", "0.1"):
            call = Assignment(name, ref, 1, "", {})
            failed = number % 3 == 2 and ref == "0.0.y"
            message = fail_message(call, "no", final=True) if failed else return_message(call, ref)
            facts.append(Sent(name, message, 10 + number))
    Random(3).shuffle(facts)
    facts.sort(key=lambda fact: fact.value["type"] != "Start")
    check_reducer(reducer(_TWO_CALLS, history=True), facts, settings=_OUTPUTS)


TERMS: Any = st.recursive(
    st.sampled_from("abcd").map(Call),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda each: Sequence(*each)),
        st.lists(inner, min_size=1, max_size=3).map(lambda each: Parallel(*each)),
        st.tuples(inner, st.integers(0, 2)).map(lambda each: Loop(each[0], times=each[1])),
        inner.map(lambda each: Choice(Input("v"), {1: each})),
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(
    TERMS,
    st.sampled_from(list(FailurePolicy)),
    st.integers(0, 1),
    st.randoms(use_true_random=False),
)
def test_an_instance_has_one_outcome_with_repeated_and_late_events(
    term: Any, policy: FailurePolicy, backoff: int, random: Random
) -> None:
    """Each attempt of a call is made once, and nothing follows the outcome."""
    flow = Flow(reducer(term, policy=policy, attempts=2, backoff=backoff)).start("1", v=1)
    made = list(flow.made)
    answered: list[Any] = []
    while not flow.outcomes():
        done = {(each["ref"], each["attempt"]) for each in answered}
        calls = [each.value for each in made if each.value["type"] == "Assignment"]
        waiting = [each for each in calls if (each["ref"], each["attempt"]) not in done]
        if not waiting or (backoff and random.random() < 0.1):
            flow.now += 1_000
            made += flow.test.tick(flow.now)
            continue
        if random.random() < 0.03:
            made += flow.cancel("1").made
            continue
        again = answered and random.random() < 0.3
        call = random.choice(answered if again else waiting)
        answered.append(call)
        if random.random() < 0.2:
            flow.fail("1", call["ref"], attempt=call["attempt"], final=random.random() < 0.3)
        else:
            flow.ret("1", call["ref"], 1, call["attempt"])
        made += flow.made
    for call in answered:
        assert flow.ret("1", call["ref"], 2, call["attempt"]).made == []
    calls = [each.value for each in made if each.value["type"] == "Assignment"]
    assert len({(each["ref"], each["attempt"]) for each in calls}) == len(calls)
    events = [each.value["type"] for each in made if each.to == "results"]
    assert [each for each in events if each in _TERMINAL] == [flow.outcomes()[0]["type"]]
    assert len(flow.outcomes()) == 1
    counts = counted(flow)
    ended = ("returned", "failed", "timed_out", "cancelled")
    assert counts["attempts"] == len(calls) == sum(counts[f"attempts_{each}"] for each in ended)
