"""Carries out a schedule against a world, and undoes what has to be undone."""

from __future__ import annotations

import heapq
from collections import Counter
from itertools import count
from threading import Event
from typing import TYPE_CHECKING

from benchmarks.chaos.schedule import Fault, Kind
from benchmarks.chaos.world import Lane
from benchmarks.report import say
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.devstack.wait import FAR_S, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.chaos.schedule import Schedule
    from benchmarks.chaos.world import Daemon, World

#: Seconds between two looks at the clock and at the members.
_TURN = 0.1

#: Seconds after which a supervisor starts a member again that ended by itself.
_SUPERVISION = 1.0

#: Seconds that a restarted member that is up may take to own something, in a rolling restart.
_RETURN = 60.0


class Attack:
    """One run of a schedule. For one thread; what blocks is done in the targets' lanes."""

    def __init__(self, world: World, schedule: Schedule) -> None:
        self._world = world
        self._schedule = schedule
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()
        self._began = 0.0
        self._dead_since: dict[str, float] = {}
        self._rolling = Lane("rolling")
        #: seconds that the schedule waited for what had begun
        self.waited = 0.0
        self.unreturned: list[str] = []
        self.done: Counter[Kind] = Counter()
        #: called before the first fault that is not clean
        self.after_clean: Callable[[], object] = lambda: None

    def run(self) -> None:
        """Do everything at its time, then heal everything. Blocks."""
        self._began = SYSTEM_CLOCK.monotonic()
        for fault in self._schedule.faults:
            self._at(fault.at, lambda fault=fault: self._begin(fault))  # type: ignore[misc]
        self._at(self._first_hard(), self._end_clean)
        pause = Event()
        while self._due or self._now() < self._schedule.seconds:
            while self._due and self._due[0][0] <= self._now():
                heapq.heappop(self._due)[2]()
            self.supervise()
            pause.wait(_TURN)
        self.heal()

    def heal(self) -> None:
        """Wait for what is being done, and undo what is left. Blocks."""
        self._settle()
        self._rolling.close()
        for daemon in self._world.daemons.values():
            daemon.thaw()
            daemon.zookeeper.heal()
            daemon.kafka.heal()

    def _settle(self) -> None:
        """Wait until everything begun is done; members are started again meanwhile."""
        began = self._now()
        pause, deadline = Event(), Deadline.after(FAR_S)
        lanes = [self._rolling, *self._world.server_lanes.values()]
        while not all(lane.idle for lane in lanes) and not deadline.expired:
            self.supervise()
            pause.wait(_TURN)
        for lane in [*lanes, *(daemon.lane for daemon in self._world.daemons.values())]:
            lane.settle()
        self.waited += self._now() - began

    def _end_clean(self) -> None:
        """Wait until all clean events are over, and have them judged; the schedule waits too."""
        began = self._now()
        self._settle()
        self.after_clean()
        self._began += self._now() - began

    def _now(self) -> float:
        return SYSTEM_CLOCK.monotonic() - self._began

    def _at(self, at: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._due, (at, next(self._numbers), action))

    def _first_hard(self) -> float:
        """Return when what clean events did can be counted: just before the first other fault."""
        later = [f.at for f in self._schedule.faults if f.at >= self._schedule.clean_until]
        return min(later, default=self._schedule.seconds) - _TURN / 2

    # --- faults -----------------------------------------------------------------------------

    def _begin(self, fault: Fault) -> None:
        say(str(fault))
        self.done[fault.kind] += 1
        match fault.kind:
            case Kind.ROLLING_RESTART:
                self._rolling.do(self._restart_all)
            case Kind.KILL_ZOOKEEPER:
                self._bounce_server(fault)
            case Kind.KILL_BROKER:
                self._bounce_server(fault)
            case _:
                self._harm(self._world.daemons[fault.target], fault)

    def _bounce_server(self, fault: Fault) -> None:
        zookeeper = fault.kind is Kind.KILL_ZOOKEEPER
        server = self._world.zookeeper if zookeeper else self._world.broker
        lane = self._world.server_lanes["zookeeper" if zookeeper else "kafka"]
        lane.do(server.kill)
        self._at(
            fault.at + fault.lasts,
            lambda: lane.do(server.start),
        )

    def _harm(self, daemon: Daemon, fault: Fault) -> None:
        end = fault.at + fault.lasts
        match fault.kind:
            case Kind.JOIN:
                daemon.lane.do(daemon.start)
            case Kind.LEAVE:
                daemon.lane.do(daemon.stop)
            case Kind.KILL:
                daemon.wanted = False
                daemon.lane.do(daemon.kill)
                self._at(end, lambda: daemon.lane.do(daemon.start))
            case Kind.FREEZE:
                daemon.lane.do(daemon.freeze)
                self._at(end, lambda: daemon.lane.do(daemon.thaw))
            case Kind.CUT_ZOOKEEPER | Kind.CUT_KAFKA:
                zookeeper = fault.kind is Kind.CUT_ZOOKEEPER
                link = daemon.zookeeper if zookeeper else daemon.kafka
                link.cut(drops=fault.drops)
                self._at(end, link.heal)
            case _:
                raise AssertionError(f"{fault.kind} does not concern a member")

    def _restart_all(self) -> None:
        """Stop and start one wanted member after the other; each owns something before the next."""
        for daemon in self._world.daemons.values():
            if not daemon.wanted:
                continue
            daemon.lane.do(lambda daemon=daemon: (daemon.stop(), daemon.start())).result()  # type: ignore[misc]
            if not self._has_returned(daemon):
                self.unreturned.append(daemon.name)

    def _has_returned(self, daemon: Daemon) -> bool:
        """Wait until it owns something or is wanted no more: to be up, for as long as it works."""
        silence = self._world.silence(daemon.name)
        wait_for(lambda: daemon.answers() or not daemon.wanted, Deadline.after(FAR_S), silence)
        owns = wait_for(lambda: daemon.owns() or not daemon.wanted, Deadline.after(_RETURN))
        return bool(owns)

    def supervise(self) -> None:
        """Start a member again that ended by itself, as whatever supervises daemons does."""
        for daemon in self._world.daemons.values():
            if not daemon.wanted or daemon.running:
                self._dead_since.pop(daemon.name, None)
            elif self._now() - self._dead_since.setdefault(daemon.name, self._now()) > _SUPERVISION:
                self._dead_since.pop(daemon.name)
                daemon.lane.do(daemon.start)
