"""systemd as a daemon sees it: a datagram socket in NOTIFY_SOCKET."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.devstack.wait import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.daemon.rig import Daemon

#: Seconds after which a test gives up.
WAIT = 60.0


class Supervisor:
    """Hears what daemons say. ``watchdog`` is in seconds."""

    def __init__(self, directory: Path, watchdog: float) -> None:
        self.watchdog = watchdog
        self._heard: list[tuple[float, str]] = []
        self._path = directory / "notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self._path))
        self._socket.setblocking(False)

    def watch(self, daemon: Daemon) -> Daemon:
        """Set up a daemon, not started yet, to notify this supervisor; return it."""
        daemon.environment |= {
            "NOTIFY_SOCKET": str(self._path),
            "WATCHDOG_USEC": str(int(self.watchdog * 1e6)),
        }
        return daemon

    def messages(self) -> list[str]:
        """Return what was said so far."""
        return [message for _, message in self.log()]

    def log(self) -> list[tuple[float, str]]:
        """Return what was said so far, and by when."""
        while True:
            try:
                message = self._socket.recv(10_000).decode()
            except BlockingIOError:
                return self._heard
            self._heard.append((SYSTEM_CLOCK.monotonic(), message))

    def fed(self) -> int:
        """Return how often the watchdog was fed."""
        return sum("WATCHDOG=1" in message for message in self.messages())

    def wait(self, text: str) -> str:
        """Wait for a message with this text in it and return the message."""
        found = wait_for(
            lambda: next((m for m in self.messages() if text in m), None), Deadline.after(WAIT)
        )
        assert found is not None, self.messages()
        return found

    def wait_silence(self) -> bool:
        """Wait until systemd would have killed the process for its silence.

        False if the watchdog is fed for ever.
        """

        def silent() -> bool:
            last = max((at for at, m in self.log() if "WATCHDOG=1" in m), default=0.0)
            return SYSTEM_CLOCK.monotonic() - last > self.watchdog

        return bool(wait_for(silent, Deadline.after(WAIT)))

    def close(self) -> None:
        """Hear nothing any more."""
        self._socket.close()
