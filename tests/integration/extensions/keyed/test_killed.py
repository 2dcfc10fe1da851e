"""State by key, in processes that are killed at every line of what restores and commits it."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.brokers import Broker
from tests.integration.extensions.keyed.killed_keyed import create

_ROOT = Path(__file__).resolve().parents[4]

#: Fewer lines cannot be: restoring two partitions, staging and committing thrice, and the store.
_LINES = 250

#: Rows of processes that are killed at the same time.
_AT_ONCE = 4


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_state_killed_at_every_line_is_that_of_the_committed_records(
    bootstrap_servers: str, tmp_path: Path
) -> None:
    """Restore, stage, commit, apply and tick: outputs, states and offsets are of one moment."""
    # they wait more than they work: several share the lines, each with topics and a store
    broker = Broker(bootstrap_servers)
    with ExitStack() as held:
        members = []
        for first in range(_AT_ONCE):
            folder = tmp_path / str(first)
            folder.mkdir()
            create(broker, folder)
            members.append(held.enter_context(_members(first, broker.address, folder)))
            held.callback(members[-1].kill)
        for each in members:
            said, complaint = each.communicate(timeout=2300)
            assert each.returncode == 0, complaint
            *commits, (_, last) = (line.split() for line in said.splitlines())
            assert int(last) > _LINES
            # the last process, and some that were killed between commit and end
            assert int(commits[-1][0]) > 2


def _members(first: int, servers: str, folder: Path) -> subprocess.Popen[str]:
    module = "tests.integration.extensions.keyed.killed_keyed"
    command = [sys.executable, "-m", module, str(first), str(_AT_ONCE), servers, str(folder)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=_ROOT)
