"""A report as JSON and as tables."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from headrace.coordinators.member_info import AssignmentMode, MemberInfo
from headrace.ops.console import duration
from headrace.ops.groups.commands import document, findings, show, text
from tests.unit.coordinators.group import PATHS, TOPIC, partition

if TYPE_CHECKING:
    from tests.unit.ops.groups.scene import Scene


@pytest.fixture
def busy(scene: Scene) -> Scene:
    """Two static members whose lists overlap, one that cannot be read, and a lag."""
    static = MemberInfo(frozenset({TOPIC}), AssignmentMode.STATIC, lists={TOPIC: (0, 1, 9)})
    scene.group.join("a", static)
    scene.group.join("b", replace(static, lists={TOPIC: (1, 2)}))
    scene.group.run()
    scene.group.zookeeper.put(PATHS.member("x"), b'{"version":2}')
    for number in range(4):
        scene.broker.produce(partition(number), *[b""] * 10)
        scene.commit(number, 4 + number)
    return scene


def test_the_keys_of_the_json_are_stable(busy: Scene) -> None:
    """Scripts find what they found before; a change of this test is a change for them."""
    found = json.loads(json.dumps(document(busy.look())))
    assert list(found) == [
        "channel", "group", "taken_at", "state", "members", "partitions", "unowned", "pending",
        "moving", "contended", "missing", "foreign", "modes", "mixed_modes",
        "members_without_tasks", "members_without_warm", "unknown_topics", "errors", "notes",
    ]  # fmt: skip
    assert list(found["members"][0]) == [
        "name", "host", "pid", "software", "since", "mode", "topics", "weight",
        "partitions_per_topic", "lists", "draining", "owned", "problem",
    ]  # fmt: skip
    assert list(found["partitions"][0]) == [
        "topic", "partition", "state", "owner", "member", "epoch", "claimed_at", "claim_age_s",
        "last_owner", "clean_end", "committed_offset", "committed_in", "log_start", "log_end",
        "lag", "notes",
    ]  # fmt: skip


def test_the_json_has_every_finding(busy: Scene) -> None:
    """Findings name topic, partition and member."""
    found = document(busy.look())
    assert found["contended"] == [{"topic": TOPIC, "partition": 1, "members": ["a", "b"]}]
    assert found["missing"] == [{"topic": TOPIC, "partition": 9, "member": "a"}]
    assert found["unowned"] == [{"topic": TOPIC, "partition": 3}]
    assert [each["lag"] for each in found["partitions"]] == [6, 5, 4, 3]
    unreadable = found["members"][2]
    assert unreadable["mode"] is None
    assert "format version 2" in unreadable["problem"]
    assert unreadable["owned"] == 0


def test_findings_can_be_grepped(busy: Scene) -> None:
    """The kind and the name come first, then keys with values, each in one line."""
    assert list(findings(document(busy.look()), {"channel": "main"})) == [
        f"unowned {TOPIC}-3 channel=main",
        f"contended {TOPIC}-1 channel=main members=a,b",
        f"missing {TOPIC}-9 channel=main member=a",
    ]
    apart = document(replace(busy.look(), without_tasks=("b",)))
    assert list(findings(apart, {}))[-1] == "member_without_tasks b"
    cold = document(replace(busy.look(), without_warm=("b",)))
    assert list(findings(cold, {}))[-1] == "member_without_warm b"


def test_values_keep_a_line_in_one_piece() -> None:
    """A text with blanks, quotes or line breaks is written as a JSON string."""
    assert [text(None), text(""), text(True), text(7), text(["a", "b"])] == [
        "-", "-", "yes", "7", "a,b",
    ]  # fmt: skip
    assert text("two words\n") == '"two words\\n"'
    assert text("k=v") == '"k=v"'


def test_tables_show_the_same(busy: Scene) -> None:
    """Members, partitions and findings, for people; brackets in names are not markup."""
    output = io.StringIO()
    show(replace(busy.look(), channel="[bold]"), Console(file=output, width=200))
    shown = output.getvalue()
    assert shown.startswith("[bold] group group · running · lag 18 · ")
    assert f"{TOPIC}-3" in shown
    assert "no clean end" not in shown
    assert f"contended {TOPIC}-1 members=a,b" in shown


def test_tables_of_a_stopped_group(busy: Scene) -> None:
    """How the last claims ended stands where their age stood."""
    for participant in busy.group.participants:
        busy.group.crash(participant)
    busy.group.zookeeper.remove(PATHS.member("x"))
    output = io.StringIO()
    show(busy.look(), Console(file=output, width=200))
    assert "stopped: no members" in output.getvalue()
    assert output.getvalue().count("no clean end") == 3


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0s"), (61, "1m 1s"), (7325, "2h 2m"), (180000, "2d 2h")]
)
def test_durations_have_two_units(seconds: int, shown: str) -> None:
    """The larger two tell enough."""
    assert duration(seconds) == shown
