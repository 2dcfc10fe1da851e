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


def guarded_thread(
    name: str, run: Callable[[], None], fail: Callable[[BaseException], None]
) -> Thread:
    """Return a thread, not started, that fails its channel when ``run`` raises.

    The loops handle the errors they expect. One that ends by another would stall its channel for
    good without anybody noticing, so the process has to be started afresh.
    """

    def guarded() -> None:
        try:
            run()
        except Exception as error:
            log.exception("thread_failed", thread=name)
            reason = f"{type(error).__name__}: {error}"
            fail(FatalError(f"thread {name} ended with {reason}; the process has to be restarted"))

    return Thread(target=guarded, name=name, daemon=True)


class PeriodicThread(ABC):
    """A guarded thread that looks at something again and again until it is stopped.

    ``start`` and ``stop`` are for its owner. ``_run`` waits between its looks on ``_stopping``, or
    on something that ``_wake_up`` ends.
    """

    def __init__(self, name: str, fail: Callable[[BaseException], None]) -> None:
        self._stopping = Event()
        self._thread = guarded_thread(name, self._run, fail)

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
