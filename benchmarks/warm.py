"""Tasks with state that move: rolling restarts, planned moves, take-overs, and restores.

Three members have six tasks, and 1 GB of state each. Records come to each task all the time, and
the longest time is measured in which one of them delivers nothing, as another client sees it, with
one copy of each task and without.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientPartition

from benchmarks import stack
from benchmarks.first_output import open_consumer
from benchmarks.keyed.state import Stand, StatePlan, fill_changelog, rows
from benchmarks.lifecycle.daemon import CHANGE, Daemon, Settings
from benchmarks.report import Report, say
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.devstack.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.devstack import LocalStack

_CHANNEL = "bench"

#: Seconds of a ZooKeeper session of the members.
_SESSION = 6.0

#: Seconds between two records of a task, and that all have to come without a gap before and after.
_EVERY = 0.05
_CALM = 3.0

#: Seconds that the group may take to come to rest, with all copies near to their end.
_PATIENCE = 400.0

#: Records that a copy may lack and is near to its end.
_NEAR = 1_000

#: What has to hold, in seconds, with one copy of each task.
_TARGETS = {"rolling_gap_s": 2.0, "takeover_over_session_s": 1.0, "planned_gap_s": 0.5}

_RESTORED = 200.0


@dataclass(frozen=True, slots=True)
class Plan:
    """How much state there is: so many bytes for each member, in rows of ``row`` bytes."""

    members: int = 3
    tasks: int = 6
    state: int = 1_000_000_000
    row: int = 1024
    standbys: Sequence[int] = (0, 1)


def run(plan: Plan | None = None) -> Report:
    """Measure without copies, then with one of each task. Blocks for a quarter of an hour."""
    plan = plan or Plan()
    figures: dict[str, Any] = {}
    with stack.servers() as servers:
        figures["restore_mb_s_1024b"] = _restored(servers, plan)
        for standbys in plan.standbys:
            found = _Group(servers, plan, standbys).measure()
            figures |= found if standbys else {f"{k}_without": v for k, v in found.items()}
    missed = [name for name, most in _TARGETS.items() if figures.get(name, 0.0) > most]
    missed += ["restore_mb_s_1024b"] if figures["restore_mb_s_1024b"] < _RESTORED else []
    described = {"members": plan.members, "tasks": plan.tasks, "state_bytes": plan.state}
    targets = {**_TARGETS, "restore_mb_s_1024b": _RESTORED}
    return Report("warm", {"missed": missed, **figures, "targets": targets, **described})


def _restored(servers: LocalStack, plan: Plan) -> float:
    """Return the MB a second at which one member restores a member's state."""
    stand = Stand(servers, StatePlan(), plan.row, plan.state // plan.row)
    try:
        return stand.restore()
    finally:
        stand.close()


@dataclass(slots=True)
class Arrivals:
    """The times at which outputs of each task were read. Any thread."""

    times: dict[int, list[float]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def note(self, task: int) -> None:
        """Note one of now."""
        with self.lock:
            self.times.setdefault(task, []).append(SYSTEM_CLOCK.monotonic())

    def gap(self, since: float) -> float:
        """Return the longest time since then in which a task delivered nothing."""
        now = SYSTEM_CLOCK.monotonic()
        with self.lock:
            each = [[since, *(t for t in found if t > since), now] for found in self.times.values()]
        return max((b - a for times in each for a, b in pairwise(times)), default=0.0)

    def are_calm(self, tasks: int) -> bool:
        """Return whether all tasks have delivered without a gap of a second for a while."""
        with self.lock:
            is_complete = len(self.times) == tasks
        return is_complete and self.gap(SYSTEM_CLOCK.monotonic() - _CALM) < 1.0


class _Group:
    """Three members, what is sent to them, and what is read of them."""

    def __init__(self, servers: LocalStack, plan: Plan, standbys: int) -> None:
        self._plan, self._standbys = plan, standbys
        self._topic = f"facts-{standbys}"
        self._output = f"{self._topic}.counts"
        self._client = {"bootstrap.servers": servers.bootstrap_servers}
        stack.create(servers, self._topic, plan.tasks)
        stack.create(servers, self._output, 1)
        count = plan.members * plan.state // plan.row
        say(f"filling a changelog with {count:,} rows of {plan.row} bytes")
        fill_changelog(servers, self._topic, plan.tasks, rows(count, plan.row))
        self._bytes = count * plan.row
        channel = {
            "topics": [self._topic],
            "group": self._topic,
            "processor": {
                "type": "keyed",
                "engine": "arrow",
                "reducer": "benchmarks.peer_sides.keyed_work:name_task",
                "value": "string",
                "state": {"standbys": standbys},
            },
            "sink": {"type": "kafka", "topic": self._output},
        }
        sections = {
            "zookeeper": {"hosts": servers.zookeeper_hosts, "session_timeout": f"{_SESSION}s"}
        }
        settings = Settings(stack.addresses(servers), {_CHANNEL: channel}, sections, {})
        folder = servers.directory / "warm" / str(standbys)
        self._members = [Daemon(name, folder, settings) for name in "abc"[: plan.members]]
        self._arrivals = Arrivals()

    def measure(self) -> dict[str, float]:
        """Return the figures by name. Blocks."""
        try:
            for member in self._members:
                member.start()
            with self._under_load():
                self._await_rest()
                found = {"planned_gap_s": self._move()}
                found["rolling_gap_s"] = self._roll()
                found["takeover_over_session_s"] = self._take_over()
        finally:
            for member in self._members:
                member.kill()
        return found

    def _move(self) -> float:
        """Have a member give back its tasks, and take them again."""
        begun = SYSTEM_CLOCK.monotonic()
        first = self._members[0]
        first.post(f"channels/{_CHANNEL}/pause", mode="drain", wait_s=CHANGE)
        self._await_rest(without=first)
        first.post(f"channels/{_CHANNEL}/resume")
        self._await_rest()
        return self._said("planned_gap_s", self._arrivals.gap(begun))

    def _roll(self) -> float:
        """Restart one member after the other, each once the one before is at rest."""
        begun = SYSTEM_CLOCK.monotonic()
        for member in self._members:
            member.stop()
            member.start()
            self._await_rest()
        return self._said("rolling_gap_s", self._arrivals.gap(begun))

    def _take_over(self) -> float:
        """Kill a member, and return by how much its tasks rested longer than its session."""
        begun = SYSTEM_CLOCK.monotonic()
        self._members[0].kill()
        self._await_rest(without=self._members[0])
        gap = self._arrivals.gap(begun)
        return self._said("takeover_over_session_s", gap - _SESSION)

    def _said(self, name: str, seconds: float) -> float:
        say(f"{self._standbys} copies: {name} {seconds:.2f}")
        return round(seconds, 2)

    def _await_rest(self, without: Daemon | None = None) -> None:
        """Wait until each member has its share, copies are near their ends, and outputs come."""
        members = [each for each in self._members if each is not without]

        def is_at_rest() -> bool:
            tasks = [each.get(f"channels/{_CHANNEL}/tasks") for each in members]
            shares = [len(found["tasks"]) for found in tasks]
            ready = all(task["restored"] for found in tasks for task in found["tasks"])
            copies = [copy for found in tasks for copy in found["standbys"]]
            wanted = self._plan.tasks * min(self._standbys, len(members) - 1)
            near = sum(copy["lag"] is not None and copy["lag"] <= _NEAR for copy in copies)
            return (
                sum(shares) == self._plan.tasks
                and max(shares) - min(shares) <= 1
                and ready
                and near >= wanted
                and self._arrivals.are_calm(self._plan.tasks)
            )

        if not wait_for(is_at_rest, Deadline.after(_PATIENCE)):
            raise AssertionError(f"the group did not come to rest in {_PATIENCE:.0f} s")

    @contextmanager
    def _under_load(self) -> Iterator[None]:
        """Send and read on threads of their own."""
        stop = Event()
        threads = [
            Thread(target=work, args=[stop], name=work.__name__, daemon=True)
            for work in (self._send, self._read)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def _send(self, stop: Event) -> None:
        producer = Producer({**self._client, "linger.ms": 0})
        while not stop.wait(_EVERY):
            for task in range(self._plan.tasks):
                producer.produce(self._topic, b"%d" % task, b"task-%d" % task, partition=task)
            producer.poll(0)
        producer.flush(30)

    def _read(self, stop: Event) -> None:
        consumer = open_consumer(self._client["bootstrap.servers"])
        consumer.assign([ClientPartition(self._output, 0, 0)])
        while not stop.is_set():
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                self._arrivals.note(int(json.loads(message.value() or b"0")))
        consumer.close()
