"""Workflows with a real broker and daemons, which are killed on the way."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
import yaml

from headrace.apps.workflow import DefinitionError
from headrace.apps.workflow.daemon_config import NodeRole, WorkflowNode
from headrace.apps.workflow.errors import NoOutcomeError, WorkflowFailedError
from headrace.apps.workflow.executor import Executor, ResultsListener
from headrace.apps.workflow.selection import Selection
from headrace.apps.workflow.topics import Topics, create_topics
from headrace.core.clock import Deadline
from headrace.core.imports import load_object
from headrace.devstack.wait import wait_for
from headrace.kafka.clients import properties_of
from tests.integration.apps import executor_killed
from tests.integration.daemon.conftest import broker, site
from tests.integration.daemon.rig import wait_at_work
from tests.kafka_sinks import committed_records

if TYPE_CHECKING:
    from pathlib import Path

    from tests.brokers import Broker
    from tests.integration.daemon.rig import Daemon, Site

__all__ = ["broker", "site"]

#: Seconds that the instances of a test may take, three times as many where processes are at work.
WAIT = 90.0

#: Fewer lines cannot be: staging and committing several times, the store, and a worker.
LINES = 300

_CODE = '''
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

from headrace.apps.workflow import Call, CallFailedError, Input, Item, Map, Parallel, Result
from headrace.apps.workflow import Sequence, Sleep, Try, Wait, Workflows

flows = Workflows()
LEDGER = Path(__file__).with_name("ledger.db")


def apply(call):
    """Count the call, and have its effect unless it has had it."""
    with closing(sqlite3.connect(LEDGER, timeout=60)) as ledger, ledger:
        ledger.execute("INSERT INTO calls VALUES (?)", (call.key,))
        done = ledger.execute("INSERT OR IGNORE INTO applied VALUES (?)", (call.call,)).rowcount
        ledger.execute(
            "INSERT INTO effects VALUES (?, ?, ?) "
            "ON CONFLICT (instance, process) DO UPDATE SET times = times + ?",
            (call.instance, call.process, done, done),
        )


@flows.process
def inspect(call, n):
    apply(call)
    return {"n": n}


@flows.process
def refuel(call, n):
    apply(call)
    return n


@flows.process
def clean(call):
    apply(call)


@flows.process
def board(call, n, fuel):
    apply(call)
    if n % 10 == 9:
        raise CallFailedError("cancelled")
    return fuel * 2


@flows.process
def hang(call):
    if call.attempt == 1:
        time.sleep(600)
    return call.attempt


@flows.process
def hold(call):
    while not Path(__file__).with_name("go").exists() and not call.cancelled.is_set():
        time.sleep(0.02)


flows.define("turnaround", 1, Sequence(
    inspect=Call("inspect", n=Input("n")),
    ready=Parallel(fuel=Call("refuel", n=Result("inspect.n")), cabin=Call("clean")),
    board=Call("board", n=Input("n"), fuel=Result("ready.fuel")),
))
@flows.process
def flaky(call):
    apply(call)
    if call.attempt == 1:
        raise ValueError("not at once")


@flows.process
def tardy(call, n):
    if call.attempt == 1 and n % 10 == 0:
        call.cancelled.wait(60)
    else:
        apply(call)


@flows.process
def refuse(call, n):
    apply(call)
    if n % 3 == 0:
        raise CallFailedError("refused")


@flows.process
def linger(call, n):
    if n % 3 == 0:
        call.cancelled.wait(2)
    else:
        apply(call)


flows.define("rough", 1, Sequence(
    flaky=Call("flaky"),
    tardy=Call("tardy", n=Input("n")).limited(timeout=5, attempts=60),
    end=Parallel(no=Call("refuse", n=Input("n")), open=Call("linger", n=Input("n"))),
), policy="fail_fast", timeout=300, backoff=0.2)
@flows.process
def undo(call, n):
    apply(call)


@flows.process
def say(call, text):
    return text


@flows.process
def report(call, by, found):
    return {"by": by, "found": found}


flows.define("approved", 1, Sequence(
    approval=Wait("approval"),
    map=Map(Input("ns"), Call("refuel", n=Item("item"))),
    end=Call("report", by=Result("approval.by"), found=Result("map")),
))
flows.define("tried", 1, Try(
    Sequence(
        Map(Input("ns"), Call("refuel", n=Item("item")).undone_by(
            Call("undo", n=Result("result"))
        )),
        Call("refuse", n=3),
    ),
    Sequence(Sleep(0.1), Call("say", text="no way")),
    kinds=("CallFailedError",),
))
flows.define("hanging", 1, Call("hang").limited(timeout=6, attempts=2))
flows.define("held", 1, Call("hold"))
flows.define("uneven", 1, Parallel(
    slow=Call("hold"), inspect=Call("inspect", n=1), fuel=Call("refuel", n=1), cabin=Call("clean"),
))
'''


class Plant:
    """Topics, code, a ledger of effects and the nodes of one test."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site = site
        self.brokers = site.broker.address
        self.topics = Topics(f"flow-{uuid4().hex[:8]}")
        self.module = f"flows_{uuid4().hex[:8]}"
        (site.directory / f"{self.module}.py").write_text(_CODE, encoding="utf-8")
        monkeypatch.syspath_prepend(str(site.directory))
        self.flows = load_object(f"{self.module}:flows")
        self.ledger = site.directory / "ledger.db"
        with closing(sqlite3.connect(self.ledger)) as ledger:
            ledger.executescript(
                "PRAGMA journal_mode=WAL;"
                "CREATE TABLE calls (key TEXT);"
                "CREATE TABLE applied (call TEXT PRIMARY KEY);"
                "CREATE TABLE effects (instance TEXT, process TEXT, times INTEGER,"
                " PRIMARY KEY (instance, process));"
            )
        create_topics(properties_of(self.brokers), self.topics, partitions=2, assignments=4)

    def node(self, name: str, role: NodeRole, engine: str = "arrow") -> Daemon:
        """Return a node, not started."""
        node = WorkflowNode(
            f"{self.module}:flows",
            self.brokers,
            self.topics,
            self.site.directory / name,
            self.site.zookeeper_hosts,
            role,
            engine=engine,
            python_path=(str(self.site.directory),),
        )
        document = node.configuration() | {"instance_id": name, "metrics": {"port": 0}}
        if engine == "spark" and role is not NodeRole.WORKER:
            document["spark"] = {"master": "local[2]", "warm_up": 0}
        document["zookeeper"] |= {"session_timeout": "4s", "connect_timeout": "20s"}
        for channel in document["channels"].values():
            channel["coordinator"] = {"type": "dynamic", "rebalance_delay": "50ms"}
        return self.site.daemon(document)

    def executor(self) -> Executor:
        """Return an executor."""
        return Executor(self.flows, self.brokers, topics=self.topics)

    def outcomes(self) -> list[dict[str, Any]]:
        """Return all records of outcomes that readers of committed records see."""
        return self.written(self.topics.outcomes)

    def written(self, topic: str) -> list[dict[str, Any]]:
        """Return all records of a topic that readers of committed records see."""
        found = committed_records(self.brokers, topic)
        return [json.loads(each.value() or b"null") for each in found]

    def has_called(self, count: int) -> bool:
        """Wait until so many calls were made, for as long as the nodes are at work."""
        query = "SELECT count(*) FROM calls"
        return wait_at_work(lambda: self.rows(query)[0][0] >= count, WAIT)

    def has_ended(self, count: int) -> bool:
        """Wait until so many instances have ended, for as long as the nodes are at work."""
        return wait_at_work(lambda: len(self.outcomes()) >= count, WAIT)

    def rows(self, query: str) -> list[Any]:
        """Ask the ledger."""
        with closing(sqlite3.connect(self.ledger, timeout=60)) as ledger:
            return ledger.execute(query).fetchall()


