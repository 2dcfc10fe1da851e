"""headrace collector create, done and watch: what needs no broker."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from headrace.apps.collector import group_of
from headrace.apps.collector.commands import create_event, done_event, follow
from headrace.apps.collector.strict import Create, Done, read
from headrace.cli import app
from headrace.keyed import Event

_SUCCESS = b'{"type":"EventGroupCollectorSuccess","id":"g"}'
_FAILURE = b'{"type":"EventGroupCollectorFailure","id":"h"}'


def test_the_events_that_commands_produce_are_the_collector_s() -> None:
    """Read as the reducer reads them, with their group as the key."""
    create = create_event("g", ["b", "a"], ttl=5, need=None, fail_fast=False, payload=None)
    done = done_event("g", "a", result={"n": 1}, error="no space")
    assert {group_of(Event(each, 0, "t", 0, 0)) for each in (create, done)} == {"g"}
    assert read("g", create) == Create(("a", "b"), 5, 2, False, None, {})
    assert read("g", done) == Done("a", {"n": 1}, "no space")


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
