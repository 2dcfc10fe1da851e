"""Instances in the process itself: executed, awaited, listened to, cancelled and closed."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings

from headrace.apps.workflow import (
    Call,
    CallFailedError,
    DefinitionError,
    Input,
    Item,
    LocalExecutor,
    Loop,
    Map,
    Parallel,
    Result,
    Sequence,
    Sleep,
    Try,
    Wait,
    Workflows,
    base_executor,
)
from headrace.apps.workflow.errors import NoOutcomeError, WorkflowFailedError
from headrace.apps.workflow.selection import Selection
from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from tests.unit.apps.workflow.test_reducer import TERMS, Flow, reducer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.apps.workflow import Assignment

#: Seconds after which a test gives up.
WAIT = 20.0


class Scene:
    """Workflows with processes that count, fail, and hold until they are told to go on."""

    def __init__(self) -> None:
        self.flows = flows = Workflows()
        self.calls: Counter[str] = Counter()
        self.held: list[Assignment] = []
        self.holds = threading.Semaphore(0)
        self.go = threading.Event()

        @flows.process
        def double(call: Assignment, n: int) -> Any:
            self.calls[call.key] += 1
            return {"n": 2 * n, "pair": (n, n)}

        @flows.process
        def fail(call: Assignment, times: int) -> int:
            self.calls[call.key] += 1
            if call.attempt <= times:
                raise ValueError(f"attempt {call.attempt}")
            return call.attempt

        @flows.process
        def refuse(call: Assignment) -> None:
            raise CallFailedError(f"not {call.ref}")

        @flows.process
        def hold(call: Assignment) -> str:
            self.held.append(call)
            self.holds.release()
            while not (self.go.is_set() or call.cancelled.wait(0.01)):
                pass
            return "held"

        flows.define("once", 1, Call("double", n=Input("n")))
        flows.define("twice", 1, Sequence(
            a=Parallel(x=Call("double", n=Input("n")), y=Call("double", n=1)),
            b=Loop(Call("double", n=Result("a.x.n")), times=2),
        ))  # fmt: skip
        flows.define("flaky", 1, Call("fail", times=Input("times")), attempts=3, backoff=0.001)
        flows.define("refused", 1, Call("refuse"))
        flows.define("held", 1, Call("hold"))
        flows.define("hang", 1, Call("hold").limited(timeout=0.05, attempts=2, backoff=0))
        flows.define("limited", 1, Call("hold"), limit=0.05)

    def await_held(self, count: int = 1) -> None:
        """Wait until so many more calls are held."""
        for _ in range(count):
            assert self.holds.acquire(timeout=WAIT)


@pytest.fixture
def scene() -> Scene:
    """Return workflows of a test's own."""
    return Scene()


@pytest.fixture
def executor(scene: Scene) -> Iterator[LocalExecutor]:
    """Return an executor of the workflows."""
    with LocalExecutor(scene.flows) as found:
        yield found


def test_a_workflow_is_executed_without_kafka(scene: Scene, executor: LocalExecutor) -> None:
    """The result is as JSON gives it back, and each call was made once."""
    assert executor.execute("twice", {"n": 3}) == {"n": 12, "pair": [6, 6]}
    assert sorted(scene.calls.values()) == [1] * 4
    assert executor.execute("flaky", {"times": 2}) == 3
    with pytest.raises(WorkflowFailedError, match="failed at 0: ValueError: attempt 3"):
        executor.execute("flaky", {"times": 9})
    with pytest.raises(WorkflowFailedError, match="failed at 0: not 0") as error:
        executor.execute("refused", instance="mine")
    assert error.value.outcome == executor.outcome("mine", 0)


def test_an_invalid_start_starts_nothing(executor: LocalExecutor) -> None:
    """The error is the one of an executor of Kafka's nodes."""
    with pytest.raises(DefinitionError, match="there is no workflow 'none'"):
        executor.execute("none")
    with pytest.raises(DefinitionError, match="n is missing"):
        executor.submit("once")
    with pytest.raises(DefinitionError, match="cannot be an instance's"):
        executor.start("once", {"n": 1}, instance="")
    with pytest.raises(NoOutcomeError, match="instance other has no outcome after 0 s"):
        executor.result("other", 0)
    with pytest.raises(NoOutcomeError, match="instance held has no outcome after 0 s; ask again"):
        executor.execute("held", instance="held", timeout=0)


