"""``headrace top``: the table of channels and partitions."""

from __future__ import annotations

import json
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from headrace.core.errors import UnreachableError
from headrace.core.records import TopicPartition
from headrace.ops.admin.top import Top
from headrace.testing import FakeClock
from tests.unit.channel.in_memory import P0, P1, eventually

if TYPE_CHECKING:
    from tests.unit.ops.admin.scene import Scene


class Process:
    """Answers with the status of a scene, or with what a test gives."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)

    def get(self, path: str) -> Any:
        """Return the next answer, or raise it."""
        assert path == "/api/v1/status"
        found = self.answers.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found


def view(**options: Any) -> tuple[Top, StringIO, FakeClock]:
    """Return a view without a terminal, and what it prints."""
    out, clock = StringIO(), FakeClock()
    console = Console(file=out, width=200, **options)
    return Top(console, partitions=1, clock=clock), out, clock


def once(top: Top, answer: Any, **options: Any) -> int:
    """Run it for one reading."""
    client: Any = Process(answer)
    return top.run(client, every=1.0, once=True, **{"as_json": False, **options})


def lagging(scene: Scene) -> Any:
    """Return the status of a process whose paused channel has records waiting."""
    channel = scene.controller.channels["member"]
    channel.pause(by="test")
    scene.controller.broker.produce(P1, *[b"x"] * 7)
    scene.controller.broker.produce(P0, b"y")

    def lags() -> list[int]:
        found = scene.get("/api/v1/status").json()["channels"][0]["partitions"]
        return [each["lag"] for each in found]

    eventually(lambda: lags() == [1, 7])
    return scene.get("/api/v1/status").json()


def test_channels_and_the_partitions_with_most_lag_are_shown(scene: Scene) -> None:
    """The numbers are those of the status; of more partitions than wanted the rest is counted."""
    top, out, _ = view()
    assert once(top, lagging(scene)) == 0
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("member · running for ")
    (channel,) = [line.split() for line in lines if line.startswith("member ") and "·" not in line]
    assert channel[:3] == ["member", "paused", "8"]
    assert channel[-3:] == ["2", "of", "2"]
    (partition,) = [line.split() for line in lines if line.startswith("events-")]
    assert partition[:3] == ["events-1", "paused", "7"]
    assert partition[-2:] == ["10", "17"]
    assert lines[-1] == "and 1 partitions with less lag"


def said(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return the one channel of the document that was printed: the channel logs there as well."""
    (line,) = (each for each in capsys.readouterr().out.splitlines() if each.startswith("{"))
    (channel,) = json.loads(line)["channels"]
    found: dict[str, Any] = channel
    return found


def test_rates_are_those_since_the_last_look(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first look has the last minute's; records that were counted from 0 again are none."""
    status = scene.get("/api/v1/status").json()
    totals = status["channels"][0]["totals"]
    totals.update(records=1000, records_per_s=3.5)
    top, _, clock = view()

    def rate() -> Any:
        once(top, status, as_json=True)
        return said(capsys)["records_per_s"]

    assert rate() == 3.5
    clock.advance(2)
    totals["records"] = 1500
    assert rate() == 250.0
    clock.advance(2)
    totals["records"] = 10
    assert rate() == 3.5


def test_json_has_the_lag_of_each_partition(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for a look, with every partition that is held."""
    top, _, _ = view()
    once(top, lagging(scene), as_json=True)
    channel = said(capsys)
    assert (channel["lag"], channel["held"], channel["partitions"]) == (8, 2, 2)
    names = [str(TopicPartition("events", number)) for number in (0, 1)]
    assert channel["lag_by_partition"] == dict(zip(names, (1, 7), strict=True))


def test_without_a_terminal_a_silent_process_ends_it(scene: Scene) -> None:
    """A script is told by the exit code."""
    del scene
    top, _, _ = view()
    client: Any = Process(UnreachableError("nobody"))
    with pytest.raises(UnreachableError):
        top.run(client, every=0.2, once=False, as_json=False)


def test_on_a_terminal_a_silent_process_is_waited_for(scene: Scene) -> None:
    """The last reading stays with its age until Ctrl-C."""
    status = scene.get("/api/v1/status").json()
    top, out, _ = view(force_terminal=True)
    client: Any = Process(status, UnreachableError("nobody answers"), status, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        top.run(client, every=0.01, once=False, as_json=False)
    shown = out.getvalue()
    assert "no answer for 0s: nobody answers" in shown
    assert shown.rindex("no answer") < shown.rindex("member")
    assert client.answers == []
