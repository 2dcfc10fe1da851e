"""Notifications to systemd: that the start is done, what the process is doing, and that it goes on.

Without systemd, when ``NOTIFY_SOCKET`` is not set, nothing is sent.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

import structlog

from headrace.core.clock import SYSTEM_CLOCK, Clock, Deadline
from headrace.core.supervision import HeartbeatCheck

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, MutableMapping

    from headrace.core.supervision import Heartbeat

log = structlog.get_logger(__name__)

#: Feedings within the time after which systemd takes the process for hung.
FEEDINGS = 4

#: Seconds between two looks at a stop.
STOP_INTERVAL = 1.0

#: Seconds that a stop asks for at each look, as long as it comes on.
STOP_EXTENSION = 15.0

#: Seconds to wait for systemd to take a message. It reads them whenever it turns itself.
SEND_TIMEOUT = 1.0


class NotifySocket:
    """systemd's datagram socket. An ``address`` that begins with @ is an abstract one."""

    def __init__(self, address: str) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address

    def send(self, message: str) -> None:
        """Send one message; a failure is logged, and the process goes on. Any thread."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(SEND_TIMEOUT)
                sender.sendto(message.encode(), self._address)
        except OSError as error:
            log.warning("systemd_notify_failed", message=message, error=str(error))


class Service:
    """The process as a service of systemd's.

    ``ready``, ``reloading`` and ``status`` are safe on any thread; ``beat`` and ``stopping`` are
    for the main thread. None blocks for longer than SEND_TIMEOUT. ``watchdog`` is in seconds.
    """

    def __init__(
        self,
        send: Callable[[str], None] | None = None,
        watchdog: float | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._send = send
        self._watchdog = watchdog
        self._clock = clock
        self._progress = HeartbeatCheck()
        self._fed_at = clock.monotonic()
        self._warned = False
        self._status = ""
        self._was_ready = False

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> Service:
        """Build what systemd asks for, and take it out of the environment that children inherit."""
        address = environment.pop("NOTIFY_SOCKET", "")
        interval = environment.pop("WATCHDOG_USEC", "")
        meant_for = environment.pop("WATCHDOG_PID", "")
        if not address.startswith(("/", "@")):
            return cls()
        ours = interval.isdigit() and meant_for in {"", str(os.getpid())}
        return cls(NotifySocket(address).send, int(interval) / 1e6 if ours else None)

    @property
    def supervised(self) -> bool:
        """Return whether anybody listens on the notify socket."""
        return self._send is not None

    def ready(self, status: str) -> None:
        """Report that the start is done."""
        self._send_status(status, "READY=1")
        self._was_ready = True

    @contextmanager
    def reloading(self, status: Callable[[], str]) -> Iterator[None]:
        """Report that the block applies a new configuration, and at its end the ``status``.

        Nothing while the start is not done: the end of a reload would be taken for the end of that.
        """
        if not self._was_ready:
            yield
            return
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send_status(
            "putting new configuration in place", "RELOADING=1", f"MONOTONIC_USEC={now}"
        )
        try:
            yield
        finally:
            self._send_status(status(), "READY=1")

    def status(self, text: str) -> None:
        """Report in one line what the process is doing; the same line twice is sent once."""
        if text != self._status:
            self._send_status(text)

    def beat(self, parts: Iterable[Heartbeat]) -> None:
        """Record a heartbeat of the main thread; feed the watchdog if all parts make progress.

        There is no timer behind it: where one part hangs, nothing is sent any more.
        """
        if self._watchdog is None:
            return
        now = self._clock.monotonic()
        if now - self._fed_at < self._watchdog / FEEDINGS:
            return
        watched = list(parts)
        self._compare_limits(self._watchdog, watched)
        if self._progress.since_last_time(watched):
            self._fed_at = now
            self._notify("WATCHDOG=1")

    @contextmanager
    def stopping(
        self, status: str, parts: Callable[[], Iterable[Heartbeat]], deadline: Deadline
    ) -> Iterator[None]:
        """Report that the block stops the process, and extend the time-out while it progresses.

        Never for time after ``deadline``, by which the stop ends whatever hangs.
        """
        self._send_status(status, "STOPPING=1")
        if not self.supervised:
            yield
            return
        done = Event()
        attendant = Thread(
            target=self._attend, args=[parts, deadline, done], name="service-stop", daemon=True
        )
        attendant.start()
        try:
            yield
        finally:
            done.set()
            attendant.join(SEND_TIMEOUT)

    def _attend(
        self, parts: Callable[[], Iterable[Heartbeat]], deadline: Deadline, done: Event
    ) -> None:
        while not done.wait(STOP_INTERVAL) and not deadline.expired:
            watched = list(parts())
            if self._progress.since_last_time(watched):
                extension = min(STOP_EXTENSION, deadline.remaining + STOP_INTERVAL)
                self._notify(f"EXTEND_TIMEOUT_USEC={int(extension * 1e6)}", "WATCHDOG=1")

    def _compare_limits(self, watchdog: float, parts: Iterable[Heartbeat]) -> None:
        """Warn once where a part may rightly take longer for one pass than systemd waits."""
        longest = max((part.stall_timeout or 0.0 for part in parts), default=0.0)
        if longest > watchdog and not self._warned:
            self._warned = True
            log.warning("watchdog_too_short", seconds=watchdog, needed=longest)

    def _send_status(self, status: str, *lines: str) -> None:
        self._status = status
        self._notify(*lines, f"STATUS={' '.join(status.split())}")

    def _notify(self, *lines: str) -> None:
        if self._send is not None:
            self._send("\n".join(lines))
