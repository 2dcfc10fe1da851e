"""What a new value of a field means for a process that runs."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.config.wording import Steps


class Effect(Enum):
    """What is touched when a value changes, from the least to the most."""

    IN_PLACE = "in place"
    """What runs goes on with the new value; nothing is drained, released or reconnected."""

    SHARING = "sharing"
    """The group shares its partitions anew; those that stay go on undisturbed."""

    TOPICS = "topics"
    """Partitions of topics that are no longer read are given back, those of others stay."""

    CHANNEL = "channel"
    """The channel drains, leaves its group and starts anew; other channels go on."""

    SPARK = "spark"
    """The Spark session is built anew between two micro-batches; partitions stay."""

    CONNECTION = "connection"
    """All channels drain, connect anew and go on."""

    PROCESS = "process"
    """Nothing until the process is restarted."""


_OF_CHANNELS = {"topics": Effect.TOPICS, "coordinator": Effect.SHARING}
_OF_SECTIONS = {
    "kafka": Effect.CONNECTION,
    "zookeeper": Effect.CONNECTION,
    "spark": Effect.SPARK,
}


def effect_of(steps: Steps, *, hot: bool) -> Effect:
    """Return what a change at ``steps`` touches, of a field that says whether it is hot."""
    if hot:
        return Effect.IN_PLACE
    match steps:
        case ("channels", _, field, *_):
            return _OF_CHANNELS.get(str(field), Effect.CHANNEL)
        case ("channels", *_):
            return Effect.CHANNEL
        case (section, *_):
            return _OF_SECTIONS.get(str(section), Effect.PROCESS)
        case _:
            raise AssertionError("a change has a place")