def test_a_future_has_the_result_or_the_error(scene: Scene, executor: LocalExecutor) -> None:
    """It cannot be cancelled, and has the id of its instance, by which that can be."""
    future = executor.submit("once", {"n": 4})
    assert future.result(WAIT)["n"] == 8
    assert executor.result(future.instance, 0)["n"] == 8
    with pytest.raises(WorkflowFailedError, match="not 0"):
        executor.submit("refused").result(WAIT)
    held = executor.submit("held", instance="held")
    scene.await_held()
    assert not held.cancel()
    executor.cancel("held", "no need", by="ann")
    with pytest.raises(WorkflowFailedError, match="cancelled by ann: no need"):
        held.result(WAIT)


def test_a_start_with_an_id_starts_once(scene: Scene, executor: LocalExecutor) -> None:
    """All who start or submit it get the one result, also after its end."""
    futures = [executor.submit("once", {"n": 1}, instance="mine") for _ in range(3)]
    assert {each.result(WAIT)["n"] for each in futures} == {2}
    assert executor.start("once", {"n": 7}, instance="mine") == "mine"
    assert executor.submit("once", {"n": 7}, instance="mine").result(WAIT)["n"] == 2
    assert scene.calls == {"mine/0/1": 1}


def test_many_are_started_together(executor: LocalExecutor) -> None:
    """Each has an id of its own; none is started where one cannot be."""
    names = executor.start_many("once", ({"n": number} for number in range(100)))
    assert [executor.result(each, WAIT)["n"] for each in names] == [2 * n for n in range(100)]
    assert executor.start_all("once", [("a", {"n": 1})]) == ["a"]
    with pytest.raises(DefinitionError):
        executor.start_many("once", [{"n": 1}, {}])


def test_asyncio_awaits_results_and_iterates_over_events(executor: LocalExecutor) -> None:
    """Many at once; the events of an instance are all there, also for one who asks later."""

    async def work() -> None:
        found = await asyncio.gather(*(executor.run("once", {"n": n}) for n in range(20)))
        assert [each["n"] for each in found] == [2 * n for n in range(20)]
        with pytest.raises(WorkflowFailedError):
            await executor.run("refused")
        executor.start("twice", {"n": 1}, instance="mine")
        for _ in range(2):
            kinds = Counter([each["type"] async for each in executor.events("mine")])
            assert kinds == {
                "PiEventStart": 1, "PiEventCall": 4, "PiEventReturn": 4, "PiEventResult": 1,
            }  # fmt: skip

    asyncio.run(asyncio.wait_for(work(), WAIT))


def test_an_instance_that_is_not_there_has_no_events(executor: LocalExecutor) -> None:
    """The error says so, also where it was signalled."""

    async def work() -> None:
        executor.signal("mine", "go")
        with pytest.raises(NoOutcomeError, match="there is no instance mine, or not any more"):
            await anext(executor.events("mine"))

    asyncio.run(asyncio.wait_for(work(), WAIT))


def test_a_limit_is_of_the_instances_that_have_no_outcome(executor: LocalExecutor) -> None:
    """Those that ended before take no place of it."""
    for _ in range(2):
        executor.execute("once", {"n": 1})
    future = executor.submit("held", instance="mine")
    asyncio.run(asyncio.wait_for(anext(executor.events("mine")), WAIT))
    assert executor.cancel_all(Selection(limit=1), "no need") == ["mine"]
    assert executor.outcome(future.instance, WAIT)["reason"] == "no need"


def test_events_end_where_one_stops_to_listen(scene: Scene, executor: LocalExecutor) -> None:
    """The instance goes on."""

    async def work() -> None:
        events = executor.events("mine")
        executor.start("held", instance="mine")
        async for event in events:
            if event["type"] == "PiEventCall":
                break
        await events.aclose()

    asyncio.run(asyncio.wait_for(work(), WAIT))
    scene.go.set()
    assert executor.result("mine", WAIT) == "held"


def test_running_calls_hear_that_their_instances_are_cancelled(
    scene: Scene, executor: LocalExecutor
) -> None:
    """All of a selection do that were started; a call that waits for a thread may have had one."""
    names = [f"i{number}" for number in range(300)]
    for each in names:
        executor.start("held", instance=each)
    assert executor.cancel_all(Selection("other"), "no need") == []
    assert sorted(executor.cancel_all(Selection("held@1"), "no need")) == sorted(names)
    for each in names:
        assert executor.outcome(each, WAIT)["reason"] == "no need"
    assert all(call.cancelled.wait(WAIT) for call in scene.held)


