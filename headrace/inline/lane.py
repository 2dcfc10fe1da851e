"""The thread that a channel's reducer runs on."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import structlog

from headrace.spark.failures import JobCancelledError
from headrace.spark.stuck import StuckReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.clock import Deadline

log = structlog.get_logger(__name__)


class InlineLane:
    """Runs ``turn`` again and again on one thread until it is stopped.

    ``turn`` takes its own work and waits for a fraction of a second at most where there is none.
    An exception from it is logged and does not end the lane.
    """

    def __init__(self, name: str, turn: Callable[[], None]) -> None:
        self.name = name
        self._turn = turn
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._stopping = threading.Event()
        self._report = StuckReport(name)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, deadline: Deadline) -> bool:
        """End the thread after its current turn; say whether it ended.

        A thread that does not end by ``deadline`` is left behind: nothing can interrupt a reducer.
        """
        self._stopping.set()
        return deadline.joined(self._thread)

    @contextmanager
    def job(self, group: str, seconds: float | None) -> Iterator[None]:
        """Run the block as ``group``, on the lane's thread.

        When a good part of ``seconds`` is over the log says where the thread is, unless the turn
        has ended by then.

        Raises:
            JobCancelledError: the lane stops.
        """
        if self._stopping.is_set():
            raise JobCancelledError(f"lane {self.name} stops")
        self._report.begin(group, seconds)
        yield

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._turn()
            except Exception:
                log.exception("lane_turn_failed", lane=self.name)
            finally:
                self._report.end()
