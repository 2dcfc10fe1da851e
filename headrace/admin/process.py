"""The process as the API sees it; its main thread says how it goes."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from headrace.admin.ports import Phase
from headrace.core.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class LocalProcess:
    """This process; see ``headrace.admin.ports.Process``. ``stop`` is called once, on any thread.

    ``become`` and ``turned`` are for the main thread.
    """

    def __init__(
        self, file: Path, stop: Callable[[str], None], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.file = file.absolute()
        self.phase = Phase.STARTING
        self.last_beat = clock.monotonic()
        self._stop = stop
        self._clock = clock
        self._lock = Lock()
        self._asked = False

    def become(self, phase: Phase) -> None:
        """Enter another phase."""
        self.phase = phase
        self.turned()

    def turned(self) -> None:
        """Note that the main thread looks around."""
        self.last_beat = self._clock.monotonic()

    def ask_stop(self, by: str) -> None:
        """Have the process stopped, as by the first signal; asking again changes nothing."""
        with self._lock:
            if self._asked:
                return
            self._asked = True
        self._stop(by)
