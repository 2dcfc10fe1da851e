"""What processes hold over time, seen from outside, and how fast that grows."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, linear_regression, median
from subprocess import run
from threading import Event, Thread
from typing import TYPE_CHECKING

import psutil

from headrace.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HOUR = 3600.0

#: The number after a socket or a pipe.
_NUMBER = re.compile(r":\[\d+\]$")

#: What the JDK's tool says of the whole heap, in KiB.
_HEAP_USED = re.compile(r"heap\s+total \d+K, used (\d+)K")

#: Seconds that the tool may take; a full collection is part of it.
_TOOL = 30.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at one moment, in monotonic seconds; its own memory in bytes."""

    at: float
    rss: int
    threads: int
    descriptors: int
    #: how many threads have a name, as Linux knows it; empty elsewhere
    names: Mapping[str, int] = field(default_factory=dict)
    #: how many descriptors are of a kind, or to a file of that name; empty elsewhere
    kinds: Mapping[str, int] = field(default_factory=dict)


def percent_an_hour(samples: Sequence[Sample]) -> float:
    """Return how fast memory grows by the straight line that fits best, of its mean size."""
    if len({sample.at for sample in samples}) < 2:  # noqa: PLR2004 - a line needs two points
        return 0.0
    sizes = [float(sample.rss) for sample in samples]
    slope = linear_regression([sample.at for sample in samples], sizes).slope
    return slope * _HOUR / fmean(sizes) * 100


def usual(samples: Sequence[Sample]) -> tuple[int, int]:
    """Return the medians of threads and of descriptors."""
    threads = median(sample.threads for sample in samples)
    return round(threads), round(median(sample.descriptors for sample in samples))


def more_of(
    before: Sequence[Mapping[str, int]], after: Sequence[Mapping[str, int]]
) -> dict[str, int]:
    """Return by how many each name grew, by medians; a fall is negative."""
    names = {name for counts in (*before, *after) for name in counts}

    def usual_count(looks: Sequence[Mapping[str, int]], name: str) -> int:
        return round(median(counts.get(name, 0) for counts in looks))

    grown = {name: usual_count(after, name) - usual_count(before, name) for name in sorted(names)}
    return {name: by for name, by in grown.items() if by}


def live_heap(pid: int) -> int | None:
    """Return how many bytes of a JVM's heap are in use after a full collection. Blocks.

    None where the JDK's ``jcmd`` is missing.
    """
    if (tool := shutil.which("jcmd")) is None:
        return None

    def ask(what: str) -> str:
        command = [tool, str(pid), what]
        return run(command, check=True, capture_output=True, text=True, timeout=_TOOL).stdout

    ask("GC.run")
    found = _HEAP_USED.search(ask("GC.heap_info"))
    return int(found[1]) * 1024 if found else None


class Sampler:
    """Looks at processes again and again on a thread of its own, from ``start`` to ``stop``."""

    def __init__(self, pids: dict[str, int], interval: float) -> None:
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._interval = interval
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="sampler", daemon=True)
        self.samples: dict[str, list[Sample]] = {name: [] for name in pids}
        #: names of processes that were gone before the end
        self.gone: set[str] = set()

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            for name, process in self._processes.items():
                try:
                    self.samples[name].append(_look(process))
                except psutil.NoSuchProcess:
                    self.gone.add(name)
            if self._stopped.wait(self._interval):
                return


def _look(process: psutil.Process) -> Sample:
    with process.oneshot():
        return Sample(
            SYSTEM_CLOCK.monotonic(),
            process.memory_info().rss,
            process.num_threads(),
            process.num_fds(),
            _thread_names(process.pid),
            _descriptor_kinds(process.pid),
        )


def _thread_names(pid: int) -> dict[str, int]:
    names: Counter[str] = Counter()
    for task in Path(f"/proc/{pid}/task").glob("*/comm"):
        with suppress(OSError):  # the thread ended meanwhile
            names[task.read_text(encoding="utf-8").strip()] += 1
    return names


def _descriptor_kinds(pid: int) -> dict[str, int]:
    """Count descriptors by what they lead to, less its number: ``socket``, or a file's name."""
    kinds: Counter[str] = Counter()
    for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
        with suppress(OSError):  # it was closed meanwhile
            kinds[_NUMBER.sub("", descriptor.readlink().name)] += 1
    return kinds
