"""Threads that do not end in silence."""

from __future__ import annotations

from abc import ABC, abstractmethod
from threading import Event, Thread
from typing import TYPE_CHECKING

import structlog

from headrace.core.errors import FatalError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.core.clock import Deadline

log = structlog.get_logger(__name__)


class PeriodicThread(ABC):
    """A thread that does something again and again until it is stopped.

    The loops handle the errors they expect. One that ends by another would stall its channel for
    good without anybody noticing, so that it fails the channel: the process has to be started
    afresh. ``start`` and ``stop`` are for its owner. ``_run`` waits on ``_stopping``, or on
    something that ``_wake_up`` ends.
    """

    def __init__(self, name: str, fail: Callable[[BaseException], None]) -> None:
        def run() -> None:
            try:
                self._run()
            except Exception as error:
                log.exception("thread_failed", thread=name)
                reason = f"{type(error).__name__}: {error}; the process has to be restarted"
                fail(FatalError(f"thread {name} ended with {reason}"))

        self._stopping = Event()
        self._thread = Thread(target=run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, deadline: Deadline) -> bool:
        """End the thread; False if it overran the deadline."""
        self._stopping.set()
        self._wake_up()
        return deadline.joined(self._thread)

    def _wake_up(self) -> None:  # noqa: B027 - most wait on nothing else
        """End a wait on anything but ``_stopping``."""

    @abstractmethod
    def _run(self) -> None:
        """Look until ``_stopping`` is set."""
