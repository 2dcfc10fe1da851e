"""Waiting for something outside this process that can only be asked again and again."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.core.clock import Deadline

T = TypeVar("T")

#: Seconds between two questions: short beside a JVM's start, long beside one question.
_INTERVAL_S = 0.05


def wait_for(ask: Callable[[], T | None], deadline: Deadline) -> T | None:
    """Ask until the answer is true, and return it; None once the deadline is over. Blocks."""
    pause = threading.Event()
    while True:
        if answer := ask():
            return answer
        if deadline.expired:
            return None
        pause.wait(deadline.at_most(_INTERVAL_S))