@pytest.fixture
def plant(site: Site, monkeypatch: pytest.MonkeyPatch) -> Plant:
    """Return topics and code that nothing else uses."""
    return Plant(site, monkeypatch)


@pytest.mark.slow
def test_an_instance_is_started_heard_of_and_found_however_late(plant: Plant) -> None:
    """The starter and others get result and failure of an instance, each listener its events."""
    node = plant.node("one", NodeRole.BOTH).start()
    first: list[dict[str, Any]] = []
    with (
        ResultsListener(first.append, plant.brokers, topic=plant.topics.results),
        plant.executor() as executor,
    ):
        with pytest.raises(DefinitionError, match="n is missing"):
            executor.start("turnaround")
        done = executor.start("turnaround", {"n": 4})
        failed = executor.start("turnaround@1", {"n": 9}, instance="flight-9")
        assert executor.result(done, WAIT) == 8, node.text()
        with pytest.raises(WorkflowFailedError, match=r"flight-9 .*failed at 0\.board: cancelled"):
            executor.result(failed, WAIT)
        assert executor.start("turnaround@1", {"n": 9}, instance="flight-9") == "flight-9"
        hanging = executor.start("hanging")
        assert executor.result(hanging, WAIT) == 2
        ends = {"PiEventResult", "PiFailureExceptions"}
        wait_for(lambda: sum(e["type"] in ends for e in first) == 3, Deadline.after(WAIT))
    again: list[dict[str, Any]] = []
    listener = ResultsListener(
        again.append, plant.brokers, topic=plant.topics.results, from_beginning=True
    )
    with listener, plant.executor() as other:
        assert other.outcome("flight-9", WAIT)["msg"] == "cancelled"
        assert other.result(done, 0) == 8
        with pytest.raises(NoOutcomeError, match="instance nobody has no outcome after 0 s"):
            other.result("nobody", 0)
        assert wait_for(lambda: len(again) >= len(first), Deadline.after(WAIT))
    assert sorted(map(str, again)) == sorted(map(str, first))
    mine = [each["type"] for each in first if each["instance"] == done]
    assert Counter(mine) == {
        "PiEventStart": 1, "PiEventCall": 4, "PiEventReturn": 4, "PiEventResult": 1,
    }  # fmt: skip
    assert len(plant.outcomes()) == 3
    assert "call_abandoned" in node.text()
    node.signal(signal.SIGTERM)
    assert node.wait() == 0


