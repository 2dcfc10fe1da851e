"""The topics that a channel with state keeps for itself: their names, and what they have to be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from threading import Event
from typing import TYPE_CHECKING

import structlog

from headrace.core.clock import Deadline
from headrace.core.errors import StartError
from headrace.core.records import TopicPartition, identity_of
from headrace.extensions.keyed.names import BY_KEY_SETTINGS, REPARTITION, changelog_name
from headrace.kafka.catalog import NewTopic

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from headrace.extensions.keyed.store import Position
    from headrace.kafka.catalog import KafkaTopicCatalog
    from headrace.kafka.ports import ChangelogMark, StoredOffset, TopicCatalog, TopicInfo

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Changelog:
    """The changelog of a channel. ``delete_retention`` (s): how long deletions can be read.

    ``partitions``: how many it has, and the input with it; 0: not known.
    """

    topic: str
    topic_id: str
    delete_retention: float
    partitions: int = 0


#: What is said where rows are missing: what brings them back, and what begins without them.
_CURE = (
    "stop the channel where its local store is, and headrace state restore --from-store writes "
    "that to the topic; without such a store headrace state import has the keys of an export, and "
    "forget begins again"
)


def lost_rows(
    changelog: Changelog,
    number: int,
    mark: ChangelogMark | None,
    position: Position | None,
    bounds: tuple[int, int],
) -> str | None:
    """Return why a changelog has not all rows of a partition that was committed to, None if it has.

    ``mark`` is what the offset says of the changelog, None in one of an earlier version: then the
    ``position`` of the local store has to do. ``bounds`` are the topic's first offset and its end.
    Compaction moves the first offset never; what a retention or an operator deleted does.
    """
    name, (low, high) = f"{changelog.topic}-{number}", bounds
    start = 0 if mark is None else mark.start
    known = position.topic_id if position is not None else None
    former = known if mark is None else mark.topic_id
    follows = position is not None and known == changelog.topic_id
    if former not in {None, changelog.topic_id}:
        lost = (
            "is another topic than the one with its rows: it has the id "
            f"{changelog.topic_id}, and that had {former}"
        )
    elif low > start:
        lost = f"begins at offset {low}, and its rows began at {start}: some were deleted"
    elif follows and position is not None and position.offset > high:
        lost = f"ends at offset {high}, and rows up to {position.offset} were committed to it"
    elif mark is not None and mark.end is not None and mark.end > high:
        lost = f"ends at offset {high}, and rows up to {mark.end} were committed to it"
    elif high <= start and (not follows if mark is None else mark.has_rows):
        lost = "is empty, and rows were committed to it"
    else:
        return None
    return f"{name} {lost}. States would begin from nothing; {_CURE}"


def require_state(marks: Iterable[ChangelogMark], refuse: Callable[[str], str | None]) -> None:
    """Return if rows can be gone on with, by what the offsets say that they depend on.

    ``refuse`` returns why they cannot, None where they can.

    Raises:
        StartError: they cannot.
    """
    for former in sorted({mark.key for mark in marks if mark.key is not None}):
        if (reason := refuse(former)) is not None:
            raise StartError(reason)


def found_lost(
    catalog: TopicCatalog,
    changelog: Changelog,
    group: str,
    topics: Sequence[str],
    *,
    splits: bool,
    stored: Callable[[Collection[str], Deadline], Mapping[str, StoredOffset]],
    refuse: Callable[[str], str | None],
    step: str = REPARTITION,
) -> Iterator[str]:
    """Yield what is lost of a state, or would be split, as far as the brokers can say it. Blocks.

    ``changelog`` has no id where it does not exist. ``splits``: another number of partitions of a
    topic splits keys. ``stored`` returns what is stored for partitions of one topic, by their
    identities, and ``refuse`` why rows that depend on something cannot be gone on with. ``step`` is
    said where keys are split.

    Raises:
        KafkaUnavailableError: no broker answered.
    """
    deadline = Deadline.after(_LOOK_TIMEOUT)
    cluster = catalog.cluster_id(deadline)
    problems: dict[str, None] = {}
    read, known = set[int](), set[int]()
    for topic, info in catalog.describe(topics, deadline).items():
        names = {n: identity_of(cluster, group, info.topic_id, n) for n in range(info.partitions)}
        entries = stored(list(names.values()), deadline)
        found = {n: entries[name] for n, name in names.items() if name in entries}
        read |= names.keys()
        known |= found.keys()
        marks = [each.changelog for each in found.values() if each.changelog is not None]
        for former in sorted({mark.key for mark in marks if mark.key is not None}):
            if (reason := refuse(former)) is not None:
                problems[reason] = None
        if splits and (others := {each.partitions for each in marks} - {info.partitions}):
            problems[split_keys(topic, info.partitions, min(others), changelog.topic, step)] = None
        # what is lost of a changelog is said once, whichever topic's offsets tell of it
        problems |= dict.fromkeys(_lost_of(catalog, changelog, found, deadline))
    yield from problems
    for number in sorted(read - known) if changelog.topic_id else ():
        if number < changelog.partitions:
            place = TopicPartition(changelog.topic, number)
            low, high = catalog.watermarks(place, deadline)
            if low < high and catalog.has_records(place, low, high, deadline):
                yield unplaced_rows(changelog, number)


def _lost_of(
    catalog: TopicCatalog,
    changelog: Changelog,
    found: Mapping[int, StoredOffset],
    deadline: Deadline,
) -> Iterator[str]:
    """Yield what is lost of a changelog, by what is stored for the partitions of a topic."""
    committed = {n: each.changelog for n, each in found.items() if each.commits}
    if not changelog.topic_id:
        ids = {mark.topic_id for mark in committed.values() if mark is not None}
        yield from (gone_changelog(replace(changelog, topic_id=each)) for each in sorted(ids))
        return
    for number, mark in committed.items():
        if mark is None or number >= changelog.partitions:
            continue
        place = TopicPartition(changelog.topic, number)
        bounds = catalog.watermarks(place, deadline)
        if reason := lost_rows(changelog, number, mark, None, bounds):
            yield reason
        elif (
            mark.end is not None
            and mark.leader_epoch is not None
            and catalog.truncated_at(place, mark.end, mark.leader_epoch, deadline)[0]
        ):
            yield truncated_rows(changelog, number, mark.end)


def unplaced_rows(changelog: Changelog, number: int) -> str:
    """Return what is said of a partition whose changelog has rows, where no offset is stored."""
    return (
        f"{changelog.topic} has the state of partition {number}, and nothing says which records it "
        "is of: the brokers forgot the offset, or the input is another topic of the same name. "
        "Stop the channel; headrace state forget begins again. To keep the state, headrace state "
        "export it, and headrace state import --replace says by --offsets where to go on: latest "
        "where all records that are there count in it, earliest where none does"
    )


def gone_changelog(changelog: Changelog, now: str | None = None) -> str:
    """Return what is said of a changelog that was deleted, and perhaps made again with an id."""
    what = "was deleted" if now is None else f"was deleted and made again, with the id {now}"
    return (
        f"topic {changelog.topic} {what}, and had the id {changelog.topic_id}, with all rows of "
        f"the state. Nothing is delivered; {_CURE}"
    )


def truncated_rows(changelog: Changelog, number: int, offset: int) -> str:
    """Return what is said of a changelog whose log leads no more to where the store follows it."""
    return (
        f"{changelog.topic}-{number} lost its end before offset {offset}, with rows that were "
        f"committed to it (a leader that was behind, or a lost disk). {_CURE[0].upper()}{_CURE[1:]}"
    )


def split_keys(
    topic: str, partitions: int, first: int, changelog: str, step: str = REPARTITION
) -> str:
    """Return what is said of an input with another number of partitions than its state is for."""
    if partitions < first:
        return (
            f"topic {topic} has {partitions} partitions, and {changelog}, with its state, has "
            f"{first}: keys belong elsewhere now, and would have two states. Nothing is delivered; "
            f"stop all members of the channel, and give {topic} {first} partitions as well "
            "(kafka-topics.sh --alter): the next start says what else is to be done. To begin from "
            f"nothing, delete {changelog} in place of that"
        )
    return (
        f"topic {topic} has {partitions} partitions, and the state in {changelog} is for {first}: "
        "keys belong elsewhere now, and would have two states. Nothing is delivered; stop all "
        f"members of the channel, and {step}"
    )


#: Milliseconds for which deletions can be read: local state that is older is not used.
DELETE_RETENTION_MS = 7 * 24 * 3600 * 1000

#: Less than so much is doubtful: a process may be away for longer without anybody's doing.
_SHORT_RETENTION_MS = 3600 * 1000

#: Seconds in which the brokers have to say what there is of a state.
_LOOK_TIMEOUT = 30.0

#: Seconds between two questions about a topic that was just created.
_RETRY = 0.1

#: What a changelog is created with. Small segments are compacted soon.
CHANGELOG_SETTINGS = {
    "cleanup.policy": "compact",
    "delete.retention.ms": str(DELETE_RETENTION_MS),
    "segment.bytes": str(50 << 20),
    "min.cleanable.dirty.ratio": "0.1",
}


def open_changelog(
    catalog: KafkaTopicCatalog,
    group: str,
    topic: str,
    deadline: Deadline,
    *,
    create: bool = True,
    replication_factor: int | None = None,
    max_row: int = 0,
    grows: bool = False,
    step: str = REPARTITION,
) -> Changelog:
    """Return the changelog of a channel, created where it may be and does not exist. Blocks.

    What is doubtful of it is logged; ``max_row`` are the bytes that a row may have. ``grows``:
    it is given partitions that the input has more, where it may be created: for keys that are those
    of partitions, which no other number of them splits. ``step`` is said where keys are split.

    Raises:
        StartError: it does not exist and is not to be created, has another number of partitions
            than the input, or is not compacted, or not only that.
        KafkaUnavailableError: no broker answered by the deadline.
    """
    name = changelog_name(group, topic)
    found = catalog.describe([topic, name], deadline)
    if topic not in found:
        raise StartError(f"topic {topic} does not exist; create it before a channel keeps state")
    partitions = found[topic].partitions
    if name not in found:
        if not create:
            raise StartError(
                f"topic {name}, the state of group {group}, does not exist; create it compacted "
                f"and with {partitions} partitions, or set processor.internal.create"
            )
        wanted = NewTopic(name, partitions, CHANGELOG_SETTINGS, replication_factor)
        info = create_topic(catalog, wanted, deadline)
    else:
        info = found[name]
        if grows and create and info.partitions < partitions:
            catalog.grow(name, partitions, deadline)
            log.info("topic_grown", topic=name, partitions=partitions)
            info = replace(info, partitions=partitions)
    if info.partitions != partitions:
        raise StartError(split_keys(topic, partitions, info.partitions, name, step))
    settings = catalog.settings(name, deadline)
    check_changelog(name, group, settings)
    for doubt in changelog_doubts(settings, max_row):
        log.warning("changelog_doubtful", topic=name, reason=doubt)
    retention = float(settings.get("delete.retention.ms", DELETE_RETENTION_MS)) / 1000
    return Changelog(name, info.topic_id, retention, partitions)


def check_changelog(name: str, group: str, settings: Mapping[str, str]) -> None:
    """Return if a changelog with these settings keeps each key's last state.

    Raises:
        StartError: it does not.
    """
    policy = settings.get("cleanup.policy", "")
    policies = {each.strip() for each in policy.split(",")}
    if "compact" not in policies:
        reason = "is not compacted"
    elif "delete" in policies:
        reason = "deletes what is older than its retention, so also states that did not change"
    else:
        return
    raise StartError(
        f"topic {name}, the state of group {group}, {reason} (cleanup.policy={policy}): states "
        "would be lost; set it to compact"
    )


def changelog_doubts(settings: Mapping[str, str], max_row: int) -> Iterator[str]:
    """Yield what may become a fault of a changelog, with what is to be done."""
    retention = int(settings.get("delete.retention.ms", DELETE_RETENTION_MS))
    if retention < _SHORT_RETENTION_MS:
        yield (
            f"delete.retention.ms={retention}: local state that is older is of no use, so that a "
            "process that was away for so long reads the whole changelog; set it to "
            f"{DELETE_RETENTION_MS}, 7 days"
        )
    largest = int(settings.get("max.message.bytes", max_row))
    if largest < max_row:
        yield (
            f"max.message.bytes={largest}: a row may have {max_row} bytes (state.max_row), and "
            "the brokers refuse one that is so large; raise the one or lower the other"
        )


def replica_doubts(replicas: int | None, settings: Mapping[str, str]) -> Iterator[str]:
    """Yield how a topic may lose what was committed, with what is to be done."""
    least = int(settings.get("min.insync.replicas", "1"))
    if replicas is None:
        return
    if replicas < least:
        yield (
            f"it has {replicas} replicas and min.insync.replicas={least}: the brokers refuse all "
            "that is written; lower that, or give it more replicas"
        )
    elif replicas == 1:
        yield (
            "it has one replica: what it has is lost with that broker's disk; give it three "
            "(kafka-reassign-partitions.sh; internal.replication_factor where it is created)"
        )
    elif least == 1:
        yield (
            f"it has {replicas} replicas and min.insync.replicas=1: what one broker alone has "
            "taken counts as committed, and is lost with it; set that to 2"
        )


def create_topic(catalog: KafkaTopicCatalog, wanted: NewTopic, deadline: Deadline) -> TopicInfo:
    """Create a topic unless another process does, and return it once the brokers know it. Blocks.

    Raises:
        StartError: the brokers refuse it, or it is not there at the deadline.
        KafkaUnavailableError: no broker answered by the deadline.
    """
    if catalog.create(wanted, deadline):
        log.info("topic_created", topic=wanted.name, partitions=wanted.partitions)
    while True:
        found = catalog.describe([wanted.name], deadline).get(wanted.name)
        if found is not None:
            return found
        if deadline.expired:
            raise StartError(
                f"topic {wanted.name} was created and is not there; is the broker busy?"
            )
        Event().wait(deadline.at_most(_RETRY))


#: Bytes by which a record may be larger in a by-key topic than in the input: a key, and a header.
_LARGER_BY = 64 << 10


def open_by_key(
    catalog: KafkaTopicCatalog,
    name: str,
    sources: Collection[str],
    deadline: Deadline,
    *,
    create: bool = True,
    replication_factor: int | None = None,
    partitions: int | None = None,
    settings: Mapping[str, str] = BY_KEY_SETTINGS,
) -> None:
    """Open the topic for re-keyed records of other topics. Blocks.

    It is created where it may be and does not exist, with as many partitions as the largest of
    ``sources`` has, unless ``partitions`` says how many. ``settings`` are those that it needs.

    Raises:
        StartError: it does not exist and is not to be created, or would lose records.
        KafkaUnavailableError: no broker answered by the deadline.
    """
    found = catalog.describe([name], deadline).get(name)
    if found is None:
        if not create:
            raise StartError(
                f"topic {name}, for re-keyed records, does not exist; create it with "
                f"{', '.join('='.join(each) for each in settings.items())}, or set "
                "processor.internal.create"
            )
        inputs = catalog.describe(sources, deadline)
        if missing := sorted(set(sources) - inputs.keys()):
            raise StartError(f"topic {missing[0]} does not exist; create it before it is re-keyed")
        count = partitions or max(info.partitions for info in inputs.values())
        sizes = (catalog.settings(each, deadline)["max.message.bytes"] for each in inputs)
        wanted = {
            **settings,
            "segment.bytes": str(50 << 20),
            "max.message.bytes": str(max(map(int, sizes), default=1 << 20) + _LARGER_BY),
        }
        create_topic(catalog, NewTopic(name, count, wanted, replication_factor), deadline)
        return
    if partitions is not None and found.partitions != partitions:
        raise StartError(
            f"topic {name} has {found.partitions} partitions, and processor.internal.partitions "
            f"is {partitions}; leave that out: with other partitions keys would be looked for in "
            "the wrong ones"
        )
    known = dict(catalog.settings(name, deadline))
    for setting, value in settings.items():
        if known.get(setting, value) != value:
            raise StartError(
                f"topic {name}, for re-keyed records, has {setting}={known[setting]}, by which "
                f"records would be lost or get another time; set it to {value}"
            )
