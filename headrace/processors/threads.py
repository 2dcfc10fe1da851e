"""The threads of a channel's micro-batches, and where in the code they are when they hang."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import structlog

from headrace.core.stacks import stack_of
from headrace.telemetry.logs import bound_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.core.clock import Deadline

log = structlog.get_logger(__name__)


class LoopThread:
    """Calls ``run_once`` again and again on one thread until it is stopped.

    ``run_once`` takes its own work, and waits for a fraction of a second at most where there is
    none. An exception from it is logged and does not end the thread. Once stopped the thread ends
    with the call under way; one that ``drains`` goes on for as long as ``run_once`` returns that
    there was work.
    """

    def __init__(
        self, name: str, run_once: Callable[[], bool | None], *, drains: bool = False
    ) -> None:
        self.name = name
        self._run_once = run_once
        self._drains = drains
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Have the thread end. Does not block."""
        self._stopping.set()

    def joined(self, deadline: Deadline) -> bool:
        """Wait until the thread has ended; say whether it did by the deadline.

        One that does not is left behind: nothing can interrupt the code of a reducer or a sink.
        """
        return deadline.joined(self._thread)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._found_work()
        while self._drains and self._found_work():
            pass

    def _found_work(self) -> bool | None:
        try:
            return self._run_once()
        except Exception:
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
        self._timer: threading.Timer | None = None

    def begin(self, group: str, seconds: float | None) -> None:
        """Report on ``group`` unless :meth:`end` comes first; with None never."""
        self.end()
        if seconds is None:
            return
        after, bound = seconds * STUCK_SHARE, bound_fields()
        arguments = (group, after, threading.get_ident(), bound)
        self._timer = threading.Timer(after, self._report, arguments)
        self._timer.name, self._timer.daemon = f"{self._lane}-report", True
        self._timer.start()

    def end(self) -> None:
        """Call the report off."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _report(self, group: str, seconds: float, ident: int, bound: Mapping[str, Any]) -> None:
        """Say where the thread is; ``bound`` is what its own lines would say."""
        about = {name: value for name, value in bound.items() if name not in _OWN}
        log.warning(
            "lane_stuck",
            lane=self._lane,
            group=group,
            seconds=round(seconds, 1),
            calls=stack_of(ident),
            **about,
        )
