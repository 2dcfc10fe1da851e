"""What has to be done so that a process runs another configuration: pure functions and values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from headrace.config import Effect, diff

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.config import Change, Config


class Action(Enum):
    """What one step does, in the order in which steps are taken."""

    ADOPT = "adopt"
    """Take note of values that are read when they are needed."""
    STOP = "stop"
    """Stop a channel that was removed or is not enabled any more."""
    CONNECT = "connect"
    """Drain all channels, connect to ZooKeeper and Kafka anew, and start the channels."""
    REBUILD_SPARK = "rebuild Spark"
    """Build the Spark session anew."""
    ADJUST = "adjust"
    """Change a channel while it runs."""
    RESTART = "restart"
    """Stop a channel and start it anew."""
    START = "start"
    """Start a channel that did not run."""
    WAIT = "wait for a restart"
    """Nothing: only a restart of the process brings the values in."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something that is done, or not, as a whole: for one channel, or with None for all."""

    action: Action
    channel: str | None
    changes: tuple[Change, ...]


def plan(applied: Config, desired: Config, recoded: tuple[Change, ...] = ()) -> tuple[Step, ...]:
    """Return the steps from one configuration to the other, in their order.

    What is connected anew brings the changes of all channels with it. ``recoded`` says which
    channels have other code than they run.
    """
    changes = (*diff(applied, desired), *recoded)
    steps = [*_shared(changes)]
    if any(step.action is Action.CONNECT for step in steps):
        return _in_order(_with_channels(step, changes) for step in steps)
    names = dict.fromkeys(change.channel for change in changes if change.channel is not None)
    steps += (_of_channel(name, applied, desired, changes) for name in names)
    return _in_order(steps)


_SHARED = {
    Effect.IN_PLACE: Action.ADOPT,
    Effect.CONNECTION: Action.CONNECT,
    Effect.SPARK: Action.REBUILD_SPARK,
    Effect.PROCESS: Action.WAIT,
}


def _in_order(steps: Iterable[Step]) -> tuple[Step, ...]:
    order = list(Action)
    return tuple(sorted(steps, key=lambda step: order.index(step.action)))


def _shared(changes: tuple[Change, ...]) -> Iterator[Step]:
    for effect, action in _SHARED.items():
        found = tuple(c for c in changes if c.channel is None and c.effect is effect)
        if found:
            yield Step(action, None, found)


def _with_channels(step: Step, changes: tuple[Change, ...]) -> Step:
    if step.action is not Action.CONNECT:
        return step
    return Step(step.action, None, (*step.changes, *(c for c in changes if c.channel is not None)))


def _of_channel(name: str, applied: Config, desired: Config, changes: tuple[Change, ...]) -> Step:
    mine = tuple(change for change in changes if change.channel == name)
    before, after = applied.channels.get(name), desired.channels.get(name)
    runs, shall = before is not None and before.enabled, after is not None and after.enabled
    if not runs or not shall:
        action = Action.STOP if runs else Action.START if shall else Action.ADOPT
    else:
        anew = any(change.effect is Effect.CHANNEL for change in mine)
        action = Action.RESTART if anew else Action.ADJUST
    return Step(action, name, mine)
