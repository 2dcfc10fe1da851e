"""Looks at the offsets that ZooKeeper keeps, again and again, and notes how they move."""

from __future__ import annotations

import json
import logging
from threading import Event, Thread
from typing import TYPE_CHECKING

from benchmarks.chaos.commits import Commit
from headrace.coordinators.znodes import GroupPaths
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import HeadraceError
from headrace.core.records import TopicPartition
from headrace.zookeeper.session import ZooKeeperSession
from headrace.zookeeper.settings import ZooKeeperSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.zookeeper.nodes import Node

#: Seconds between two looks: several in each commit interval.
_TURN = 0.1


class OffsetWatcher:
    """Notes whenever a node's offset is another one than at the look before.

    Its thread ends with ``stop``, or with an error that is not ZooKeeper's being away: a run whose
    watcher is not ``alive`` at its end has proved nothing about these offsets.
    """

    def __init__(self, hosts: str, group: str, topic: str, partitions: int) -> None:
        self._group = group
        self._topic = topic
        paths = GroupPaths(group)
        self._paths = [paths.offset(TopicPartition(topic, n)) for n in range(partitions)]
        self._last: list[int | None] = [None] * partitions
        self._session = ZooKeeperSession(ZooKeeperSettings(hosts))
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="chaos-offsets", daemon=True)
        self._commits: list[Commit] = []
        self.looks = 0

    @property
    def alive(self) -> bool:
        """Whether it still looks."""
        return self._thread.is_alive()

    @property
    def commits(self) -> list[Commit]:
        """What was found stored, in its order; of several commits between two looks the last."""
        return list(self._commits)

    def start(self) -> None:
        """Connect and begin to look."""
        # that ZooKeeper is gone for a while is part of the run
        logging.getLogger("kazoo").setLevel(logging.CRITICAL)
        self._session.start()
        self._thread.start()

    def stop(self, seconds: float = 10.0) -> None:
        """Look no more."""
        self._stopped.set()
        self._thread.join(seconds)
        self._session.close(Deadline.after(seconds))

    def _run(self) -> None:
        while not self._stopped.wait(_TURN):
            try:
                self._look(self._session.get_many(self._paths))
            except HeadraceError:
                continue  # ZooKeeper is among what is killed; the next look may succeed

    def _look(self, nodes: Sequence[Node | None]) -> None:
        self.looks += 1
        for number, node in enumerate(nodes):
            if node is None:
                continue
            offset = int(json.loads(node.data)["offset"])
            if offset != self._last[number]:
                at = SYSTEM_CLOCK.time()
                self._commits.append(Commit(self._group, self._topic, number, offset, at))
                self._last[number] = offset
