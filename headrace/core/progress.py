"""Waiting for other processes for as long as they work, instead of for a fixed time.

On a busy machine the same start takes a second or five minutes. A process that works shows it:
what it writes grows, or it uses the processor. So its wait ends with its silence, and a deadline
far away is for the one that never ends.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from headrace.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable
    from pathlib import Path

    from headrace.core.clock import Clock

#: Seconds of processor time that count as a sign of work. A server of Java that waits for something
#: uses this much in minutes; one that gets a fiftieth of a processor for its start, in half a
#: minute.
_WORK_S = 0.25

#: Seconds between two looks at the signs, which cost a millisecond where there are many processes.
_LOOK_S = 0.5

#: Seconds of silence that one look adds at most: where the machine stood still, or did not let this
#: process run, the others had no chance to show anything.
_SEEN_S = 10.0


class Silence:
    """The time for which the processes that are waited for have shown no sign of work.

    ``signs`` returns what differs from before where they have worked meanwhile. Not thread-safe.
    """

    def __init__(
        self, signs: Callable[[], Hashable], limit: float, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.limit = limit
        self._signs = signs
        self._clock = clock
        self._looked = clock.monotonic()
        self._last = signs()
        self._silent = 0.0

    def is_over(self) -> bool:
        """Return whether they have been silent for ``limit`` seconds by now."""
        now = self._clock.monotonic()
        passed = now - self._looked
        if passed >= min(_LOOK_S, self.limit) or self._silent >= self.limit:
            self._looked = now
            signs = self._signs()
            self._silent = 0.0 if signs != self._last else self._silent + min(passed, _SEEN_S)
            self._last = signs
        return self._silent >= self.limit


def signs_of_work(
    pids: Iterable[int] = (), files: Iterable[Path] = ()
) -> Callable[[], tuple[int, ...]]:
    """Return a look at the sizes of what processes write, and at the processor time they used.

    Of each process in ``pids`` that of all below it counts too. A folder in ``files`` stands for
    all that is in it. What is not there, or not any more, is no error.
    """
    processes, paths = tuple(pids), tuple(files)
    return lambda: (*map(_size, paths), _worked(sum(map(processor_time, processes))))


def children_at_work() -> int:
    """Return what differs once the processes that this one started have worked."""
    return _worked(processor_time(os.getpid(), itself=False))


def _worked(seconds: float) -> int:
    return int(seconds / _WORK_S)


def _size(path: Path) -> int:
    with suppress(OSError):
        if path.is_dir():
            return sum(map(_size, path.iterdir()))
        return path.stat().st_size
    return 0


def processor_time(pid: int, *, itself: bool = True) -> float:
    """Return the seconds of processor time of a process and of those below it, 0 without any.

    Not ``itself``: of those below it alone. Children that have ended count where the system says
    what they used. Blocks for a millisecond and more, as all processes of the machine are read.
    """
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        counted = [process] if itself else []
        return sum(map(_used, (*counted, *process.children(recursive=True))))
    return 0.0


def _used(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        times = process.cpu_times()
        return times.user + times.system + times.children_user + times.children_system
    return 0.0


def own_processor_time() -> Callable[[], float]:
    """Return what tells the seconds of processor time of the calling thread, to any other one.

    It tells 0 where that one is gone. Where the system does not tell a thread's, it is that of
    the process.
    """
    if not hasattr(time, "pthread_getcpuclockid"):
        return time.process_time
    # asked for by the thread itself: for one that has ended it is undefined
    clock = time.pthread_getcpuclockid(threading.get_ident())

    def used() -> float:
        with suppress(OSError):
            return time.clock_gettime(clock)
        return 0.0

    return used
