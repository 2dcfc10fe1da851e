"""Between two micro-batches: a gate that lanes pass, and that can be closed behind them."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Condition
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.clock import Deadline


class Turnstile:
    """Lets any number of lanes in at a time, and none while it is closed. Any thread.

    Once retired it lets everybody in, and can be closed no more.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._inside = 0
        self.is_closed = False
        self._is_retired = False

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Be inside for the time of the block. Blocks while it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_retired or not self.is_closed)
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def close(self, deadline: Deadline) -> bool:
        """Let nobody in and wait until all are out; else it is open again, and False returned."""
        with self._changed:
            self.is_closed = True
            self._changed.wait_for(lambda: self._is_retired or not self._inside, deadline.remaining)
            if not self._is_retired and not self._inside:
                return True
        self.open()
        return False

    def retire(self) -> None:
        """Let everybody go on, from now on for good: lanes, and who closes it. Does not block."""
        with self._changed:
            self._is_retired = True
            self._changed.notify_all()

    def open(self) -> None:
        """Let lanes in again."""
        with self._changed:
            self.is_closed = False
            self._changed.notify_all()
