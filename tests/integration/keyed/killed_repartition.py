"""Commands that move keys, each killed STEP lines later than the one before.

python -m tests.integration.keyed.killed_repartition STEP CONFIG
"""

from __future__ import annotations

import logging
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

import headrace.tools.state.change
import headrace.tools.state.changelog
import headrace.tools.state.repartition
from headrace.config import load
from headrace.coordinators.group_nodes import read_members
from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from headrace.testing.kills import killed_at_every_line
from headrace.tools.offsets.commands import zookeeper_session
from headrace.tools.state.repartition import repartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.config import Config

MODULES = (
    headrace.tools.state.change,
    headrace.tools.state.changelog,
    headrace.tools.state.repartition,
)

#: Seconds in which ZooKeeper ends the session of one that was killed.
WAIT = 60.0

#: How often a line counts: rows and records go by in loops.
PASSES = 3


def main(step: int, path: Path) -> None:
    """Kill one command after the other until one comes to its end."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    config = load(path)
    last = killed_at_every_line(partial(_prepare, config), MODULES, step=step, passes=PASSES)
    sys.stdout.write(f"{last}\n")


def _prepare(config: Config, _: int) -> Callable[[], object]:
    """Wait for the end of the one before, which held the group."""
    with zookeeper_session(config) as session:
        groups = [each.group for each in config.channels.values()]
        assert wait_for(
            lambda: not any(read_members(session, group) for group in groups), Deadline.after(WAIT)
        )
    return lambda: repartition(config, None, partitioner=None, rewrite=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
