from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from headrace.core.clock import Deadline
from headrace.devstack import LocalStack
from headrace.devstack.server import LOOPBACK, ProcessIdentity, ProcessState
from headrace.devstack.wait import wait_for

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

_OWNER = """
import sys, threading
from pathlib import Path
from headrace.devstack import LocalStack
stack = LocalStack.start(Path(sys.argv[1]))
print("pids", *[server.identity.pid for server in stack.servers], flush=True)
threading.Event().wait(100)
"""


def _gone(*identities: ProcessIdentity) -> bool:
    return bool(
        wait_for(
            lambda: all(identity.state is ProcessState.GONE for identity in identities),
            Deadline.after(20),
        )
    )


def _command(name: str, directory: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace.devstack", name, "--dir", str(directory)]
    return subprocess.run(command, capture_output=True, check=False, text=True, timeout=100)


def _state(directory: Path) -> tuple[ProcessIdentity, list[ProcessIdentity]]:
    facts = json.loads((directory / "state.json").read_text(encoding="utf-8"))
    servers = [ProcessIdentity(**server["process"]) for server in facts["servers"]]
    return ProcessIdentity(**facts["keeper"]), servers


def test_both_servers_die_with_their_killed_owner(tmp_path: Path) -> None:
    """SIGKILL of the process that owns a stack leaves neither server, not even a paused one."""
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        line = next(line for line in owner.stdout if line.startswith("pids"))
        servers = [ProcessIdentity.of(int(pid)) for pid in line.split()[1:]]
        found = [server for server in servers if server is not None]
        assert len(found) == 2
        found[0].send(signal.SIGSTOP)
        owner.kill()
    assert _gone(*found)


def test_a_port_taken_in_between_is_replaced(tmp_path: Path) -> None:
    """When something else listens on a port that the folder kept, the stack takes others."""
    with socket.create_server((LOOPBACK, 0)) as stranger:
        taken = stranger.getsockname()[1]
        ports = json.dumps({"zookeeper-1": taken})
        (tmp_path / "ports.json").write_text(ports, encoding="utf-8")
        with LocalStack.start(tmp_path) as stack:
            assert stack.zookeeper.port != taken
            assert stack.zookeeper.running


@pytest.mark.timeout(180)
def test_up_stays_until_down(tmp_path: Path) -> None:
    """The stack outlives the command, a second up changes nothing, and down ends all of it."""
    assert _command("up", tmp_path).returncode == 0
    keeper, servers = _state(tmp_path)
    try:
        again = _command("up", tmp_path)
        assert again.returncode == 0
        assert _state(tmp_path) == (keeper, servers)
        status = _command("status", tmp_path)
        assert status.returncode == 0
        assert status.stdout.count("running") == 2
    finally:
        down = _command("down", tmp_path)
    assert (down.returncode, down.stdout) == (0, "stopped\n")
    assert _gone(keeper, *servers)
    assert _command("status", tmp_path).returncode == 3


@pytest.mark.timeout(180)
def test_up_recovers_from_a_killed_keeper(tmp_path: Path) -> None:
    """Servers die with a killed keeper; up then starts the stack anew, on the same addresses."""
    first = _command("up", tmp_path)
    keeper, servers = _state(tmp_path)
    keeper.send(signal.SIGKILL)
    assert _gone(keeper, *servers)
    assert _command("status", tmp_path).returncode == 3
    try:
        second = _command("up", tmp_path)
        assert second.returncode == 0
        assert _addresses(second.stdout) == _addresses(first.stdout)
    finally:
        assert _command("down", tmp_path).returncode == 0


def test_a_stack_that_cannot_start_says_why(tmp_path: Path) -> None:
    """Up in a folder that another process's stack uses exits with 1 and names the folder."""
    with LocalStack.start(tmp_path):
        refused = _command("up", tmp_path)
    assert refused.returncode == 1
    assert f"a local stack runs in {tmp_path} already" in refused.stderr


def _addresses(table: str) -> list[str]:
    return [word for word in table.split() if word.startswith(f"{LOOPBACK}:")]
