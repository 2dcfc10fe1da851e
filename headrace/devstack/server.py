"""The common base of the local stack's servers: process, ports, identity."""

from __future__ import annotations

import errno
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import structlog

from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.processes import start_of
from headrace.core.progress import Silence, signs_of_work
from headrace.devstack.errors import LocalStackError, PortTakenError
from headrace.devstack.wait import FAR_S, SILENCE_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


#: Everything listens here and nowhere else.
LOOPBACK = "127.0.0.1"

#: Below the range from which operating systems take the ports of outgoing connections (Linux:
#: 32768 up, others: 49152 up). While a server is down, no client may be given its port, least of
#: all the client that tries to reconnect to it: it would connect to itself.
_RANGE = range(15_000, 32_000)

_TRIES = 1_000


def free_port() -> int:
    """Return a port that nothing listens on now; another process may still take it first.

    Raises:
        OSError: none of many ports tried was free.
    """
    generator = random.SystemRandom()
    for _ in range(_TRIES):
        port = generator.choice(_RANGE)
        if _is_free(port):
            return port
    raise OSError(f"no free port found on {LOOPBACK} in {_TRIES} tries")


class PortBook:
    """The ports of a folder's servers, kept in a file: the same folder, the same addresses.

    ``usual`` are those that names have the first time, where they are free. Not thread-safe.
    """

    def __init__(self, path: Path, usual: Mapping[str, int] | None = None) -> None:
        self._path = path
        self._usual = usual or {}
        self._ports: dict[str, int] = _read(path)

    def port(self, name: str) -> int:
        """Return the port kept under this name, a free one the first time."""
        if name not in self._ports:
            usual = self._usual.get(name)
            if usual is None or not _is_free(usual):
                usual = free_port()
            self._ports[name] = usual
        return self._ports[name]

    def forget(self) -> None:
        """Release all ports, so that others are chosen."""
        self._ports.clear()

    def save(self) -> None:
        """Write the ports down for the next start."""
        self._path.write_text(json.dumps(self._ports), encoding="utf-8")


def _read(path: Path) -> dict[str, int]:
    """Return the ports in the file; none where it is missing or cannot be read as such."""
    try:
        ports = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): int(port) for name, port in ports.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def _is_free(port: int) -> bool:
    return _refusal(port) is None


def _is_taken(port: int) -> bool:
    """Return whether another process listens; connections of an ended server do not count."""
    refusal = _refusal(port)
    return refusal is not None and refusal.errno == errno.EADDRINUSE


