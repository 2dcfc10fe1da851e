"""Checks of Kafka: topics, groups, retention, transactions."""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, TypeVar

from headrace.channel.commits import REFRESH_INTERVAL
from headrace.channel.offset_stores import transactional_prefix
from headrace.config import (
    KafkaOffsetsConfig,
    keeps_offsets,
    single_sinks,
)
from headrace.coordinators.tasks import uneven_partitions
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import HeadraceError
from headrace.core.findings import error, ok, warning
from headrace.core.hints import did_you_mean
from headrace.core.records import TopicPartition
from headrace.extensions.keyed.section import StateProcessorConfig
from headrace.kafka import KafkaOffsetStore, KafkaTopicCatalog, ResultTransactions
from headrace.kafka.catalog import subscribers
from headrace.kafka.clients import client_properties
from headrace.kafka.errors import KafkaUnavailableError
from headrace.kafka.fencing import fence_producers
from headrace.kafka.source import KafkaRecordReader
from headrace.kafka.survey import KafkaSurvey
from headrace.ops.doctor.keyed import check_internal, check_state, judge_partitioner
from headrace.ops.doctor.limits import PAUSE, TIMEOUT, TRIES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from headrace.config import ChannelConfig, Config
    from headrace.core.findings import Finding
    from headrace.kafka.ports import StoredOffset, TopicCatalog, TopicInfo


T = TypeVar("T")


#: Seconds by which a record may be newer than now before a clock is wrong.
AHEAD = 5.0


#: What topics of brokers without topic ids have for an id.
_NO_ID = ("", "None", "AAAAAAAAAAAAAAAAAAAAAA")


_REACH = "check that the brokers run, kafka.bootstrap_servers, and TLS and credentials"


def check_kafka(config: Config) -> Iterator[Finding]:
    """Ask the brokers everything that the channels will ask them."""
    properties = client_properties(config.kafka)
    with ExitStack() as stack:
        try:
            group = next((channel.group for channel in config.channels.values()), "headrace")
            # the first client, because it says which of the properties is refused
            stack.enter_context(closing(KafkaOffsetStore(properties, group)))
            catalog = stack.enter_context(closing(KafkaTopicCatalog(properties, group)))
            survey = KafkaSurvey(properties)
            cluster = survey.cluster(Deadline.after(TIMEOUT))
        except HeadraceError as problem:
            yield error("kafka", str(problem), _REACH)
            return
        brokers = ", ".join(cluster.brokers.values())
        yield ok("kafka", f"cluster {cluster.cluster_id}: {brokers}")
        yield from check_retention(config.channels, survey, min(cluster.brokers))
        reader = KafkaRecordReader(properties, group)
        made = made_at_the_start(config)
        clients = _Clients(catalog, survey, reader, properties, config.instance_id, made)
        for name, channel in config.channels.items():
            yield from _channel(name, channel, clients)


def check_retention(
    channels: Mapping[str, ChannelConfig], survey: KafkaSurvey, broker: int
) -> Iterator[Finding]:
    """Compare how long brokers keep a group's offsets with how often idle ones are stored again.

    Too short is an error for channels that have no others, and for those whose sink has, a
    warning: they lose their way only where the sink has none yet, and their lag cannot be seen.
    """
    concerned = {name: c for name, c in channels.items() if _keeps_in_kafka(c)}
    if not concerned:
        return
    check = "kafka offset retention"
    try:
        settings = survey.settings(broker, Deadline.after(TIMEOUT))
        seconds = float(settings["offsets.retention.minutes"]) * 60
    except (KafkaUnavailableError, KeyError, ValueError) as problem:
        advice = "to have it checked, allow DescribeConfigs on the cluster; or ask who runs it"
        yield warning(check, f"not known: {problem}", advice)
        return
    seen = f"{seconds / 60:g} min; offsets of idle partitions are stored every hour"
    lost = [name for name, c in concerned.items() if not keeps_offsets(c.sink)]
    advice = "raise offsets.retention.minutes above 60, or keep offsets in ZooKeeper"
    if seconds > REFRESH_INTERVAL:
        yield ok(check, seen)
    elif lost:
        yield error(check, f"{seen}: those of {', '.join(lost)} would be forgotten", advice)
    else:
        yield warning(check, f"{seen}: they would be forgotten, and the tables alone know", advice)


def _keeps_in_kafka(channel: ChannelConfig) -> bool:
    return isinstance(channel.offsets, KafkaOffsetsConfig)


@dataclass(frozen=True, slots=True)
class _Clients:
    """The clients that ask the brokers, and the name of the member that will run.

    ``made`` are topics that channels create at the start.
    """

    catalog: KafkaTopicCatalog
    survey: KafkaSurvey
    reader: KafkaRecordReader
    properties: Mapping[str, object]
    member: str
    made: Collection[str]


