"""Python's garbage that keeps the JVM's objects, and with them the records of micro-batches."""

from __future__ import annotations

import gc
import time
from threading import Lock
from typing import TYPE_CHECKING

from py4j.finalizer import ThreadSafeFinalizer

if TYPE_CHECKING:
    from collections.abc import Callable

#: The collector's generations up to this one have what came into being since it last looked at all.
_YOUNG = 1

#: So many more of the JVM's objects than there have been are too many. Two busy lanes left two more
#: with each turn, and each of them may be a DataFrame with its records.
_MANY = 10

#: A look at everything takes a twentieth of the time at most: it holds all threads up, for about
#: 50 ms for each 250,000 objects of the process.
_PAUSE = 19


class Garbage:
    """Has the collector free what refers to objects of the JVM. Any thread; blocks for that.

    Each object of the JVM that a method was called on is part of a cycle here, and lives there
    until the collector finds it: a DataFrame with all its records. By itself the collector comes
    when enough Python objects were made, and records in columns are none: a heap of 1 GiB was full
    after 50 micro-batches of 20 MB.

    What a turn leaves is young, as long as the collector is relaxed for records, so the old objects
    need no look; unless another lane's turn ended meanwhile, whose look made old what was still in
    use. py4j's own list tells: it has every object of the JVM that is known here.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = Lock()
        self._normal = 0
        self._not_before = 0.0

    def collect(self) -> None:
        """Look at the young objects, and at all of them where too many of the JVM's are left."""
        if not gc.isenabled():
            return
        gc.collect(_YOUNG)
        self._normal = min(self._normal, known())
        if known() <= self._normal + _MANY or not self._lock.acquire(blocking=False):
            return
        try:
            self._collect_all()
        finally:
            self._lock.release()

    def _collect_all(self) -> None:
        began = self._clock()
        if began < self._not_before:
            return
        gc.collect()
        ended = self._clock()
        self._normal = known()
        self._not_before = ended + _PAUSE * (ended - began)


def known() -> int:
    """Return how many objects of the JVM's are known here: it keeps all of them."""
    return len(ThreadSafeFinalizer.finalizers)


#: The process's: the collector concerns all of it.
GARBAGE = Garbage()
