"""Ctrl-C and SIGTERM: both end the demo by an exception, so that everything is cleaned up."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM)


class Interruption(KeyboardInterrupt):
    """A signal asked the demo to end; ``number`` says which."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise ``Interruption`` in the block at the first signal, and ignore the next ones.

    For the main thread. What cleans up has deadlines of its own, so it need not be hurried.
    """

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in _NUMBERS:
            signal.signal(each, signal.SIG_IGN)
        raise Interruption(number)

    before = {number: signal.signal(number, interrupt) for number in _NUMBERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
