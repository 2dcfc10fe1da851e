"""What goes wrong when: drawn from a seed, so that a run can be had again."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum


class Kind(Enum):
    """Everything that is done to a group."""

    JOIN = "join"
    """A further member is started."""

    LEAVE = "leave"
    """A member is stopped in order, and stays away."""

    ROLLING_RESTART = "rolling_restart"
    """One member after the other is stopped in order and started again."""

    KILL = "kill"
    """A member is killed with SIGKILL, and started again after a while."""

    FREEZE = "freeze"
    """A member is stopped with SIGSTOP beyond its session, and continued."""

    CUT_ZOOKEEPER = "cut_zookeeper"
    """The network between a member and ZooKeeper is cut."""

    CUT_KAFKA = "cut_kafka"
    """The network between a member and the broker is cut."""

    KILL_ZOOKEEPER = "kill_zookeeper"
    """ZooKeeper is killed with SIGKILL, and started again after a while."""

    KILL_BROKER = "kill_broker"
    """The broker is killed with SIGKILL, and started again after a while."""


CLEAN = (Kind.JOIN, Kind.LEAVE, Kind.ROLLING_RESTART)

#: Seconds that a target is left alone after a fault ended, to have something to lose again.
_RECOVERY = 4.0

_LONGEST_CLEAN = 60.0

#: Seconds from one fault to the next, at least and at most.
_GAP = (1.5, 4.5)

#: The share of faults during which the next one begins.
_OVERLAPPING = 0.35

#: How long faults last, in sessions: ranges of which each comes as often as the others.
_SESSIONS = {
    Kind.KILL: ((0.0, 0.0), (0.2, 1.8)),
    Kind.FREEZE: ((1.3, 2.2),),
    Kind.CUT_ZOOKEEPER: ((0.2, 0.8), (1.2, 2.0)),
    Kind.CUT_KAFKA: ((0.2, 0.8), (1.2, 2.0)),
    Kind.KILL_ZOOKEEPER: ((0.1, 1.5),),
    Kind.KILL_BROKER: ((0.1, 1.0),),
}

#: Seconds that one member takes in a rolling restart.
_RESTART = 4.0


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong. ``at`` and ``lasts`` are in seconds; targets are by name.

    ``drops`` says of a cut whether connections are refused; otherwise they fall silent.
    """

    at: float
    kind: Kind
    target: str = ""
    lasts: float = 0.0
    drops: bool = False

    def __str__(self) -> str:
        lasts = f" for {self.lasts:.1f} s" if self.lasts else ""
        how = " (refused)" if self.drops else ""
        return f"{self.at:6.1f} s: {self.kind.value} {self.target}{lasts}{how}".rstrip()


@dataclass(frozen=True, slots=True)
class Schedule:
    """All faults of a run, in order. Up to ``clean_until`` there are only clean ones."""

    seed: int
    seconds: float
    clean_until: float
    members: tuple[str, ...]
    running: tuple[str, ...]
    faults: tuple[Fault, ...]


def draw(
    seed: int,
    seconds: float,
    *,
    clean: float | None = None,
    session: float = 4.0,
    members: int = 4,
) -> Schedule:
    """Return the schedule of a seed.

    For the first ``clean`` seconds there are only clean events; by default for a quarter of the
    run, a minute at most.
    """
    clean_until = min(_LONGEST_CLEAN, seconds / 4) if clean is None else clean
    return _Drawing(seed, seconds, clean_until, session, members).schedule()


class _Drawing:
    """Draws fault after fault, and keeps in mind who runs and who is busy."""

    def __init__(
        self, seed: int, seconds: float, clean_until: float, session: float, members: int
    ) -> None:
        self._random = random.Random(seed)  # noqa: S311 - to be had again, not to be secret
        self._seed = seed
        self._seconds = seconds
        self._clean_until = clean_until
        self._session = session
        self._members = tuple(f"member-{number}" for number in range(1, members + 1))
        self._first = self._members[:-1]
        self._running = set(self._first)
        self._busy = dict.fromkeys([*self._members, "zookeeper", "kafka"], 0.0)
        self._bag: list[Kind] = []
        self._settled_at = 0.0

    def schedule(self) -> Schedule:
        faults = []
        at = self._random.uniform(*_GAP)
        while at < self._seconds:
            fault = self._next(at)
            if fault is None:
                at += 1.0
                continue
            faults.append(fault)
            overlaps = self._random.random() < _OVERLAPPING
            at += self._random.uniform(*_GAP) + (0.0 if overlaps else fault.lasts)
            if fault.at < self._clean_until <= at:
                # what clean events did is counted before anything else happens
                at, self._bag = max(at, fault.at + fault.lasts + _RECOVERY), []
        return Schedule(
            self._seed, self._seconds, self._clean_until, self._members, self._first, tuple(faults)
        )

    def _next(self, at: float) -> Fault | None:
        """Draw from a bag with one of each kind: none stays out for long."""
        if not self._bag:
            self._bag = list(CLEAN if at < self._clean_until else Kind)
            self._random.shuffle(self._bag)
        for kind in self._bag:
            fault = self._draw(kind, at)
            if fault is not None:
                self._bag.remove(kind)
                return fault
        return None

    def _draw(self, kind: Kind, at: float) -> Fault | None:
        target = self._target(kind, at)
        if target is None:
            return None
        fault = Fault(at, kind, target, round(self._lasts(kind), 1), self._drops(kind))
        busy = self._members if kind is Kind.ROLLING_RESTART else (target,)
        for each in busy:
            self._busy[each] = at + fault.lasts + _RECOVERY
        if kind is Kind.JOIN:
            self._running.add(target)
        elif kind is Kind.LEAVE:
            self._running.discard(target)
        return fault

    def _target(self, kind: Kind, at: float) -> str | None:
        idle = [name for name in self._members if self._busy[name] <= at]
        if kind is Kind.ROLLING_RESTART:
            return "all" if len(idle) == len(self._members) else None
        if kind in {Kind.KILL_ZOOKEEPER, Kind.KILL_BROKER}:
            server = "zookeeper" if kind is Kind.KILL_ZOOKEEPER else "kafka"
            return server if self._busy[server] <= at else None
        running = [name for name in idle if name in self._running]
        if kind is Kind.JOIN:
            fitting = [name for name in idle if name not in self._running]
        elif kind is Kind.LEAVE:
            # two stay, so that there is somebody to take over
            fitting = running if len(self._running) > 2 else []  # noqa: PLR2004
        else:
            fitting = running
        return self._random.choice(fitting) if fitting else None

    def _lasts(self, kind: Kind) -> float:
        """Draw how long a fault lasts: as often shorter than a session as longer."""
        sessions = _SESSIONS.get(kind)
        if sessions is not None:
            return self._random.uniform(*self._random.choice(sessions)) * self._session
        return _RESTART * len(self._running) if kind is Kind.ROLLING_RESTART else 0.0

    def _drops(self, kind: Kind) -> bool:
        return kind in {Kind.CUT_ZOOKEEPER, Kind.CUT_KAFKA} and self._random.random() < 0.5  # noqa: PLR2004 - as often as not
