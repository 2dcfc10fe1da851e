"""Starting instances and asking for their outcomes, with a broker in memory."""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from headrace.apps.workflow import (
    Call,
    DefinitionError,
    Input,
    Workflows,
    event_producer,
    instances,
    topics,
)
from headrace.apps.workflow import executor as module
from headrace.apps.workflow.errors import NoOutcomeError, WorkflowFailedError
from headrace.apps.workflow.executor import Executor, ResultsListener, find_outcome
from headrace.apps.workflow.selection import Selection
from headrace.apps.workflow.topics import Topics
from headrace.core.clock import Deadline
from headrace.core.processes import who
from headrace.core.records import TopicPartition
from headrace.devstack.wait import wait_for
from headrace.extensions.keyed.codecs import partition_of, to_json
from headrace.extensions.keyed.names import changelog_name
from headrace.kafka.errors import KafkaAccessError, KafkaUnavailableError, ProduceError
from headrace.kafka.ports import Fetched
from headrace.testing import InMemoryBroker
from headrace.testing.broker import InMemorySource
from headrace.testing.records import FakeRecord

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.kafka.topic_producer import KeyValue

#: Seconds after which a test gives up.
WAIT = 10.0

#: Milliseconds for which the reducer of a test remembers instances.
KEEP = 600_000

TOPICS = Topics("flow")
PARTITIONS = 2


class Complaints(InMemorySource):
    """A source that only complains."""

    def __init__(self, errors: list[str], broker: InMemoryBroker) -> None:
        super().__init__(broker)
        self.errors = errors

    def fetch(self, timeout: float) -> Fetched:
        """Complain."""
        del timeout
        return Fetched(errors=self.errors)


class Scene:
    """Topics in memory, and a reducer that ends instances at once if it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = InMemoryBroker()
        for topic in (TOPICS.events, TOPICS.outcomes, TOPICS.results):
            self.broker.create_topic(topic, PARTITIONS)
        self.started: list[str] = []
        self.told: list[dict[str, Any]] = []
        self.readers = 0
        self.ends_at_once = True
        self.refusal: str | None = None
        self.deadlines: list[float] = []
        monkeypatch.setattr(topics, "KafkaTopicCatalog", lambda *_: self.broker.catalog())
        monkeypatch.setattr(topics, "KafkaRecordSource", self._source)
        monkeypatch.setattr(event_producer, "TopicProducer", lambda *_: self)
        self.errors: list[str] = []
        self.flows = Workflows()
        self.flows.process(step)
        self.flows.define("work", 1, Call("step"))

    def _source(self, *_: Any) -> Any:
        self.readers += 1
        return Complaints(self.errors, self.broker) if self.errors else self.broker.source()

    def send(self, records: Iterable[KeyValue], deadline: Deadline) -> None:
        """Take the place of the producer of starts."""
        self.deadlines.append(deadline.remaining)
        if self.refusal is not None:
            raise ProduceError(self.refusal)
        for _, value in records:
            message = json.loads(value)
            if message["type"] != "Start":
                self.told.append(message)
                continue
            instance = message["instance"]
            self.started.append(instance)
            if self.ends_at_once:
                self.end(instance, len(self.started))

    def flush(self, deadline: Deadline) -> None:
        """Hold nothing back."""
        del deadline

    def end(
        self,
        instance: str,
        result: Any,
        *,
        started: int = 0,
        ended: int = 0,
        kind: str = "PiEventResult",
    ) -> None:
        """Write an outcome; times are in ms before now."""
        now = int(time.time() * 1000)
        outcome = {
            "type": kind,
            "instance": instance,
            "result": result,
            "started": now - started,
            "ended": now - ended,
        }
        partition = TopicPartition(TOPICS.outcomes, partition_of(instance.encode(), PARTITIONS))
        self.broker.produce(partition, FakeRecord(key_=instance.encode(), value_=to_json(outcome)))

    def executor(self) -> Executor:
        """Return an executor."""
        return Executor(self.flows, "nowhere:1", topics=TOPICS)


def step(call: Any) -> None:
    """Do nothing."""
    del call


def takes(call: Any, x: Any) -> None:
    """Take an argument."""
    del call, x


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Return topics of a test's own."""
    return Scene(monkeypatch)


