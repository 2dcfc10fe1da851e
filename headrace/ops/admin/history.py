"""The last hour of the channels in figures, and the last events."""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from statistics import fmean
from threading import Lock
from typing import TYPE_CHECKING

from headrace.ops.admin.document import Document, Number, Seconds, moment
from headrace.ops.admin.models import StageStatus
from headrace.telemetry.logs import Subject
from headrace.telemetry.metrics import Summary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.core.clock import Clock
    from headrace.ops.admin.ports import Controller
    from headrace.telemetry.metrics import ChannelSummary, PartitionSnapshot, StageTotal
    from headrace.telemetry.thread_time import ThreadActivity as Doing
    from headrace.telemetry.thread_time import ThreadRole


class HistoryPoint(Document):
    """A channel at one moment."""

    at: datetime
    """The moment."""
    records_per_s: Seconds
    """Records answered a second since the point before."""
    lag: Number
    """Records between the committed offsets and the ends."""
    lag_s: Seconds
    """Seconds that the next record has been waiting to be answered, the longest of all partitions
    that are not paused."""
    batches_per_s: Seconds
    """Batches ended a second since the point before."""
    busy: dict[str, Seconds]
    """By stage the seconds a second that it took since the point before."""


class History(Document):
    """The recent figures of the channels."""

    interval_s: Seconds
    """Seconds between two points."""
    channels: dict[str, list[HistoryPoint]]
    """By channel its points, the oldest first."""


class EventStatus(Document):
    """An event that happened once, or several times in short succession."""

    number: Number
    """Its number in the process; rises whenever it happens again."""
    event: str
    """The event's name, as in the log."""
    level: str
    """Its level in the log."""
    subject: Subject
    """The subject that it belongs to."""
    first: datetime
    """The time of its first occurrence."""
    last: datetime
    """The time of its last occurrence."""
    count: Number
    """The number of occurrences."""
    fields: dict[str, str | int | float | bool | None]
    """The fields of the last occurrence as in the log, long values cut."""


class Events(Document):
    """The recent log events."""

    at: datetime
    """The time of this answer."""
    pid: Number
    """The process; another one counts again."""
    events: list[EventStatus]
    """The events, the one that was last changed last."""


#: Seconds between two samples.
INTERVAL = 5.0

#: Samples that a rate looks back: a minute.
WINDOW = 12

#: Samples over which the trend of a lag is taken: five minutes.
TREND = 60

#: Seconds of records that may be under way in a channel that has caught up.
_UNDER_WAY = 1.0

#: Samples kept: an hour, about 250 kB for each channel.
KEPT = 720

#: A partition under one claim; another claim may begin anywhere.
_Claim = tuple[str, str, int, int]


@dataclass(frozen=True, slots=True)
class Sample:
    """A channel at one moment. ``time`` is in seconds since the epoch, ``at`` monotonic.

    ``stages`` names them and ``seconds`` has what each took so far: an array, because a float in a
    tuple takes four times the room. ``late`` is for how long, in seconds, the longest of the next
    records of partitions that are not paused has been waiting to be answered. ``moved`` is by how
    much the lag rose or fell since the first sample, without what partitions brought along when
    they were claimed, or took with them.
    """

    at: float
    time: float
    records: float
    lag: int
    batches: float = 0.0
    stages: tuple[str, ...] = ()
    seconds: array[float] = field(default_factory=lambda: array("d"))
    late: float = 0.0
    moved: int = 0

    def spent(self) -> dict[str, float]:
        """Return the seconds by stage."""
        return dict(zip(self.stages, self.seconds, strict=True))


@dataclass(frozen=True, slots=True)
class Trend:
    """The trend of a channel's lag. ``per_s`` is in records a second: below 0 the lag shrinks.

    ``catch_up`` is the seconds until no lag is left, if it goes on so; None where it does not
    shrink.
    """

    per_s: float
    catch_up: float | None