def _channel(name: str, channel: ChannelConfig, clients: _Clients) -> Iterator[Finding]:
    check = f"topics of channel {name}"
    try:
        found = _topics(channel, clients.catalog)
        is_whole = found.keys() >= set(channel.subscription.names)
        known = () if is_whole else sorted(clients.catalog.names(Deadline.after(TIMEOUT)))
        yield from judge_topics(check, channel, found, clients.made, known)
        yield from _shared(check, channel, clients.catalog)
        yield from check_written(name, channel, clients.catalog, clients.made)
        yield from check_internal(name, channel, clients.catalog)
        offsets = ResultTransactions(clients.properties, channel.group, clients.member)
        with closing(offsets):
            yield from check_state(name, channel, clients.catalog, offsets.last_entries)
        partitions = [
            TopicPartition(t.name, n) for t in found.values() for n in range(t.partitions)
        ]
        newest = clients.survey.newest(partitions, Deadline.after(TIMEOUT))
        yield from check_stamps(check, newest)
        yield from _partitioner(name, channel, partitions, clients)
    except HeadraceError as problem:
        yield error(check, str(problem), "see below for the permissions that the topics need")
        return
    yield from _group(name, channel, found, partitions, clients.properties)
    prefix = transactional_prefix(channel, clients.member)
    if prefix is not None:
        yield from _transactions(name, f"{prefix}.doctor", clients.properties)


def _shared(check: str, channel: ChannelConfig, catalog: KafkaTopicCatalog) -> Iterator[Finding]:
    """Check the topics that each member reads whole."""
    names = channel.processor.shared_topics(channel)
    found = catalog.describe(names, Deadline.after(TIMEOUT)) if names else {}
    for name in names:
        if name in found:
            yield ok(check, f"{name} is there, which each member reads whole")
        else:
            yield error(check, f"{name} does not exist", "create it, or correct its name")


def _topics(channel: ChannelConfig, catalog: KafkaTopicCatalog) -> Mapping[str, TopicInfo]:
    """Return the channel's topics that exist."""
    subscription, deadline = channel.subscription, Deadline.after(TIMEOUT)
    names = set(subscription.names)
    if subscription.patterns:
        names |= {topic for topic in catalog.names(deadline) if subscription.matches(topic)}
    return catalog.describe(sorted(names), deadline)


def made_at_the_start(settings: Config) -> frozenset[str]:
    """Return the topics by key that channels create where they do not exist."""
    return frozenset(
        topic.name
        for channel in settings.channels.values()
        for topic in channel.processor.made_topics(channel)
        if topic.create
    )


def judge_topics(
    check: str,
    channel: ChannelConfig,
    found: Mapping[str, TopicInfo],
    made: Collection[str] = (),
    known: Collection[str] = (),
) -> Iterator[Finding]:
    """Yield findings on the topics of a channel; ``made`` are created at the start.

    ``known`` are all that there are, one of which may have been meant.
    """
    for name in channel.subscription.names:
        if name not in found and name in made:
            yield ok(check, f"{name} is created at the start")
        elif name not in found:
            advice = "create it, or correct the name; or this user may not describe it (see below)"
            yield error(check, f"{name} does not exist{did_you_mean([name], known)}", advice)
    for pattern in channel.subscription.fruitless(found):
        advice = "the channel waits for the first one; this user sees only what it may describe"
        yield warning(check, f"no topic matches {pattern}", advice)
    counts = {name: topic.partitions for name, topic in found.items()}
    uneven = uneven_partitions(counts) if channel.together else None
    if uneven is not None:
        advice = "have a channel with the rekey processor write those with fewer again"
        yield error(check, f"they are not co-partitioned: {uneven}", advice)
    if any(topic.topic_id in _NO_ID for topic in found.values()):
        advice = "take brokers of Kafka 2.8 or later"
        yield error(
            check, "the brokers give topics no ids, by which deleted ones are known", advice
        )
    elif found:
        seen = ", ".join(f"{topic.name} ({topic.partitions})" for topic in found.values())
        yield ok(check, f"topics and partitions: {seen}")


def check_written(
    name: str, channel: ChannelConfig, catalog: TopicCatalog, made: Collection[str] = ()
) -> Iterator[Finding]:
    """Check that the topics exist that the channel writes to: dead letters, its sink's, its code's.

    ``made`` are created at the start.
    """
    if channel.rejects.topic is not None:
        check = f"dead letters of channel {name}"
        yield _check_topic(check, channel.rejects.topic, "rejects.topic", catalog)
    # without a topic each row names its own
    for steps, sink in single_sinks(channel.sink).items():
        if sink.topic_written is not None:
            key = ".".join([*map(str, steps), "topic"])
            yield _check_topic(f"sink of channel {name}", sink.topic_written, key, catalog, made)
    for topic in channel.processor.outputs(channel):
        yield _check_topic(f"outputs of channel {name}", topic, "the code that names it", catalog)


