"""Which topics a channel's entries take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from headrace.config import StaticCoordinatorConfig
from headrace.config.subscription import Subscription
from tests.unit.config.support import CHANNELS, channel, loaded

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("pattern", "topic", "taken"),
    [
        (r"^flights\.", "flights.eu", True),
        (r"^flights\.", "flights-eu", False),
        (r"^flights\.", "old.flights.eu", False),
        ("^flights", "flights", True),
        ("^flights$", "flights", True),
        ("^flights$", "flights.eu", False),
        ("^a|b", "bc", True),
        ("^a|b", "cb", False),
        ("^.*", "_audit", True),
        ("^.*", "__consumer_offsets", False),
        ("^__", "__consumer_offsets", False),
    ],
)
def test_a_pattern_takes_names_that_begin_as_it_says(pattern: str, topic: str, taken: bool) -> None:
    """The beginning decides, a dollar sign asks for the end, and internal topics are left out."""
    subscription = Subscription((pattern,))
    assert subscription.matches(topic) is taken
    assert subscription.covers(topic) is taken
    assert subscription.fruitless([topic]) == (() if taken else (pattern,))


def test_names_and_patterns_are_told_apart() -> None:
    """A name takes itself and nothing else, whatever its dots may look like."""
    subscription = Subscription(("a.b", "^c", "__mine"))
    assert subscription.names == ("a.b", "__mine")
    assert subscription.patterns == ("^c",)
    covered = [t for t in ("a.b", "axb", "a.bc", "cd", "__mine") if subscription.covers(t)]
    assert covered == ["a.b", "cd", "__mine"]
    assert str(subscription) == "a.b, ^c, __mine"


def test_patterns_and_names_mix_in_a_file(tmp_path: Path) -> None:
    """Backslash and dollar sign need no escape in single quotes."""
    text = CHANNELS.replace("[flights]", r"[flights, '^alerts\.[a-z]+$']")
    assert loaded(tmp_path, text).channels["flights"].topics == ("flights", r"^alerts\.[a-z]+$")


def test_static_lists_name_topics_that_a_pattern_takes() -> None:
    """A listed topic is named or matched; the lists themselves hold names only."""
    lists = {"type": "static", "partitions": {"flights": [0], "alerts.eu": [1]}}
    built = channel(topics=["flights", r"^alerts\."], coordinator=lists)
    assert isinstance(built.coordinator, StaticCoordinatorConfig)
    with pytest.raises(ValidationError, match=r"alerts\.eu.* reads flights, \^x"):
        channel(topics=["flights", "^x"], coordinator=lists)
    with pytest.raises(ValidationError):
        channel(topics=["^x"], coordinator={"type": "static", "partitions": {"^x": [0]}})
