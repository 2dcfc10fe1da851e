"""Which partitions a command is about: ``--topic events`` or ``--topic events:0,3``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.offsets.errors import RequestError
from headrace.records import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.config.subscription import Subscription
    from headrace.kafka.ports import TopicInfo


@dataclass(frozen=True, slots=True)
class Choice:
    """One topic, with all its partitions where ``numbers`` is None."""

    topic: str
    numbers: tuple[int, ...] | None = None


def parse_choice(text: str) -> Choice:
    """Return what one ``--topic`` names.

    Raises:
        ValueError: it is not of the form TOPIC or TOPIC:N,N.
    """
    topic, colon, numbers = text.partition(":")
    if not topic or (colon and not re.fullmatch("[0-9]{1,9}(,[0-9]{1,9})*", numbers)):
        raise ValueError(f"{text!r} is not of the form TOPIC or TOPIC:0,3")
    return Choice(topic, tuple(map(int, numbers.split(","))) if colon else None)


def selected(
    choices: Sequence[Choice], subscription: Subscription, known: Mapping[str, TopicInfo]
) -> list[TopicPartition]:
    """Return the chosen partitions of a channel in order; no choice means all.

    ``known`` are those of its topics that exist.

    Raises:
        RequestError: a choice is not of the channel, or does not exist on the brokers.
    """
    problems: list[str] = []
    partitions: set[TopicPartition] = set()
    for choice in choices or map(Choice, {*subscription.names, *known}):
        info = known.get(choice.topic)
        if not subscription.covers(choice.topic):
            problems.append(
                f"topic {choice.topic} is not of this channel, which reads {subscription}"
            )
        elif info is None:
            problems.append(
                f"topic {choice.topic} does not exist on the brokers; create it, or choose "
                "others with --topic"
            )
        else:
            partitions.update(_of_topic(choice, info, problems))
    if problems:
        raise RequestError(problems)
    return sorted(partitions)


def _of_topic(choice: Choice, info: TopicInfo, problems: list[str]) -> list[TopicPartition]:
    numbers = range(info.partitions) if choice.numbers is None else choice.numbers
    problems += [
        f"topic {choice.topic} has no partition {number}; it has {info.partitions}, from 0 on"
        for number in numbers
        if number >= info.partitions
    ]
    return [TopicPartition(choice.topic, number) for number in numbers]
