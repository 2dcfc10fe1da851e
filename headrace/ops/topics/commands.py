"""The topics that a configuration needs, those that are there, and the creation of the others."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import typer

from headrace.config import single_sinks
from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError
from headrace.extensions.keyed.names import changelog_name
from headrace.extensions.keyed.section import RekeyProcessorConfig, StateProcessorConfig
from headrace.extensions.keyed.topics import create_topic, open_by_key, open_changelog
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.catalog import NewTopic
from headrace.kafka.clients import client_properties
from headrace.ops.offsets.commands import channel_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.config import ChannelConfig, Config
    from headrace.kafka.ports import TopicInfo

EXIT_FAILED = 1

#: Seconds that the brokers have for each question, and for each topic.
_PATIENCE = 30.0

#: What a broker takes for its own default.
_BROKERS_DEFAULT = -1


class Use(Enum):
    """The use that a channel has for a topic. Those that others are made of come first."""

    INPUT = "input"
    BY_KEY = "records by key"
    CHANGELOG = "state"
    OUTPUT = "output"
    LETTERS = "dead letters"


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that are asked for; None: the brokers' default."""

    partitions: int | None
    replication_factor: int | None


@dataclass(slots=True)
class NeededTopic:
    """A topic, what it is for, and the channel by whose processor it is made.

    ``uses`` are in sentences, of every channel that has it. ``as_`` is the topic whose partitions
    it has, None where it has its own.
    """

    name: str
    use: Use
    channel: ChannelConfig
    uses: list[str] = field(default_factory=list)
    as_: str | None = None


def needed_topics(channels: Mapping[str, ChannelConfig]) -> list[NeededTopic]:
    """Return the topics that channels name, each once, in the order of their making."""
    found: dict[str, NeededTopic] = {}
    every = [
        (use, name, topic, as_)
        for name, channel in channels.items()
        for use, topic, as_ in _needs_of(channel)
    ]
    order = list(Use)
    # what is made for records by key is another channel's input, too
    made = {topic for use, _, topic, _ in every if use is Use.BY_KEY}
    for use, name, topic, as_ in sorted(every, key=lambda each: order.index(each[0])):
        if use is Use.INPUT and topic in made:
            continue
        needed = found.setdefault(topic, NeededTopic(topic, use, channels[name], as_=as_))
        needed.uses.append(f"{use.value} of {name}")
    return list(found.values())


def _needs_of(channel: ChannelConfig) -> Iterator[tuple[Use, str, str | None]]:
    """Yield what a channel needs, and the topic whose partitions each has."""
    chosen = channel.processor
    for topic in channel.subscription.names:
        yield Use.INPUT, topic, None
    if isinstance(chosen, StateProcessorConfig):
        read = channel.topics[0]
        yield Use.CHANGELOG, changelog_name(channel.group, read), read
    by_key = isinstance(chosen, RekeyProcessorConfig)
    for sink in single_sinks(channel.sink).values():
        if sink.topic_written is not None:
            source = channel.subscription.names[0] if by_key else None
            yield (Use.BY_KEY if by_key else Use.OUTPUT), sink.topic_written, source
    if channel.rejects.topic is not None:
        yield Use.LETTERS, channel.rejects.topic, None


