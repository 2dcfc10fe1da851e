"""headrace collector create, done and watch: what needs no broker."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from headrace.apps.collector import commands, group_of
from headrace.apps.collector.commands import ReadProgress, create_event, done_event, follow
from headrace.apps.collector.strict import CreateEvent, DoneEvent, read
from headrace.cli import app
from headrace.core.records import TopicPartition
from headrace.keyed import Event

_SUCCESS = b'{"type":"EventGroupCollectorSuccess","id":"g"}'
_FAILURE = b'{"type":"EventGroupCollectorFailure","id":"h"}'


def test_the_events_that_commands_produce_are_the_collector_s() -> None:
    """Read as the reducer reads them, with their group as the key."""
    create = create_event("g", ["b", "a"], ttl=5, need=None, fail_fast=False, payload=None)
    done = done_event("g", "a", result={"n": 1}, error="no space")
    assert {group_of(Event(each, 0, "t", 0, 0)) for each in (create, done)} == {"g"}
    assert read("g", create) == CreateEvent(("a", "b"), 5, 2, False, None, {})
    assert read("g", done) == DoneEvent("a", {"n": 1}, "no space")


@pytest.mark.parametrize(
    ("group", "code", "printed"),
    [(None, 0, [_SUCCESS, _FAILURE]), ("g", 0, [_SUCCESS]), ("h", 1, [_FAILURE]), ("i", 4, [])],
)
def test_outcomes_are_printed_until_that_of_the_group(
    group: str | None, code: int, printed: list[bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    """Other events, tombstones and what is no JSON are passed over; the exit code tells them."""
    created = json.dumps(create_event("g", [])).encode()
    assert follow([None, b"\xff", b"[1]", b"7", created, _SUCCESS, _FAILURE], group) == code
    assert capsys.readouterr().out.encode().split() == printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["done", "g", "a"], "'--brokerlist'"),
        (["done", "g", "a", "-brokerlist", "x:y:z"], "is not a server as host:port"),
        (["done", "g", "a", "-brokerlist", "x", "-X", "foo"], "'foo' is not NAME=VALUE"),
        (["done", "g", "a", "-brokerlist", "x", "-X", "foo=1"], "foo: is no property"),
        (["done", "g", "a", "-brokerlist", "x", "--result", "{"], "'{' is no JSON"),
        (["create", "g", "-brokerlist", "x", "--payload", "a"], "'a' is no JSON"),
    ],
)
def test_a_command_line_that_cannot_be_used_is_refused(arguments: list[str], words: str) -> None:
    """With 2, before anything is sent; the message names the value."""
    result = CliRunner().invoke(app, ["collector", *arguments], env={"COLLECTOR_BROKERLIST": None})
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())


def test_watch_says_once_that_it_is_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    """When each partition's end was reached, and what it waits for then."""
    one, other = TopicPartition("t", 0), TopicPartition("t", 1)
    progress = ReadProgress("t", "g")
    progress.begin({one: (0, 5), other: (3, 3)})
    progress.took(0, [other])
    progress.took(4, [])
    assert capsys.readouterr().err == ""
    progress.took(1, [one])
    progress.took(1, [one, other])
    assert capsys.readouterr().err == "t was read to its end; waiting for that of group 'g'\n"


def test_watch_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Now and then, while it reads what there is."""
    monkeypatch.setattr(commands, "_PROGRESS_INTERVAL", 0.0)
    progress = ReadProgress("t", None)
    progress.begin({TopicPartition("t", 0): (10, 50)})
    progress.took(7, [])
    progress.took(5, [])
    said = ["t: 7 of 40 records read", "t: 12 of 40 records read"]
    assert capsys.readouterr().err.splitlines() == said
