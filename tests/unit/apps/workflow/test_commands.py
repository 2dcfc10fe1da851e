"""headrace workflow run, start, result and show: what needs no broker."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
import yaml
from typer.testing import CliRunner

from headrace.apps.workflow import (
    Call,
    Choice,
    Input,
    Loop,
    Map,
    Parallel,
    Sequence,
    Sleep,
    Try,
    Wait,
)
from headrace.apps.workflow.daemon_config import WorkflowNode
from headrace.apps.workflow.instances import Instances
from headrace.apps.workflow.messages import signal_message
from headrace.apps.workflow.reducer import WorkflowReducer, phase_of
from headrace.apps.workflow.selection import Selection
from headrace.apps.workflow.term_tree import drawn
from headrace.apps.workflow.topics import Topics
from headrace.cli import app
from headrace.config import ChannelConfig, Config
from headrace.core.errors import StartError
from headrace.processors.factory import build_processor
from tests.unit.apps.workflow.test_definitions import workflows
from tests.unit.apps.workflow.test_reducer import Flow, reducer

if TYPE_CHECKING:
    from pathlib import Path

_TERM = Sequence(
    inspect=Call("a"),
    ready=Parallel(fuel=Call("b").limited(attempts=2), cabin=Loop(Call("c"), times=3)),
    board=Choice(Input("v"), {"on": Call("d"), "off": Call("a")}),
)


def drawing(flow: Flow) -> list[str]:
    """Return the drawing of the instance."""
    return drawn("i", flow.test.state("i"))


def test_an_instance_is_drawn_with_done_open_and_failed_calls() -> None:
    """The drawing has attempts, iterations, and the case that a choice took."""
    flow = Flow(reducer(_TERM)).start("i", v="on").ret("i", "0.inspect").ret("i", "0.inspect")
    flow.fail("i", "0.ready.fuel", final=False)
    assert "│ ├ fuel: call b   waits for attempt 2 of 2" in drawing(flow)
    flow.test.tick(flow.now + 1_000)
    flow.now += 1_000
    flow.ret("i", "0.ready.cabin[0]")
    assert drawing(flow) == [
        "i  w@1  open, calls made: 5, started 1970-01-01T00:00:00Z",
        "sequence",
        "├ inspect: call a  done",
        "├ ready: parallel",
        "│ ├ fuel: call b   open, attempt 2 of 2",
        "│ └ cabin: loop    1 iterations done",
        "│   └ [1]: call c  open, attempt 1 of 3",
        "└ board: choice",
        "  ├ on: call d",
        "  └ off: call a",
        "passed over: duplicate 1",
    ]
    flow.ret("i", "0.ready.cabin[1]").ret("i", "0.ready.cabin[2]")
    flow.ret("i", "0.ready.fuel", attempt=2).fail("i", "0.board.on", "nobody is there")
    assert drawing(flow) == [
        "i  w@1  PiFailureExceptions, calls made: 7, started 1970-01-01T00:00:00Z",
        "sequence",
        "├ inspect: call a  done",
        "├ ready: parallel  done",
        "│ ├ fuel: call b   done",
        "│ └ cabin: loop    done",
        "│   └ [2]: call c  done",
        "└ board: choice",
        "  └ on: call d     failed",
        "failed: 0.board.on, attempt 1: nobody is there",
        "passed over: duplicate 1",
    ]


def test_maps_waits_and_what_is_undone_are_drawn() -> None:
    """The drawing has items, what is waited for, and what is done, to be undone, and undone."""
    term = Sequence(
        legs=Map(Input("legs"), Call("a")),
        ok=Wait("go", timeout=5),
        trip=Try(Sequence(x=Call("b").undone_by(Call("d")), y=Call("c")), Call("d")),
    )
    flow = Flow(reducer(term)).start("i", legs=[1, 2]).ret("i", "0.legs[0]")
    assert drawing(flow)[1:] == [
        "sequence",
        "├ legs: map",
        "│ ├ [0]: call a     done",
        "│ └ [1]: call a     open, attempt 1 of 3",
        "├ ok: wait for go",
        "└ trip: try",
        "  ├ body: sequence",
        "  │ ├ x: call b",
        "  │ └ y: call c",
        "  └ catch: call d",
    ]
    flow.ret("i", "0.legs[1]")
    assert "├ ok: wait for go   waits until 1970-01-01T00:00:05Z" in drawing(flow)
    flow.send("i", signal_message("i", "go", 1, "id")).ret("i", "0.trip.body.x")
    assert "  │ ├ x: call b     done, to be undone" in drawing(flow)
    flow.fail("i", "0.trip.body.y")
    assert drawing(flow)[3:] == [
        "├ ok: wait for go   done",
        "└ trip: try         undoing",
        "  ├ body: sequence",
        "  │ ├ x: call b     is being undone",
        "  │ └ y: call c     failed",
        "  └ catch: call d",
    ]
    flow.ret("i", "0.trip.body.x.undo").ret("i", "0.trip.catch")
    assert drawing(flow)[-1] == "calls that were undone 1"


def test_a_sleep_that_is_longer_than_there_are_dates_is_drawn() -> None:
    """The last moment that there is stands for its end."""
    flow = Flow(reducer(Sleep(Input("s"))), now=5_000).start("i", s=253_402_300_799)
    assert drawing(flow)[-1].endswith("waits until 9999-12-31T23:59:59Z")


def test_a_workflow_that_is_called_is_drawn_within_and_an_unknown_one_not() -> None:
    """An instance without a term is drawn with its error."""
    found = workflows("a")
    found.define("inner", 1, Call("a"))
    found.define("w", 1, Call("inner"))
    flow = Flow(WorkflowReducer(found.check())).start("i")
    assert drawing(flow)[1:] == ["inner@1", "└ call a  open, attempt 1 of 3"]
    message = {"type": "Start", "instance": "i", "definition": "w@7", "args": {}}
    assert drawing(Flow(reducer(Call("a"))).send("i", message))[1:] == [
        "failed: 0: the reducer has no workflow 'w@7'; it has w@1"
    ]


def test_instances_are_counted_by_phase_and_the_oldest_listed() -> None:
    """With the sums of what is in flight and of how attempts have ended, as text and as JSON."""
    flow = Flow(reducer(_TERM)).start("first", v="on").start("second", v="on").start("third")
    flow.start("last", v="off").fail("first", "0.inspect").ret("second", "0.inspect")
    names = ("first", "second", "third", "last")
    found = Instances({name: phase_of(flow.test.state(name)) for name in names})
    document = found.document(oldest=2)
    assert document["phases"] == {
        "open": 3, "failing": 0, "undoing": 0, "completed": 0, "failed": 1, "cancelled": 0,
    }  # fmt: skip
    assert document["amounts"] == {"calls_in_flight": 4}
    assert document["counts"]["attempts"] == 6
    assert document["oldest"] == [
        {"instance": "second", "phase": "open", "started": 2},
        {"instance": "third", "phase": "open", "started": 3},
    ]
    counts = (
        "instances started 4 · instances completed 0 · instances failed 1 · "
        "instances cancelled 0 · attempts 6 · "
        "attempts returned 1 · attempts failed 1 · attempts timed out 0 · attempts cancelled 0 · "
        "answered late 0 · passed over 0"
    )
    assert found.lines(oldest=1, now=63.0) == [
        "instances: open 3 · failing 0 · undoing 0 · completed 0 · failed 1 · cancelled 0",
        "calls in flight 4",
        counts,
        "second  open for 1m 2s",
    ]
    assert Instances({}).document(oldest=5)["oldest"] == []
    assert Instances({}).lines(oldest=5, now=0.0)[1] == "calls in flight 0"


@pytest.mark.parametrize(
    ("selection", "names"),
    [
        (Selection(), "failed open done"),
        (Selection("w"), "failed open done"),
        (Selection("w@2"), ""),
        (Selection("v"), ""),
        (Selection(phases=frozenset({"open"})), "open"),
        (Selection(phases=frozenset({"failed", "completed"})), "failed done"),
        (Selection(older_than=1.998), "failed open"),
        (Selection(older_than=9.0), ""),
        (Selection(args={"x": "7"}), "open"),
        (Selection(args={"x": "7", "y": "de"}), "open"),
        (Selection(args={"y": '"de"'}), "open"),
        (Selection(args={"x": "8"}), ""),
        (Selection(args={"z": "7"}), ""),
    ],
)
def test_instances_are_selected(selection: Selection, names: str) -> None:
    """Definition, phase, age and the arguments of open ones decide, as text or JSON."""
    flow = Flow(reducer(Call("a", x=Input("x"), y=Input("y"))))
    flow.start("failed", "open", "done", x=7, y="de").fail("failed", "0").ret("done", "0")
    there = ("failed", "open", "done")
    taken = [each for each in there if selection.takes(flow.test.state(each), 2.001)]
    assert taken == names.split()


@pytest.mark.parametrize(
    ("role", "channels"),
    [
        ("both", {"workflow", "assignments"}),
        ("reducer", {"workflow"}),
        ("worker", {"assignments"}),
    ],
)
def test_the_configuration_of_a_node_is_one(role: str, channels: set[str], tmp_path: Path) -> None:
    """It is what ``headrace run`` takes, with what the command line says."""
    line = ["run", "--workflows", "a:b", "--brokers", "k:9092", "--zookeeper", "z:2181"]
    line += ["--name", "flow", "--role", role, "--threads", "7", "-X", "client.id=me"]
    line += ["--state-dir", str(tmp_path), "--print-config"]
    result = CliRunner().invoke(app, ["workflow", *line])
    assert result.exit_code == 0, result.output
    found = Config.model_validate(yaml.safe_load(result.stdout))
    assert set(found.channels) == channels
    assert found.kafka.properties == {"client.id": "me"}
    assert "flow" in result.stdout
    assert ("threads: 7" in result.stdout) == (role != "reducer")
    # an instance waits for it at each step
    assert {each.batch.linger for each in found.channels.values()} == {0.005}


@pytest.mark.parametrize("role", ["both", "worker"])
def test_a_reducer_writes_the_history_that_is_asked_for(role: str, tmp_path: Path) -> None:
    """To a topic of its own; a worker has none."""
    line = ["run", "--workflows", "a:b", "--brokers", "k:9092", "--name", "flow", "--role", role]
    line += ["--history", "--state-dir", str(tmp_path), "--print-config"]
    result = CliRunner().invoke(app, ["workflow", *line])
    assert result.exit_code == 0, result.output
    channels = yaml.safe_load(result.stdout)["channels"]
    if role == "worker":
        assert "history" not in result.stdout
        return
    outputs = channels["workflow"]["sink"]["outputs"]
    assert outputs["history"] == {"type": "kafka", "topic": "flow.history"}
    assert channels["workflow"]["processor"]["options"] == {"workflows": "a:b", "history": True}


@pytest.mark.parametrize(
    ("history", "left_out", "words"),
    [
        (False, "results", "writes to 'results', and the outputs are assignments, outcomes;"),
        (True, "history", "writes to 'history', and the outputs are assignments, results, "),
    ],
)
def test_a_channel_without_an_output_of_the_reducer_is_not_started(
    history: bool, left_out: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the output; each start would be a dead letter otherwise."""
    module: Any = ModuleType("flows_without_output")
    module.flows = workflows("a")
    monkeypatch.setitem(sys.modules, "flows_without_output", module)
    node = WorkflowNode("flows_without_output:flows", "k:9092", Topics(), tmp_path, history=history)
    document = node.configuration()["channels"]["workflow"]
    del document["sink"]["outputs"][left_out]
    channel = ChannelConfig.model_validate(document)
    with pytest.raises(StartError, match=words):
        build_processor(channel, no_spark, "m", None, tmp_path)