def _refusal(port: int) -> OSError | None:
    """Return why the port cannot be bound, None if it can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            return error
        return None


class ProcessState(Enum):
    """The state of a process, as far as signals are concerned."""

    RUNNING = "running"
    """It runs or could run."""

    PAUSED = "paused"
    """It was stopped by a signal and waits for SIGCONT."""

    GONE = "gone"
    """It has ended; its pid may belong to another process by now."""


#: What psutil calls a process that a signal or a debugger has stopped.
_PAUSED = {psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP}


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process, told apart from a later one with the same pid by when it started.

    ``started`` is what :func:`start_of` says, and only good for comparing.
    """

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Return the identity of the process that has this pid now, None if there is none."""
        facts = _facts(pid)
        return None if facts is None else cls(pid, facts[1])

    @property
    def state(self) -> ProcessState:
        """Return what this very process does now. A zombie counts as gone."""
        facts = _facts(self.pid)
        if facts is None or facts[1] != self.started:
            return ProcessState.GONE
        return ProcessState.PAUSED if facts[0] in _PAUSED else ProcessState.RUNNING

    def send(self, number: signal.Signals) -> bool:
        """Send a signal to this very process; False if it is gone and nothing was sent."""
        if self.state is ProcessState.GONE:
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def _facts(pid: int) -> tuple[str, str] | None:
    """Return (psutil's word for the state, start) of a live process."""
    try:
        status = psutil.Process(pid).status()
    except psutil.NoSuchProcess:
        return None
    started = start_of(pid)
    ended = not started or status in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    return None if ended else (status, started)


#: What the operating system may take to bury a killed process; far above what it needs, also where
#: many others run.
_BURIAL_S = 120

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
            LocalStackError: the command cannot be run.
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
            _close_pipe(supervisor)
            raise LocalStackError(f"{command[0]} could not be run; see {log_file}")
        return cls(supervisor, identity)

    @property
    def exit_code(self) -> int | None:
        """Return the exit code, 128 + n after signal n; None while the process lives."""
        return self._supervisor.poll()

    def pause(self, deadline: Deadline) -> None:
        """Stop the process where it stands (SIGSTOP); returns when it stands. Blocks briefly."""
        self._send(signal.SIGSTOP)
        wait_for(lambda: self.identity.state is not ProcessState.RUNNING, deadline)

    def resume(self) -> None:
        """Resume a paused process (SIGCONT)."""
        self._send(signal.SIGCONT)

    def stop(self, deadline: Deadline) -> int:
        """End the process (SIGTERM, SIGKILL at the deadline) and return its exit code. Blocks."""
        self.identity.send(signal.SIGTERM)
        self.identity.send(signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            self._supervisor.wait(deadline.remaining)
        return _close_pipe(self._supervisor)

    def kill(self) -> int:
        """End the process at once (SIGKILL) and return its exit code. Blocks briefly."""
        self.identity.send(signal.SIGKILL)
        return _close_pipe(self._supervisor)

    def _send(self, number: signal.Signals) -> None:
        if not self.identity.send(number):
            raise LocalStackError(
                f"process {self.identity.pid} has ended and cannot take {number.name}"
            )


def _read_identity(
    supervisor: subprocess.Popen[bytes], deadline: Deadline
) -> ProcessIdentity | None:
    assert supervisor.stdout is not None
    pipe, silence = supervisor.stdout, Silence(signs_of_work([supervisor.pid]), SILENCE_S)
    ready = wait_for(lambda: select.select([pipe], [], [], 0)[0], deadline, silence)
    line = pipe.readline() if ready else b""
    if not line:
        return None
    # A command that has ended already has no identity by now: no process started at "".
    return ProcessIdentity.of(int(line)) or ProcessIdentity(int(line), started="")


def _close_pipe(supervisor: subprocess.Popen[bytes]) -> int:
    """Close the pipe, upon which the supervisor kills what it holds, and wait for its end."""
    assert supervisor.stdin is not None
    assert supervisor.stdout is not None
    supervisor.stdin.close()
    supervisor.stdout.close()
    return supervisor.wait(_BURIAL_S)


def run_to_its_end(
    command: Sequence[str],
    *,
    title: str,
    log_file: Path,
    deadline: Deadline,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a command that ends by itself, for as long as it works. Blocks.

    Raises:
        LocalStackError: it failed, showed no sign of work for ``SILENCE_S`` seconds, or was not
            done at the deadline; it is killed then.
    """
    process = ServerProcess.start(
        command, log_file=log_file, deadline=deadline, environment=environment
    )
    silence = Silence(signs_of_work([process.identity.pid], [log_file]), SILENCE_S)
    try:
        done = wait_for(lambda: process.exit_code is not None, deadline, silence)
        code = process.exit_code
    finally:
        process.kill()
    if not done:
        what = "done in time" if deadline.expired else f"at work for {silence.limit:.0f} s"
        raise LocalStackError(f"{title} was not {what}; see {log_file}")
    if code:
        said = log_file.read_text(encoding="utf-8", errors="replace")
        raise LocalStackError(f"{title} failed: {said}")


log = structlog.get_logger(__name__)

#: Seconds that a server has for a question to it: more with each that it has not answered, as where
#: many processes run a ready one may need them, and no more than one that has ended may hold up
#: who waits for it.
_PROBE_S, _LONGEST_PROBE_S = 2.0, 10.0

#: How much of a log an error message quotes.
_QUOTED_LINES = 15

#: What Java says of a port that it cannot have.
_TAKEN = "Address already in use"


def _growing(first: float, last: float) -> Iterator[float]:
    """Yield seconds that grow by half each time, up to the last without end."""
    while True:
        yield first
        first = min(1.5 * first, last)


class LocalServer(ABC):
    """One server process with its folder, its log and its verbs.

    Port and data stay the same over stop, kill and start. Not thread-safe: one thread at a time.
    """

    def __init__(self, name: str, directory: Path) -> None:
        self.name = name
        self.directory = directory
        self.log_file = directory / "server.log"
        #: Descriptors that stay open while the server lives, even beyond its owner.
        self.keep_open: Sequence[int] = ()
        self._process: ServerProcess | None = None

    @property
    @abstractmethod
    def address(self) -> str:
        """Return ``host:port`` for clients."""

    @abstractmethod
    def _command(self, deadline: Deadline) -> list[str]:
        """Write the settings and return the command that starts the server."""

    @abstractmethod
    def _answers(self, seconds: float) -> bool:
        """Return whether the server answers a client's question, in so many seconds, as a ready
        one.
        """

    @property
    def identity(self) -> ProcessIdentity | None:
        """Return the server's process, None while it is stopped."""
        return None if self._process is None else self._process.identity

    @property
    def running(self) -> bool:
        """Return whether the process lives (a paused one does)."""
        return self._process is not None and self._process.exit_code is None

    def start(self, deadline: Deadline | None = None) -> None:
        """Start the server and return when it is ready for clients. Blocks.

        It may take as long as it works, until the deadline, which is ``FAR_S`` from now unless
        given.

        Raises:
            PortTakenError: something else listens on its port.
            LocalStackError: it runs already; or it ended, showed no sign of work for
                ``SILENCE_S`` seconds, or was not ready at the deadline, and is stopped then.
        """
        deadline = deadline or Deadline.after(FAR_S)
        if self.running:
            raise LocalStackError(f"{self.name} runs already on {self.address}")
        self.kill()  # buries one that ended by itself
        if _is_taken(int(self.address.rpartition(":")[2])):  # it would answer in its place
            raise self._port_taken()
        began = SYSTEM_CLOCK.monotonic()
        self.directory.mkdir(parents=True, exist_ok=True)
        logged = self.log_file.stat().st_size if self.log_file.exists() else 0
        self._process = ServerProcess.start(
            self._command(deadline),
            log_file=self.log_file,
            deadline=deadline,
            keep_open=self.keep_open,
        )
        try:
            self._await_ready(self._process, deadline, logged)
        except BaseException:
            self.kill()
            raise
        log.info(
            "local_server_ready",
            server=self.name,
            address=self.address,
            seconds=round(SYSTEM_CLOCK.monotonic() - began, 2),
        )

    def stop(self, deadline: Deadline) -> None:
        """Stop the server in order, and by force at the deadline. Blocks. Harmless if stopped."""
        if self._process is not None:
            self._process.stop(deadline)
            self._process = None

    def kill(self) -> None:
        """Stop the server at once with SIGKILL, as a crash would. Harmless if stopped."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def pause(self, deadline: Deadline) -> None:
        """Freeze the server (SIGSTOP): it keeps its connections and answers nothing."""
        self._live().pause(deadline)

    def resume(self) -> None:
        """Resume a frozen server (SIGCONT)."""
        self._live().resume()

    def _live(self) -> ServerProcess:
        if self._process is None:
            raise LocalStackError(f"{self.name} is stopped; start it first")
        return self._process

    def _await_ready(self, process: ServerProcess, deadline: Deadline, logged: int) -> None:
        silence = Silence(signs_of_work([process.identity.pid], [self.log_file]), SILENCE_S)
        patience = _growing(_PROBE_S, _LONGEST_PROBE_S)
        ready = wait_for(
            lambda: process.exit_code is not None or self._answers(next(patience)),
            deadline,
            silence,
        )
        lines = self._logged_since(logged)
        if _TAKEN in lines:  # also if something answers: that is the other process
            raise self._port_taken()
        if ready and process.exit_code is None:
            return
        end = "\n".join(lines.splitlines()[-_QUOTED_LINES:])
        if ready:
            what = f"ended with code {process.exit_code}"
        elif deadline.expired:
            what = "was not ready in time"
        else:
            what = f"showed no sign of work for {silence.limit:.0f} s, and was not ready"
        raise LocalStackError(f"{self.name} {what}; the end of {self.log_file}:\n{end}")

    def _port_taken(self) -> PortTakenError:
        return PortTakenError(f"{self.name}: another process listens on {self.address}")

    def _logged_since(self, position: int) -> str:
        with self.log_file.open("rb") as file:
            file.seek(position)
            return file.read().decode(errors="replace")
