"""The workflow of ``workflow`` on every side, its effects, and the rounds. The standard library.

An order is reserved, charged and shipped, one after the other. Each call writes a line to a file
that all processes append to: the instance, the step, and the key under which the system has the
call made.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from benchmarks.peer_sides.wire import Request, Wire

#: Each step with what it makes of the order's number.
STEPS: Mapping[str, Callable[[int], int]] = {
    "reserve": lambda n: n + 1,
    "charge": lambda n: n * 2,
    "ship": lambda n: n + 3,
}

#: The variable that names the file of effects.
EFFECTS = "BENCHMARK_EFFECTS"

#: Seconds of one wait for outcomes.
_WAIT = 0.05

#: Seconds that the first instances may take: processes start, and share the partitions.
_START_PATIENCE = 240.0

#: Instances that are run before the first round, so that every worker has what it reads.
_FIRST = 16

#: Seconds that a process has to end.
_END_TIMEOUT = 60.0


class Effects:
    """The file of effects, as one process appends to it. Any thread."""

    def __init__(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        self._file = os.open(os.environ[EFFECTS], flags, 0o600)

    def apply(self, instance: str, step: str, key: str) -> None:
        """Have the effect of a call: the line is written at once, and outlives the process."""
        os.write(self._file, f"{instance} {step} {key}\n".encode())

    def call(self, instance: str, step: str, key: str, pause: float) -> None:
        """Make a call that takes ``pause`` seconds, with its effect in the middle. Blocks."""
        if pause:
            time.sleep(pause / 2)
        self.apply(instance, step, key)
        if pause:
            time.sleep(pause / 2)


def outcome_of(n: int) -> int:
    """Return what the workflow makes of an order's number."""
    for step in STEPS.values():
        n = step(n)
    return n


@dataclass(frozen=True, slots=True)
class Order:
    """What an instance is started with. ``pause`` is how long each call takes, in seconds."""

    instance: str
    n: int
    pause: float = 0.0


class System(Protocol):
    """A system with two workers, as a round sees it. For one thread."""

    def start(self, orders: Sequence[Order]) -> None:
        """Have instances started, together."""

    def outcomes(self, timeout: float) -> Iterable[tuple[str, int]]:
        """Return instances that have ended, with their results; waits so long for the first."""

    def kill_worker(self) -> None:
        """End one of the workers with SIGKILL, and start it again."""

    def require_running(self) -> None:
        """Fail if a process ended by itself."""

    def close(self) -> None:
        """End all processes."""