@dataclass(frozen=True, slots=True)
class StageTotals:
    """Totals of a channel that are kept for a minute only."""

    at: float
    stages: dict[str, StageTotal]
    threads: dict[tuple[ThreadRole, Doing], float]


class Rates:
    """Samples of the channels, which ``sample`` takes on one thread; read on any."""

    def __init__(self, controller: Controller, clock: Clock) -> None:
        self._controller = controller
        self._clock = clock
        self._lock = Lock()
        self._channels: dict[str, deque[Sample]] = {}
        self._positions: deque[tuple[float, dict[_Claim, int]]] = deque(maxlen=WINDOW + 1)
        self._lags: dict[_Claim, int] = {}
        self._totals: dict[str, deque[StageTotals]] = {}

    def sample(self) -> None:
        """Record a sample of every channel. Does not block."""
        now, time = self._clock.monotonic(), self._clock.time()
        summary = Summary(self._controller.metrics)
        channels = dict(self._controller.channels)
        positions: dict[_Claim, int] = {}
        lags: dict[_Claim, int] = {}
        samples: dict[str, Sample] = {}
        totals: dict[str, StageTotals] = {}
        for name, channel in channels.items():
            held = channel.partitions()
            positions |= {_claim(each): each.position for each in held}
            known = {_claim(each): lag for each in held if (lag := each.lag_records) is not None}
            lags |= known
            done = summary.channel(name)
            totals[name] = StageTotals(now, done.stages, done.threads)
            samples[name] = Sample(
                now,
                time,
                done.records,
                sum(known.values()),
                done.batches,
                self._names(name, done),
                array("d", (each.seconds for each in done.stages.values())),
                max((each.lag_seconds or 0 for each in held if not each.paused), default=0),
                self._moved(name, known),
            )
        self._lags = lags
        with self._lock:
            self._positions.append((now, positions))
            for gone in self._channels.keys() - channels.keys():
                del self._channels[gone], self._totals[gone]
            for name, sample in samples.items():
                self._channels.setdefault(name, deque(maxlen=KEPT)).append(sample)
                self._totals.setdefault(name, deque(maxlen=WINDOW + 1)).append(totals[name])

    def _moved(self, name: str, lags: Mapping[_Claim, int]) -> int:
        """Return ``moved`` of a channel's next sample, for the thread that takes it."""
        samples, before = self._channels.get(name), self._lags
        moved = sum(lag - before[claim] for claim, lag in lags.items() if claim in before)
        return moved + (samples[-1].moved if samples else 0)

    def _names(self, name: str, done: ChannelSummary) -> tuple[str, ...]:
        """Return the stages, as the same tuple that the sample before has where they are the same.

        Only the thread that takes samples adds any.
        """
        names = tuple(done.stages)
        before = self._channels.get(name)
        return before[-1].stages if before and before[-1].stages == names else names

    def of_channel(self, name: str, records: float) -> float:
        """Return records a second over the last minute, up to now, where there are ``records``."""
        with self._lock:
            samples = self._channels.get(name)
            if not samples:
                return 0.0
            before = samples[-min(WINDOW, len(samples))]
        return _rate(records - before.records, self._clock.monotonic() - before.at)

    def trend(self, name: str, lag: int, records_per_s: float) -> Trend:
        """Return how the lag of a channel moved in the last minutes, which is ``lag`` now.

        It is the slope of the line that fits the samples best: single bursts do not turn it, nor do
        partitions that come with all that is behind them.
        """
        with self._lock:
            samples = list(self._channels.get(name, ()))[-TREND:]
        slope = _slope([(sample.at, sample.moved) for sample in samples])
        if lag <= records_per_s * _UNDER_WAY:
            return Trend(slope, 0.0)
        return Trend(slope, round(lag / -slope, 1) if slope < 0 else None)

    def of_partition(self, held: PartitionSnapshot) -> float:
        """Return how many offsets a second the position moved on, over the last minute."""
        claim, now = _claim(held), self._clock.monotonic()
        with self._lock:
            for at, positions in self._positions:
                if claim in positions:
                    return _rate(held.position - positions[claim], now - at)
        return 0.0

    def stages(self, name: str, done: ChannelSummary) -> list[StageStatus]:
        """Return how the stages of a channel did over the last minute, up to what is ``done``."""
        before, now = self._minute(name, done)
        return [
            _stage(stage, total, before.stages.get(stage), now.at - before.at)
            for stage, total in now.stages.items()
        ]

    def threads(self, name: str, done: ChannelSummary) -> dict[ThreadRole, dict[Doing, float]]:
        """Return what part of the last minute the threads of each role spent on what.

        The minute ends with what is ``done``. The parts of a role make 1, or a little less or more
        where a thread has begun or ended.
        """
        before, now = self._minute(name, done)
        spent: dict[ThreadRole, dict[Doing, float]] = {}
        for (role, doing), seconds in now.threads.items():
            spent.setdefault(role, {})[doing] = max(
                0, seconds - before.threads.get((role, doing), 0)
            )
        return {role: _parts(each) for role, each in spent.items()}

    def _minute(self, name: str, done: ChannelSummary) -> tuple[StageTotals, StageTotals]:
        """Return what was a minute ago, or at the first sample, and what is."""
        now = StageTotals(self._clock.monotonic(), done.stages, done.threads)
        with self._lock:
            kept = self._totals.get(name)
            return (kept[0] if kept else now), now

    def history(self, after: float = 0.0) -> dict[str, list[HistoryPoint]]:
        """Return by channel what it did in each interval, the oldest first.

        Those that ended up to ``after``, in seconds since the epoch, are left out.
        """
        with self._lock:
            samples = {name: list(each) for name, each in self._channels.items()}
        return {
            name: [_point(*pair) for pair in pairwise(each) if round(pair[1].time, 3) > after]
            for name, each in samples.items()
        }


