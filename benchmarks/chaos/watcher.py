"""Looks at the offsets that ZooKeeper keeps, again and again, for one that goes back."""

from __future__ import annotations

import json
import logging
from threading import Event, Thread
from typing import TYPE_CHECKING

from headrace.clock import Deadline
from headrace.coordinators.layout import GroupPaths
from headrace.errors import HeadraceError
from headrace.records import TopicPartition
from headrace.zookeeper.session import ZooKeeperSession
from headrace.zookeeper.settings import ZooKeeperSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.zookeeper.nodes import Node

#: Seconds between two looks: several in each commit interval.
_TURN = 0.1


class OffsetWatcher:
    """Counts how often a node's offset was lower than at the look before."""

    def __init__(self, hosts: str, group: str, topic: str, partitions: int) -> None:
        paths = GroupPaths(group)
        self._paths = [paths.offset(TopicPartition(topic, n)) for n in range(partitions)]
        self._last = [0] * partitions
        self._session = ZooKeeperSession(ZooKeeperSettings(hosts))
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="chaos-offsets", daemon=True)
        self.backwards = 0
        self.looks = 0

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
            offset = 0 if node is None else int(json.loads(node.data)["offset"])
            self.backwards += offset < self._last[number]
            self._last[number] = offset