def test_a_call_that_hangs_is_left_and_its_place_is_free(scene: Scene) -> None:
    """The second attempt has the only place, and hears when its time is over."""
    with LocalExecutor(scene.flows, threads=1) as executor:
        with pytest.raises(WorkflowFailedError, match="attempt 2 was not answered in time"):
            executor.execute("hang")
        scene.await_held(2)
        assert sorted(call.attempt for call in scene.held) == [1, 2]
        with pytest.raises(WorkflowFailedError, match=r"time limit of 0\.05 s is over"):
            executor.execute("limited")
        scene.go.set()
        assert executor.execute("held") == "held"


def test_waits_and_sleeps_are_over_and_what_is_tried_is_undone(scene: Scene) -> None:
    """The process of an undo is called as any, and sleeping takes no thread."""
    undone: list[int] = []

    @scene.flows.process
    def undo(call: Assignment, n: int) -> None:
        assert call.ref.endswith(".undo")
        undone.append(n)

    booked = Call("double", n=Item("item")).undone_by(Call("undo", n=Result("result.n")))
    scene.flows.define("tried", 1, Sequence(
        go=Wait("go"),
        trip=Try(
            Sequence(Map(Result("go"), booked, at_once=1), Sleep(0.01), Call("refuse")),
            Call("double", n=Input("n")),
            kinds=("CallFailedError",),
        ),
    ))  # fmt: skip
    with LocalExecutor(scene.flows, threads=1) as executor:
        future = executor.submit("tried", {"n": 5})
        executor.signal(future.instance, "go", [1, 2, 3])
        assert future.result(WAIT)["n"] == 10
        assert undone == [6, 4, 2]
        assert executor.outcome(future.instance, 0)["undone"] == 3


def test_an_event_that_is_none_ends_no_other_instance(
    executor: LocalExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reducer refuses it, and goes on with the next."""
    monkeypatch.setattr(base_executor, "signal_message", lambda *_: {"type": "none"})
    executor.signal("mine", "go")
    assert executor.execute("once", {"n": 1}, instance="mine")["n"] == 2
    executor.signal("mine", "go")
    assert executor.execute("once", {"n": 2})["n"] == 4


def test_a_closed_executor_ends_what_waits(scene: Scene) -> None:
    """Futures, listeners and later starts get an error that says so."""
    executor = LocalExecutor(scene.flows)
    future = executor.submit("held")
    scene.await_held()

    async def listen() -> None:
        events = executor.events(future.instance)
        await anext(events)
        executor.close()
        with pytest.raises(NoOutcomeError, match="closed"):
            [each async for each in events]

    asyncio.run(asyncio.wait_for(listen(), WAIT))
    with pytest.raises(NoOutcomeError, match="closed before the instance had an outcome"):
        future.result(WAIT)
    with pytest.raises(NoOutcomeError, match="the executor is closed"):
        executor.start("held")
    assert scene.held[0].cancelled.wait(WAIT)


def test_an_instance_is_forgotten_after_a_while(scene: Scene) -> None:
    """The same id is another instance then."""
    with LocalExecutor(scene.flows, keep=0.001) as executor:
        assert executor.execute("once", {"n": 1}, instance="mine")["n"] == 2
        deadline = Deadline.after(WAIT)
        assert wait_for(
            lambda: executor.execute("once", {"n": 2}, instance="mine")["n"] == 4, deadline
        )


@pytest.mark.parametrize("threads", [0, "4"])
def test_threads_are_a_number(scene: Scene, threads: Any) -> None:
    """The error names the value."""
    with pytest.raises(ValueError, match=f"threads is {threads!r}; it has to be a whole number"):
        LocalExecutor(scene.flows, threads=threads)


@settings(max_examples=15, deadline=None)
@given(TERMS)
def test_any_term_has_the_same_result_as_with_kafka(term: Any) -> None:
    """The calls are the same as well."""
    flow = Flow(reducer(term)).start("1", v=1)
    while not flow.outcomes():
        done = {each["ref"] for each in _events(flow, "PiEventReturn")}
        called = [each["ref"] for each in _events(flow, "PiEventCall") if each["ref"] not in done]
        flow.ret("1", called[0], called[0])
    found = Workflows()
    calls: Counter[str] = Counter()
    for name in "abcd":

        def process(call: Assignment) -> str:
            calls[call.ref] += 1
            return call.ref

        process.__name__ = name
        found.process(process)
    found.define("w", 1, term)
    with LocalExecutor(found) as executor:
        inputs = found.compiled("w").inputs
        assert executor.execute("w", dict.fromkeys(inputs, 1)) == flow.outcomes()[0]["result"]
    assert calls == Counter(each["ref"] for each in _events(flow, "PiEventCall"))


def _events(flow: Flow, kind: str) -> list[dict[str, Any]]:
    return [each.value for each in flow.test.outputs if each.value["type"] == kind]
