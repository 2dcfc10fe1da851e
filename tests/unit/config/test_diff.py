from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.config import ChangeKind, Config, ReloadEffect, diff
from headrace.config.show import document
from tests.unit.config.support import CHANNELS, loaded
from tests.unit.config.test_show import FULL

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.config import ConfigChange

BASE: dict[str, Any] = {"instance_id": "me", "state_dir": "/state", **yaml.safe_load(FULL)}

#: Places that are in the files below, and values that fit there.
VALUES: dict[tuple[str, ...], list[Any]] = {
    ("instance_id",): ["me", "you"],
    ("shutdown_timeout",): ["30s", "1m"],
    ("kafka", "properties"): [{}, {"a": 1}, {"a": True, "b": "x"}],
    ("logging",): [{}, {"level": "debug"}],
    ("channels", "one", "topics"): [["a", "b"], ["b", "a"], ["a", "b", "c"]],
    ("channels", "one", "coordinator"): ["dynamic", {"type": "static", "partitions": {"a": [1]}}],
    ("channels", "one", "sink"): ["noop", "console", {"type": "delta", "path": "/t"}],
    ("channels", "two", "processor", "delay"): ["0s", "1s"],
    ("channels", "three", "processor", "options"): [{}, {"a": [1, {"b": None}]}, {"a": [True]}],
    ("channels", "three", "enabled"): [True, False],
}


@st.composite
def configs(draw: st.DrawFn) -> Config:
    """Configurations that differ in a few places, also in which channels there are."""
    values = copy.deepcopy(BASE)
    for steps in draw(st.sets(st.sampled_from(list(VALUES)))):
        inner = values
        for step in steps[:-1]:
            inner = inner.setdefault(step, {})
        inner[steps[-1]] = draw(st.sampled_from(VALUES[steps]))
    for name in draw(st.sets(st.sampled_from(["two", "three"]))):
        del values["channels"][name]
    return Config.model_validate(values)


def replayed(start: Config, changes: tuple[ConfigChange, ...]) -> dict[str, Any]:
    """Make the changes in the values of ``start``."""
    values = copy.deepcopy(dict(document(start)))
    for change in changes:
        inner = values
        for step in change.steps[:-1]:
            inner = inner[step]  # type: ignore[index]  # steps lead through mappings here
        if change.kind is ChangeKind.REMOVED:
            del inner[change.steps[-1]]  # type: ignore[arg-type]  # as above
        else:
            inner[change.steps[-1]] = change.after  # type: ignore[index]  # as above
    return values


@settings(max_examples=40)
@given(configs(), configs())
def test_the_changes_lead_from_one_configuration_to_the_other(one: Config, other: Config) -> None:
    """Made in the values of the first, the changes give the values of the second."""
    assert replayed(one, diff(one, other)) == document(other)


@settings(max_examples=40)
@given(configs(), configs())
def test_changes_there_and_back_are_the_same_places(one: Config, other: Config) -> None:
    """The way back changes the same places, with before and after exchanged."""
    there = {c.path: (c.before, c.after, c.effect) for c in diff(one, other)}
    back = {c.path: (c.after, c.before, c.effect) for c in diff(other, one)}
    assert there == back


@settings(max_examples=40)
@given(configs())
def test_a_configuration_does_not_differ_from_itself(config: Config) -> None:
    """No changes lead to an equal configuration."""
    assert diff(config, Config.model_validate(document(config))) == ()


