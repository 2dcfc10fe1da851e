"""SIGUSR1: the log says what every thread and every partition is doing."""

from __future__ import annotations

from threading import Event, Thread
from typing import TYPE_CHECKING

import structlog

from headrace.stacks import log_stacks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.channel.status import PartitionSnapshot

log = structlog.get_logger(__name__)


class Diagnostics:
    """The thread that writes it down, from ``start`` on for good; ``ask`` is for any thread."""

    def __init__(self, activities: Callable[[], Iterable[PartitionSnapshot]]) -> None:
        self._activities = activities
        self._asked = Event()
        self._thread = Thread(target=self._run, name="diagnostics", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def ask(self) -> None:
        """Have it written down, unless that is asked for already. Does not block."""
        self._asked.set()

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
