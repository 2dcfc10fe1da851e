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
from headrace.extensions.keyed.section import StateProcessorConfig
from headrace.extensions.keyed.topics import create_topic, open_by_key, open_changelog
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.catalog import NewTopic
from headrace.kafka.clients import client_properties
from headrace.ops.offsets.commands import channel_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.config import ChannelConfig, Config
    from headrace.config.models.processor import TopicByKey
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


#: Those that Headrace has rules for, and opens by them.
_WITH_RULES = {Use.BY_KEY, Use.CHANGELOG}


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes that are asked for; None: the brokers' default."""

    partitions: int | None
    replication_factor: int | None


@dataclass(slots=True)
class NeededTopic:
    """A topic, what it is for, and the channel by whose processor it is made.

    ``uses`` are in sentences, of every channel that has it. ``as_`` is the topic whose partitions
    it has, None where it has its own; ``by_key`` is how one for records by key is made.
    """

    name: str
    use: Use
    channel: ChannelConfig
    uses: list[str] = field(default_factory=list)
    as_: str | None = None
    by_key: TopicByKey | None = None


def needed_topics(channels: Mapping[str, ChannelConfig]) -> list[NeededTopic]:
    """Return the topics that channels name, each once, in the order of their making."""
    found: dict[str, NeededTopic] = {}
    every = [(needed, name) for name, channel in channels.items() for needed in _needs_of(channel)]
    order = list(Use)
    # what is made for records by key is another channel's input, too
    made = {each.name for each, _ in every if each.use is Use.BY_KEY}
    for each, name in sorted(every, key=lambda pair: order.index(pair[0].use)):
        if each.use is Use.INPUT and each.name in made:
            continue
        needed = found.setdefault(each.name, each)
        needed.uses.append(f"{each.use.value} of {name}")
    return list(found.values())


def _needs_of(channel: ChannelConfig) -> Iterator[NeededTopic]:
    """Yield what a channel needs."""
    chosen = channel.processor
    for topic in channel.subscription.names:
        yield NeededTopic(topic, Use.INPUT, channel)
    for topic in chosen.shared_topics(channel):
        yield NeededTopic(topic, Use.INPUT, channel)
    if isinstance(chosen, StateProcessorConfig):
        read = channel.topics[0]
        yield NeededTopic(changelog_name(channel.group, read), Use.CHANGELOG, channel, as_=read)
    made = {each.name: each for each in chosen.topics_by_key(channel)}
    for name, by_key in made.items():
        # patterns alone name none
        source = next(iter(by_key.sources), None)
        yield NeededTopic(name, Use.BY_KEY, channel, as_=source, by_key=by_key)
    written = [sink.topic_written for sink in single_sinks(channel.sink).values()]
    for output in (*written, *chosen.outputs(channel)):
        if output is not None and output not in made:
            yield NeededTopic(output, Use.OUTPUT, channel)
    if channel.rejects.topic is not None:
        yield NeededTopic(channel.rejects.topic, Use.LETTERS, channel)


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
    wanted = chosen_topics(config, channel)
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


def chosen_topics(config: Config, channel: str | None) -> list[NeededTopic]:
    """Return the topics of all channels that run, or of one and of what re-keys for it."""
    enabled = {name: each for name, each in config.channels.items() if each.enabled}
    if channel is not None:
        enabled = _with_makers(channel_name(config, channel), config.channels)
    return needed_topics(enabled)


def _with_makers(name: str, channels: Mapping[str, ChannelConfig]) -> dict[str, ChannelConfig]:
    """Return a channel, and those that make the topics by key that it reads, or they read."""
    makers = {
        topic.name: other
        for other, channel in channels.items()
        for topic in channel.processor.topics_by_key(channel)
    }
    found, left = {name}, [name]
    while left:
        read = channels[left.pop()].subscription.names
        new = {makers[topic] for topic in read if topic in makers} - found
        found |= new
        left += new
    return {each: channel for each, channel in channels.items() if each in found}


def _fault(catalog: KafkaTopicCatalog, needed: NeededTopic) -> str | None:
    """Return why a topic that is there cannot be used for what it is, None where it can."""
    if needed.use not in _WITH_RULES:
        return None
    try:
        _open_topic(catalog, needed, None)
    except HeadraceError as error:
        return str(error)
    return None


def _make(catalog: KafkaTopicCatalog, needed: NeededTopic, sizes: Sizes) -> None:
    if needed.use in _WITH_RULES:
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
    asked = None if sizes is None else sizes.replication_factor
    if needed.by_key is not None:
        open_by_key(
            catalog,
            needed.name,
            needed.by_key.sources,
            deadline,
            create=sizes is not None,
            replication_factor=needed.by_key.replication_factor or asked,
            partitions=needed.by_key.partitions,
            settings=needed.by_key.settings,
        )
        return
    assert isinstance(chosen, StateProcessorConfig), "others have no changelog"
    open_changelog(
        catalog,
        needed.channel.group,
        needed.channel.topics[0],
        deadline,
        create=sizes is not None,
        replication_factor=chosen.internal.replication_factor or asked,
        step=chosen.split_step(needed.channel),
    )


def size_of(needed: NeededTopic, sizes: Sizes) -> str:
    """Return how many partitions a topic will have."""
    if needed.by_key is not None and needed.by_key.partitions is not None:
        return str(needed.by_key.partitions)
    if needed.as_ is not None:
        return f"as {needed.as_}"
    return "the brokers' default" if sizes.partitions is None else str(sizes.partitions)


def _show(wanted: list[NeededTopic], there: Mapping[str, TopicInfo], sizes: Sizes) -> None:
    """Print a line for each topic: names may be long, and nothing of them is cut."""
    width = max((len(each.name) for each in wanted), default=0)
    for each in wanted:
        info = there.get(each.name)
        state, size = (
            ("missing", size_of(each, sizes)) if info is None else ("there", info.partitions)
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
