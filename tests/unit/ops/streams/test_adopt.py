"""Taking over a keyed channel's state: which rows become which, and what is refused by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace.cli import app
from headrace.config import load
from headrace.core.errors import UsageError
from headrace.extensions.keyed.api import Timer, TimerClock
from headrace.extensions.keyed.codecs import to_json
from headrace.extensions.keyed.row import TTL, KeyRow
from headrace.extensions.streams.inline.reducers import KeyState
from headrace.ops.streams.adopter import Adopter, KeyedState, adopted_row, misfits

if TYPE_CHECKING:
    from pathlib import Path

_CODE = "tests.unit.extensions.streams.programs"

_CHANNELS = """
channels:
  counts:
    topics: {topics}
    group: g
    processor: {{type: keyed, engine: arrow, reducer: '{code}:count_clicks'{more}}}
    sink: {{type: kafka, topic: out}}
topologies:
  shop: {{code: '{code}:counted_clicks', group: shop}}
  quiet: {{code: '{code}:clicks_by_user', group: quiet}}
"""


def configured(tmp_path: Path, more: str = "", topics: str = "clicks") -> Path:
    """Return a file with a channel and topologies."""
    file = tmp_path / "headrace.yaml"
    file.write_text(_CHANNELS.format(code=_CODE, more=more, topics=topics), encoding="utf-8")
    return file


def found(file: Path, name: str = "counts") -> list[str]:
    """Return why the channel's state does not fit a reducer."""
    config = load(file)
    return list(misfits(KeyedState.of(config, "counts"), Adopter.of(config, name)))


_STATES = st.none() | st.integers() | st.dictionaries(st.text(max_size=3), st.integers())


@given(state=_STATES, timers=st.dictionaries(st.sampled_from("abc"), st.integers(0, 10**15)))
def test_a_row_has_its_state_and_its_timers_as_a_topology_reads_them(
    state: Any, timers: dict[str, int]
) -> None:
    """They are the same bytes that a topology writes."""
    assume(state is not None or timers)
    data = None if state is None else to_json(state)
    row = KeyRow.of(data, {name: Timer(due, TimerClock.EVENT) for name, due in timers.items()})
    adopted = adopted_row(b"a", row)
    assert adopted.extra is None
    assert adopted.state is not None
    read = KeyState.of(adopted.state)
    assert read.timers == timers
    assert (None if read.state is None else json.loads(read.state)) == state
    assert read.row() == adopted.state


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (
            KeyRow.of(b"1", {"a": Timer(5, TimerClock.CLOCK)}),
            "key k has the timer a, which is not of event time",
        ),
        (KeyRow.of(b"1", {TTL: Timer(5, TimerClock.EVENT)}), "key k has the timer headrace.ttl"),
        (KeyRow.of(b"1", {}, "it failed"), "key k is in quarantine, .*: it failed. headrace state"),
    ],
)
def test_a_row_with_what_a_topology_has_not_is_refused(row: KeyRow, words: str) -> None:
    """The key is named, and what to do."""
    with pytest.raises(UsageError, match=words):
        adopted_row(b"k", row)


def test_a_channel_with_the_same_topic_key_and_reducer_fits(tmp_path: Path) -> None:
    """There is nothing to refuse."""
    assert found(configured(tmp_path)) == []


def test_a_channel_that_writes_its_records_by_key_fits_a_part_that_does(tmp_path: Path) -> None:
    """The key is the same field, by its name in JSON."""
    file = configured(tmp_path, ", key: value.user")
    text = file.read_text("utf-8").replace(":count_clicks", ":tell_quiet")
    more = f"  users: {{code: '{_CODE}:quiet_users', group: users}}\n"
    file.write_text(text + more, encoding="utf-8")
    assert found(file, "users.quiet") == []
    adopter = Adopter.of(load(file), "users.quiet")
    assert (adopter.part.name, adopter.reader.name) == ("users.users", "users.clicks")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (", keys: bytes", "its reducer gets keys as bytes, and that of reduce 'counts'"),
        (", encoding: string", "its states are encoded as string"),
        (", ttl: 1h", "its keys are deleted after ttl: 3600s"),
        (", value: bytes", "its values are read as bytes, and those of stream as json"),
        (", time: value.at", "its facts have the time of value.at, and those of stream of record"),
        (", key: value.user", "its key is value.user, and that of reduce 'counts' of topology"),
        (", key: constant", "its key is constant, and that of reduce 'counts' of topology"),
    ],
)
def test_a_channel_whose_state_means_something_else_is_refused(
    tmp_path: Path, more: str, words: str
) -> None:
    """The reason has what it is, and what the topology has in its place."""
    (reason,) = found(configured(tmp_path, more))
    assert words in reason


def test_a_channel_of_another_topic_is_refused(tmp_path: Path) -> None:
    """Both are named."""
    (reason,) = found(configured(tmp_path, topics="views"))
    assert reason.startswith("it reads views, and shop.clicks, for reduce 'counts' of topology")


def test_another_reducer_and_another_time_are_refused_together(tmp_path: Path) -> None:
    """Each reason is said."""
    reasons = " · ".join(found(configured(tmp_path), "quiet"))
    assert "its key is record, and that of reduce 'quiet' of topology quiet is value.u" in reasons
    assert f"its reducer is {_CODE}:count_clicks, and that of reduce 'quiet'" in reasons
    assert "its facts have the time of record, and those of stream of an expression" in reasons


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["counts", "--as", "count"], "there is no reduce of a topology by the name count; did"),
        (["shop.clicks", "--as", "counts"], "shop.clicks is of type streams; a channel of type k"),
        (["other", "--as", "counts"], "no channel other"),
        (["counts", "--as", "quiet"], "channel counts cannot be taken over by quiet: its key"),
    ],
)
def test_adopt_refuses_what_does_not_fit_without_a_broker(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    """The exit code is that of a configuration or command line that cannot be used."""
    file = configured(tmp_path)
    result = CliRunner().invoke(app, ["streams", "adopt", *arguments, "-c", str(file)])
    assert result.exit_code == 2, result.output
    assert words in " ".join(result.output.split())


def test_of_two_reducers_of_a_name_one_has_to_be_chosen(tmp_path: Path) -> None:
    """The topology's name stands before it."""
    file = configured(tmp_path)
    text = file.read_text("utf-8")
    more = f"  next: {{code: '{_CODE}:counted_clicks', group: next}}\n"
    file.write_text(text + more, encoding="utf-8")
    config = load(file)
    with pytest.raises(UsageError, match=r"choose one: shop\.counts, next\.counts"):
        Adopter.of(config, "counts")
    assert Adopter.of(config, "next.counts").part.name == "next.clicks"
