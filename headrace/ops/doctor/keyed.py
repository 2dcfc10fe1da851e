"""Checks of the topics of channels with state, and of those that re-key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.clock import Deadline
from headrace.core.errors import StartError
from headrace.core.findings import error, ok, warning
from headrace.extensions.keyed.codecs import partition_of
from headrace.extensions.keyed.names import changelog_name
from headrace.extensions.keyed.section import StateProcessorConfig
from headrace.extensions.keyed.topics import (
    Changelog,
    changelog_doubts,
    check_changelog,
    found_lost,
    replica_doubts,
)
from headrace.kafka.ports import TopicInfo
from headrace.ops.doctor.limits import TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from headrace.config import ChannelConfig
    from headrace.core.findings import Finding
    from headrace.core.records import Record
    from headrace.kafka import KafkaTopicCatalog
    from headrace.kafka.ports import StoredOffset, TopicCatalog


def check_internal(
    name: str, channel: ChannelConfig, catalog: KafkaTopicCatalog
) -> Iterator[Finding]:
    """Check the internal topics of a channel, if they exist."""
    chosen = channel.processor
    if isinstance(chosen, StateProcessorConfig):
        topic = changelog_name(channel.group, channel.topics[0])
        found = catalog.describe([topic], Deadline.after(TIMEOUT)).get(topic)
        check = f"state of channel {name}"
        if found is not None:
            yield from _judge_changelog(check, channel.group, chosen, found, catalog)
        elif not chosen.internal.create:
            yield error(check, f"{topic} does not exist", "headrace state topics --create makes it")
    for by_key in chosen.topics_by_key(channel):
        check = f"records by key of channel {name}"
        found = catalog.describe([by_key.name], Deadline.after(TIMEOUT)).get(by_key.name)
        if found is not None:
            settings = catalog.settings(by_key.name, Deadline.after(TIMEOUT))
            yield from _report(check, by_key.name, list(replica_doubts(found.replicas, settings)))
        elif not by_key.create:
            yield error(check, f"{by_key.name} does not exist", "headrace topics create makes it")


def _judge_changelog(
    check: str,
    group: str,
    chosen: StateProcessorConfig,
    found: TopicInfo,
    catalog: KafkaTopicCatalog,
) -> Iterator[Finding]:
    settings = catalog.settings(found.name, Deadline.after(TIMEOUT))
    try:
        check_changelog(found.name, group, settings)
    except StartError as problem:
        seen, _, advice = str(problem).partition("; ")
        yield error(check, seen, advice)
        return
    doubts = replica_doubts(found.replicas, settings)
    yield from _report(
        check, found.name, [*doubts, *changelog_doubts(settings, chosen.state.max_row)]
    )


def _report(check: str, topic: str, doubts: Collection[str]) -> Iterator[Finding]:
    for doubt in doubts:
        seen, _, advice = doubt.partition("; ")
        yield warning(check, f"{topic}: {seen}", advice)
    if not doubts:
        yield ok(check, f"{topic} is compacted, or keeps its records, on several brokers")


def check_state(
    name: str,
    channel: ChannelConfig,
    catalog: TopicCatalog,
    stored: Callable[[Collection[str], Deadline], Mapping[str, StoredOffset]],
) -> Iterator[Finding]:
    """Check for lost state of a channel, and for keys that more input partitions would split."""
    chosen = channel.processor
    if not isinstance(chosen, StateProcessorConfig):
        return
    name_of_state = changelog_name(channel.group, channel.topics[0])
    found = catalog.describe([name_of_state], Deadline.after(TIMEOUT))
    there = found.get(name_of_state, TopicInfo(name_of_state, "", 0))
    changelog = Changelog(there.name, there.topic_id, 0.0, there.partitions)
    for problem in found_lost(
        catalog,
        changelog,
        channel.group,
        channel.topics,
        splits=not chosen.has_fixed_keys,
        stored=stored,
        refuse=lambda former: chosen.refuse_state(former, channel),
        step=chosen.split_step(channel),
    ):
        seen, _, advice = problem.partition(". ")
        yield error(f"state of channel {name}", seen, advice)


def judge_partitioner(
    check: str, topic: str, partitions: int, records: Collection[Record]
) -> Iterator[Finding]:
    """Check that records are in the partitions where Java's producers, and ours, put keys.

    Any partitioner will do that puts a key into one partition, but others do not find it there.
    """
    places: dict[bytes, set[int]] = {}
    elsewhere = 0
    for record in records:
        key, number = record.key(), record.partition()
        if key is not None and number is not None:
            places.setdefault(key, set()).add(number)
            elsewhere += number != partition_of(key, partitions)
    keyless = sum(record.key() is None for record in records)
    apart = sum(len(found) > 1 for found in places.values())
    of_all = f"of {len(records)} records"
    if keyless:
        advice = (
            "set processor.key to what the key is, such as value.id, or rejects.undecodable to skip"
        )
        yield error(check, f"{topic}: {keyless} {of_all} have no key", advice)
    seen = f"{topic}: {elsewhere} {of_all} are in another partition than Java's producers put them"
    rekey = "processor.key: key, which writes the records again by key"
    if apart:
        seen += f", and {apart} of {len(places)} keys are in several: each has several states"
        yield error(check, seen, f"set {rekey}; or have all producers partition alike")
    elif elsewhere:
        seen += ": librdkafka's default is another partitioner"
        advice = f"set {rekey}; or partitioner=murmur2_random in all producers of librdkafka"
        yield warning(check, seen, advice)
    elif places:
        yield ok(check, f"{topic}: {len(records) - keyless} {of_all} are where their keys belong")
