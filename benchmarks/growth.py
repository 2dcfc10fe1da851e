"""What processes hold over time, seen from outside, and how fast that grows."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean, linear_regression, median
from threading import Event, Thread
from typing import TYPE_CHECKING

import psutil

from headrace.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Sequence

_HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One process at one moment, in monotonic seconds; its own memory in bytes."""

    at: float
    rss: int
    threads: int
    descriptors: int


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
        )
