"""The paths of a group's nodes in ZooKeeper, and what stands in them.

Each node holds one JSON object with ``"version": 1``, the format's version. Within a version keys
may be added, and unknown keys are skipped; a higher version means that the node may not be
understood: reading it raises ``ForeignVersionError``, and its writer's possessions are left alone.
Anything else that does not parse raises ``BadDocumentError``. Times are seconds since the epoch.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from headrace.coordinators.errors import BadDocumentError, ForeignVersionError
from headrace.coordinators.member_info import AssignmentMode, MemberInfo
from headrace.core.records import TopicPartition, by_topic, stored_topic, topic_fields
from headrace.kafka.ports import StoredOffset

FORMAT_VERSION = 1

V = TypeVar("V")


# --- paths ---------------------------------------------------------------------------------------


#: Parent of all groups.
GROUPS = "/consumers"


@dataclass(frozen=True, slots=True)
class GroupPaths:
    """The nodes of one group. Names are percent-encoded where ZooKeeper could not take them."""

    group: str

    @property
    def root(self) -> str:
        """Return the parent of all nodes of the group."""
        return f"{GROUPS}/{_encode(self.group)}"

    @property
    def ids(self) -> str:
        """Return the parent of the member nodes. Writing its empty data notifies all members."""
        return f"{self.root}/ids"

    def member(self, name: str) -> str:
        """Return the node of one member."""
        return f"{self.ids}/{_encode(name)}"

    def owners(self, topic: str) -> str:
        """Return the parent of a topic's owner nodes."""
        return f"{self.root}/owners/{_encode(topic)}"

    def owner(self, partition: TopicPartition) -> str:
        """Return the owner node of a partition."""
        return f"{self.owners(partition.topic)}/{partition.partition}"

    def epochs(self, topic: str) -> str:
        """Return the parent of a topic's epoch nodes."""
        return f"{self.root}/epochs/{_encode(topic)}"

    def epoch(self, partition: TopicPartition) -> str:
        """Return the epoch node of a partition."""
        return f"{self.epochs(partition.topic)}/{partition.partition}"

    def offset(self, partition: TopicPartition) -> str:
        """Return the node of a partition's committed offset, for offsets in ZooKeeper."""
        return f"{self.root}/offsets/{_encode(partition.topic)}/{partition.partition}"

    @property
    def begun(self) -> str:
        """Return the patterns that the group began with, and parent of the topics."""
        return f"{self.root}/begun"

    def begun_topic(self, topic: str) -> str:
        """Return the node of what the group found of a topic when it began with it."""
        return f"{self.begun}/{_encode(topic)}"

    @property
    def fencing(self) -> str:
        """Return the parent of the nodes of producers that are being fenced."""
        return f"{self.root}/fencing"

    def fencing_lock(self, transactional_id: str) -> str:
        """Return the node of one of them, which lives while that lasts."""
        return f"{self.fencing}/{_encode(transactional_id)}"


def producer_prefix(group: str) -> str:
    """Return how the transactional ids of all producers of a group begin."""
    return f"headrace.{group}."


def decode_name(node: str) -> str:
    """Return the name that a node's name stands for."""
    return unquote(node)


def _encode(name: str) -> str:
    encoded = quote(name, safe="")
    # ZooKeeper refuses these two as parts of a path, and quote leaves dots as they are
    return encoded.replace(".", "%2E") if encoded in {".", ".."} else encoded


