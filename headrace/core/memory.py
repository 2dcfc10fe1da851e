"""The process's memory: how the C library hands it out, and when Python collects garbage."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
from contextlib import contextmanager
from functools import cache
from threading import Event, Thread
from typing import TYPE_CHECKING

import structlog

from headrace.core.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from collections.abc import Set as AbstractSet

log = structlog.get_logger(__name__)

#: The most arenas, of which glibc would have eight for each core. What a thread leaves in one is
#: not given to threads of another, and threads come and go with each channel: in a soak with 71
#: restarts of channels a minute what was free in arenas grew from 23 to 40 MiB in ten minutes,
#: and with two of them from 10 to 19 MiB, after which the process stayed as it was.
ARENAS = 2

#: Bytes from which on a block is mapped by itself, and given back as soon as it is freed. glibc
#: begins with these, and raises them to 32 MiB as larger blocks are freed: then batches and answers
#: of brokers are cut from arenas, between smaller blocks that stay.
_MAPPED = 128 << 10

#: The parameters' numbers in glibc's malloc.h.
_M_ARENA_MAX = -8
_M_MMAP_THRESHOLD = -3

#: What the environment says instead, of the C library and of Arrow.
_ARENA_MAX = "MALLOC_ARENA_MAX"
_MMAP_THRESHOLD = "MALLOC_MMAP_THRESHOLD_"
_ARROW_POOL = "ARROW_DEFAULT_MEMORY_POOL"
_TUNABLES = "GLIBC_TUNABLES"


@cache
def _is_glibc() -> bool:
    """Return whether the C library is glibc, which is read from the interpreter's file."""
    return platform.libc_ver()[0] == "glibc"


def give_back() -> bool:
    """Return free memory to the system; False where the C library is not glibc, or had none.

    glibc does so by itself at the end of its heap alone: a process that had counted 4,000,000 keys
    kept 581 MiB, of which 230 were free, and 312 where this was called. Any thread; blocks for
    milliseconds.
    """
    return _is_glibc() and bool(ctypes.CDLL(None).malloc_trim(0))


def limit_memory() -> None:
    """Limit what stays with the process of memory that it freed.

    The arenas of threads that start later are limited, large blocks are mapped by themselves, and
    Arrow takes its memory from the C library too, in place of an allocator that keeps some for each
    thread. A topology that counts 10,000 keys by minute had 470 MiB in place of 640, with the same
    processor time. Nothing is changed without glibc, nor what the environment sets. Called on the
    main thread, before others are started.
    """
    if not _is_glibc():
        return
    mallopt = ctypes.CDLL(None).mallopt
    tunables = os.environ.get(_TUNABLES, "")
    if _ARENA_MAX not in os.environ and "malloc.arena_max" not in tunables:
        mallopt(_M_ARENA_MAX, ARENAS)
    if _MMAP_THRESHOLD not in os.environ and "malloc.mmap_threshold" not in tunables:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED)
    if _ARROW_POOL not in os.environ:
        import pyarrow as pa  # noqa: PLC0415 - commands that read nothing from Kafka do without

        pa.set_memory_pool(pa.system_memory_pool())


#: Objects made, less those freed, between two looks at the young ones. Python's own 700 is less
#: than one fetch brings: each look then finds a thousand living records, and fetching takes twice
#: the processor time (0.83 against 0.45 microseconds a record, 1.7 against 0.75 with a channel
#: that holds them). Garbage in cycles waits a little longer; records are never part of one.
YOUNG = 100_000


def relax() -> None:
    """Raise the collector's thresholds, unless this process has set them or has it off.

    Concerns the whole process, as the collector does. Any thread.
    """
    young, *older = gc.get_threshold()
    if 0 < young < YOUNG:
        gc.set_threshold(YOUNG, *older)


#: Seconds between two looks for claims that ended. A look at the garbage holds all threads up for
#: about 50 ms for each 250,000 objects of the process.
INTERVAL = 30.0

#: Seconds between two returns of what is free in arenas: under full load 10 to 30 ms, otherwise 1.
_GIVING_BACK = 3.0


class GarbageCollector:
    """Has Python's cyclic collector look at everything, some time after the end of a claim.

    What is free in the C library's arenas goes back to the system, every few seconds.


    The parts of a channel and of its partitions know each other, so that only the collector can
    free them. It looks at what is old after hours, because it is relaxed for the sake of records
    (``relax``): with an operation every three seconds a process grew by 26
    MiB an hour. As long as no claim ends nothing is done. It has a thread of its own, because what
    the collector frees may be a client whose end waits: a Kafka consumer with a commit that is not
    answered takes 45 s. ``claims`` returns those that are held now.
    """

    def __init__(
        self, claims: Callable[[], AbstractSet[Hashable]], clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self._claims = claims
        self._clock = clock
        self._due = clock.monotonic() + INTERVAL
        self._held: AbstractSet[Hashable] = frozenset()
        self._ended = False

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the thread while the block runs. Does not wait for its end."""
        ending = Event()
        Thread(target=self._run, args=[ending], name="memory", daemon=True).start()
        try:
            yield
        finally:
            ending.set()

    def _run(self, ending: Event) -> None:
        while not ending.wait(_GIVING_BACK):
            try:
                if not self.run_once():
                    give_back()
            except Exception:
                log.exception("garbage_collection_failed")

    def run_once(self) -> bool:
        """Collect garbage if it is due, and return whether that was done. Blocks for that."""
        now = self._clock.monotonic()
        if now < self._due:
            return False
        # what ended since the last look may be in hand still, and is garbage at the next one
        garbage = self._ended
        held = self._claims()
        self._ended = not self._held <= held
        self._held = held
        if garbage:
            found = gc.collect()
            give_back()
            seconds = round(self._clock.monotonic() - now, 4)
            log.debug("garbage_collected", objects=found, seconds=seconds)
        self._due = self._clock.monotonic() + INTERVAL
        return garbage