def create(
    config: Config,
    channel: str | None,
    sizes: Sizes,
    *,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> int:
    """Show what is needed and create what is missing. Returns 1 where one is not as it has to be.

    Raises:
        HeadraceError: the brokers do not answer, or refuse.
    """
    wanted = _chosen_topics(config, channel)
    with closing(KafkaTopicCatalog(client_properties(config.kafka), "headrace-topics")) as catalog:
        there = catalog.describe([each.name for each in wanted], Deadline.after(_PATIENCE))
        faults = {
            each.name: fault
            for each in wanted
            if each.name in there and (fault := _fault(catalog, each)) is not None
        }
        missing = [each for each in wanted if each.name not in there]
        if not as_json:
            _show(wanted, there, sizes)
            for fault in faults.values():
                typer.echo(fault, err=True)
        if missing and not dry_run:
            if not (yes or typer.confirm(f"Create {len(missing)} topics?")):
                typer.echo("nothing was created")
                return EXIT_FAILED
            for each in missing:
                _make(catalog, each, sizes)
                if not as_json:
                    typer.echo(f"created {each.name}")
        elif not missing and not as_json:
            typer.echo("nothing is missing")
    if as_json:
        typer.echo(json.dumps([_document(each, there, faults, dry_run) for each in wanted]))
    return EXIT_FAILED if faults else 0


def _chosen_topics(config: Config, channel: str | None) -> list[NeededTopic]:
    """Return the topics of all channels that run, or of one and of what re-keys for it."""
    enabled = {name: each for name, each in config.channels.items() if each.enabled}
    if channel is not None:
        name = channel_name(config, channel)
        made = f"{name}.rekey"
        enabled = {each: config.channels[each] for each in (made, name) if each in config.channels}
    return needed_topics(enabled)


def _fault(catalog: KafkaTopicCatalog, needed: NeededTopic) -> str | None:
    """Return why a topic that is there cannot be used for what it is, None where it can."""
    if needed.use not in {Use.BY_KEY, Use.CHANGELOG}:
        return None
    try:
        _open_topic(catalog, needed, None)
    except HeadraceError as error:
        return str(error)
    return None


def _make(catalog: KafkaTopicCatalog, needed: NeededTopic, sizes: Sizes) -> None:
    if needed.use in {Use.BY_KEY, Use.CHANGELOG}:
        _open_topic(catalog, needed, sizes)
        return
    wanted = NewTopic(
        needed.name,
        sizes.partitions or _BROKERS_DEFAULT,
        replication_factor=sizes.replication_factor,
    )
    create_topic(catalog, wanted, Deadline.after(_PATIENCE))


def _open_topic(catalog: KafkaTopicCatalog, needed: NeededTopic, sizes: Sizes | None) -> None:
    """Open a topic that Headrace has rules for, as the channel would; with sizes create it."""
    chosen, deadline = needed.channel.processor, Deadline.after(_PATIENCE)
    assert isinstance(chosen, StateProcessorConfig | RekeyProcessorConfig), "others have none"
    asked = None if sizes is None else sizes.replication_factor
    factor = chosen.internal.replication_factor or asked
    if needed.use is Use.CHANGELOG:
        open_changelog(
            catalog,
            needed.channel.group,
            needed.channel.topics[0],
            deadline,
            create=sizes is not None,
            replication_factor=factor,
        )
    else:
        open_by_key(
            catalog,
            needed.name,
            needed.channel.subscription.names,
            deadline,
            create=sizes is not None,
            replication_factor=factor,
            partitions=chosen.internal.partitions,
        )


def _size(needed: NeededTopic, sizes: Sizes) -> str:
    """Return how many partitions a topic will have."""
    chosen = needed.channel.processor
    own = chosen.internal.partitions if isinstance(chosen, RekeyProcessorConfig) else None
    if needed.use is Use.BY_KEY and own is not None:
        return str(own)
    if needed.as_ is not None:
        return f"as {needed.as_}"
    return "the brokers' default" if sizes.partitions is None else str(sizes.partitions)


def _show(wanted: list[NeededTopic], there: Mapping[str, TopicInfo], sizes: Sizes) -> None:
    """Print a line for each topic: names may be long, and nothing of them is cut."""
    width = max((len(each.name) for each in wanted), default=0)
    for each in wanted:
        info = there.get(each.name)
        state, size = (
            ("missing", _size(each, sizes)) if info is None else ("there", info.partitions)
        )
        settings = ", compacted" if each.use is Use.CHANGELOG else ""
        uses = ", ".join(each.uses)
        typer.echo(f"{state:<7}  {each.name:<{width}}  {uses}; partitions: {size}{settings}")


def _document(
    needed: NeededTopic, there: Mapping[str, TopicInfo], faults: Mapping[str, str], dry_run: bool
) -> dict[str, Any]:
    info = there.get(needed.name)
    state = "there" if info is not None else "missing" if dry_run else "created"
    return {
        "topic": needed.name,
        "for": needed.uses,
        "state": state,
        "partitions": None if info is None else info.partitions,
        "problem": faults.get(needed.name),
    }
