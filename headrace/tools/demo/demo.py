"""The demo as a whole: set-up, run, stop, check; and the check alone."""

from __future__ import annotations

import logging
import shutil
import signal
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, final

import structlog
from rich.console import Console

from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import HeadraceError
from headrace.devstack import Blueprint, LocalStack, detached
from headrace.devstack.jars import kafka_jars
from headrace.devstack.jvm import require_java
from headrace.kafka.topic_producer import TopicProducer, create_topic
from headrace.sinks.delta.reader import DeltaLog, TableCommit, read_rows
from headrace.sinks.delta.table import LogFiles
from headrace.tools.demo.daemons import TOPIC, Daemon, DaemonReading, Endpoints, channels_into
from headrace.tools.demo.flights import (
    DemoError,
    Kill,
    RunRecord,
    describe,
    key_values,
    read_flights,
    read_record,
    rows_in,
)
from headrace.tools.demo.reducer import COLUMNS
from headrace.tools.demo.story import (
    GATES,
    PATIENCE,
    DemoPhase,
    DemoProgress,
    MemberView,
    Pace,
    View,
    next_phase,
    say,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType

    import pandas as pd


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


PARTITIONS = 8

#: Seconds between two turns: produce what is due, read the table's log, decide, show.
_POLL_INTERVAL = 0.2

#: Seconds between two looks at the daemons' metrics, which cost them some work.
_READ_EVERY = 1.0

#: Seconds that brokers have to take records, and to confirm the last of them.
_PRODUCE_S = 60.0

#: Seconds that the daemons have to stop in order; they have half of it by their configuration.
_STOP_S = 60.0


class Run:
    """Drives the daemons through the story on one thread, by what the table's log says.

    The second daemon is the one that is killed.
    """

    def __init__(
        self,
        flights: pd.DataFrame,
        daemons: Sequence[Daemon],
        producer: TopicProducer,
        table: Path,
        *,
        seconds: float,
    ) -> None:
        self.record = RunRecord(len(flights), tuple(daemon.name for daemon in daemons))
        self.commits: list[TableCommit] = []
        self._daemons = list(daemons)
        self._victim = self._daemons[1]
        self._records = key_values(flights)
        self._pace = Pace(len(flights), seconds)
        self._producer = producer
        self._log = DeltaLog(table)
        self._phase = DemoPhase.STARTING
        self._readings: dict[str, DaemonReading] = {}
        self._before_kill = DaemonReading()
        self._began = self._turned = self._read_at = SYSTEM_CLOCK.monotonic()

    def play(self, progress: DemoProgress) -> None:
        """Start the daemons and go on until everything is in the table. Blocks.

        Raises:
            DemoError: a daemon ended by itself, or a phase took too long.
            ProduceError: the broker refused records.
        """
        for daemon in self._daemons:
            daemon.start()
        pause = threading.Event()
        patience = Deadline.after(PATIENCE[self._phase])
        while True:
            phase = self._run_once()
            progress.show(self._view())
            if phase is DemoPhase.DONE:
                break
            if phase is not self._phase:
                self._enter(phase)
                patience = Deadline.after(PATIENCE[phase])
            if patience.expired:
                raise DemoError(f"nothing came of this in {PATIENCE[phase]:.0f} s: {phase.value}")
            pause.wait(_POLL_INTERVAL)
        self._producer.flush(Deadline.after(_PRODUCE_S))

    def stop(self) -> dict[str, int]:
        """Stop the daemons in order and return their exit codes. Blocks."""
        deadline = Deadline.after(_STOP_S)
        with ThreadPoolExecutor(len(self._daemons), "demo-stop") as pool:
            codes = pool.map(lambda daemon: daemon.stop(deadline), self._daemons)
            names = [daemon.name for daemon in self._daemons]
            return dict(zip(names, codes, strict=True))

    def _run_once(self) -> DemoPhase:
        """Do what is due and return the phase that the facts lead to."""
        for daemon in self._daemons:
            daemon.require_running()
        self._produce()
        self.commits += self._log.read_new()
        if SYSTEM_CLOCK.monotonic() >= self._read_at:
            self._read_at = SYSTEM_CLOCK.monotonic() + _READ_EVERY
            self._readings = {each.name: each.read() or DaemonReading() for each in self._daemons}
        holdings = {name: reading.partitions for name, reading in self._readings.items()}
        return next_phase(self._phase, self.commits, holdings, self.record, PARTITIONS)

    def _produce(self) -> None:
        now = SYSTEM_CLOCK.monotonic()
        count = self._pace.due(now - self._turned, GATES[self._phase])
        self._turned = now
        self._producer.send(islice(self._records, count), Deadline.after(_PRODUCE_S))
        if self._producer.failed:
            self._producer.flush(Deadline.after(0))

    def _enter(self, phase: DemoPhase) -> None:
        self._phase = phase
        if phase is DemoPhase.TAKING_OVER:
            self._kill()
        elif phase is DemoPhase.RETURNING:
            self._restart()

    def _kill(self) -> None:
        """Kill the victim and note when that was, and what was in the table when it was gone."""
        name = self._victim.name
        self._before_kill = self._victim.read() or self._readings[name]
        at = SYSTEM_CLOCK.time()
        self._victim.kill()
        self.commits += self._log.read_new()
        partitions = tuple(sorted(self._before_kill.partitions))
        kill = Kill(name, at, self.commits[-1].version, partitions)
        self.record = replace(self.record, kill=kill)
        self._readings[name] = DaemonReading()

    def _restart(self) -> None:
        """Start the victim again; whatever it commits from this version on is of its new life."""
        self.record = replace(self.record, restart_version=self.commits[-1].version)
        self._victim.start()

    def _view(self) -> View:
        return View(
            phase=self._phase,
            seconds=SYSTEM_CLOCK.monotonic() - self._began,
            total=self.record.rows,
            produced=self._pace.produced,
            stored=rows_in(self.commits),
            members=[self._member_view(daemon) for daemon in self._daemons],
        )

    def _member_view(self, daemon: Daemon) -> MemberView:
        now = self._readings.get(daemon.name, DaemonReading())
        past = self._before_kill if daemon is self._victim and self.record.kill else DaemonReading()
        return MemberView(
            name=daemon.name,
            state=daemon.state,
            partitions=now.partitions,
            lag=now.lag,
            batches=past.batches + now.batches,
            spark_seconds=past.spark_seconds + now.spark_seconds,
            commits=sum(commit.member == daemon.name for commit in self.commits),
        )


_GROUP = ["carrier", "hour"]
_DELAYS = ["dep_delay", "arr_delay"]
_MEASURES = ["size", "count", "sum", "mean", "min", "max"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the comparison found.

    ``lost`` source rows are missing in the table; ``duplicated`` counts the occurrences beyond
    the first of each; ``altered`` rows differ from the source in another column; ``unknown`` table
    rows have a number that the source has not. Of ``groups`` of carrier and hour, in ``differing``
    some statistic of a delay is not the source's.
    """

    events: int
    lost: int
    duplicated: int
    altered: int
    unknown: int
    groups: int
    differing: int

    @property
    def holds(self) -> bool:
        """Whether table and source agree in everything."""
        return not (self.lost or self.duplicated or self.altered or self.unknown or self.differing)

    def __str__(self) -> str:
        counts = f"{self.events} events, {self.lost} lost, {self.duplicated} duplicated"
        if self.holds:
            return f"verified: {counts}"
        unknown = f", {self.unknown} unknown" if self.unknown else ""
        return f"NOT verified: {counts}, {self.altered} altered{unknown}"


def verify(table: Path, flights: pd.DataFrame) -> Verdict:
    """Compare the Delta table in a folder with the flights that were produced. Blocks.

    Raises:
        TableUnreadableError: there is no table, or it cannot be read.
    """
    return compare(read_rows(table, COLUMNS).to_pandas(), flights)


def compare(found: pd.DataFrame, flights: pd.DataFrame) -> Verdict:
    """Compare what was found with the source; both have the columns of the table."""
    expected = flights[list(COLUMNS)].set_index("row")
    known = found[found["row"].isin(expected.index)]
    distinct = known["row"].nunique()
    rows = known.set_index("row")
    theirs, ours = statistics(flights), statistics(found)
    aligned = theirs.align(ours, join="outer", axis=0)
    return Verdict(
        events=len(flights),
        lost=len(expected) - distinct,
        duplicated=len(known) - distinct,
        altered=rows.index[_differs(rows, expected.loc[rows.index])].nunique(),
        unknown=len(found) - len(known),
        groups=len(theirs),
        differing=int(_differs(*aligned).sum()),
    )


def statistics(flights: pd.DataFrame) -> pd.DataFrame:
    """Return rows, values, sum, mean, minimum and maximum of both delays by carrier and hour.

    Delays are whole minutes, so that sums do not depend on the order of the rows.
    """
    return flights.groupby(_GROUP, dropna=False)[_DELAYS].agg(_MEASURES)


def _differs(one: pd.DataFrame, other: pd.DataFrame) -> pd.Series[bool]:
    """Tell for each row whether some column differs, where nothing equals nothing."""
    one, other = one.reset_index(drop=True), other.reset_index(drop=True)
    same = (one == other) | (one.isna() & other.isna())
    differs: pd.Series[bool] = ~same.all(axis=1)
    return differs


MEMBERS = ("daemon-1", "daemon-2")

#: Seconds that a fresh broker has to create the topic.
_TOPIC_S = 60.0


def run(
    rows: int | None, seconds: float, directory: Path | None, console: Console, *, keep: bool
) -> Verdict:
    """Run the demo and check the table. Blocks; on the main thread.

    ``rows`` is None for all flights; ``seconds`` is their pace.

    Raises:
        HeadraceError: it could not be run to its end.
    """
    require_java()
    kafka_jars()
    flights = read_flights(rows)
    with WorkDirectory(directory) as work:
        say(console, f"work directory: {work.path}")
        try:
            played = _play(flights, work, seconds, console)
            verdict = _report(work.table, flights, played.record, played.commits, console)
        except HeadraceError as error:
            raise DemoError(f"{error}\nall files are kept in {work.path}") from error
        work.keep = work.keep or keep or not verdict.holds
        if keep:
            _keep_up(work, console)
        return verdict


def check(directory: Path, console: Console) -> Verdict:
    """Check the table of a work directory, or the table in a folder, against the source. Blocks.

    Raises:
        HeadraceError: there is no table, or the source is not installed.
    """
    is_table = LogFiles(directory).has_entries()
    table = directory if is_table else directory / "table"
    record = read_record(directory.absolute().parent if is_table else directory)
    flights = read_flights(None if record is None else record.rows)
    return _report(table, flights, record, DeltaLog(table).read_new(), console)


def _play(flights: pd.DataFrame, work: WorkDirectory, seconds: float, console: Console) -> Run:
    """Start everything, go through the story, stop everything."""
    with ExitStack() as held:
        stack = held.enter_context(
            LocalStack.start(work.stack, blueprint=Blueprint(short_lived=True))
        )
        client = {"bootstrap.servers": stack.bootstrap_servers}
        create_topic(client, TOPIC, PARTITIONS, Deadline.after(_TOPIC_S))
        endpoints = Endpoints(stack.bootstrap_servers, stack.zookeeper_hosts)
        channels = channels_into(work.table)
        daemons = [Daemon(name, work.path / name, endpoints, channels) for name in MEMBERS]
        for daemon in daemons:
            held.callback(daemon.kill)
        producer = TopicProducer(client, TOPIC)
        played = Run(flights, daemons, producer, work.table, seconds=seconds)
        try:
            with DemoProgress(console) as progress:
                played.play(progress)
            codes = played.stop()
        except HeadraceError as error:
            logs = [daemon.end_of_log() for daemon in daemons]
            raise DemoError("\n".join([*logs, str(error)])) from error
        finally:
            played.record.write(work.path)
    for daemon in daemons:
        if codes[daemon.name]:
            code = codes[daemon.name]
            say(console, f"{daemon.name} stopped with code {code}, not 0", daemon.end_of_log())
    return played


def _report(
    table: Path,
    flights: pd.DataFrame,
    record: RunRecord | None,
    commits: Sequence[TableCommit],
    console: Console,
) -> Verdict:
    verdict = verify(table, flights)
    lines = [] if record is None else describe(record, commits)
    wrong = f"{verdict.differing} differ" if verdict.differing else "all as in the source"
    lines.append(f"delay statistics: {verdict.groups} groups of carrier and hour, {wrong}")
    say(console, *lines)
    return verdict


def _keep_up(work: WorkDirectory, console: Console) -> None:
    """Start the stack again in a process of its own, on the same addresses and data."""
    try:
        state = detached.up(work.stack)
    except HeadraceError as error:
        say(console, f"the servers could not be left running: {error}")
        return
    say(
        console,
        f"Kafka: {state.bootstrap_servers}, topic {TOPIC}",
        f"ZooKeeper: {state.zookeeper_hosts}",
        f"Delta table: {work.table}",
        f"stop the servers with: headrace local down --dir {work.stack}",
    )


_FAILED = 1


def main(
    rows: int | None,
    seconds: float,
    directory: Path | None,
    verify_only: Path | None,
    *,
    keep: bool,
) -> int:
    """Run or check, say how it went, and return the exit code. On the main thread."""
    console, errors = Console(), Console(stderr=True)
    try:
        with interruptible():
            if verify_only is not None:
                verdict = check(verify_only, console)
            else:
                verdict = run(rows, seconds, directory, console, keep=keep)
    except Interruption as interruption:
        say(errors, "interrupted; nothing is left running")
        return 128 + interruption.number
    except HeadraceError as error:
        say(errors, str(error))
        return _FAILED
    say(console, str(verdict))
    return 0 if verdict.holds else _FAILED