def _check_topic(
    check: str, topic: str, key: str, catalog: TopicCatalog, made: Collection[str] = ()
) -> Finding:
    found = catalog.describe([topic], Deadline.after(TIMEOUT)).get(topic)
    if found is None and topic in made:
        return ok(check, f"{topic} is created at the start")
    if found is None:
        advice = f"create it, or correct {key}; or this user may not describe it"
        return error(check, f"{topic} does not exist", advice)
    return ok(check, f"{found.name} ({found.partitions})")


#: Records that are read to see how producers partition.
_SAMPLE = 1000


def _partitioner(
    name: str, channel: ChannelConfig, partitions: Collection[TopicPartition], clients: _Clients
) -> Iterator[Finding]:
    """Read the last records of what a channel keeps state of, by the records' own keys."""
    chosen = channel.processor
    if not isinstance(chosen, StateProcessorConfig) or chosen.row_keys != "record":
        return
    if not partitions or set(channel.topics) <= set(clients.made):
        return
    deadline, bounds = Deadline.after(TIMEOUT), {}
    for partition in partitions:
        low, high = clients.catalog.watermarks(partition, deadline)
        bounds[partition] = max(low, high - max(1, _SAMPLE // len(partitions))), high
    records = clients.reader.between(bounds, deadline)
    for topic in channel.topics:
        count = sum(partition.topic == topic for partition in partitions)
        own = [record for record in records if record.topic() == topic]
        yield from judge_partitioner(f"keys of channel {name}", topic, count, own)


def check_stamps(check: str, newest: float | None) -> Iterator[Finding]:
    """Check for records from the future: then producers' or brokers' clocks are wrong."""
    ahead = 0.0 if newest is None else newest - SYSTEM_CLOCK.time()
    if ahead > AHEAD:
        advice = "synchronize the clocks of this machine, the producers and the brokers"
        yield warning(check, f"the newest record is {ahead:.0f} s in the future", advice)


def _group(
    name: str,
    channel: ChannelConfig,
    topics: Mapping[str, TopicInfo],
    partitions: list[TopicPartition],
    properties: Mapping[str, object],
) -> Iterator[Finding]:
    check = f"group of channel {name}"
    try:
        with closing(KafkaOffsetStore(properties, channel.group)) as store:
            stored = _ask_patiently(lambda: store.read_many(partitions, Deadline.after(TIMEOUT)))
        others = _ask_patiently(
            lambda: subscribers(properties, channel.group, Deadline.after(TIMEOUT))
        )
    except HeadraceError as problem:
        yield error(check, str(problem), "see below for the permissions that the group needs")
        return
    seen = f"{channel.group} has subscribed consumers: {', '.join(others)}"
    if others and _keeps_in_kafka(channel):
        advice = "stop them, or give the channel another group: while they are there, the brokers "
        advice += "take no other offsets"
        yield error(check, seen, advice)
    elif others:
        yield warning(
            check, seen, "stop them if they do the channel's work: neither sees the other"
        )
    else:
        yield ok(
            check, f"{channel.group}: offsets of {len(stored)} of {len(partitions)} partitions"
        )
    yield from judge_offsets(check, channel, stored, topics)


def judge_offsets(
    check: str,
    channel: ChannelConfig,
    stored: Mapping[TopicPartition, StoredOffset],
    topics: Mapping[str, TopicInfo],
) -> Iterator[Finding]:
    """Check that the offsets of a group are of the topics that there are, by their ids."""
    former = [
        partition
        for partition, each in stored.items()
        if each.is_of_another(topics[partition.topic].topic_id)
    ]
    if not former:
        return
    names = ", ".join(sorted({partition.topic for partition in former}))
    seen = (
        f"{channel.group}: offsets of {len(former)} partitions of {names} are of a topic with "
        "another id: it was made again, or a mirror brought them from another cluster"
    )
    if isinstance(channel.processor, StateProcessorConfig):
        advice = (
            "a start begins with the first record and without the state that went with them; "
            "headrace state import brings that of an export, before the first start"
        )
    else:
        advice = "a start begins with the first record; headrace offsets reset moves it elsewhere"
    yield warning(check, seen, advice)


def _ask_patiently(ask: Callable[[], T]) -> T:
    """Ask until there is an answer: a group's coordinator refuses to give one while it is moved."""
    for _ in range(TRIES - 1):
        with suppress(HeadraceError):
            return ask()
        Event().wait(PAUSE)
    return ask()


def _transactions(
    name: str, transactional_id: str, properties: Mapping[str, object]
) -> Iterator[Finding]:
    """Initialize a transactional producer under an id that no member has."""
    check = f"transactions of channel {name}"
    try:
        fence_producers(properties, [transactional_id], Deadline.after(TIMEOUT))
    except HeadraceError as problem:
        yield error(check, str(problem), "see below for the permissions that fencing needs")
    else:
        yield ok(check, "a producer with a transactional id of the group's is let in")
