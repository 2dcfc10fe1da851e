"""Takeovers that finish a decided commit, each killed one effect later than the one before.

python -m tests.integration.kafka.killed_finishing SERVERS TOPIC FOLDER
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import structlog
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.kafka import KafkaOffsetStore
from headrace.testing.kills import Effects, killed_at_every_effect
from tests.doubts import leave_in_doubt

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT = 60.0

#: Places are passed in loops while logs are read.
PASSES = 2

#: What was decided, and not marked.
DECIDED = 9

EFFECTS = Effects(clients=(Producer, Consumer, AdminClient))


class Takeovers:
    """Takeovers of one partition, each of another group."""

    def __init__(self, servers: str, topic: str, folder: Path) -> None:
        self._servers = servers
        self._partition = TopicPartition(topic, 0)
        self._killed = folder / "killed"

    def prepare(self, _: int) -> Callable[[], object]:
        """Finish what the one before left, look at it, and bring the next doubt about."""
        if self._killed.exists():
            group = self._killed.read_text()
            self._take_over(group)
            with closing(self._store(group)) as store:
                found = store.read(self._partition, Deadline.after(WAIT))
            assert found is not None
            assert found.offset == DECIDED, f"the offset of {group} is {found.offset}"
            assert found.by == "m"
        group = f"group.{uuid4().hex[:12]}"
        metadata = {"version": 1, "epoch": 0, "member": "m", "producer": self._id(group)}
        leave_in_doubt(
            self._servers,
            self._id(group),
            group,
            self._partition,
            DECIDED,
            # as the client writes them
            metadata=f"{json.dumps(metadata)}\0",
            committed=True,
        )
        self._killed.write_text(group)
        return partial(self._take_over, group)

    def _take_over(self, group: str) -> None:
        with closing(self._store(group)) as store:
            store.fence([self._id(group)], self._partition, Deadline.after(WAIT))

    def _store(self, group: str) -> KafkaOffsetStore:
        return KafkaOffsetStore({"bootstrap.servers": self._servers, "log_level": 0}, group)

    @staticmethod
    def _id(group: str) -> str:
        return f"headrace.{group}.m.1"


def main(servers: str, topic: str, folder: Path) -> None:
    """Kill one takeover after the other until one comes to its end."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    takeovers = Takeovers(servers, topic, folder)
    last = killed_at_every_effect(takeovers.prepare, EFFECTS, passes=PASSES)
    sys.stdout.write(f"{last}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
