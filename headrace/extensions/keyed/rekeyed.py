"""Channels that are made of others: a keyed channel that re-keys is two of them.

The first one, named after it, writes the input again by key; the second one reads that. From then
on both are channels like any other.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headrace.config.errors import FieldConflict, conflict_in
from headrace.config.models.channel import StaticCoordinatorConfig
from headrace.config.models.rejects import KeyedRejects, RekeyRejects
from headrace.config.models.sink import single_sinks
from headrace.config.types.scalars import TOPIC_NAME
from headrace.extensions.keyed.names import (
    CHANGELOG_SUFFIX,
    REKEY_SUFFIX,
    by_key_topic,
    changelog_name,
    is_by_key,
)
from headrace.extensions.keyed.section import (
    OWN_KEYS,
    ByKeyTopicConfig,
    KeyedProcessorConfig,
    RekeyProcessorConfig,
)
from headrace.sinks.sections import KafkaSinkConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.config.models.channel import ChannelConfig

#: Seconds between two deletions of what is processed of a by-key topic, as Kafka Streams has it.
PURGE_INTERVAL = 30.0


def with_rekeyed(
    name: str, channel: ChannelConfig, channels: Mapping[str, ChannelConfig]
) -> Mapping[str, ChannelConfig]:
    """Return a keyed channel; as two where it re-keys: the one that writes by key stands first.

    Raises:
        PydanticCustomError: the two cannot be made.
    """
    conflicts = [
        FieldConflict((name, *steps), sentence)
        for steps, sentence in _conflicts(name, channel, channels)
    ]
    if conflicts:
        raise conflict_in(conflicts)
    if not rekeys(channel):
        return {name: channel}
    return {f"{name}{REKEY_SUFFIX}": _rekeying(channel), name: _reading_by_key(channel)}


def rekeys(channel: ChannelConfig) -> bool:
    """Return whether a channel has to be given its records by another key."""
    chosen = channel.processor
    return isinstance(chosen, KeyedProcessorConfig) and chosen.key not in OWN_KEYS


def _conflicts(
    name: str, channel: ChannelConfig, channels: Mapping[str, ChannelConfig]
) -> Iterator[FieldConflict]:
    chosen = channel.processor
    if not isinstance(chosen, KeyedProcessorConfig):
        return
    if rekeys(channel):
        yield from _conflicts_of_rekeyed(name, channel, channels)
    elif chosen.internal.purge_input is not None and not is_by_key(
        channel.group, channel.topics[0]
    ):
        yield FieldConflict(
            ("processor", "internal", "purge_input"),
            f"would delete records of {channel.topics[0]}, which others may read; it goes with a "
            "key for which records are written again, so leave it out",
        )
    topic = channel.topics[0]
    read = by_key_topic(channel.group, topic) if rekeys(channel) else topic
    for steps, sink in single_sinks(channel.sink).items():
        if sink.topic_written == changelog_name(channel.group, read):
            yield FieldConflict(
                (*steps, "topic"),
                f"is {sink.topic_written}, where the channel keeps its state; name another topic",
            )


def _conflicts_of_rekeyed(
    name: str, channel: ChannelConfig, channels: Mapping[str, ChannelConfig]
) -> Iterator[FieldConflict]:
    chosen = channel.processor
    assert isinstance(chosen, KeyedProcessorConfig), "others do not re-key"
    own, topic = f"{name}{REKEY_SUFFIX}", by_key_topic(channel.group, channel.topics[0])
    if own in channels:
        yield FieldConflict(
            ("processor", "key"),
            f"is {chosen.key}, for which a channel {own} is made, and there is one of that name; "
            "rename that one",
        )
    if not re.fullmatch(TOPIC_NAME.pattern, f"{topic}{CHANGELOG_SUFFIX}"):
        yield FieldConflict(
            ("group",),
            f"is {channel.group}, and a topic cannot be called {topic}{CHANGELOG_SUFFIX}, which "
            "the channel would keep its state in; take letters, digits, '.', '_' and '-', and a "
            "shorter name",
        )
        return
    if isinstance(channel.coordinator, StaticCoordinatorConfig) and chosen.internal.partitions:
        yield FieldConflict(
            ("processor", "internal", "partitions"),
            "does not go with a static coordinator, whose partitions are those of the input; "
            "leave it out",
        )
        return
    for made in (_rekeying(channel), _reading_by_key(channel)):
        yield from made.conflicts()


def _rekeying(channel: ChannelConfig) -> ChannelConfig:
    """Return the channel that writes the input of a keyed one by key."""
    chosen = channel.processor
    assert isinstance(chosen, KeyedProcessorConfig), "others do not re-key"
    internal = {name: getattr(chosen.internal, name) for name in ByKeyTopicConfig.model_fields}
    processor = RekeyProcessorConfig(
        key=chosen.key,
        value=chosen.value,
        engine=chosen.engine,
        internal=ByKeyTopicConfig(**internal),
        max_records=chosen.max_records,
        target_duration=chosen.target_duration,
        **({"reader_schema": chosen.reader_schema} if chosen.reader_schema is not None else {}),
        **({"decoder_options": chosen.decoder_options} if chosen.decoder is not None else {}),
        **({"reload": chosen.reload} if ":" in chosen.key or chosen.decoder is not None else {}),
    )
    return channel.model_copy(
        update={
            "group": f"{channel.group}{REKEY_SUFFIX}",
            "processor": processor,
            "rejects": _rejects_of_rekeying(channel),
            "sink": KafkaSinkConfig(topic=by_key_topic(channel.group, channel.topics[0])),
        }
    )


def _rejects_of_rekeying(channel: ChannelConfig) -> RekeyRejects:
    """Return what becomes of records without key, as the keyed channel says of unreadable facts."""
    own = channel.rejects
    assert isinstance(own, KeyedRejects), "the processor is a keyed one"
    match own.unreadable:
        case "dead_letter" | "quarantine":
            return RekeyRejects(undecodable="dead_letter", topic=own.topic, headers=own.headers)
        case "skip":
            return RekeyRejects(undecodable="skip")
        case _:
            return RekeyRejects()


def _reading_by_key(channel: ChannelConfig) -> ChannelConfig:
    """Return a keyed channel as it is once its records come by key."""
    chosen, (topic,) = channel.processor, channel.topics
    assert isinstance(chosen, KeyedProcessorConfig), "others do not re-key"
    made, coordinator = by_key_topic(channel.group, topic), channel.coordinator
    if isinstance(coordinator, StaticCoordinatorConfig):
        renamed = {made: coordinator.partitions[topic]}
        coordinator = coordinator.model_copy(update={"partitions": renamed})
    said = "purge_input" in chosen.internal.model_fields_set
    purge = chosen.internal.purge_input if said else PURGE_INTERVAL
    internal = chosen.internal.model_copy(update={"partitions": None, "purge_input": purge})
    return channel.model_copy(
        update={
            "topics": (made,),
            "initial_offset": "earliest",
            "coordinator": coordinator,
            "processor": chosen.by_key(internal),
        }
    )
