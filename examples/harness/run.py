"""What all demos have: how they end, their folder and servers, and daemons driven by phases."""

from __future__ import annotations

import logging
import shutil
import signal
import tempfile
import threading
from abc import ABC, abstractmethod
from contextlib import contextmanager
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, Protocol, TypeVar, final

import structlog
from rich.console import Console

from examples.harness.daemons import Daemon, DaemonSnapshot, Endpoints
from examples.harness.flights import DemoError
from examples.harness.progress import DemoProgress, MemberView, Pace, View, gates, patience, say
from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import HeadraceError
from headrace.core.records import TopicPartition
from headrace.devstack import Blueprint, LocalStack, detached
from headrace.devstack.jars import kafka_jars
from headrace.devstack.jvm import require_java
from headrace.kafka import KafkaRecordSource
from headrace.kafka.errors import KafkaUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType

    from examples.harness.daemons import Daemons
    from headrace.core.records import Record

P = TypeVar("P", bound=Enum)

#: Seconds between two turns: produce what is due, read what came of it, decide, show.
POLL_INTERVAL = 0.2

#: Seconds between two looks at the daemons' metrics, which cost them some work.
_READ_EVERY = 1.0

#: Seconds that the brokers have to create a topic, to take records, or to show results.
KAFKA_TIMEOUT = 60.0

#: Bytes of results that a reader may prefetch.
_PREFETCH = 4 << 20


class Verdict(Protocol):
    """What a demo found; as text it is the demo's last line."""

    @property
    def holds(self) -> bool:
        """Whether all is as it has to be."""


V = TypeVar("V", bound=Verdict)
R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


class Sender(Protocol[R_contra]):
    """Takes the records of a demo, as a :class:`TopicProducer` does."""

    @property
    def failed(self) -> int:
        """How many records the brokers did not take, or not for certain."""

    def send(self, records: Iterable[R_contra], deadline: Deadline) -> None:
        """Produce records in their order. Blocks while there is no room."""

    def flush(self, deadline: Deadline) -> None:
        """Wait until all that was sent is stored. Blocks."""