def _slope(points: list[tuple[float, int]]) -> float:
    """Return the slope of the line of least squares, 0 where there is none."""
    if len(points) < 2:  # noqa: PLR2004 - a line
        return 0.0
    times = [at - points[0][0] for at, _ in points]
    time, lag = fmean(times), fmean(each for _, each in points)
    spread = sum((at - time) ** 2 for at in times)
    if not spread:
        return 0.0
    pairs = zip(times, points, strict=True)
    return round(sum((at - time) * (each - lag) for at, (_, each) in pairs) / spread, 3)


def _claim(held: PartitionSnapshot) -> _Claim:
    return (held.channel, held.topic, held.partition, held.epoch)


def _rate(count: float, seconds: float) -> float:
    return round(max(0.0, count) / seconds, 3) if seconds > 0 else 0.0


def _point(before: Sample, after: Sample) -> HistoryPoint:
    seconds, earlier = after.at - before.at, before.spent()
    return HistoryPoint(
        at=moment(after.time),
        records_per_s=_rate(after.records - before.records, seconds),
        lag=after.lag,
        lag_s=after.late,
        batches_per_s=_rate(after.batches - before.batches, seconds),
        busy={
            name: _rate(spent - earlier.get(name, 0.0), seconds)
            for name, spent in after.spent().items()
        },
    )


def _stage(name: str, now: StageTotal, before: StageTotal | None, seconds: float) -> StageStatus:
    count = now.count - (before.count if before else 0)
    spent = max(0.0, now.seconds - (before.seconds if before else 0.0))
    mean = round(spent / count, 6) if count else None
    return StageStatus(
        stage=name, per_s=_rate(count, seconds), mean_s=mean, busy=_rate(spent, seconds)
    )


def _parts(spent: dict[Doing, float]) -> dict[Doing, float]:
    whole = sum(spent.values())
    return {doing: round(each / whole, 4) if whole else 0.0 for doing, each in spent.items()}
