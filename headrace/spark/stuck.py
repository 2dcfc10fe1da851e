"""The report on a lane that does not get on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import structlog

from headrace.logs import bound_fields
from headrace.stacks import stack_of

if TYPE_CHECKING:
    from collections.abc import Mapping

log = structlog.get_logger(__name__)

#: The part of a job's time after which it counts as stuck, as for a worker.
STUCK_SHARE = 0.5

#: The fields that a report has of its own.
_OWN = frozenset({"lane", "group", "seconds", "calls"})


class StuckReport:
    """Says in the log where a lane's thread is when a good part of a job's time is over.

    Both methods are for the lane's thread.
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
        """Say where the lane's thread is; ``bound`` is what the lane's own lines would say."""
        about = {name: value for name, value in bound.items() if name not in _OWN}
        log.warning(
            "lane_stuck",
            lane=self._lane,
            group=group,
            seconds=round(seconds, 1),
            calls=stack_of(ident),
            **about,
        )
