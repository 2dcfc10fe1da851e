"""Threads that go on until they are stopped, their heartbeats, and where they are stuck."""

from __future__ import annotations

from abc import ABC, abstractmethod
from threading import Event, Thread, Timer, get_ident
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from headrace.core.errors import FatalError
from headrace.core.stacks import stack_of
from headrace.core.user_text import describe_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from headrace.core.clock import Deadline

log = structlog.get_logger(__name__)


class Heartbeat(Protocol):
    """Something that works in a loop on a thread of its own. Properties are safe on any thread."""

    @property
    def last_beat(self) -> float:
        """Return the monotonic time of the last sign of progress."""

    @property
    def stall_timeout(self) -> float | None:
        """Return the seconds within which there has to be another; None before the start and after
        the end.
        """


class HeartbeatCheck:
    """Says when all parts have come on. For one thread at a time; does not block.

    Nothing here looks at a clock: a process that stood still as a whole, stopped by a signal or
    with its machine, has come on as soon as its parts take their next turns.
    """

    def __init__(self) -> None:
        self._seen: dict[Heartbeat, float] = {}

    def since_last_time(self, parts: Iterable[Heartbeat]) -> bool:
        """Return whether each part that runs sent a heartbeat since this was last answered with
        True.
        """
        beats = {part: part.last_beat for part in parts if part.stall_timeout is not None}
        if any(self._seen.get(part) == beat for part, beat in beats.items()):
            return False
        self._seen = beats
        return True


class PeriodicThread(ABC):
    """A thread that does something again and again until it is stopped.

    The loops handle the errors they expect. One that ends by another would stall its channel for
    good without anybody noticing, so that it fails the channel: the process has to be started
    afresh. Without ``fail`` it ends as any thread does. ``start``, ``request_stop``,
    ``joined`` and ``stop`` are for its owner. ``_run`` waits on ``_stopping``, or on something that
    ``_wake_up`` ends.
    """

    def __init__(self, name: str, fail: Callable[[BaseException], None] | None = None) -> None:
        def run() -> None:
            try:
                self._run()
            except BaseException as error:
                if fail is None:
                    raise
                log.exception("thread_failed", thread=name)
                reason = f"{describe_error(error)}; the process has to be restarted"
                fail(FatalError(f"thread {name} ended with {reason}"))

        self._stopping = Event()
        self._thread = Thread(target=run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_started(self) -> bool:
        """Return whether the thread was started."""
        return self._thread.ident is not None

    def request_stop(self) -> None:
        """Request the thread's end. Does not block."""
        self._stopping.set()
        self._wake_up()

    def joined(self, deadline: Deadline) -> bool:
        """Wait until the thread has ended; say whether it did by the deadline.

        One that does not is left behind: nothing can interrupt the code of a reducer or a sink.
        """
        return deadline.joined(self._thread)

    def stop(self, deadline: Deadline) -> bool:
        """End the thread; False if it overran the deadline."""
        self.request_stop()
        return self.joined(deadline)

    def _wake_up(self) -> None:  # noqa: B027 - most wait on nothing else
        """End a wait on anything but ``_stopping``."""

    @abstractmethod
    def _run(self) -> None:
        """Check at intervals until ``_stopping`` is set."""


class LoopThread(PeriodicThread):
    """Calls ``run_once`` again and again.

    ``run_once`` takes its own work, and waits for a fraction of a second at most where there is
    none. An exception from it is logged and does not end the thread. Once stopped the thread ends
    with the call under way; one that ``drains`` goes on for as long as ``run_once`` returns that
    there was work.
    """

    def __init__(
        self, name: str, run_once: Callable[[], bool | None], *, drains: bool = False
    ) -> None:
        super().__init__(name)
        self.name = name
        self._run_once = run_once
        self._drains = drains

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._found_work()
        while self._drains and self._found_work():
            pass

    def _found_work(self) -> bool | None:
        try:
            return self._run_once()
        except (Exception, SystemExit):
            log.exception("lane_failed", lane=self.name)
            return False


#: The part of a job's time after which it counts as stuck, as for a worker.
STUCK_SHARE = 0.5

#: The fields that a report has of its own.
_OWN = frozenset({"lane", "group", "seconds", "calls"})


class StuckReport:
    """Says in the log where a thread is when a good part of a job's time is over.

    Both methods are for that thread.
    """

    def __init__(self, lane: str) -> None:
        self._lane = lane
        self._timer: Timer | None = None

    def begin(self, group: str, seconds: float | None, about: Mapping[str, Any]) -> None:
        """Report on ``group`` unless :meth:`end` comes first; with None never.

        ``about`` is what the thread's own lines would say.
        """
        self.end()
        if seconds is None:
            return
        after, about = seconds * STUCK_SHARE, {**about}
        self._timer = Timer(after, self._report, (group, after, get_ident(), about))
        self._timer.name, self._timer.daemon = f"{self._lane}-report", True
        self._timer.start()

    def end(self) -> None:
        """Call the report off."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _report(self, group: str, seconds: float, ident: int, about: Mapping[str, Any]) -> None:
        log.warning(
            "lane_stuck",
            lane=self._lane,
            group=group,
            seconds=round(seconds, 1),
            calls=stack_of(ident),
            **{name: value for name, value in about.items() if name not in _OWN},
        )
