"""Commands on topologies that are stopped, and the runs around them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from headrace.cli import app
from headrace.config import load
from headrace.coordinators.group_nodes import read_members
from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from headrace.ops.offsets.commands import zookeeper_session

if TYPE_CHECKING:
    from pathlib import Path

    from typer.testing import Result

    from tests.integration.daemon.rig import Site

#: Seconds in which a member joins.
WAIT = 60.0

#: Less than the effects of a command that changes state: it joins, claims, fences and commits.
EFFECTS = 20


def headrace(file: Path, *words: str, expect: int = 0) -> Result:
    """Run a command with a configuration; its exit code is the one that is expected."""
    result = CliRunner().invoke(app, [*words, "-c", str(file)])
    assert result.exit_code == expect, result.output
    return result


def killed_at_every_effect(file: Path, command: str) -> int:
    """Run a command again and again until it is not killed any more; return how often it was."""
    killed = [sys.executable, "-m", "tests.integration.extensions.keyed.killed_commands"]
    done = subprocess.run([*killed, command, str(file)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return int(done.stdout.split()[-1])


def run_to_the_end(site: Site, document: dict[str, Any]) -> None:
    """Run a process that reads what is there, with all parts of a topology, and ends."""
    daemon = site.daemon(document).start("--until", "latest")
    assert daemon.wait() == 0, daemon.text()


def wait_for_members(file: Path, *channels: str) -> None:
    """Wait until the groups of channels have a member."""
    config = load(file)
    groups = [config.channels[name].group for name in channels]
    with zookeeper_session(config) as session:
        assert wait_for(
            lambda: all(read_members(session, group) for group in groups), Deadline.after(WAIT)
        )