def no_spark() -> NoReturn:
    """Fail: engine arrow takes no Spark."""
    raise AssertionError("engine: arrow takes no Spark")


_PLACE = ["--brokers", "x"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["start", "w"], "'--workflows'"),
        (["start", "w", "--workflows", "no_such:flows", *_PLACE], "no module 'no_such'"),
        (["start", "w", "--workflows", "json:dumps", *_PLACE], "'json:dumps' is a function"),
        (["start", "w", "--workflows", "a:b", *_PLACE, "--args", "{"], "'{' is no JSON"),
        (["start", "w", "--workflows", "a:b", *_PLACE, "--args", "[]"], "'[]' is no object"),
        (["run", "--workflows", "no_such:flows", *_PLACE], "no module 'no_such'"),
        (["result", "i", "--brokers", "x:y:z"], "is not a server as host:port"),
        (["result", "i", *_PLACE, "-X", "foo"], "'foo' is not NAME=VALUE"),
        (["show", "i", *_PLACE, "-X", "foo=1"], "foo: is no property"),
        (["list", *_PLACE, "--older-than", "old"], "'old' is no duration; take one such as 90s"),
        (["list", *_PLACE, "--args", "x"], "'x' is not NAME=VALUE"),
        (["list", *_PLACE, "--phase", "lost"], "'lost' is not one of"),
        (["signal", "i", "a b", *_PLACE], "'a b' cannot be the name of a signal"),
        (["signal", "i", "go", *_PLACE, "--value", "{"], "'{' is no JSON"),
        (["cancel", *_PLACE, "i"], "'--reason'"),
        (["cancel", *_PLACE, "--reason", "r"], "give the ids of instances, or options that"),
        (["cancel", *_PLACE, "--reason", "r", "i", "--phase", "open"], "give the ids of instances"),
        (["cancel", *_PLACE, "--reason", "r", "i" * 501], "cannot be an instance's"),
    ],
)
def test_a_command_line_that_cannot_be_used_is_refused(line: list[str], words: str) -> None:
    """With 2, before anything is sent; the message names the value."""
    none: dict[str, Any] = {"WORKFLOWS": None, "WORKFLOW_BROKERS": None}
    result = CliRunner().invoke(app, ["workflow", *line], env=none)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