def test_the_commands_start_show_and_wait(plant: Plant, tmp_path: Path) -> None:
    """A node of ``workflow run``, an instance that succeeds and one that fails, by their ids."""

    def run(*line: str) -> tuple[int, str, str]:
        return command(plant, "--brokers", plant.brokers, "--name", plant.topics.name, line=line)

    flows = ("--workflows", f"{plant.module}:flows")
    state = ("--state-dir", str(tmp_path / "node"))
    zookeeper = ("--zookeeper", plant.site.zookeeper_hosts)
    code, _, said = run("show", "nobody")
    assert (code, "has a reducer run with --name" in said) == (1, True)
    _, printed, _ = run("run", *flows, *state, *zookeeper, "--print-config")
    node = plant.site.daemon(yaml.safe_load(printed)).start()
    _, done, _ = run("start", "turnaround", *flows, "--args", '{"n": 3}')
    _, failed, _ = run("start", "turnaround@1", *flows, "--args", '{"n": 9}', "--id", "nine")
    assert failed == "nine\n"
    assert run("result", done.strip())[:2] == (0, "6\n"), node.text()
    code, printed, said = run("result", "nine")
    assert (code, printed) == (1, "")
    assert "failed at 0.board: cancelled" in said
    code, printed, _ = run("show", "nine")
    assert code == 0
    assert "└ board: call board      failed" in printed
    assert run("show", "nobody") == (
        4,
        "",
        f"there is no instance 'nobody' in {plant.topics.name}\n",
    )
    assert run("result", "nobody", "--timeout", "0")[0] == 4
    code, _, said = run("start", "turnaround@2", *flows)
    assert (code, said.count("there is no version 2 of workflow 'turnaround'")) == (2, 1)