# --- documents -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberDocument:
    """Content of ``ids/<member>``. ``admin`` is where other machines reach its API, if they do."""

    info: MemberInfo
    host: str
    pid: int
    since: float
    software: str
    admin: str | None = None

    def encode(self) -> bytes:
        """Return the node's data."""
        info, cooldown = self.info, by_topic(self.info.cooldown)
        return _encode_fields(
            mode=info.mode.value,
            topics=sorted(info.topics),
            partitions_per_topic=info.partitions_per_topic,
            lists={topic: list(numbers) for topic, numbers in sorted(info.lists.items())},
            weight=info.weight,
            draining=info.draining,
            # named as members of earlier versions read it
            avoiding={t: [p.partition for p in some] for t, some in cooldown.items()},
            host=self.host,
            pid=self.pid,
            since=self.since,
            software=self.software,
            **({"together": True} if info.together else {}),
            **({} if info.warm is None else {"warm": sorted(info.warm)}),
            **({} if self.admin is None else {"admin": self.admin}),
        )

    @classmethod
    def decode(cls, path: str, data: bytes) -> MemberDocument:
        """Parse the node's data."""
        fields = _Fields(path, data)
        info = MemberInfo(
            topics=frozenset(fields.list_of("topics", str)),
            mode=_mode(fields),
            weight=fields.at_least("weight", 1),
            partitions_per_topic=fields.at_least("partitions_per_topic", 0),
            lists=_lists(fields),
            draining=fields.get("draining", bool),
            cooldown=_cooldown(fields),
            together=fields.optional("together", bool) or False,
            warm=_warm(fields),
        )
        return cls(
            info=info,
            host=fields.get("host", str),
            pid=fields.get("pid", int),
            since=fields.number("since"),
            software=fields.get("software", str),
            admin=fields.optional("admin", str),
        )


def _mode(fields: _Fields) -> AssignmentMode:
    value = fields.get("mode", str)
    try:
        return AssignmentMode(value)
    except ValueError as error:
        raise fields.bad(f"mode {value!r} is unknown") from error


def _lists(fields: _Fields) -> dict[str, tuple[int, ...]]:
    return _numbers(fields, "lists", fields.get("lists", dict))


def _cooldown(fields: _Fields) -> frozenset[TopicPartition]:
    numbers = _numbers(fields, "avoiding", fields.optional("avoiding", dict) or {})
    return frozenset(TopicPartition(topic, n) for topic in numbers for n in numbers[topic])


def _warm(fields: _Fields) -> frozenset[int] | None:
    numbers = fields.optional("warm", list)
    return None if numbers is None else frozenset(fields.list_of("warm", int))


