"""Waiting for something outside this process that can only be asked again and again."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.core.clock import Deadline
    from headrace.core.progress import Silence

T = TypeVar("T")

#: Seconds between two questions: short beside a JVM's start, long beside one question.
_INTERVAL_S = 0.05

#: Seconds without a sign of work after which a process that starts, or a download, has failed.
SILENCE_S = 60.0

#: Seconds after which it has failed although it works: the deadline where none is given. A stack
#: takes 4 s on two idle cores.
FAR_S = 900.0


def wait_for(
    ask: Callable[[], T | None], deadline: Deadline, silence: Silence | None = None
) -> T | None:
    """Ask until the answer is true, and return it; None once the deadline is over. Blocks.

    None as well once those of whom ``silence`` is have shown no sign of work for its limit.
    """
    pause = threading.Event()
    while True:
        if answer := ask():
            return answer
        if deadline.expired or (silence is not None and silence.is_over()):
            return None
        pause.wait(deadline.at_most(_INTERVAL_S))
