"""Commands that change state, each killed one effect later than the one before.

python -m tests.integration.extensions.keyed.killed_commands COMMAND CONFIG, where COMMAND is
repartition, restore, reshard or adopt.
"""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from headrace.config import load
from headrace.coordinators.group_nodes import read_members
from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from headrace.ops.offsets.commands import zookeeper_session
from headrace.ops.state.repartition import repartition
from headrace.ops.state.rescue import restore_from_store
from headrace.ops.streams.adopt import adopt
from headrace.ops.streams.reshard import reshard
from headrace.testing.kills import Effects, killed_at_every_effect
from headrace.zookeeper.session import ZooKeeperSession

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.config import Config

EFFECTS = Effects(
    clients=(Producer, Consumer, AdminClient),
    functions=(
        ZooKeeperSession.create,
        ZooKeeperSession.ensure,
        ZooKeeperSession.set,
        ZooKeeperSession.delete,
        ZooKeeperSession.multi,
        ZooKeeperSession.multi_each,
    ),
)

#: Seconds in which ZooKeeper ends the session of one that was killed.
WAIT = 60.0

#: How often an effect counts in one place: rows and records go by in loops.
PASSES = 3


def main(command: str, path: Path) -> None:
    """Kill one command after the other until one comes to its end."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    config = load(path)
    work = partial(_COMMANDS[command], config)
    prepare, step = partial(_prepare, config, work), _STEPS.get(command, 1)
    last = killed_at_every_effect(prepare, EFFECTS, passes=PASSES, step=step)
    sys.stdout.write(f"{last}\n")


def _repartition(config: Config) -> None:
    repartition(config, None, partitioner=None, rewrite=True)


def _restore(config: Config) -> None:
    assert restore_from_store(config, None) == 0


def _reshard(config: Config) -> None:
    reshard(config, "shop", 4)


def _adopt(config: Config) -> None:
    adopt(config, "main", "counts")


_COMMANDS = {
    "repartition": _repartition,
    "restore": _restore,
    "reshard": _reshard,
    "adopt": _adopt,
}

#: Effects from one kill to the next, where a command holds several groups. It is odd, because one
#: effect counts before it and after it.
_STEPS = {"reshard": 3, "adopt": 3}


def _prepare(config: Config, work: Callable[[], object], _: int) -> Callable[[], object]:
    """Wait for the end of the one before, which held the group."""
    with zookeeper_session(config) as session:
        groups = [each.group for each in config.channels.values()]
        assert wait_for(
            lambda: not any(read_members(session, group) for group in groups), Deadline.after(WAIT)
        )
    return work


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
