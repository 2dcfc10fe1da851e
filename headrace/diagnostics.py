"""SIGUSR1: the log says what every thread and every partition is doing."""

from __future__ import annotations

import signal
from threading import Event, Thread
from typing import TYPE_CHECKING

import structlog

from headrace.stacks import log_stacks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.channel.activity import Activity

log = structlog.get_logger(__name__)


class Diagnostics:
    """The thread that writes it down. ``install`` is for the main thread; it lasts for good.

    The handler only wakes the thread: what the signal interrupts may hold the log's lock.
    """

    def __init__(self, activities: Callable[[], Iterable[Activity]]) -> None:
        self._activities = activities
        self._asked = Event()
        self._thread = Thread(target=self._run, name="diagnostics", daemon=True)

    def install(self) -> None:
        """Start the thread and hear SIGUSR1 from now on."""
        self._thread.start()
        signal.signal(signal.SIGUSR1, lambda *_: self._asked.set())

    def _run(self) -> None:
        while True:
            self._asked.wait()
            self._asked.clear()
            self.dump()

    def dump(self) -> None:
        """Log one event for each thread, and one for each partition held."""
        log_stacks("SIGUSR1")
        for activity in self._activities():
            log.info("partition_activity", **activity.facts())