@pytest.mark.slow
def test_instances_are_counted_by_phase_while_they_go_on(plant: Plant) -> None:
    """In metrics and by the command: open ones, calls, attempts, the pool; also after a restart."""

    def keys(phase: str) -> float | None:
        return node.metric("headrace_keyed_phase_keys", channel="workflow", phase=phase)

    def counted(name: str) -> float | None:
        return node.metric("headrace_keyed_counts_total", channel="workflow", count=name)

    def pool(state: str) -> float | None:
        return node.metric("headrace_pool_threads", channel="assignments", state=state)

    def status() -> Any:
        options = ("--brokers", plant.brokers, "--name", plant.topics.name)
        code, printed, said = command(plant, *options, line=("status", "--json"))
        assert code == 0, said
        return json.loads(printed)

    node = plant.node("one", NodeRole.BOTH).start()
    with plant.executor() as executor:
        assert executor.result(executor.start("turnaround", {"n": 1}), WAIT) == 2, node.text()
        with pytest.raises(WorkflowFailedError):
            executor.result(executor.start("turnaround", {"n": 9}), WAIT)
        hanging = executor.start("hanging")
        assert executor.result(hanging, WAIT) == 2
        # last: what comes after it in its partition would wait for it, once four batches are open
        executor.start("held", instance="held")
        in_flight = {"channel": "workflow", "amount": "calls_in_flight"}
        begun = wait_for(
            lambda: node.metric("headrace_keyed_amount", **in_flight) == 1, Deadline.after(WAIT)
        )
        assert begun, node.text()
        phases = ("open", "failing", "completed", "failed")
        assert [keys(each) for each in phases] == [1, 0, 2, 1]
        where = {"channel": "workflow", "phase": "open"}
        assert (node.metric("headrace_keyed_phase_oldest_seconds", **where) or 0) > 0
        outcomes = ("returned", "failed", "timed_out", "cancelled")
        assert [counted(f"attempts_{each}") for each in outcomes] == [8, 1, 1, 0]
        assert counted("attempts") == 11
        abandoned = wait_for(lambda: pool("busy") == 1, Deadline.after(WAIT))
        assert abandoned, node.text()
        found = status()
        assert found["phases"] == {
            "open": 1, "failing": 0, "undoing": 0, "completed": 2, "failed": 1, "cancelled": 0,
        }  # fmt: skip
        assert [each["instance"] for each in found["oldest"]] == ["held"]
        node.signal(signal.SIGKILL)
        node.wait()
        node.start()
        again = wait_for(
            lambda: [keys(each) for each in phases] == [1, 0, 2, 1] and pool("busy") == 1,
            Deadline.after(WAIT),
        )
        assert again, node.text()
        assert counted("attempts") == 0
        (plant.site.directory / "go").touch()
        executor.result("held", WAIT)
        over = wait_for(lambda: (keys("open"), keys("completed")) == (0, 3), Deadline.after(WAIT))
        assert over, node.text()
        assert (counted("attempts_returned"), counted("instances_completed")) == (1, 1)
        assert node.metric("headrace_keyed_phase_oldest_seconds", **where) is None
    assert status()["counts"]["attempts_returned"] == 9


def test_instances_are_signalled_undone_cancelled_and_awaited(plant: Plant) -> None:
    """A node runs waits, maps and what is tried; futures and events have what becomes of them."""
    node = plant.node("one", NodeRole.BOTH).start()

    async def events(instance: str) -> list[str]:
        return [each["type"] async for each in executor.events(instance)]

    with plant.executor() as executor:
        held = executor.submit("held")
        executor.start("approved", {"ns": [1, 2]}, instance="a")
        executor.signal("a", "approval", {"by": "ann"})
        assert executor.result("a", WAIT) == {"by": "ann", "found": [1, 2]}, node.text()
        tried = executor.submit("tried", {"ns": [3, 4]})
        assert tried.result(WAIT) == "no way"
        assert executor.outcome(tried.instance, WAIT)["undone"] == 2
        cancelled = wait_for(
            lambda: executor.cancel_all(Selection("held"), "no need"), Deadline.after(WAIT)
        )
        assert cancelled == [held.instance]
        with pytest.raises(WorkflowFailedError, match=r"cancelled by .*: no need"):
            held.result(WAIT)
        found = asyncio.run(asyncio.wait_for(events("a"), WAIT))
    assert Counter(found) == {
        "PiEventStart": 1, "PiEventWait": 1, "PiEventSignal": 1, "PiEventResume": 1,
        "PiEventCall": 3, "PiEventReturn": 3, "PiEventResult": 1,
    }  # fmt: skip
    effects = plant.rows("SELECT process, times FROM effects WHERE process = 'undo'")
    assert effects == [("undo", 2)]


def test_quick_calls_are_made_once_beside_one_that_outlasts_its_batch(plant: Plant) -> None:
    """Batches time out and come again, several times; what they have answered is not called."""
    node = plant.node("one", NodeRole.BOTH)
    node.document["channels"]["assignments"] |= {"batch_timeout": "1s", "retry": {"backoff": 0}}
    node.start()
    names = [f"uneven-{number}" for number in range(3)]
    with plant.executor() as executor:
        executor.start_all("uneven", [(name, {}) for name in names])
        error = {
            "channel": "assignments",
            "topic": plant.topics.assignments,
            "error": "BatchTimeoutError",
        }

        def timed_out() -> bool:
            return (node.metric("headrace_processor_errors_total", **error) or 0) >= 4

        assert wait_for(timed_out, Deadline.after(WAIT)), node.text()
        (plant.site.directory / "go").touch()
        for name in names:
            executor.result(name, WAIT)
    calls = Counter(key for (key,) in plant.rows("SELECT key FROM calls"))
    assert len(calls) == 3 * len(names)
    assert set(calls.values()) == {1}