class Child:
    """A process of a side, in a session of its own: SIGKILL is for its children, too."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        self._name = name
        self._command = command
        self._log = folder / f"{name}.log"
        folder.mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; what it prints goes to its log."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def require_running(self) -> None:
        """Fail if it ended by itself."""
        assert self._process is not None, "it was started"
        code = self._process.poll()
        if code is not None:
            said = self._log.read_text(encoding="utf-8", errors="replace")[-2_000:]
            raise AssertionError(f"{self._name} ended by itself with code {code}:\n{said}")

    def kill(self) -> None:
        """End it and its children with SIGKILL."""
        assert self._process is not None, "it was started"
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_END_TIMEOUT)

    def close(self) -> None:
        """End it in order, and by force where it does not."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.terminate()
        try:
            self._process.wait(_END_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()


@dataclass(slots=True)
class Tally:
    """When instances of one round were started and ended."""

    orders: Mapping[str, Order]
    started: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    twice: int = 0
    wrong: int = 0

    def start(self, system: System, orders: Sequence[Order]) -> None:
        """Start instances: their time begins before."""
        now = time.perf_counter()
        self.started.update((order.instance, now) for order in orders)
        system.start(orders)

    def take(self, outcomes: Iterable[tuple[str, int]]) -> int:
        """Take note of outcomes; return how many there were."""
        count = 0
        for instance, n in outcomes:
            order = self.orders.get(instance)
            if order is None:
                continue
            count += 1
            self.wrong += n != outcome_of(order.n)
            if instance in self.ended:
                self.twice += 1
            else:
                self.ended[instance] = time.perf_counter()
        return count

    @property
    def is_complete(self) -> bool:
        """Whether each instance has an outcome."""
        return len(self.ended) == len(self.orders)

    def figures(self) -> dict[str, Any]:
        """Return counts, the whole time, and that from start to outcome, in seconds."""
        taken = sorted(end - self.started[name] for name, end in self.ended.items())
        return {
            "instances": len(self.orders),
            "lost": len(self.orders) - len(self.ended),
            "outcomes_twice": self.twice,
            "wrong": self.wrong,
            "took": max(self.ended.values()) - min(self.started.values()) if taken else 0.0,
            "p50": percentile(taken, 0.5),
            "p99": percentile(taken, 0.99),
        }


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the value that so large a share of values in order is at or below; 0 of none."""
    return ordered[max(0, -int(-len(ordered) * share // 1) - 1)] if ordered else 0.0


def serve(wire: Wire, make: Callable[[Request], System]) -> None:
    """Serve rounds on one system, made for the first of them."""
    system: System | None = None
    try:
        for request in wire.requests():
            if system is None:
                os.environ[EFFECTS] = request.settings["effects"]
                Path(request.settings["effects"]).touch()
                system = make(request)
                _begin(system)
            wire.tell("assigned")
            tally = _ROUNDS[request.work](system, request)
            wire.tell("complete", **tally.figures())
            wire.wait()
            wire.tell("stopped")
    finally:
        if system is not None:
            system.close()


def _orders(request: Request) -> dict[str, Order]:
    """Return the orders of a round, whose instances begin with its group."""
    pause = request.settings.get("pause", 0.0)
    names = (f"{request.group}-{number}" for number in range(request.records))
    return {name: Order(name, number, pause) for number, name in enumerate(names)}


def _begin(system: System) -> None:
    """Run some instances, of no round."""
    orders = {f"first-{number}": Order(f"first-{number}", number) for number in range(_FIRST)}
    tally = Tally(orders)
    tally.start(system, list(orders.values()))
    _finish(system, tally, _START_PATIENCE)
    assert tally.is_complete, f"{tally.figures()} after {_START_PATIENCE:.0f} s"


def _finish(system: System, tally: Tally, patience: float) -> None:
    """Wait until all have ended, or nothing was heard of any for so long."""
    until = time.monotonic() + patience
    while not tally.is_complete and time.monotonic() < until:
        system.require_running()
        if tally.take(system.outcomes(_WAIT)):
            until = time.monotonic() + patience


def _rate(system: System, request: Request) -> Tally:
    """Start all instances together."""
    tally = Tally(_orders(request))
    tally.start(system, list(tally.orders.values()))
    _finish(system, tally, request.settings["patience"])
    return tally


def _paced(system: System, request: Request) -> Tally:
    """Start one instance after the other, evenly over time."""
    tally = Tally(_orders(request))
    began, interval = time.perf_counter(), 1 / request.settings["per_second"]
    for number, order in enumerate(tally.orders.values()):
        while (left := began + number * interval - time.perf_counter()) > 0:
            tally.take(system.outcomes(left))
        tally.start(system, [order])
    _finish(system, tally, request.settings["patience"])
    return tally


def _killed(system: System, request: Request) -> Tally:
    """Start all together, kill a worker when half of the calls have had their effect, and wait.

    It ends when there was no effect and no outcome for ``settle`` seconds: what a system makes
    again, it makes within that time.
    """
    tally = Tally(_orders(request))
    effects = Path(request.settings["effects"])
    before, half = _lines(effects), request.records * len(STEPS) // 2
    deadline = time.monotonic() + request.settings["patience"]
    tally.start(system, list(tally.orders.values()))
    while _lines(effects) - before < half:
        assert time.monotonic() < deadline, "half of the calls were not made"
        tally.take(system.outcomes(_WAIT / 10))
    system.kill_worker()
    _finish(system, tally, request.settings["patience"])
    made, quiet = _lines(effects), time.monotonic() + request.settings["settle"]
    while time.monotonic() < quiet:
        if tally.take(system.outcomes(_WAIT)) or _lines(effects) > made:
            made, quiet = _lines(effects), time.monotonic() + request.settings["settle"]
    return tally


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


_ROUNDS = {"rate": _rate, "paced": _paced, "killed": _killed}
