from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from headrace.core.clock import Deadline
from headrace.devstack.errors import LocalStackError
from headrace.devstack.server import ProcessIdentity, ProcessState, ServerProcess
from headrace.devstack.wait import wait_for

if TYPE_CHECKING:
    from pathlib import Path

#: Starts a process of its own as a server's owner does, tells its pid, and waits to be killed.
_OWNER = """
import os, sys, threading
from pathlib import Path
from headrace.core.clock import Deadline
from headrace.devstack.server import ServerProcess
server = ServerProcess.start(["sleep", "100"], log_file=Path(sys.argv[1]),
                             deadline=Deadline.after(20))
if sys.argv[2] == "forked" and os.fork() == 0:
    sys.stdout.close()
    os.close(1)
    threading.Event().wait(100)
print(server.identity.pid, flush=True)
threading.Event().wait(100)
"""


def _start(tmp_path: Path, *command: str) -> ServerProcess:
    return ServerProcess.start(command, log_file=tmp_path / "log", deadline=Deadline.after(20))


def _parent_of(process: ServerProcess) -> int:
    """Return the pid of the supervisor that a process is a child of."""
    asked = ["ps", "-o", "ppid=", "-p", str(process.identity.pid)]
    return int(subprocess.run(asked, check=True, capture_output=True).stdout)


def _gone(identity: ProcessIdentity) -> bool:
    return bool(wait_for(lambda: identity.state is ProcessState.GONE, Deadline.after(20)))


def test_a_process_is_stopped_in_order(tmp_path: Path) -> None:
    """Stop ends the process by SIGTERM, which its exit code tells."""
    process = _start(tmp_path, "sleep", "100")
    assert process.exit_code is None
    assert process.stop(Deadline.after(20)) == 128 + signal.SIGTERM
    assert _gone(process.identity)


def test_a_process_that_will_not_stop_is_killed(tmp_path: Path) -> None:
    """A process that ignores SIGTERM is ended by SIGKILL once the deadline is over."""
    process = _start(tmp_path, "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done")
    log = tmp_path / "log"
    assert wait_for(lambda: log.read_bytes() == b"ready\n", Deadline.after(20))
    assert process.stop(Deadline.after(0)) == 128 + signal.SIGKILL


def test_a_paused_process_can_be_stopped(tmp_path: Path) -> None:
    """Stop reaches a process that stands still."""
    process = _start(tmp_path, "sleep", "100")
    process.pause(Deadline.after(20))
    assert process.identity.state is ProcessState.PAUSED
    assert process.stop(Deadline.after(20)) == 128 + signal.SIGTERM


def test_a_process_that_ends_by_itself_tells_its_code(tmp_path: Path) -> None:
    """Exit code and output of a process that ended are there for its owner."""
    process = _start(tmp_path, "sh", "-c", "echo said; echo on error >&2; exec 0<&-; exit 7")
    assert wait_for(lambda: process.exit_code is not None, Deadline.after(20))
    assert process.stop(Deadline.after(0)) == 7
    assert (tmp_path / "log").read_bytes() == b"said\non error\n"
    with pytest.raises(LocalStackError, match="has ended and cannot take SIGCONT"):
        process.resume()


def test_a_command_that_cannot_be_run_is_an_error(tmp_path: Path) -> None:
    """A program that does not exist is told at the start, by name."""
    with pytest.raises(LocalStackError, match="/no/such/program could not be run"):
        _start(tmp_path, "/no/such/program")


@pytest.mark.parametrize("owner_kind", ["plain", "forked"])
def test_a_process_dies_with_its_killed_owner(tmp_path: Path, owner_kind: str) -> None:
    """SIGKILL of the owner ends the process, even when a fork of the owner lives on."""
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path / "log"), owner_kind],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as owner:
        assert owner.stdout is not None
        server = ProcessIdentity.of(int(owner.stdout.readline()))
        assert server is not None
        owner.kill()
        try:
            assert _gone(server)
        finally:
            _end_group(owner.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends orphans")
def test_a_process_dies_with_its_killed_supervisor(tmp_path: Path) -> None:
    """SIGKILL of the supervisor itself leaves no orphan behind."""
    process = _start(tmp_path, "sleep", "100")
    os.kill(_parent_of(process), signal.SIGKILL)
    assert _gone(process.identity)
    assert process.kill() == -signal.SIGKILL


def test_a_supervisor_that_is_told_to_end_takes_its_process_along(tmp_path: Path) -> None:
    """SIGTERM to the supervisor ends the process before the supervisor."""
    process = _start(tmp_path, "sleep", "100")
    os.kill(_parent_of(process), signal.SIGTERM)
    assert wait_for(lambda: process.exit_code is not None, Deadline.after(20))
    assert process.identity.state is ProcessState.GONE
    process.kill()


def _end_group(session: int) -> None:
    """End what is left of the processes that this test started in a session of their own."""
    try:
        os.killpg(session, signal.SIGKILL)
    except ProcessLookupError:
        return


def test_a_process_gets_the_variables_given_to_it(tmp_path: Path) -> None:
    """Variables are added to those of the owner."""
    process = ServerProcess.start(
        ["sh", "-c", 'echo "$HEADRACE_TEST_VALUE $HOME"'],
        log_file=tmp_path / "log",
        deadline=Deadline.after(20),
        environment={"HEADRACE_TEST_VALUE": "given"},
    )
    assert wait_for(lambda: process.exit_code is not None, Deadline.after(20))
    assert (tmp_path / "log").read_text(encoding="utf-8") == f"given {os.environ['HOME']}\n"
    process.kill()