def command(plant: Plant, *options: str, line: tuple[str, ...]) -> tuple[int, str, str]:
    """Run a command in the folder of the code; return its exit code and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "workflow", *line, *options],
        capture_output=True,
        check=False,
        cwd=plant.site.directory,
        text=True,
        timeout=WAIT,
    )
    return done.returncode, done.stdout, done.stderr


def test_an_error_of_a_handler_ends_its_listener(plant: Plant) -> None:
    """It is raised when the listener is closed, and nothing else is harmed."""
    plant.node("one", NodeRole.BOTH).start()
    seen: list[Any] = []

    def handler(event: Any) -> None:
        seen.append(event)
        raise ValueError("not this")

    listener = ResultsListener(handler, plant.brokers, topic=plant.topics.results)
    with plant.executor() as executor:
        assert executor.result(executor.start("turnaround", {"n": 1}), WAIT) == 2
    assert wait_for(lambda: listener.error, Deadline.after(WAIT))
    with pytest.raises(ValueError, match="not this"):
        listener.close()
    assert len(seen) == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_reducer_and_workers_killed_on_the_way_lose_and_repeat_nothing(
    plant: Plant, engine: str
) -> None:
    """Each instance has one outcome, the right one, and each call had its effect once."""
    count = 400
    reducer = plant.node("reducer", NodeRole.REDUCER, engine).start()
    workers = [plant.node(name, NodeRole.WORKER).start() for name in ("first", "second")]
    names = [f"i{number}" for number in range(count)]
    with plant.executor() as executor:
        args = [(name, {"n": number}) for number, name in enumerate(names)]
        executor.start_all("turnaround", args)
        for share, victim in (
            (0.1, workers[0]), (0.3, reducer), (0.5, workers[1]), (0.7, reducer),
        ):  # fmt: skip
            assert plant.has_called(int(share * 4 * count)), reducer.text() + workers[0].text()
            victim.signal(signal.SIGKILL)
            victim.wait()
            victim.start()
        assert plant.has_ended(count), reducer.text() + workers[0].text() + workers[1].text()
        late = executor.start("turnaround", {"n": 1})
        assert executor.result(late, WAIT) == 2
    outcomes = plant.outcomes()
    kinds = {each["instance"]: each["type"] for each in outcomes}
    assert len(kinds) == len(outcomes) == count + 1
    for number, name in enumerate(names):
        failed = number % 10 == 9
        assert kinds[name] == ("PiFailureExceptions" if failed else "PiEventResult")
    effects = plant.rows("SELECT times, count(*) FROM effects GROUP BY times")
    assert effects == [(1, 4 * (count + 1))]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_failures_time_outs_and_cancels_come_once_after_any_kill(plant: Plant) -> None:
    """Second attempts, calls that hang, and those beside one that fails fast: one outcome each."""
    count = 60
    reducer = plant.node("reducer", NodeRole.REDUCER).start()
    workers = [plant.node(name, NodeRole.WORKER).start() for name in ("first", "second")]
    names = {f"i{number}": number for number in range(count)}
    with plant.executor() as executor:
        executor.start_all("rough", [(name, {"n": number}) for name, number in names.items()])
        for share, victim in (
            (0.3, reducer), (0.8, workers[0]), (1.5, workers[1]), (2.2, reducer), (3.0, reducer),
        ):  # fmt: skip
            assert plant.has_called(int(share * count)), reducer.text() + workers[0].text()
            victim.signal(signal.SIGKILL)
            victim.wait()
            victim.start()
        assert plant.has_ended(count), reducer.text() + workers[0].text() + workers[1].text()
    outcomes = {each["instance"]: each for each in plant.outcomes()}
    assert len(outcomes) == len(plant.outcomes()) == count
    for name, number in names.items():
        found = outcomes[name]
        wanted = ("PiEventResult", None) if number % 3 else ("PiFailureExceptions", "0.end.no")
        assert (found["type"], found.get("ref")) == wanted, found
    assigned = plant.written(plant.topics.assignments)
    made = Counter(_attempt_of(each) for each in assigned if each["type"] == "Assignment")
    cancelled = Counter(_attempt_of(each) for each in assigned if each["type"] == "Cancel")
    assert set(made.values()) == set(cancelled.values()) == {1}
    assert cancelled.keys() <= made.keys()
    events = plant.written(plant.topics.results)
    called = Counter(_attempt_of(each) for each in events if each["type"] == "PiEventCall")
    assert called == made
    assert Counter(instance for instance, *_ in made) == {
        name: outcome["calls"] for name, outcome in outcomes.items()
    }
    kind = "PiFailureAtomicProcessException"
    failed = Counter(_attempt_of(each) for each in events if each["type"] == kind)
    for name, number in names.items():
        assert failed[name, "0.flaky", 1] == made[name, "0.flaky", 2] == 1
        if number % 10 == 0:
            late = name, "0.tardy", 1
            assert failed[late] == cancelled[late] == made[name, "0.tardy", 2] == 1
    assert any(ref == "0.end.open" for _, ref, _ in cancelled)
    effects = plant.rows("SELECT process, times, count(*) FROM effects GROUP BY process, times")
    assert {(process, times) for process, times, _ in effects} == {
        (process, 1) for process in ("flaky", "tardy", "refuse", "linger")
    }
    assert {process: n for process, _, n in effects if process != "linger"} == dict.fromkeys(
        ("flaky", "tardy", "refuse"), count
    )


def _attempt_of(message: dict[str, Any]) -> tuple[str, str, int]:
    return message["instance"], message["ref"], message["attempt"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_worker_killed_at_every_line_loses_no_call_and_doubles_no_effect(tmp_path: Path) -> None:
    """Each effect is there once, each call is answered, and each instance has one outcome."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.integration.apps.worker_killed", str(tmp_path)],
        capture_output=True,
        check=False,
        text=True,
        timeout=1150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kills, _, again, *_ = done.stdout.split()
    assert int(kills) > 100
    assert int(again) > 0


