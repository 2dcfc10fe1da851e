"""Carries out operations one after the other; each is over when the daemon says that it is true."""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.lifecycle.daemon import CHANGE, PATIENCE, Daemon
from benchmarks.lifecycle.schedule import PAUSES, Kind, Operation
from benchmarks.lifecycle.world import LOAD, OTHER, SOMETIMES, STEADY, World
from benchmarks.report import say
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.devstack.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Seconds between two operations, in which the load goes on.
_GAP = 0.3

_COORDINATORS: tuple[dict[str, Any], ...] = (
    {"type": "dynamic"},
    {"type": "dynamic", "weight": 2},
    {"type": "fixed_count", "partitions_per_topic": 3},
    {"type": "dynamic", "rebalance_delay": "200ms"},
)


class Operations:
    """Two daemons, and what is done to them. For one thread."""

    def __init__(self, world: World, daemons: Sequence[Daemon], gap: float = _GAP) -> None:
        self._world = world
        self._daemons = daemons
        self._gap = gap
        self._paused: list[tuple[int, Daemon, str, dict[str, Any]]] = []
        self._turn = 0
        self._seconds: dict[Kind, list[float]] = defaultdict(list)
        #: what did not come out as it should, in words
        self.failures: list[str] = []
        self._how: dict[Kind, Callable[[Daemon, int], None]] = {
            Kind.SEEK: self._seek,
            Kind.HOT: self._hot,
            Kind.HANG_UP: self._hang_up,
            Kind.WATCHED: self._watched,
            Kind.WORKERS: self._workers,
            Kind.TOPIC: self._topic,
            Kind.COORDINATOR: self._coordinator,
            Kind.PROCESSOR: self._processor,
            Kind.CHANNEL: self._channel,
            Kind.REJECTED: self._rejected,
            Kind.LOG_LEVEL: self._log_level,
            Kind.RESTART: self._restart,
            Kind.STOP: self._stop,
        }

    @property
    def done(self) -> int:
        """How many operations were carried out."""
        return sum(map(len, self._seconds.values()))

    def carry_out(self, operations: Sequence[Operation]) -> None:
        """Do one thing after the other; ``end`` undoes what is left of it. Blocks."""
        for operation in operations:
            self._turn += 1
            say(f"{self._turn:3}: {operation}")
            began = SYSTEM_CLOCK.monotonic()
            try:
                self._resume_what_is_due()
                self._do(operation)
            except AssertionError as error:
                self.failures.append(f"{operation}: {error}")
                say(self.failures[-1])
            self._seconds[operation.kind].append(SYSTEM_CLOCK.monotonic() - began)
            self._rest()

    def _rest(self) -> None:
        until = SYSTEM_CLOCK.monotonic() + self._gap
        wait_for(lambda: SYSTEM_CLOCK.monotonic() >= until, Deadline.after(PATIENCE))

    def summary(self) -> dict[str, dict[str, float]]:
        """Return how often each kind was done, and the seconds that it took."""
        return {
            kind.value: {
                "times": len(seconds),
                "median_s": round(median(seconds), 3),
                "worst_s": round(max(seconds), 3),
            }
            for kind, seconds in self._seconds.items()
        }

    def _do(self, operation: Operation) -> None:
        daemon = self._daemons[operation.target]
        if operation.kind in PAUSES:
            self._pause(daemon, operation)
        else:
            self._how[operation.kind](daemon, operation.choice)

    def end(self) -> None:
        """Resume what is paused, and have every daemon read everything. Blocks."""
        self._turn += 1 << 16
        try:
            self._resume_what_is_due()
            for daemon in self._daemons:
                daemon.document["channels"] |= {
                    LOAD: self._world.channel(daemon.name, LOAD, STEADY, SOMETIMES),
                    OTHER: self._world.channel(daemon.name, OTHER),
                }
                daemon.reload()
        except AssertionError as error:
            self.failures.append(f"end: {error}")

    # --- pauses ---------------------------------------------------------------------------------

    @contextmanager
    def all_held(self) -> Iterator[None]:
        """Hold every channel of every daemon for the block."""
        held = [(daemon, name) for daemon in self._daemons for name in daemon.document["channels"]]
        for daemon, name in held:
            daemon.post(f"channels/{name}/pause", wait_s=CHANGE)
        try:
            yield
        finally:
            for daemon, name in held:
                daemon.post(f"channels/{name}/resume")

    def _pause(self, daemon: Daemon, operation: Operation) -> None:
        """Pause one of the channels, or one partition of it."""
        kind, choice = operation.kind, operation.choice
        channels = sorted(daemon.document["channels"])
        path, scope = f"channels/{channels[choice % len(channels)]}", {}
        if kind in {Kind.HOLD_PARTITION, Kind.DRAIN_PARTITION}:
            scope = {"topic": STEADY, "partition": choice // 7 % self._world.topics[STEADY]}
        mode = "hold" if kind in {Kind.HOLD, Kind.HOLD_PARTITION} else "drain"
        self._paused.append((self._turn + operation.lasts, daemon, path, scope))
        answer = daemon.post(f"{path}/pause", mode=mode, wait_s=CHANGE, **scope)
        if not answer["acknowledged"]:
            raise AssertionError("was not acknowledged")

    def _resume_what_is_due(self) -> None:
        due = [each for each in self._paused if each[0] < self._turn]
        self._paused = [each for each in self._paused if each[0] >= self._turn]
        for _, daemon, path, scope in due:
            # a channel that was taken away meanwhile has no pauses any more
            if path.rpartition("/")[2] in daemon.document["channels"]:
                daemon.post(f"{path}/resume", **scope)

    def _seek(self, daemon: Daemon, choice: int) -> None:
        """Set one of the daemon's partitions to where it stands, if it has any just now.

        Those of a topic that was taken away are on their way back, and cannot be sought.
        """
        topics = daemon.document["channels"][LOAD]["topics"]
        held = [each for each in daemon.partitions(LOAD) if each["topic"] in topics]
        if not held:
            return
        chosen = held[choice % len(held)]
        scope = {"topic": chosen["topic"], "partition": chosen["partition"]}
        daemon.post(f"channels/{LOAD}/pause", wait_s=CHANGE)
        try:
            found = [p for p in daemon.partitions(LOAD) if scope.items() <= p.items()]
            for each in found:
                daemon.post(f"channels/{LOAD}/seek", offset=each["committed"], **scope)
        finally:
            daemon.post(f"channels/{LOAD}/resume")

    # --- the file -------------------------------------------------------------------------------

    def _hot(self, daemon: Daemon, choice: int) -> None:
        self._change_hot(daemon, choice)
        daemon.reload()

    def _hang_up(self, daemon: Daemon, choice: int) -> None:
        self._change_hot(daemon, choice)
        daemon.write()
        daemon.hang_up()
        daemon.await_applied()

    def _watched(self, daemon: Daemon, choice: int) -> None:
        self._change_hot(daemon, choice)
        daemon.write()
        daemon.await_applied()

    @staticmethod
    def _change_hot(daemon: Daemon, choice: int) -> None:
        daemon.document["channels"][LOAD] |= {
            "batch": {"max_records": 10 + choice % 90, "linger": f"{choice % 40}ms"},
            "commit_interval": f"{choice % 1500}ms",
            "retry": {"backoff": f"{100 + choice % 100}ms"},
        }

    def _workers(self, daemon: Daemon, choice: int) -> None:
        daemon.document["channels"][LOAD]["workers"] = 1 + choice % 5
        daemon.reload()

    def _topic(self, daemon: Daemon, _choice: int) -> None:
        channel = daemon.document["channels"][LOAD]
        channel["topics"] = [STEADY] if SOMETIMES in channel["topics"] else [STEADY, SOMETIMES]
        daemon.reload()

    def _coordinator(self, daemon: Daemon, choice: int) -> None:
        chosen = _COORDINATORS[choice % len(_COORDINATORS)]
        daemon.document["channels"][LOAD]["coordinator"] = dict(chosen)
        daemon.reload()

    def _processor(self, daemon: Daemon, choice: int) -> None:
        channel = daemon.document["channels"][LOAD]
        options = {**channel["processor"]["options"], "work": 0.02 + choice % 50 / 1000}
        channel["processor"] = {**channel["processor"], "options": options}
        daemon.reload()

    def _channel(self, daemon: Daemon, _choice: int) -> None:
        channels = daemon.document["channels"]
        if channels.pop(OTHER, None) is None:
            channels[OTHER] = self._world.channel(daemon.name, OTHER)
        daemon.reload()

    def _rejected(self, daemon: Daemon, _choice: int) -> None:
        """Put a bad file in place: it is refused, and nothing changes."""
        before = daemon.get("config")["applied"]
        good, daemon.document = daemon.document, {**daemon.document, "chanels": {}}
        outcome = daemon.ask_reload()
        after = daemon.get("config")["applied"]
        daemon.document = good
        daemon.reload()
        if (outcome, after) != ("rejected", before):
            raise AssertionError(f"a bad file came to {outcome}")

    # --- the process ----------------------------------------------------------------------------

    @staticmethod
    def _log_level(daemon: Daemon, choice: int) -> None:
        daemon.post("loglevel", level=("debug", "info")[choice % 2], for_s=2.0)

    @staticmethod
    def _restart(daemon: Daemon, _choice: int) -> None:
        daemon.stop()
        daemon.start()

    @staticmethod
    def _stop(daemon: Daemon, _choice: int) -> None:
        daemon.post("stop")
        daemon.await_end()
        daemon.start()
