from __future__ import annotations

import shlex
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from headrace.core.clock import Deadline
from headrace.devstack.errors import LocalStackError, PortTakenError
from headrace.devstack.server import LocalServer
from headrace.devstack.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class ShellServer(LocalServer):
    """A shell script in a server's place; ready when its log says so."""

    def __init__(self, directory: Path, script: str) -> None:
        super().__init__("shell-1", directory / "shell-1")
        self.script = script

    @property
    def address(self) -> str:
        """Return the address at which it would listen."""
        return "127.0.0.1:1"

    def _command(self, deadline: Deadline) -> list[str]:
        del deadline
        return ["sh", "-c", self.script]

    def _answers(self, seconds: float) -> bool:
        del seconds
        return b"at your service" in self.log_file.read_bytes()


@pytest.fixture
def server(tmp_path: Path) -> Callable[[str], ShellServer]:
    """Make a server of a script."""
    return lambda script: ShellServer(tmp_path, script)


def test_a_server_starts_and_stops(server: Callable[[str], ShellServer]) -> None:
    """A server that answers runs until it is stopped, and stopping twice does no harm."""
    shell = server("echo at your service; exec sleep 100")
    shell.start(Deadline.after(20))
    assert shell.running
    shell.stop(Deadline.after(20))
    shell.stop(Deadline.after(20))
    assert not shell.running
    assert shell.identity is None


def test_a_server_that_ends_early_is_quoted(server: Callable[[str], ShellServer]) -> None:
    """The error of a server that ended has its exit code and the end of its log."""
    shell = server(f"echo {shlex.quote('wrong setting')}; exit 3")
    with pytest.raises(LocalStackError, match=r"(?s)ended with code 3.*wrong setting"):
        shell.start(Deadline.after(20))
    assert not shell.running


def test_a_server_that_never_answers_is_ended(server: Callable[[str], ShellServer]) -> None:
    """A server that is not ready at the deadline is stopped, and the error says so."""
    shell = server("exec sleep 100")
    with pytest.raises(LocalStackError, match="was not ready in time"):
        shell.start(Deadline.after(0.3))
    assert shell.identity is None


def test_a_server_that_works_may_take_its_time(
    server: Callable[[str], ShellServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server whose log grows, or that computes, is waited for beyond the limit of silence."""
    monkeypatch.setattr("headrace.devstack.server.SILENCE_S", 2.0)
    logs = "for n in 1 2 3 4 5 6; do echo $n; sleep 0.5; done"
    computes = (
        f"{shlex.quote(sys.executable)} -c 'while __import__(\"time\").thread_time() < 2.5: pass'"
    )
    shell = server(f"{logs}; {computes}; echo at your service; exec sleep 100")
    shell.start()
    assert shell.running
    shell.kill()


def test_a_server_that_hangs_is_told_from_a_slow_one(
    server: Callable[[str], ShellServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that neither writes nor computes is ended at the limit, and the error says so."""
    monkeypatch.setattr("headrace.devstack.server.SILENCE_S", 1.0)
    shell = server("exec sleep 100")
    with pytest.raises(LocalStackError, match="showed no sign of work for 1 s"):
        shell.start()
    assert shell.identity is None


def test_a_taken_port_is_told_apart(server: Callable[[str], ShellServer]) -> None:
    """A server that ended because its port is in use raises an error of its own kind."""
    shell = server("echo java.net.BindException: Address already in use; exit 1")
    with pytest.raises(PortTakenError, match="another process listens on"):
        shell.start(Deadline.after(20))


def test_an_earlier_runs_log_is_not_taken_for_this_ones(
    server: Callable[[str], ShellServer],
) -> None:
    """Lines that an earlier start left in the log do not explain why this one failed."""
    shell = server("echo Address already in use; exit 1")
    with pytest.raises(PortTakenError):
        shell.start(Deadline.after(20))
    shell.script = "exit 4"
    with pytest.raises(LocalStackError, match="ended with code 4") as caught:
        shell.start(Deadline.after(20))
    assert "already in use" not in str(caught.value)


def test_a_stopped_server_takes_no_signal(server: Callable[[str], ShellServer]) -> None:
    """Pausing what does not run is an error that says to start it first."""
    with pytest.raises(LocalStackError, match="start it first"):
        server("exit 0").pause(Deadline.after(1))


def test_a_server_that_ended_by_itself_can_be_started_again(
    server: Callable[[str], ShellServer],
) -> None:
    """A crash leaves nothing that stands in the way of the next start."""
    shell = server("echo at your service; exec sleep 100")
    shell.start(Deadline.after(20))
    assert shell.identity is not None
    shell.identity.send(signal.SIGKILL)
    assert wait_for(lambda: not shell.running, Deadline.after(20))
    shell.start(Deadline.after(20))
    assert shell.running
    shell.kill()
