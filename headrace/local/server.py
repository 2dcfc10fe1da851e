"""What ZooKeeper and Kafka have in common as servers of the local stack."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import structlog

from headrace.clock import SYSTEM_CLOCK
from headrace.local.errors import LocalStackError, PortTakenError, ServerStartError
from headrace.local.process import ServerProcess
from headrace.local.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headrace.clock import Deadline
    from headrace.local.identity import ProcessIdentity

log = structlog.get_logger(__name__)

#: How much of a log an error message quotes.
_QUOTED_LINES = 15


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
        """``host:port`` for clients."""

    @abstractmethod
    def _command(self, deadline: Deadline) -> list[str]:
        """Write the settings and return the command that starts the server."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the server answers a client's question as a ready server does."""

    @property
    def identity(self) -> ProcessIdentity | None:
        """The server's process, None while it is stopped."""
        return None if self._process is None else self._process.identity

    @property
    def running(self) -> bool:
        """Whether the process lives (a paused one does)."""
        return self._process is not None and self._process.exit_code is None

    def start(self, deadline: Deadline) -> None:
        """Start the server and return when it is ready for clients. Blocks.

        Raises:
            PortTakenError: something else listens on its port.
            ServerStartError: it ended, or was not ready at the deadline; it is stopped then.
            LocalStackError: it runs already.
        """
        if self.running:
            raise LocalStackError(f"{self.name} runs already on {self.address}")
        self.kill()  # buries one that ended by itself
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
        """Let a frozen server go on (SIGCONT)."""
        self._live().resume()

    def _live(self) -> ServerProcess:
        if self._process is None:
            raise LocalStackError(f"{self.name} is stopped; start it first")
        return self._process

    def _await_ready(self, process: ServerProcess, deadline: Deadline, logged: int) -> None:
        ready = wait_for(lambda: process.exit_code is not None or self._answers(), deadline)
        if ready and process.exit_code is None:
            return
        lines = self._logged_since(logged)
        if "Address already in use" in lines:
            raise PortTakenError(f"{self.name}: another process listens on {self.address}")
        end = "\n".join(lines.splitlines()[-_QUOTED_LINES:])
        what = f"ended with code {process.exit_code}" if ready else "was not ready in time"
        raise ServerStartError(f"{self.name} {what}; the end of {self.log_file}:\n{end}")

    def _logged_since(self, position: int) -> str:
        with self.log_file.open("rb") as file:
            file.seek(position)
            return file.read().decode(errors="replace")
