"""What a group asks of ZooKeeper while nothing happens."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.coordination import requests
from benchmarks.scale.daemons import Daemon, await_shares

if TYPE_CHECKING:
    from benchmarks import stack
    from headrace.devstack import LocalStack

#: Seconds between two looks of each member, in place of the 15 s that it has of itself, and how
#: many looks are counted.
_POLL = 2
_POLLS = 3


def at_rest(servers: LocalStack, topic: stack.Topic, group: str, number: int) -> dict[str, Any]:
    """Return the requests of each look at the group, in which every member reads all. Blocks."""
    daemons: list[Daemon] = []
    try:
        for each in range(number):
            daemon = Daemon(servers, topic, group, f"{group}-{each}", resync_interval=_POLL)
            daemons.append(daemon)
        await_shares(daemons, len(topic.ends))
        before = requests(servers)
        time.sleep(_POLL * _POLLS)
        asked = requests(servers) - before
        for daemon in daemons:
            daemon.stop()
    finally:
        for daemon in daemons:
            daemon.kill()
    looks = number * _POLLS
    return {
        "requests_per_look": round(asked / looks),
        "requests_per_look_and_partition": round(asked / looks / len(topic.ends), 2),
    }
