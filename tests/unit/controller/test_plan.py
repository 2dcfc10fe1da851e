from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings

from headrace.config import Config, ReloadEffect, diff
from headrace.config.diff import adopt
from headrace.controller.reload import Action, Step, plan
from tests.unit.config.test_diff import configs
from tests.unit.controller.world import CHANNEL

if TYPE_CHECKING:
    from collections.abc import Mapping


def config(**values: Any) -> Config:
    """Return a configuration of the channels ``a`` and ``b``, with ``values`` over it."""
    channels = {name: {**CHANNEL, "group": name} for name in ("a", "b")}
    least = {"instance_id": "me", "state_dir": "/state", "channels": channels}
    return Config.model_validate({**least, **values})


def channels(**of: Mapping[str, Any]) -> dict[str, Any]:
    """Return the channels by name, with these fields over the usual ones."""
    return {name: {**CHANNEL, "group": name, **fields} for name, fields in of.items()}


def steps_between(applied: Config, desired: Config) -> tuple[Step, ...]:
    """Return the steps that make all that differs."""
    return plan(applied, desired, diff(applied, desired))


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        ({}, []),
        ({"shutdown_timeout": "7s"}, [(Action.ADOPT, None)]),
        ({"channels": channels(a={}, b={"workers": 7})}, [(Action.ADJUST, "b")]),
        ({"channels": channels(a={}, b={"topics": ["x"]})}, [(Action.ADJUST, "b")]),
        ({"channels": channels(a={"coordinator": {"weight": 2}}, b={})}, [(Action.ADJUST, "a")]),
        ({"channels": channels(a={"group": "c", "workers": 3}, b={})}, [(Action.RESTART, "a")]),
        ({"channels": channels(a={})}, [(Action.STOP, "b")]),
        ({"channels": channels(a={}, b={"enabled": False})}, [(Action.STOP, "b")]),
        ({"channels": channels(c={}, b={}, a={})}, [(Action.START, "c")]),
        ({"channels": channels(a={"group": "x"}, c={})}, "STOP b, RESTART a, START c"),
        ({"spark": {"warm_up": 0}, "metrics": {"port": 1}}, "REBUILD_SPARK None, WAIT None"),
        ({"kafka": {"bootstrap_servers": ["x"]}, "channels": channels(a={})}, "CONNECT None"),
    ],
)
def test_each_difference_is_a_step(
    values: dict[str, Any], steps: list[tuple[Action, str | None]] | str
) -> None:
    """Steps touch what differs and nothing else, in an order in which they can be taken."""
    found = [(step.action, step.channel) for step in steps_between(config(), config(**values))]
    if isinstance(steps, str):
        assert ", ".join(f"{action.name} {channel}" for action, channel in found) == steps
    else:
        assert found == steps


def test_a_channel_that_does_not_run_is_not_touched() -> None:
    """Fields of a channel that is not enabled are taken note of, until it is."""
    off = config(channels=channels(a={}, b={"enabled": False}))
    other = config(channels=channels(a={}, b={"enabled": False, "group": "x"}))
    on = config(channels=channels(a={}, b={"group": "x"}))
    assert [step.action for step in steps_between(off, other)] == [Action.ADOPT]
    assert [step.action for step in steps_between(off, on)] == [Action.START]


@settings(max_examples=25)
@given(configs(), configs())
def test_all_steps_together_are_all_changes(one: Config, other: Config) -> None:
    """Each change is in exactly one step, and when all are taken nothing differs."""
    steps = steps_between(one, other)
    changes = [change.path for step in steps for change in step.changes]
    assert sorted(changes) == sorted(change.path for change in diff(one, other))
    reached: Config = copy.copy(one)
    for step in steps:
        reached = adopt(reached, other, step.changes)
    assert diff(reached, other) == ()


@settings(max_examples=25)
@given(configs(), configs())
def test_a_change_in_place_restarts_no_channel(one: Config, other: Config) -> None:
    """Changes that are all in place stop and start nothing."""
    if all(change.effect is ReloadEffect.IN_PLACE for change in diff(one, other)):
        actions = {step.action for step in steps_between(one, other)}
        assert actions <= {Action.ADOPT, Action.ADJUST}