@pytest.mark.parametrize(
    ("before", "after", "path", "effect"),
    [
        ("delay: 250ms", "delay: 1s", "channels.two.processor.delay", ReloadEffect.IN_PLACE),
        ("topics: [c]", "topics: [c, d]", "channels.two.topics", ReloadEffect.TOPICS),
        (
            "topic: 2",
            "topic: 3",
            "channels.three.coordinator.partitions_per_topic",
            ReloadEffect.SHARING,
        ),
        ("group: g\n", "group: i\n", "channels.two.group", ReloadEffect.CHANNEL),
        ("spark.x: 0.5", "spark.x: 1", "spark.properties.spark.x", ReloadEffect.SPARK),
        ("crcs: true", "crcs: 1", "kafka.properties.check.crcs", ReloadEffect.CONNECTION),
        ("port: null", "port: 1", "metrics.port", ReloadEffect.PROCESS),
        ("90s", "80s", "shutdown_timeout", ReloadEffect.IN_PLACE),
    ],
)
def test_a_change_says_what_it_touches(
    tmp_path: Path, before: str, after: str, path: str, effect: ReloadEffect
) -> None:
    """Each kind of field has its effect, and true is another value than 1."""
    (change,) = diff(loaded(tmp_path, FULL), loaded(tmp_path, FULL.replace(before, after)))
    assert (change.path, change.effect) == (path, effect)


def test_changes_tell_no_secret(tmp_path: Path) -> None:
    """A changed secret is found, and neither value is shown."""
    text = "kafka: {sasl: {mechanism: PLAIN, username: me, password: %s}}" + CHANNELS
    (change,) = diff(loaded(tmp_path, text % "hunter1"), loaded(tmp_path, text % "hunter2"))
    assert change.path == "kafka.sasl.password"
    assert "hunter" not in repr(change)


def test_a_channel_is_added_as_a_whole(tmp_path: Path) -> None:
    """A channel that is only in one of the two is one change."""
    more = CHANNELS + CHANNELS.partition("channels:")[2].replace("flights", "trains").replace(
        "statistics", "others"
    )
    one, other = loaded(tmp_path, CHANNELS), loaded(tmp_path, more)
    (change,) = diff(one, other)
    assert (change.kind, change.channel, change.effect) == (
        ChangeKind.ADDED,
        "trains",
        ReloadEffect.CHANNEL,
    )
    assert [c.kind for c in diff(other, one)] == [ChangeKind.REMOVED]


@pytest.mark.parametrize(
    ("kind", "effect"), [("arrow", ReloadEffect.TOPICS), ("keyed", ReloadEffect.CHANNEL)]
)
def test_other_topics_start_a_channel_again_that_works_in_tasks(
    kind: str, effect: ReloadEffect
) -> None:
    """The channel starts again: the partitions of a task are held and restored together."""
    processor, sink = {"type": kind, "reducer": "m:f"}, {"type": "kafka", "topic": "out"}
    base = copy.deepcopy(BASE)
    channel = {"topics": ["a"], "group": "g", "coordinator": "dynamic"}
    base["channels"] = {"one": {**channel, "processor": processor, "sink": sink}}
    other = copy.deepcopy(base)
    other["channels"]["one"]["topics"] = ["a", "b"]
    (change,) = diff(Config.model_validate(base), Config.model_validate(other))
    assert (change.path, change.effect) == ("channels.one.topics", effect)


_REFERENCE = "spark: {connector: maven}\n" + CHANNELS + "    source: by_reference\n"


def test_a_section_that_does_not_exist_has_not_changed(tmp_path: Path) -> None:
    """A channel without a buffer is compared as others are, and shows its own changes alone."""
    before = loaded(tmp_path, _REFERENCE)
    assert diff(before, before) == ()
    (change,) = diff(before, loaded(tmp_path, _REFERENCE + "    workers: 7\n"))
    assert change.path == "channels.flights.workers"


def test_a_section_that_comes_into_existence_is_a_part_of_the_change(tmp_path: Path) -> None:
    """The source is among the changes, whichever way it goes."""
    by_value = loaded(tmp_path, "spark: {connector: maven}\n" + CHANNELS)
    by_reference = loaded(tmp_path, _REFERENCE)
    for before, after in ((by_value, by_reference), (by_reference, by_value)):
        assert "channels.flights.source" in {change.path for change in diff(before, after)}