def _numbers(fields: _Fields, name: str, lists: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    for topic, numbers in lists.items():
        if not isinstance(numbers, list) or not all(_is(n, int) and n >= 0 for n in numbers):
            raise fields.bad(f"{name}.{topic} is not a list of partition numbers")
    return {topic: tuple(numbers) for topic, numbers in lists.items()}


@dataclass(frozen=True, slots=True)
class OwnerDocument:
    """Content of ``owners/<topic>/<partition>``."""

    member: str
    member_epoch: int
    epoch: int
    host: str
    since: float

    def encode(self) -> bytes:
        """Return the node's data."""
        return _encode_fields(**asdict(self))

    @classmethod
    def decode(cls, path: str, data: bytes) -> OwnerDocument:
        """Parse the node's data."""
        fields = _Fields(path, data)
        return cls(
            member=fields.get("member", str),
            member_epoch=fields.get("member_epoch", int),
            epoch=fields.at_least("epoch", 0),
            host=fields.get("host", str),
            since=fields.number("since"),
        )


@dataclass(frozen=True, slots=True)
class EpochDocument:
    """Content of ``epochs/<topic>/<partition>``: the latest claim and whether it ended cleanly.

    ``unfenced`` names the producers of earlier owners that may still commit: who claims next
    shuts them out, and the last one if its end was not clean.
    """

    epoch: int
    member: str
    member_epoch: int
    transactional_id: str | None
    clean_end: bool
    unfenced: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Return the node's data."""
        return _encode_fields(**asdict(self))

    @classmethod
    def decode(cls, path: str, data: bytes) -> EpochDocument:
        """Parse the node's data."""
        fields = _Fields(path, data)
        return cls(
            epoch=fields.at_least("epoch", 0),
            member=fields.get("member", str),
            member_epoch=fields.get("member_epoch", int),
            transactional_id=fields.optional("transactional_id", str),
            clean_end=fields.get("clean_end", bool),
            unfenced=tuple(fields.optional_list_of("unfenced", str)),
        )


@dataclass(frozen=True, slots=True)
class OffsetDocument:
    """Content of ``offsets/<topic>/<partition>``: the next offset to read after a restart.

    ``topic_id`` and ``leader_epoch`` are None where they are not known, as where an earlier version
    wrote the node.
    """

    offset: int
    epoch: int
    member: str
    since: float
    topic_id: str | None = None
    leader_epoch: int | None = None

    def encode(self) -> bytes:
        """Return the node's data."""
        return _encode_fields(
            offset=self.offset,
            epoch=self.epoch,
            member=self.member,
            since=self.since,
            **topic_fields(self.topic_id),
            **({} if self.leader_epoch is None else {"leader_epoch": self.leader_epoch}),
        )

    @classmethod
    def decode(cls, path: str, data: bytes) -> OffsetDocument:
        """Parse the node's data."""
        fields = _Fields(path, data)
        return cls(
            offset=fields.at_least("offset", 0),
            epoch=fields.at_least("epoch", 0),
            member=fields.get("member", str),
            since=fields.number("since"),
            topic_id=stored_topic(
                fields.optional("topic_uuid", str), fields.optional("topic_id", str)
            ),
            leader_epoch=fields.optional("leader_epoch", int),
        )

    def stored(self) -> StoredOffset:
        """Return what the node says as any offset store says it."""
        return StoredOffset(self.offset, self.epoch, self.member, self.topic_id, self.leader_epoch)


@dataclass(frozen=True, slots=True)
class BegunTopic:
    """Content of ``begun/<topic>``: the topic and its partitions when the group began with it."""

    topic_id: str | None
    partitions: int

    def encode(self) -> bytes:
        """Return the node's data."""
        return _encode_fields(partitions=self.partitions, **topic_fields(self.topic_id))

    @classmethod
    def decode(cls, path: str, data: bytes) -> BegunTopic:
        """Parse the node's data."""
        fields = _Fields(path, data)
        topic_id = stored_topic(
            fields.optional("topic_uuid", str), fields.optional("topic_id", str)
        )
        return cls(topic_id, fields.at_least("partitions", 0))


def encode_patterns(patterns: frozenset[str]) -> bytes:
    """Return the data of ``begun``."""
    return _encode_fields(patterns=sorted(patterns))


def begun_patterns(path: str, data: bytes) -> frozenset[str] | None:
    """Parse the data of ``begun``; None: the group has not begun with anything yet."""
    if not data:
        return None
    return frozenset(_Fields(path, data).optional_list_of("patterns", str))


# --- JSON ----------------------------------------------------------------------------------------


def _encode_fields(**fields: object) -> bytes:
    return json.dumps({"version": FORMAT_VERSION, **fields}, separators=(",", ":")).encode()


def _is(value: object, kind: type) -> bool:
    """Return whether ``value`` is of ``kind``, where a truth value is no number."""
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))


class _Fields:
    """The fields of one document, each taken with the type it must have."""

    def __init__(self, path: str, data: bytes) -> None:
        self._path = path
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise self.bad("it is not JSON") from error
        if not isinstance(fields, dict):
            raise self.bad("it is not a JSON object")
        self._fields: dict[str, Any] = fields
        version = self.at_least("version", 1)
        if version > FORMAT_VERSION:
            raise ForeignVersionError(path, version, FORMAT_VERSION)

    def bad(self, reason: str) -> BadDocumentError:
        return BadDocumentError(self._path, reason)

    def get(self, name: str, kind: type[V]) -> V:
        if name not in self._fields:
            raise self.bad(f"{name} is missing")
        value: V = self._fields[name]
        if not _is(value, kind):
            raise self.bad(f"{name} is {value!r}, not of type {kind.__name__}")
        return value

    def optional(self, name: str, kind: type[V]) -> V | None:
        return None if self._fields.get(name) is None else self.get(name, kind)

    def at_least(self, name: str, least: int) -> int:
        value = self.get(name, int)
        if value < least:
            raise self.bad(f"{name} is {value}, less than {least}")
        return value

    def number(self, name: str) -> float:
        if _is(self._fields.get(name), int):
            return float(self.get(name, int))
        return self.get(name, float)

    def optional_list_of(self, name: str, kind: type[V]) -> list[V]:
        return [] if self._fields.get(name) is None else self.list_of(name, kind)

    def list_of(self, name: str, kind: type[V]) -> list[V]:
        values = self.get(name, list)
        if not all(_is(value, kind) for value in values):
            raise self.bad(f"{name} holds something that is not of type {kind.__name__}")
        return values