_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interruption(KeyboardInterrupt):
    """A signal asked the demo to end; ``number`` says which."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise ``Interruption`` in the block at the first signal, and ignore the next ones.

    For the main thread. What cleans up has deadlines of its own, so it need not be hurried. A
    signal that is ignored already, as under nohup, stays so.
    """
    handled = [number for number in _NUMBERS if signal.getsignal(number) is not signal.SIG_IGN]

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in handled:
            signal.signal(each, signal.SIG_IGN)
        raise Interruption(number)

    before = {number: signal.signal(number, interrupt) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@final
class WorkDirectory:
    """The folder of one run. Leaving it as a context manager removes a folder that was made.

    It stays with ``keep``, if the user named it, and after an error, whose message then names it;
    Ctrl-C is no error. The demo's own log goes to a file in it.

    Raises:
        DemoError: the named folder has something in it already, or cannot be made.
    """

    def __init__(self, chosen: Path | None) -> None:
        self.path = (
            Path(tempfile.mkdtemp(prefix="headrace-demo-"))
            if chosen is None
            else _empty(chosen.absolute())
        )
        self.keep = chosen is not None
        self._log = (self.path / "demo.log").open("w", encoding="utf-8")
        self._logged_before = structlog.get_config()
        structlog.configure(
            logger_factory=structlog.PrintLoggerFactory(self._log),
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        )

    @property
    def table(self) -> Path:
        """The Delta table."""
        return self.path / "table"

    @property
    def stack(self) -> Path:
        """The folder of ZooKeeper and Kafka."""
        return self.path / "stack"

    def __enter__(self) -> WorkDirectory:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        structlog.configure(**self._logged_before)
        self._log.close()
        if not self.keep and not isinstance(error, Exception):
            # a JVM that has lost its parent may still be removing its own files
            shutil.rmtree(self.path, ignore_errors=True)


def _empty(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
        used = any(path.iterdir())
    except OSError as error:
        raise DemoError(f"{path} cannot be used: {error.strerror}; choose another --dir") from error
    if used:
        raise DemoError(f"{path} is not empty; choose another --dir, or delete it")
    return path


def concluded(run: Callable[[Console], Verdict]) -> int:
    """Run a demo, say how it went, and return the exit code. On the main thread."""
    console, errors = Console(), Console(stderr=True)
    try:
        with interruptible():
            verdict = run(console)
    except Interruption as interruption:
        say(errors, "interrupted; nothing is left running")
        return 128 + interruption.number
    except HeadraceError as error:
        say(errors, str(error))
        return 1
    say(console, str(verdict))
    return 0 if verdict.holds else 1


def require_servers() -> None:
    """Look for what the servers take; raises LocalStackError. Blocks while jars are fetched."""
    require_java()
    kafka_jars()


def verified_in(
    directory: Path | None,
    console: Console,
    play: Callable[[WorkDirectory], V],
    leave: Callable[[WorkDirectory], None] | None = None,
) -> V:
    """Have a demo played and checked in its folder, which stays unless all is well. Blocks.

    With ``leave``, which is called at the end, it stays in any case.

    Raises:
        HeadraceError: it could not be played to its end; the message names the folder.
    """
    with WorkDirectory(directory) as work:
        say(console, f"work directory: {work.path}")
        try:
            verdict = play(work)
        except HeadraceError as error:
            raise DemoError(f"{error}\nall files are kept in {work.path}") from error
        work.keep = work.keep or leave is not None or not verdict.holds
        if leave is not None:
            leave(work)
        return verdict


@contextmanager
def servers(work: WorkDirectory) -> Iterator[Endpoints]:
    """Run ZooKeeper and Kafka in the folder while the block runs. Blocks for their start."""
    with LocalStack.start(work.stack, blueprint=Blueprint(short_lived=True)) as stack:
        yield Endpoints(stack.bootstrap_servers, stack.zookeeper_hosts)


def leave_servers(work: WorkDirectory, console: Console, topics: str, *more: str) -> None:
    """Start the servers again in a process of its own, on the same addresses and data."""
    try:
        state = detached.up(work.stack)
    except HeadraceError as error:
        say(console, f"the servers could not be left running: {error}")
        return
    say(
        console,
        f"Kafka: {state.bootstrap_servers}, {topics}",
        f"ZooKeeper: {state.zookeeper_hosts}",
        *more,
        f"stop the servers with: headrace local down --dir {work.stack}",
    )


@final
class ResultReader:
    """Reads a topic of results from its beginning, as any consumer of committed records."""

    def __init__(self, endpoints: Endpoints, topic: str, partitions: int) -> None:
        self._source = KafkaRecordSource(endpoints.client, "headrace-demo-reader", _PREFETCH)
        self._before_end = {TopicPartition(topic, number) for number in range(partitions)}
        self._source.assign(dict.fromkeys(self._before_end, 0))

    def read(self, timeout: float = 0.0) -> Iterator[Record]:
        """Yield what has come, or wait for some, until there is nothing now."""
        while True:
            fetched = self._source.fetch(timeout)
            self._before_end.difference_update(partition for partition, _ in fetched.ends)
            if not fetched.chunks:
                return
            for _, records in fetched.chunks:
                yield from records

    def read_to_end(self) -> Iterator[Record]:
        """Yield all records that there are. Blocks.

        Raises:
            KafkaUnavailableError: the end of a partition was not reached in time.
        """
        deadline = Deadline.after(KAFKA_TIMEOUT)
        while self._before_end:
            if deadline.expired:
                names = ", ".join(sorted(map(str, self._before_end)))
                raise KafkaUnavailableError(f"the end of {names} was not reached in time")
            yield from self.read(deadline.at_most(POLL_INTERVAL))

    def close(self) -> None:
        """Release the client."""
        self._source.close()


class PhasedRun(ABC, Generic[P]):
    """Drives daemons through the phases of an enum on one thread, and kills the last of them.

    The phases have names that :func:`gates` knows; the last one is the end.
    """

    #: What is shown, in the demo's words.
    view: ClassVar[type[View]] = View

    def __init__(
        self,
        first: P,
        daemons: Daemons,
        producer: Sender[R],
        records: Iterable[R],
        pace: Pace,
        *,
        engine: str = "spark",
    ) -> None:
        #: What is to be said at the end.
        self.lines: list[str] = []
        self.phase = first
        self.daemons = daemons
        (*_, self.victim) = daemons
        self.pace = pace
        self.readings = {daemon.name: DaemonSnapshot() for daemon in daemons}
        #: What each daemon said before the kill, and when that was, in seconds since the epoch.
        self.at_kill = dict(self.readings)
        self.killed_at = 0.0
        self._engine = "Spark" if engine == "spark" else engine
        self._producer = producer
        remaining = iter(records)

        def send(count: int) -> None:
            producer.send(islice(remaining, count), Deadline.after(KAFKA_TIMEOUT))

        self._send: Callable[[int], None] = send
        self._gates = gates(type(first))
        self._began = self._last_tick = self._read_at = SYSTEM_CLOCK.monotonic()

    @property
    @abstractmethod
    def stored(self) -> int:
        """How much came of what was produced."""

    @property
    def most(self) -> int:
        """How many records may be produced by now, whatever the phase."""
        return self.pace.total

    @abstractmethod
    def look(self) -> None:
        """Read what has come."""

    @abstractmethod
    def next_phase(self) -> P:
        """Return the phase that the facts lead to: the same one, or the one after it."""

    @abstractmethod
    def enter(self, phase: P) -> None:
        """Do what a phase begins with."""

    def commits_of(self, daemon: Daemon) -> int:
        """Return how often a daemon has committed in all its lives."""
        return self._past_of(daemon).commits + self.readings[daemon.name].commits

    def play(self, progress: DemoProgress) -> None:
        """Start the daemons and go on to the last phase. Blocks.

        Raises:
            DemoError: a daemon ended by itself, or a phase took too long.
            ProduceError: the broker refused records.
        """
        for daemon in self.daemons:
            daemon.start()
        pause, limits = threading.Event(), patience(type(self.phase))
        given_up = Deadline.after(limits[self.phase])
        while True:
            phase = self._run_once()
            progress.show(self._view(phase))
            if phase not in limits:
                break
            if phase is not self.phase:
                self.phase = phase
                self.enter(phase)
                given_up = Deadline.after(limits[phase])
            if given_up.expired:
                raise DemoError(f"nothing came of this in {limits[phase]:.0f} s: {phase.value}")
            pause.wait(POLL_INTERVAL)
        self._producer.flush(Deadline.after(KAFKA_TIMEOUT))

    def kill(self) -> DaemonSnapshot:
        """Kill the victim, and return what it said of itself just before."""
        name = self.victim.name
        found = self.victim.read() or self.readings[name]
        self.killed_at = SYSTEM_CLOCK.time()
        self.victim.kill()
        self.at_kill = {**self.readings, name: found}
        self.readings[name] = DaemonSnapshot()
        return found

    def _run_once(self) -> P:
        self.daemons.require_running()
        self._produce()
        self.look()
        if SYSTEM_CLOCK.monotonic() >= self._read_at:
            self._read_at = SYSTEM_CLOCK.monotonic() + _READ_EVERY
            self.readings = {each.name: each.read() or DaemonSnapshot() for each in self.daemons}
        return self.next_phase()

    def _produce(self) -> None:
        now = SYSTEM_CLOCK.monotonic()
        count = self.pace.due(now - self._last_tick, self._gates[self.phase], self.most)
        self._last_tick = now
        self._send(count)
        if self._producer.failed:
            self._producer.flush(Deadline.after(0))

    def _past_of(self, daemon: Daemon) -> DaemonSnapshot:
        """Return what a daemon did in the life that was ended."""
        was_killed = daemon is self.victim and self.killed_at
        return self.at_kill[daemon.name] if was_killed else DaemonSnapshot()

    def _view(self, phase: P) -> View:
        return self.view(
            phase=phase,
            seconds=SYSTEM_CLOCK.monotonic() - self._began,
            total=self.pace.total,
            produced=self.pace.produced,
            stored=self.stored,
            members=[self._member_view(daemon) for daemon in self.daemons],
            engine=self._engine,
        )

    def _member_view(self, daemon: Daemon) -> MemberView:
        now, past = self.readings[daemon.name], self._past_of(daemon)
        return MemberView(
            name=daemon.name,
            state=daemon.state,
            partitions=now.partitions,
            lag=now.lag,
            batches=past.batches + now.batches,
            spark_seconds=past.spark_seconds + now.spark_seconds,
            commits=self.commits_of(daemon),
        )
