"""Kafka Streams on the same topics: what it makes of the year."""

from __future__ import annotations

import json
import subprocess
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.harness.flights import DemoError
from examples.harness.run import KAFKA_TIMEOUT, POLL_INTERVAL, ResultReader
from examples.streams.hours import COLUMNS, OBSERVED_COLUMNS
from examples.streams.topics import KEPT, YearProducer, create_topics
from examples.streams.verdict import Results, row_of
from headrace.core.clock import Deadline
from headrace.devstack.errors import LocalStackError
from headrace.devstack.jars import KAFKA_STREAMS, cached
from headrace.devstack.jvm import SHORT_LIVED, java_command, require_java
from headrace.devstack.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.harness.daemons import Endpoints
    from examples.streams.year import Year

#: Where it writes to.
HOURS, OBSERVED = "kafka-streams.hours", "kafka-streams.observed"

_SOURCE = Path(__file__).with_name("KafkaStreamsYear.java")

_PARTITIONS = 1

#: How many times the span of the flights the weather comes later that ends its longer grace.
_CLOSING = (8, 10)

_CHECK_TIMEOUT = 60.0

#: Seconds after which what is not there is taken to be lost; two cores take 30 s.
_PATIENCE = 300.0


class NotRunError(DemoError):
    """Kafka Streams cannot be had here; the message says what is missing."""


def run_kafka_streams(endpoints: Endpoints, folder: Path, year: Year, windows: int) -> Results:
    """Run the topology as a program of Kafka Streams over the topics, and return its results.

    Blocks until it has written as many windows, or for minutes. It waits for no partition that is
    behind, so its grace is as long as the flights, and weather is produced that ends that.

    Raises:
        NotRunError: its jars or a compiler for it cannot be had.
        HeadraceError: it failed.
    """
    command = _command()
    arguments = (
        endpoints.bootstrap_servers,
        str(folder / "kafka-streams"),
        str(year.span),
    )
    create_topics(endpoints, {HOURS: KEPT, OBSERVED: KEPT}, _PARTITIONS)
    with closing(_Program(endpoints, [*command, *arguments], folder, windows)) as program:
        hours = program.read(HOURS)
        producer = YearProducer(endpoints)
        for spans in _CLOSING:
            producer.send(year.last_weather(spans), Deadline.after(KAFKA_TIMEOUT))
        producer.flush(Deadline.after(KAFKA_TIMEOUT))
        observed = program.read(OBSERVED)
    return Results(
        [row_of(each, COLUMNS) for each in hours],
        [row_of(each, OBSERVED_COLUMNS) for each in observed],
    )


def _command() -> list[str]:
    """Return the beginning of the command. Blocks while jars are fetched, once per user."""
    try:
        java = require_java()
        described = subprocess.run(  # noqa: S603 - the Java that runs all servers
            [str(java.path), "--describe-module", "jdk.compiler"],
            capture_output=True,
            check=False,
            timeout=_CHECK_TIMEOUT,
        )
        if described.returncode != 0:
            raise NotRunError(f"{java.path} has no compiler; install a JDK")
        jars = cached(KAFKA_STREAMS)
    except LocalStackError as error:
        raise NotRunError(str(error)) from error
    return java_command(str(_SOURCE), [], class_path=jars, heap="512m", flags=[SHORT_LIVED])


class _Program:
    """The program while it runs, which dies with this process; ``wanted`` rows end a topic."""

    def __init__(
        self, endpoints: Endpoints, command: Sequence[str], folder: Path, wanted: int
    ) -> None:
        self._endpoints, self._wanted = endpoints, wanted
        self._log_file = folder / "kafka-streams.log"
        self._process = ServerProcess.start(
            command, log_file=self._log_file, deadline=Deadline.after(KAFKA_TIMEOUT)
        )
        self._given_up = Deadline.after(_PATIENCE)

    def read(self, topic: str) -> list[dict[str, Any]]:
        """Return what is written to a topic until it is enough, or takes too long. Blocks.

        Raises:
            DemoError: the program ended by itself.
        """
        found: list[dict[str, Any]] = []
        with closing(ResultReader(self._endpoints, topic, _PARTITIONS)) as reader:
            while len(found) < self._wanted and not self._given_up.expired:
                found += [json.loads(each.value() or b"") for each in reader.read(POLL_INTERVAL)]
                if self._process.exit_code is not None:
                    raise DemoError(f"Kafka Streams ended by itself; see {self._log_file}")
        return found

    def close(self) -> None:
        """End the program."""
        self._process.kill()
