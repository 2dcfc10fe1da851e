"""The topics that channels write to, and the channels that a configuration expands to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic_core import PydanticCustomError

from headrace.config.errors import FieldConflict, conflict_in
from headrace.config.models.sink import single_sinks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import ValidationInfo

    from headrace.config.errors import Steps
    from headrace.config.models.channel import ChannelConfig


def written_topics(channel: ChannelConfig) -> frozenset[str]:
    """Return the topics that a channel writes to, as far as its configuration names them."""
    sinks = single_sinks(channel.sink).values()
    topics = {sink.topic_written for sink in sinks}
    topics.add(channel.rejects.topic)
    topics.update(each.name for each in channel.processor.topics_by_key(channel))
    topics.update(channel.processor.outputs(channel))
    own = channel.processor.own_topics(channel)
    return own.union(topic for topic in topics if topic is not None)


def continued(name: str, channels: Mapping[str, ChannelConfig]) -> dict[str, list[str]]:
    """Return which other channels write to topics that a channel reads, and what these are."""
    reads = channels[name].subscription
    found = {
        other: sorted(filter(reads.covers, written_topics(channel)))
        for other, channel in channels.items()
        if other != name
    }
    return {other: topics for other, topics in found.items() if topics}


def rekeying_of(name: str, channels: Mapping[str, ChannelConfig]) -> dict[str, str]:
    """Return which channels re-key what a channel reads, by the topics that they write it to.

    Of channels that re-key for each other, in a circle, the first one comes after none of them.
    """
    order = {each: place for place, each in enumerate(channels)}
    return {
        topic: other
        for topic, other in _rekeyed_for(name, channels).items()
        if order[other] < order[name] or not _comes_after(other, name, channels)
    }


def _rekeyed_for(name: str, channels: Mapping[str, ChannelConfig]) -> dict[str, str]:
    """Return the other channels that write topics by key that a channel reads, by these topics."""
    reads = channels[name].subscription
    return {
        topic.name: other
        for other, channel in channels.items()
        for topic in channel.processor.topics_by_key(channel)
        if other != name and reads.covers(topic.name)
    }


def _comes_after(name: str, first: str, channels: Mapping[str, ChannelConfig]) -> bool:
    """Return whether what a channel reads was re-keyed by another one, directly or not."""
    found, left = set(), [name]
    while left:
        for other in _rekeyed_for(left.pop(), channels).values():
            if other == first:
                return True
            if other not in found:
                found.add(other)
                left.append(other)
    return False


def _differences(
    name: str, channel: ChannelConfig, made: ChannelConfig, topology: str
) -> Iterator[FieldConflict]:
    """Yield what of a channel is not as that which a topology becomes, whose place it takes."""
    if channel is made:
        return
    compared: list[tuple[Steps, str | None, str | None]] = [
        (("processor", "type"), channel.processor.type, made.processor.type),
        (("group",), channel.group, made.group),
        (("topics",), ", ".join(channel.topics), ", ".join(made.topics)),
        # those that rows depend on, of what has any
        (("processor", "stores"), _stores(channel), _stores(made)),
    ]
    for steps, own, other in compared:
        if own != other:
            yield FieldConflict(
                (name, *steps),
                f"is {own}, and topology {topology} becomes a channel of this name with {other}; "
                "take another name, or leave the channel out",
            )


def _stores(channel: ChannelConfig) -> str | None:
    return getattr(channel.processor, "stores", None)


def expanded(
    channels: Mapping[str, ChannelConfig], info: ValidationInfo
) -> Mapping[str, ChannelConfig]:
    """Return the channels, each as those that it becomes, before them those of topologies.

    Raises:
        PydanticCustomError: one of them cannot be made.
    """
    found: dict[str, ChannelConfig] = {}
    conflicts = []
    # missing where something is wrong with them, which is told
    for topology, section in (info.data.get("topologies") or {}).items():
        for name, made in section.made_channels.items():
            if name in found:
                conflicts.append(
                    FieldConflict(
                        (name,),
                        f"is what topology {topology} would become, and another one as well; give "
                        "one of them another name",
                    )
                )
            # one that is written out stands for what would be made
            found[name] = channels.get(name, made)
            conflicts += _differences(name, found[name], made, topology)
    channels = {name: each for name, each in channels.items() if name not in found}
    for name, channel in channels.items():
        try:
            found.update(channel.processor.expanded(name, channel, channels))
        except PydanticCustomError as error:
            conflicts += (error.context or {})["found"]
    if conflicts:
        raise conflict_in(conflicts)
    return found
