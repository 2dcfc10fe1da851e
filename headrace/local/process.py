"""One server process: started, signalled and stopped for certain."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.local.errors import LocalStackError, ServerStartError
from headrace.local.identity import ProcessIdentity, ProcessState
from headrace.local.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.clock import Deadline

#: What the operating system may take to bury a killed process; far above what it needs.
_BURIAL_S = 10

_SUPERVISOR = Path(__file__).with_name("supervisor.py")


class ServerProcess:
    """A command under a supervisor that kills it when this process is gone, even by SIGKILL.

    It runs in a session of its own, so that Ctrl-C in a terminal reaches only its owner, who
    then stops it in order. Not thread-safe: one thread at a time.
    """

    def __init__(self, supervisor: subprocess.Popen[bytes], identity: ProcessIdentity) -> None:
        self._supervisor = supervisor
        self.identity = identity

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        log_file: Path,
        deadline: Deadline,
        keep_open: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> ServerProcess:
        """Start ``command``, its output appended to ``log_file``; returns once it has a pid.

        The descriptors in ``keep_open`` stay open in the supervisor until the command has ended.
        ``environment`` has variables to set besides those of this process.

        Raises:
            ServerStartError: the command cannot be run.
        """
        with log_file.open("ab") as log:
            supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SUPERVISOR), str(os.getpid()), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                pass_fds=tuple(keep_open),
                env={**os.environ, **(environment or {})},
            )
        identity = _read_identity(supervisor, deadline)
        if identity is None:
            _close(supervisor)
            raise ServerStartError(f"{command[0]} could not be run; see {log_file}")
        return cls(supervisor, identity)

    @property
    def exit_code(self) -> int | None:
        """The exit code, 128 + n after signal n; None while the process lives."""
        return self._supervisor.poll()

    def pause(self, deadline: Deadline) -> None:
        """Stop the process where it stands (SIGSTOP); returns when it stands. Blocks briefly."""
        self._send(signal.SIGSTOP)
        wait_for(lambda: self.identity.state is not ProcessState.RUNNING, deadline)

    def resume(self) -> None:
        """Let a paused process go on (SIGCONT)."""
        self._send(signal.SIGCONT)

    def stop(self, deadline: Deadline) -> int:
        """End the process (SIGTERM, SIGKILL at the deadline) and return its exit code. Blocks."""
        self.identity.send(signal.SIGTERM)
        self.identity.send(signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            self._supervisor.wait(deadline.remaining)
        return _close(self._supervisor)

    def kill(self) -> int:
        """End the process at once (SIGKILL) and return its exit code. Blocks briefly."""
        self.identity.send(signal.SIGKILL)
        return _close(self._supervisor)

    def _send(self, number: signal.Signals) -> None:
        if not self.identity.send(number):
            raise LocalStackError(
                f"process {self.identity.pid} has ended and cannot take {number.name}"
            )


def _read_identity(
    supervisor: subprocess.Popen[bytes], deadline: Deadline
) -> ProcessIdentity | None:
    assert supervisor.stdout is not None
    ready, _, _ = select.select([supervisor.stdout], [], [], deadline.remaining)
    line = supervisor.stdout.readline() if ready else b""
    if not line:
        return None
    # A command that has ended already is nobody by now: no process started at "".
    return ProcessIdentity.of(int(line)) or ProcessIdentity(int(line), started="")


def _close(supervisor: subprocess.Popen[bytes]) -> int:
    """Close the pipe, upon which the supervisor kills what it holds, and wait for its end."""
    assert supervisor.stdin is not None
    assert supervisor.stdout is not None
    supervisor.stdin.close()
    supervisor.stdout.close()
    return supervisor.wait(_BURIAL_S)
