"""How fast things went lately: what counters and positions were a moment ago."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.admin.ports import Controller
    from headrace.channel.activity import Activity
    from headrace.clock import Clock

#: Seconds between two samples.
INTERVAL = 5.0

#: Samples that a rate looks back: a minute.
WINDOW = 12

#: Samples kept: an hour, about 100 kB for each channel.
KEPT = 720

#: A partition under one claim; another claim may begin anywhere.
_Held = tuple[str, str, int, int]


@dataclass(frozen=True, slots=True)
class Sample:
    """A channel at one moment. ``time`` is in seconds since the epoch, ``at`` monotonic."""

    at: float
    time: float
    records: float
    lag: int


class Rates:
    """Samples of the channels, which ``sample`` takes on one thread; read on any."""

    def __init__(self, controller: Controller, clock: Clock) -> None:
        self._controller = controller
        self._clock = clock
        self._lock = Lock()
        self._channels: dict[str, deque[Sample]] = {}
        self._positions: deque[tuple[float, dict[_Held, int]]] = deque(maxlen=WINDOW + 1)

    def sample(self) -> None:
        """Take note of where every channel stands. Does not block."""
        now, time = self._clock.monotonic(), self._clock.time()
        metrics = self._controller.metrics
        channels = dict(self._controller.channels)
        positions: dict[_Held, int] = {}
        samples = {}
        for name, channel in channels.items():
            activities = channel.activities()
            positions |= {_held(each): each.position for each in activities}
            records = metrics.total(metrics.records, channel=name)
            samples[name] = Sample(now, time, records, sum(lag_of(a) or 0 for a in activities))
        with self._lock:
            self._positions.append((now, positions))
            for gone in self._channels.keys() - channels.keys():
                del self._channels[gone]
            for name, sample in samples.items():
                self._channels.setdefault(name, deque(maxlen=KEPT)).append(sample)

    def of_channel(self, name: str, records: float) -> float:
        """Return records a second over the last minute, up to now, where there are ``records``."""
        with self._lock:
            samples = self._channels.get(name)
            if not samples:
                return 0.0
            before = samples[-min(WINDOW, len(samples))]
        return _rate(records - before.records, self._clock.monotonic() - before.at)

    def of_partition(self, activity: Activity) -> float:
        """Return how many offsets a second the position moved on, over the last minute."""
        held, now = _held(activity), self._clock.monotonic()
        with self._lock:
            for at, positions in self._positions:
                if held in positions:
                    return _rate(activity.position - positions[held], now - at)
        return 0.0

    def history(self) -> dict[str, list[tuple[Sample, float]]]:
        """Return by channel its samples with the rate since the one before, the oldest first."""
        with self._lock:
            samples = {name: list(each) for name, each in self._channels.items()}
        return {name: list(_with_rates(each)) for name, each in samples.items()}


def lag_of(activity: Activity) -> int | None:
    """Return the records between what is committed and the end, None where the end is unknown."""
    if activity.high_watermark is None:
        return None
    done = activity.position if activity.committed is None else activity.committed
    return max(0, activity.high_watermark - done)


def _held(activity: Activity) -> _Held:
    return (activity.channel, activity.topic, activity.partition, activity.epoch)


def _rate(count: float, seconds: float) -> float:
    return round(max(0.0, count) / seconds, 3) if seconds > 0 else 0.0


def _with_rates(samples: list[Sample]) -> Iterator[tuple[Sample, float]]:
    for before, after in pairwise(samples):
        yield after, _rate(after.records - before.records, after.at - before.at)