def test_an_outcome_that_was_asked_for_is_not_kept(scene: Scene) -> None:
    """10,000 instances leave nothing; a second request finds the outcome in the topic."""
    with scene.executor() as executor:
        for number in range(10_000):
            instance = executor.start("work")
            assert executor.result(instance, WAIT) == number + 1
        assert scene.readers == 1
        for number, again in enumerate((instance, scene.started[0], scene.started[5_000]), start=2):
            assert executor.result(again, WAIT) == scene.started.index(again) + 1
            assert scene.readers == number


def test_outcomes_that_are_not_asked_for_are_kept_up_to_a_limit(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The latest are kept; outcomes of the others are found in the topic."""
    monkeypatch.setattr(module, "_MOST_STARTED", 10)
    with scene.executor() as found:
        names = [found.start("work") for _ in range(100)]
        readers = scene.readers
        assert [found.result(name, WAIT) for name in names] == list(range(1, 101))
        assert scene.readers - readers == 90


def test_the_outcome_of_an_instance_of_the_same_id_before_is_not_taken(scene: Scene) -> None:
    """The id was started again after it was forgotten: the outcome is awaited, here and later."""
    scene.ends_at_once = False
    with scene.executor() as executor:
        scene.end("mine", "first", started=KEEP + 9_000, ended=KEEP + 5_000)
        assert executor.result("mine", WAIT) == "first"
        executor.start("work", instance="mine")
        with pytest.raises(NoOutcomeError, match="instance mine has no outcome after 0 s"):
            executor.result("mine", 0)
        scene.end("mine", "second")
        assert executor.result("mine", WAIT) == "second"
        assert executor.result("mine", WAIT) == "second"
    with scene.executor() as executor:
        executor.start_all("work", [("mine", {})])
        assert executor.result("mine", WAIT) == "second"


def test_a_second_start_of_an_instance_that_is_remembered_finds_its_outcome(scene: Scene) -> None:
    """It is the same instance, whose second start is passed over."""
    scene.ends_at_once = False
    scene.end("mine", "first", started=9_000, ended=5_000)
    with scene.executor() as executor:
        executor.start("work", instance="mine")
        assert executor.result("mine", WAIT) == "first"


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("definition", "args", "instance", "words"),
    [
        ("other", {}, "i", "there is no workflow 'other'"),
        (7, {}, "i", "7 is no name of a workflow"),
        (["work"], {}, "i", "is no name of a workflow"),
        ("work", {"x": 1}, "i", "x is not used"),
        ("work", ["x"], "i", r"its arguments are \['x'\]; give a mapping"),
        ("work", {5: 1}, "i", "its arguments are {5: 1}; give a mapping"),
        ("args", {"x": "\ud800"}, "i", "argument x: '.ud800' is nothing that JSON knows"),
        ("args", {"x": float("nan")}, "i", "argument x: nan is nothing that JSON knows"),
        ("args", {"x": {1}}, "i", r"argument x: \{1\} is nothing that JSON knows"),
        ("args", {"x": _nested(101)}, "i", "argument x: lists and dicts are more than 100 deep"),
        ("args", {"x": _nested(100_000)}, "i", "argument x: .* is nothing that JSON knows"),
        ("work", {}, "", "the id '' cannot be an instance's; take a text of 1 to 500 bytes"),
        ("work", {}, 5, "the id 5 cannot be"),
        ("work", {}, b"i", "the id b'i' cannot be"),
        ("work", {}, "\ud800", "cannot be an instance's"),
        ("work", {}, "é" * 251, "of 502 bytes cannot be"),
    ],
)
def test_an_invalid_start_is_a_definition_error(
    scene: Scene, definition: Any, args: Any, instance: Any, words: str
) -> None:
    """No start is sent, nor those before it in the same call."""
    scene.flows.process(takes)
    scene.flows.define("args", 1, Call("takes", x=Input("x")))
    with scene.executor() as executor:
        with pytest.raises(DefinitionError, match=words):
            executor.start(definition, args, instance=instance)
        with pytest.raises(DefinitionError, match=words):
            executor.start_all(definition, [("first", args), (instance, args)])
    assert scene.started == []


def test_a_start_that_may_be_lost_tells_the_id(scene: Scene) -> None:
    """The one that was made up here, too: with it the instance is started once."""
    scene.refusal = "the brokers do not answer"
    with scene.executor() as executor:
        with pytest.raises(ProduceError, match=r"instance [0-9a-f]{32} may not have .* answer;"):
            executor.start("work")
        with pytest.raises(ProduceError, match="instance mine may not have started"):
            executor.submit("work", instance="mine")
        with pytest.raises(ProduceError, match="2 instances may not have started"):
            executor.start_many("work", [{}, {}])
        with pytest.raises(DefinitionError):
            executor.start("nothing")


def test_many_starts_have_more_time(scene: Scene) -> None:
    """Starts have a second for each thousand, in addition to the brokers' time for one."""
    with scene.executor() as executor:
        executor.start_all("work", [(f"i{number}", {}) for number in range(20_000)])
        executor.start("work")
    many, one = scene.deadlines
    assert 40 < many <= 50
    assert 20 < one <= 31


def test_outcomes_that_cannot_be_read_are_not_missing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is raised without the right to read, and without a leader's answer."""
    monkeypatch.setattr(module, "ANSWER_TIMEOUT", 0.0)
    scene.errors = ["flow.outcomes-0: Broker: Topic authorization failed"]
    with pytest.raises(KafkaAccessError):
        find_outcome({}, TOPICS, "mine", 0)
    scene.end("mine", 1)
    scene.errors = ["Connect to nowhere failed"]
    with pytest.raises(KafkaUnavailableError, match="not all read after 0 s: Connect to nowhere"):
        find_outcome({}, TOPICS, "mine", 0)


def test_a_listener_that_may_not_read_ends_with_the_reason(scene: Scene) -> None:
    """So does who waits for an outcome."""
    scene.errors = ["flow.outcomes-0: Broker: Topic authorization failed"]
    listener = ResultsListener(print, "nowhere:1", topic=TOPICS.results)
    assert wait_for(lambda: listener.error is not None, Deadline.after(WAIT))
    with pytest.raises(KafkaAccessError):
        listener.close()
    found = scene.executor()
    scene.ends_at_once = False
    with pytest.raises(KafkaAccessError):
        found.result(found.start("work"), WAIT)
    with pytest.raises(KafkaAccessError):
        found.close()


def test_a_state_that_cannot_be_read_is_not_missing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an answer of the changelog's leader the instance is not reported missing."""
    monkeypatch.setattr(instances, "ANSWER_TIMEOUT", 0.05)
    name = changelog_name(TOPICS.name, TOPICS.events)
    scene.broker.create_topic(name, PARTITIONS)
    partition = TopicPartition(name, partition_of(b"mine", PARTITIONS))
    scene.broker.produce(partition, FakeRecord(key_=b"mine", value_=b"{}"))
    scene.errors = ["Connect to nowhere failed"]
    with pytest.raises(KafkaUnavailableError, match="was not all read after"):
        instances.find_state({}, TOPICS, "mine")


def keep_state(scene: Scene, instance: str, phase: str, started: float, **args: Any) -> None:
    """Write an instance's state to the changelog; ``started`` in seconds before now."""
    name = changelog_name(TOPICS.name, TOPICS.events)
    if name not in scene.broker.topics():
        scene.broker.create_topic(name, PARTITIONS)
    state = {
        "phase": phase,
        "outcome": "PiEventResult",
        "definition": "work@1",
        "started": int((time.time() - started) * 1000),
        "args": args,
        "called": {},
        "counts": {},
        "calls": 0,
    }
    partition = TopicPartition(name, partition_of(instance.encode(), PARTITIONS))
    record = FakeRecord(key_=instance.encode(), value_=to_json(state))
    scene.broker.produce(partition, record)


def test_an_instance_is_cancelled_by_its_id(scene: Scene) -> None:
    """The event says by whom and why; an id that is none is refused."""
    with scene.executor() as executor:
        executor.cancel("mine", "wrong", by="ann")
        executor.cancel("mine", "wrong")
        with pytest.raises(DefinitionError, match="the id '' cannot be an instance's"):
            executor.cancel("", "wrong")
    first, second = scene.told
    assert first == {"type": "CancelInstance", "instance": "mine", "reason": "wrong", "by": "ann"}
    assert second["by"] == who()


def test_an_instance_is_signalled_and_terminated(scene: Scene) -> None:
    """A signal has an id of its own, or the one that is given; a bad one is not sent."""
    with scene.executor() as executor:
        executor.signal("mine", "go", {"n": 1}, signal_id="first")
        executor.signal("mine", "go")
        executor.terminate("mine", "wrong", by="ann")
        with pytest.raises(DefinitionError, match="'a b' cannot be the name of a signal"):
            executor.signal("mine", "a b")
        with pytest.raises(DefinitionError, match="signal go: nan is nothing that JSON knows"):
            executor.signal("mine", "go", float("nan"))
    first, second, third = scene.told
    assert first == {
        "type": "Signal", "instance": "mine", "name": "go", "value": {"n": 1}, "id": "first",
    }  # fmt: skip
    assert second["id"] not in {"", "first"}
    assert (third["type"], third["terminate"], third["by"]) == ("CancelInstance", True, "ann")


@pytest.mark.parametrize("text", [5, "\ud800", None])
def test_what_goes_along_with_an_event_is_text(scene: Scene, text: Any) -> None:
    """The error names it and the value, and nothing is sent."""
    with scene.executor() as executor:
        ends = [executor.cancel, executor.terminate]
        for tell, what, given in (
            (executor.signal, "signal_id", {"name": "go", "signal_id": text or b""}),
            *((end, "reason", {"reason": text}) for end in ends),
            *((end, "by", {"reason": "r", "by": text or 1.5}) for end in ends),
        ):
            with pytest.raises(DefinitionError, match=f"{what} is .*; it has to be a text"):
                tell("mine", **given)  # type: ignore[operator]
    assert scene.told == []


def test_all_instances_of_a_selection_are_cancelled(scene: Scene) -> None:
    """Those that have no outcome, the oldest first; the selection bounds how many."""
    keep_state(scene, "new", "open", 1, n=1)
    keep_state(scene, "old", "failing", 90, n=1)
    keep_state(scene, "older", "open", 100, n=2)
    for over in ("over", "over-2"):
        keep_state(scene, over, "closed", 200, n=1)
    with scene.executor() as executor:
        assert executor.cancel_all(Selection("work"), "r") == ["older", "old", "new"]
        assert executor.cancel_all(Selection(older_than=60, args={"n": "1"}), "r") == ["old"]
        assert executor.cancel_all(Selection(phases=frozenset({"open"}), limit=1), "r") == ["older"]
        assert executor.cancel_all(Selection("work", limit=2), "r") == ["older", "old"]
        assert executor.cancel_all(Selection("other"), "r") == []
    told = [each["instance"] for each in scene.told]
    assert told == ["older", "old", "new", "old", "older", "older", "old"]


def test_a_future_has_the_result_of_the_instance(scene: Scene) -> None:
    """The future of a failed instance has the failure as its error."""
    with scene.executor() as executor:
        futures = [executor.submit("work") for _ in range(100)]
        assert [each.result(WAIT) for each in futures] == list(range(1, 101))
        assert scene.readers == 1
        scene.ends_at_once = False
        failing = executor.submit("work")
        scene.end(failing.instance, None, kind="PiFailureExceptions")
        with pytest.raises(WorkflowFailedError, match="failed at"):
            failing.result(WAIT)
        assert not failing.cancel()
        names = executor.start_many("work", [{}] * 3)
        assert names == scene.started[-3:]


def test_a_future_of_an_instance_that_has_ended_has_its_result(scene: Scene) -> None:
    """It was started with this id before, and its second start is passed over."""
    scene.ends_at_once = False
    scene.end("mine", "first", started=9_000, ended=5_000)
    with scene.executor() as executor:
        assert executor.submit("work", instance="mine").result(WAIT) == "first"
        later = executor.submit("work", instance="other")
        assert not later.done()
        scene.end("other", "second")
        assert later.result(WAIT) == "second"
        scene.end("gone", "former", started=KEEP + 9_000, ended=KEEP + 5_000)
        again = executor.submit("work", instance="gone")
        scene.end("gone", "latter")
        assert again.result(WAIT) == "latter"


def test_a_closed_executor_ends_its_futures(scene: Scene) -> None:
    """The error says that no more is known of the instance."""
    scene.ends_at_once = False
    with scene.executor() as executor:
        future = executor.submit("work")
    with pytest.raises(NoOutcomeError, match="closed before the instance had an outcome"):
        future.result(WAIT)


def test_a_future_has_the_error_of_who_may_not_read(scene: Scene) -> None:
    """One that comes later is refused at once."""
    scene.errors = ["flow.outcomes-0: Broker: Topic authorization failed"]
    scene.ends_at_once = False
    found = scene.executor()
    with pytest.raises(KafkaAccessError):
        found.submit("work").result(WAIT)
    with pytest.raises(KafkaAccessError):
        found.close()


def keep_events(scene: Scene, instance: str, *kinds: str) -> None:
    """Write events of an instance."""
    partition = TopicPartition(TOPICS.results, partition_of(instance.encode(), PARTITIONS))
    for each in kinds:
        document = {"type": each, "instance": instance}
        record = FakeRecord(key_=instance.encode(), value_=to_json(document))
        scene.broker.produce(partition, record)


def test_asyncio_awaits_results_and_iterates_over_events(scene: Scene) -> None:
    """Events of others are left out; an id that was used again has those of both instances."""
    ended = ("PiEventStart", "PiEventCall", "PiEventReturn", "PiEventResult")

    async def work(executor: Executor) -> None:
        assert sorted(await asyncio.gather(*(executor.run("work") for _ in range(20)))) == list(
            range(1, 21)
        )
        keep_events(scene, "mine", *ended)
        keep_events(scene, "other", "PiEventStart")
        keep_events(scene, "mine", *ended[:2])
        events = executor.events("mine")
        first = [(await anext(events))["type"] for _ in range(6)]
        assert first == [*ended, *ended[:2]]
        keep_events(scene, "mine", *ended[2:])
        assert [each["type"] async for each in events] == list(ended[2:])
        keep_events(scene, "mine", "PiFailureNoSuchInstance")
        found = [each["type"] async for each in executor.events("mine")]
        assert found == [*ended, *ended, "PiFailureNoSuchInstance"]

    with scene.executor() as executor:
        asyncio.run(asyncio.wait_for(work(executor), WAIT))


def test_events_that_cannot_be_read_are_an_error(scene: Scene) -> None:
    """The iteration raises it."""

    async def work(executor: Executor) -> None:
        scene.errors = ["flow.results-0: Broker: Topic authorization failed"]
        with pytest.raises(KafkaAccessError):
            await anext(executor.events("mine"))

    with scene.executor() as executor:
        asyncio.run(asyncio.wait_for(work(executor), WAIT))