@pytest.mark.parametrize(
    ("step", "at_once"),
    [
        pytest.param(83, 1, id="some", marks=pytest.mark.slow),
        pytest.param(4, 4, id="all", marks=[pytest.mark.slow, pytest.mark.timeout(2400)]),
    ],
)
def test_reducer_and_worker_killed_at_every_line_leave_one_outcome_and_each_effect_once(
    broker: Broker, tmp_path: Path, step: int, at_once: int
) -> None:
    """Stage, commit, apply, effect, answer: states and outputs are those of what counts as read."""
    members = []
    with ExitStack() as held:
        for first in range(at_once):
            folder = tmp_path / str(first)
            folder.mkdir()
            executor_killed.create(broker, folder)
            members.append(held.enter_context(killed(first, step, broker.address, folder)))
            held.callback(members[-1].kill)
        again = 0
        for each in members:
            said, complaint = each.communicate(timeout=2300)
            assert each.returncode == 0, complaint
            *looks, (_, last) = (line.split() for line in said.splitlines())
            assert int(last) > LINES
            instances, outcomes, calls_again, not_applied = map(int, looks[-1])
            assert (outcomes, not_applied) == (instances, 0)
            # one that takes longer was killed beyond the last line of the one that came to its end
            assert instances == len(looks) - 1 >= len(range(first, int(last) + 1, step))
            again += calls_again
    assert again > 0 or at_once == 1


def killed(first: int, step: int, servers: str, folder: Path) -> subprocess.Popen[str]:
    """Start processes that are killed at every so many-th line."""
    module = "tests.integration.apps.executor_killed"
    command = [sys.executable, "-m", module, str(first), str(step), servers, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_topics_are_created_once(plant: Plant, tmp_path: Path) -> None:
    """Asking again leaves them as they are."""
    assert tmp_path.exists()
    assert (
        create_topics(properties_of(plant.brokers), plant.topics, partitions=9, assignments=9) == []
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_the_demo_verifies_itself_and_leaves_nothing(tmp_path: Path, engine: str) -> None:
    """The demo's last line says that all was verified, and its folder is gone."""
    options = ["--instances", "300", "--engine", engine]
    done = subprocess.run(
        [sys.executable, "-m", "examples.workflow", *options],
        capture_output=True,
        check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
        timeout=450,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *_, last = done.stdout.splitlines()
    assert last.startswith("verified: 300 instances, 300 outcomes, 0 twice, 0 missing, ")
    assert last.endswith(" calls, 0 applied twice")
    assert done.stdout.count("SIGKILL to") == 4
    assert list(tmp_path.glob("headrace-demo-*")) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_demo_that_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    """After SIGTERM, in the middle of its start, it ends with 143, and its folder is gone."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "examples.workflow", "--instances", "300"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "the processes start" in line:
            break
    process.terminate()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert "interrupted; nothing is left running" in said
    assert list(tmp_path.glob("headrace-demo-*")) == []
