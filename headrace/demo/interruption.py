"""Ctrl-C, SIGTERM and SIGHUP end the demo by an exception, so that everything is cleaned up."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption(KeyboardInterrupt):
    """A signal asked the demo to end; ``number`` says which."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise ``Interruption`` in the block at the first signal, and ignore the next ones.

    For the main thread. What cleans up has deadlines of its own, so it need not be hurried. A
    signal that is ignored already, as under nohup, stays so.
    """
    heard = [number for number in _NUMBERS if signal.getsignal(number) is not signal.SIG_IGN]

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in heard:
            signal.signal(each, signal.SIG_IGN)
        raise Interruption(number)

    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
