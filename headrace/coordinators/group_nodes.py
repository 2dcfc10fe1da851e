"""What stands in a group's nodes, read without leaving a trace."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from headrace.coordinators.znodes import (
    BadDocumentError,
    EpochDocument,
    GroupPaths,
    MemberDocument,
    OffsetDocument,
    OwnerDocument,
    decode_name,
)
from headrace.core.records import TopicPartition
from headrace.zookeeper.protocol import NoNodeError

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
class GroupNodes:
    """The nodes of one group, each None or missing where there is none."""

    members: Mapping[str, ParsedNode[MemberDocument]] = field(default_factory=dict)
    owners: Mapping[TopicPartition, ParsedNode[OwnerDocument]] = field(default_factory=dict)
    epochs: Mapping[TopicPartition, ParsedNode[EpochDocument]] = field(default_factory=dict)
    offsets: Mapping[TopicPartition, ParsedNode[OffsetDocument]] = field(default_factory=dict)

    @property
    def partitions(self) -> set[TopicPartition]:
        """The partitions that have or had an owner."""
        return {*self.owners, *self.epochs, *self.offsets}

    @property
    def topics(self) -> set[str]:
        """The topics that members name, or that have an owner now."""
        named = [each.document.info.topics for each in self.members.values() if each.document]
        return {partition.topic for partition in self.owners}.union(*named)


def read_nodes(reader: NodeReader, group: str, topics: Collection[str]) -> GroupNodes:
    """Read members, all owners, and epochs and offsets of ``topics`` and of topics found.

    Blocks, each call for the time-out of one operation. A group that never ran has no nodes.

    Raises:
        HeadraceError: ZooKeeper did not answer.
    """
    nodes = _Nodes(reader, GroupPaths(group))
    found = GroupNodes(members=nodes.members(), owners=nodes.owners())
    known = sorted({*topics, *found.topics})
    return GroupNodes(
        members=found.members,
        owners=found.owners,
        epochs=nodes.of_topics("epochs", known, EpochDocument.decode),
        offsets=nodes.of_topics("offsets", known, OffsetDocument.decode),
    )


class _Nodes:
    """Reads one kind of nodes after the other."""

    def __init__(self, reader: NodeReader, paths: GroupPaths) -> None:
        self._reader = reader
        self._paths = paths

    def members(self) -> dict[str, ParsedNode[MemberDocument]]:
        names = [decode_name(name) for name in self._children(self._paths.ids)]
        return self._read({name: self._paths.member(name) for name in names}, MemberDocument.decode)

    def owners(self) -> dict[TopicPartition, ParsedNode[OwnerDocument]]:
        topics = map(decode_name, self._children(f"{self._paths.root}/owners"))
        return self.of_topics("owners", topics, OwnerDocument.decode)

    def of_topics(
        self, kind: str, topics: Iterable[str], decode: Callable[[str, bytes], D]
    ) -> dict[TopicPartition, ParsedNode[D]]:
        places = {
            "owners": self._paths.owner,
            "epochs": self._paths.epoch,
            "offsets": self._paths.offset,
        }
        numbers: dict[str, list[int]] = defaultdict(list)
        for topic in topics:
            parent = places[kind](TopicPartition(topic, 0)).rpartition("/")[0]
            numbers[topic] += [int(name) for name in self._children(parent) if name.isdecimal()]
        wanted = [TopicPartition(topic, n) for topic, ns in numbers.items() for n in ns]
        return self._read({p: places[kind](p) for p in sorted(wanted)}, decode)

    def _children(self, path: str) -> list[str]:
        try:
            return sorted(self._reader.children(path))
        except NoNodeError:
            return []

    def _read(
        self, paths: Mapping[K, str], decode: Callable[[str, bytes], D]
    ) -> dict[K, ParsedNode[D]]:
        nodes = self._reader.get_many(list(paths.values()))
        return {
            key: _decoded(path, node, decode)
            for (key, path), node in zip(paths.items(), nodes, strict=True)
            if node is not None
        }


def _decoded(path: str, node: Node, decode: Callable[[str, bytes], D]) -> ParsedNode[D]:
    try:
        return ParsedNode(decode(path, node.data), None, node.stat)
    except BadDocumentError as error:
        return ParsedNode(None, str(error), node.stat)
