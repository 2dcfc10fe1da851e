"""The topics as a group found them when it began with them: all that comes later is new to it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import structlog

from headrace.coordinators.znodes import BegunTopic, GroupPaths, begun_patterns, encode_patterns
from headrace.core.errors import HeadraceError
from headrace.zookeeper.errors import BadVersionError, NodeExistsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.config.subscription import Subscription
    from headrace.zookeeper.protocol import Session

log = structlog.get_logger(__name__)

#: How often the patterns are written again because another member wrote them meanwhile.
_ATTEMPTS = 3


class BegunTopics:
    """Keeps with how many partitions a group began with each topic, in nodes that stay.

    A partition without an offset is there since then, or came later. Both look alike where none of
    the group's members ran when it came, and only the first begins as ``initial_offset`` says. The
    numbers are never raised: a partition that came later stays one until it has an offset.

    Any thread; every call blocks.
    """

    def __init__(self, session: Session, group: str) -> None:
        self._session = session
        self.group = group
        self._paths = GroupPaths(group)

    def begin(
        self,
        topics: Mapping[str, BegunTopic],
        subscription: Subscription,
        stored: Callable[[], Mapping[str, int]],
    ) -> Mapping[str, int]:
        """Return how many partitions of each topic were there when the group began with it.

        ``topics`` are those of now. One that is created again has none, nor has one that a pattern
        matches which the group had before. ``stored`` is asked once, where a group has no nodes
        yet, for the partitions of each topic that it has offsets of, as with an earlier version.
        Where ZooKeeper does not answer, the partitions of now are returned, and that is logged.
        """
        try:
            return self._store_begun(topics, subscription, stored)
        except HeadraceError as error:
            log.warning("begun_topics_unknown", group=self.group, error=str(error))
            return {name: each.partitions for name, each in topics.items()}

    def _store_begun(
        self,
        topics: Mapping[str, BegunTopic],
        subscription: Subscription,
        stored: Callable[[], Mapping[str, int]],
    ) -> Mapping[str, int]:
        self._session.ensure(self._paths.begun)
        before = begun_patterns(self._paths.begun, self._session.get(self._paths.begun).data)
        known = self._read_known(topics)
        missing = topics.keys() - known.keys()
        counted = stored() if before is None and missing else {}
        for name in sorted(missing):
            count = counted.get(name, topics[name].partitions)
            if before is not None and self._came_later(name, subscription, before):
                count = 0
            known[name] = self._create(name, BegunTopic(topics[name].topic_id, count))
        # last of all: who finds them finds the topics as well
        self._add_patterns(subscription)
        return {
            name: min(known[name].partitions, each.partitions)
            if known[name].topic_id == each.topic_id
            else 0
            for name, each in topics.items()
        }

    def _read_known(self, topics: Mapping[str, BegunTopic]) -> dict[str, BegunTopic]:
        paths = {name: self._paths.begun_topic(name) for name in topics}
        nodes = self._session.get_many(list(paths.values()))
        return {
            name: BegunTopic.decode(path, node.data)
            for (name, path), node in zip(paths.items(), nodes, strict=True)
            if node is not None
        }

    @staticmethod
    def _came_later(name: str, subscription: Subscription, before: frozenset[str]) -> bool:
        """Return whether the group would have begun with a topic before, had it been there."""
        return name not in subscription.names and any(re.match(each, name) for each in before)

    def _create(self, name: str, begun: BegunTopic) -> BegunTopic:
        """Store what the group begins with; another member may have done it a moment ago."""
        path = self._paths.begun_topic(name)
        try:
            self._session.create(path, begun.encode())
        except NodeExistsError:
            return BegunTopic.decode(path, self._session.get(path).data)
        return begun

    def _add_patterns(self, subscription: Subscription) -> None:
        path = self._paths.begun
        for _ in range(_ATTEMPTS):
            node = self._session.get(path)
            before = begun_patterns(path, node.data)
            wanted = (before or frozenset()).union(subscription.patterns)
            if wanted == before:
                return
            try:
                self._session.set(path, encode_patterns(wanted), node.stat.version)
            except BadVersionError:
                continue
            return
