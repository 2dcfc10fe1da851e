"""The demo as a whole: set-up, run, stop, check; and the check alone."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.clock import Deadline
from headrace.demo.daemons import TOPIC, Daemon, Endpoints
from headrace.demo.errors import DemoError
from headrace.demo.flights import read_flights
from headrace.demo.progress import Progress, say
from headrace.demo.record import RunRecord, describe, read_record
from headrace.demo.run import PARTITIONS, Run
from headrace.demo.verification import verify
from headrace.demo.work import WorkDirectory
from headrace.errors import HeadraceError
from headrace.kafka.producer import TopicProducer, create_topic
from headrace.local import LocalStack, detached
from headrace.local.jars import kafka_jars
from headrace.local.jvm import require_java
from headrace.spark.sinks.delta.log import LogFiles
from headrace.spark.sinks.delta.reader import DeltaLog

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pandas as pd
    from rich.console import Console

    from headrace.demo.verification import Verdict
    from headrace.spark.sinks.delta.reader import TableCommit

_MEMBERS = ("daemon-1", "daemon-2")

#: Seconds that a fresh broker has to create the topic.
_TOPIC_S = 60.0


@dataclass(frozen=True, slots=True)
class Options:
    """What a run is asked for. ``rows`` is None for all flights; ``seconds`` is their pace."""

    rows: int | None
    seconds: float
    directory: Path | None
    keep: bool


def run(options: Options, console: Console) -> Verdict:
    """Run the demo and check the table. Blocks; on the main thread.

    Raises:
        HeadraceError: it could not be run to its end.
    """
    require_java()
    kafka_jars()
    flights = read_flights(options.rows)
    with WorkDirectory(options.directory) as work:
        say(console, f"work directory: {work.path}")
        try:
            played = _play(flights, work, options, console)
            verdict = _report(work.table, flights, played.record, played.commits, console)
        except HeadraceError as error:
            raise DemoError(f"{error}\nall files are kept in {work.path}") from error
        work.keep = work.keep or options.keep or not verdict.holds
        if options.keep:
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


def _play(flights: pd.DataFrame, work: WorkDirectory, options: Options, console: Console) -> Run:
    """Start everything, go through the story, stop everything."""
    with ExitStack() as held:
        stack = held.enter_context(LocalStack.start(work.stack))
        client = {"bootstrap.servers": stack.bootstrap_servers}
        create_topic(client, TOPIC, PARTITIONS, Deadline.after(_TOPIC_S))
        endpoints = Endpoints(stack.bootstrap_servers, stack.zookeeper_hosts, work.table)
        daemons = [Daemon(name, work.path / name, endpoints) for name in _MEMBERS]
        for daemon in daemons:
            held.callback(daemon.kill)
        producer = TopicProducer(client, TOPIC)
        played = Run(flights, daemons, producer, work.table, seconds=options.seconds)
        try:
            with Progress(console) as progress:
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
