"""The content of a group's nodes, read without leaving a trace."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headrace.coordinators.errors import BadDocumentError
from headrace.coordinators.znodes import (
    GROUPS,
    EpochDocument,
    GroupPaths,
    MemberDocument,
    OffsetDocument,
    OwnerDocument,
    decode_name,
)
from headrace.core.records import TopicPartition
from headrace.zookeeper.errors import NoNodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from headrace.zookeeper.nodes import Node, NodeStat
    from headrace.zookeeper.session import NodeReader

D = TypeVar("D")
K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class ParsedNode(Generic[D]):
    """One node: either its content, or what is wrong with it."""

    document: D | None
    problem: str | None
    stat: NodeStat


@dataclass(frozen=True, slots=True)
class MemberNode:
    """One member; ``document`` is None where ``problem`` says why its node cannot be read.

    ``owned`` counts the partitions that it owns.
    """

    name: str
    document: MemberDocument | None
    problem: str | None
    owned: int

    def facts(self) -> dict[str, Any]:
        """Return what there is to say of it, by name: ``since`` in seconds since the epoch."""
        found = self.document
        info = None if found is None else found.info
        return {
            "name": self.name,
            "host": None if found is None else found.host,
            "pid": None if found is None else found.pid,
            "software": None if found is None else found.software,
            "since": None if found is None else found.since,
            "mode": None if info is None else info.mode.value,
            "topics": None if info is None else sorted(info.topics),
            "weight": None if info is None else info.weight,
            "partitions_per_topic": None if info is None else info.partitions_per_topic,
            "lists": None if info is None else {t: list(n) for t, n in sorted(info.lists.items())},
            "draining": None if info is None else info.draining,
            "owned": self.owned,
            "problem": self.problem,
        }


@dataclass(frozen=True, slots=True)
class GroupNodes:
    """The nodes of one group, each None or missing where there is none."""

    members: Mapping[str, ParsedNode[MemberDocument]] = field(default_factory=dict)
    owners: Mapping[TopicPartition, ParsedNode[OwnerDocument]] = field(default_factory=dict)
    epochs: Mapping[TopicPartition, ParsedNode[EpochDocument]] = field(default_factory=dict)
    offsets: Mapping[TopicPartition, ParsedNode[OffsetDocument]] = field(default_factory=dict)

    @property
    def partitions(self) -> set[TopicPartition]:
        """Return the partitions that have or had an owner."""
        return {*self.owners, *self.epochs, *self.offsets}

    @property
    def topics(self) -> set[str]:
        """Return the topics that members name, or that have an owner now."""
        named = [each.document.info.topics for each in self.members.values() if each.document]
        return {partition.topic for partition in self.owners}.union(*named)

    @property
    def owner_names(self) -> dict[TopicPartition, str]:
        """Return who owns what, in order; "" where the node cannot be read."""
        found = sorted(self.owners.items(), key=lambda each: each[0])
        return {p: owner.document.member if owner.document else "" for p, owner in found}

    @property
    def group_members(self) -> tuple[MemberNode, ...]:
        """Return the members by name, with what each owns."""
        owned = Counter(self.owner_names.values())
        return tuple(
            MemberNode(name, found.document, found.problem, owned[name])
            for name, found in sorted(self.members.items())
        )


def read_nodes(reader: NodeReader, group: str, topics: Collection[str]) -> GroupNodes:
    """Read members, all owners, and epochs and offsets of ``topics`` and of topics found.

    Blocks, each call for the time-out of one operation. A group that never ran has no nodes.

    Raises:
        HeadraceError: ZooKeeper did not answer.
    """
    paths = GroupPaths(group)
    owned = map(decode_name, _children(reader, f"{paths.root}/owners"))
    owners = _of_topics(reader, paths.owner, owned, OwnerDocument.decode)
    found = GroupNodes(read_members(reader, group), owners)
    known = sorted({*topics, *found.topics})
    return replace(
        found,
        epochs=_of_topics(reader, paths.epoch, known, EpochDocument.decode),
        offsets=_of_topics(reader, paths.offset, known, OffsetDocument.decode),
    )


def group_names(reader: NodeReader) -> list[str]:
    """Read which groups there are or were. Blocks; raises RegistryUnavailableError."""
    return [decode_name(each) for each in _children(reader, GROUPS)]


def read_members(reader: NodeReader, group: str) -> dict[str, ParsedNode[MemberDocument]]:
    """Read the members of a group; none before its first run. Blocks; raises as ``groups``."""
    paths = GroupPaths(group)
    names = map(decode_name, _children(reader, paths.ids))
    return read_documents(reader, {n: paths.member(n) for n in names}, MemberDocument.decode)


def read_documents(
    reader: NodeReader, paths: Mapping[K, str], decode: Callable[[str, bytes], D]
) -> dict[K, ParsedNode[D]]:
    """Read nodes of one kind at once. What is not there is missing."""
    nodes = reader.get_many(list(paths.values()))
    return {
        key: _parsed(path, node, decode)
        for (key, path), node in zip(paths.items(), nodes, strict=True)
        if node is not None
    }


def _of_topics(
    reader: NodeReader,
    place: Callable[[TopicPartition], str],
    topics: Iterable[str],
    decode: Callable[[str, bytes], D],
) -> dict[TopicPartition, ParsedNode[D]]:
    parents = {topic: place(TopicPartition(topic, 0)).rpartition("/")[0] for topic in topics}
    wanted = sorted(
        TopicPartition(topic, int(name))
        for topic, parent in parents.items()
        for name in _children(reader, parent)
        if name.isdecimal()
    )
    return read_documents(reader, {p: place(p) for p in wanted}, decode)


def _children(reader: NodeReader, path: str) -> list[str]:
    try:
        return sorted(reader.children(path))
    except NoNodeError:
        return []


def _parsed(path: str, node: Node, decode: Callable[[str, bytes], D]) -> ParsedNode[D]:
    try:
        return ParsedNode(decode(path, node.data), None, node.stat)
    except BadDocumentError as error:
        return ParsedNode(None, str(error), node.stat)
