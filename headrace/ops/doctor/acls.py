"""The permissions that a configuration needs of Kafka, and the commands that give them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.config import (
    KafkaOffsetsConfig,
    ZooKeeperOffsetsConfig,
    single_sinks,
)
from headrace.config.subscription import is_pattern
from headrace.coordinators.znodes import producer_prefix
from headrace.extensions.keyed.names import changelog_name
from headrace.extensions.keyed.section import StateProcessorConfig
from headrace.kafka.result_transactions import sink_group

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config import ChannelConfig, Config, KafkaConfig


#: What ends the literal beginning of a regular expression; what takes the letter before it back.
_SPECIAL, _OPTIONAL = set(".^$*+?{}[]|()"), set("*?{")


@dataclass(frozen=True, slots=True)
class Acl:
    """One permission: operations on a resource, which is named in full or by its beginning."""

    resource: str
    name: str
    operations: tuple[str, ...]
    prefixed: bool = False


def needed_acls(config: Config) -> list[Acl]:
    """Return the permissions that the configuration's channels cannot do without.

    Read and Write on a topic, and Read on a group, imply Describe. Where offsets are in ZooKeeper
    the group's in Kafka are only looked at. A transactional id is fenced by any that takes a
    partition over, so a member needs those of the whole group.
    """
    return list(
        dict.fromkeys(acl for each in config.channels.values() for acl in _of_channel(each))
    )


def _of_channel(channel: ChannelConfig) -> Iterator[Acl]:
    for entry in channel.topics:
        if is_pattern(entry):
            beginning = literal_beginning(entry)
            yield Acl("topic", beginning or "*", ("Read",), prefixed=bool(beginning))
        else:
            yield Acl("topic", entry, ("Read",))
    if channel.rejects.topic is not None:
        yield Acl("topic", channel.rejects.topic, ("Write",))
    yield from _of_own_topics(channel)
    for sink in single_sinks(channel.sink).values():
        if sink.writes_records:
            # without a topic the rows name theirs
            yield Acl("topic", sink.topic_written or "*", ("Write",))
            yield Acl("group", sink_group(channel.group), ("Read",))
            yield _transactional_id(channel.group)
    only_looks = isinstance(channel.offsets, ZooKeeperOffsetsConfig)
    yield Acl("group", channel.group, ("Describe" if only_looks else "Read",))
    match channel.offsets:
        case KafkaOffsetsConfig(fencing="transactions"):
            yield _transactional_id(channel.group)


def _of_own_topics(channel: ChannelConfig) -> Iterator[Acl]:
    """Yield what a channel needs of its state's topics, and of those that its processor writes."""
    chosen, create = channel.processor, ("Create",)
    for topic in chosen.shared_topics(channel):
        yield Acl("topic", topic, ("Read",))
    if isinstance(chosen, StateProcessorConfig):
        changelog = changelog_name(channel.group, channel.topics[0])
        grows = ("Alter",) if chosen.has_fixed_keys else ()
        made = (*create, *grows) if chosen.internal.create else ()
        yield Acl("topic", changelog, (*made, "DescribeConfigs", "Read", "Write"))
        for topic in chosen.purged_topics(channel):
            yield Acl("topic", topic, ("Delete",))
        if channel.sink is None:
            yield Acl("group", sink_group(channel.group), ("Read",))
            yield _transactional_id(channel.group)
    written = {each.name for each in chosen.topics_by_key(channel)}
    for by_key in chosen.made_topics(channel):
        made = create if by_key.create else ()
        # what is written to a sink's topic is in the sink's permissions
        write = ("Write",) if channel.sink is None and by_key.name in written else ()
        yield Acl("topic", by_key.name, (*made, "DescribeConfigs", *write))
        for topic in by_key.sources:
            yield Acl("topic", topic, ("DescribeConfigs",))
    for topic in chosen.outputs(channel):
        yield Acl("topic", topic, ("Write",))


def _transactional_id(group: str) -> Acl:
    return Acl("transactional-id", producer_prefix(group), ("Write",), prefixed=True)


def literal_beginning(pattern: str) -> str:
    """Return what all names begin with that the regular expression matches, as far as it shows."""
    found: list[str] = []
    if "|" in pattern:
        return ""
    for token in re.findall(r"\\.|.", pattern.removeprefix("^")):
        if token in _SPECIAL:
            if token in _OPTIONAL and found:
                found.pop()
            break
        if token.startswith("\\"):
            if token[1].isalnum():
                break
            token = token[1]  # noqa: PLW2901 - the letter that is meant
        found.append(token)
    return "".join(found)


def commands(config: Config, acls: list[Acl]) -> list[str]:
    """Return one command of Kafka's own tool for each permission."""
    servers = ",".join(config.kafka.bootstrap_servers)
    return [_command(servers, principal(config.kafka), acl) for acl in acls]


def principal(kafka: KafkaConfig) -> str:
    """Return who the brokers take the process for, as far as the configuration tells."""
    if kafka.sasl is not None:
        return f"User:{kafka.sasl.username}"
    if kafka.oauth is not None:
        return "User:<subject of the token of kafka.oauth>"
    if kafka.tls is not None and kafka.tls.certificate_file is not None:
        return "User:CN=<subject of kafka.tls.certificate_file>"
    return "User:ANONYMOUS"


def _command(servers: str, who: str, acl: Acl) -> str:
    words = ["kafka-acls.sh", "--bootstrap-server", servers, "--command-config", "admin.properties"]
    words += ["--add", "--allow-principal", who]
    words += [word for operation in acl.operations for word in ("--operation", operation)]
    words += [f"--{acl.resource}", acl.name]
    if acl.prefixed:
        words += ["--resource-pattern-type", "prefixed"]
    return shlex.join(words)
