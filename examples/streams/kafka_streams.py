"""Kafka Streams on the same topics: what it makes of the year."""

from __future__ import annotations

import json
import subprocess
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from examples.harness.flights import DemoError
from examples.harness.run import KAFKA_TIMEOUT, POLL_INTERVAL, ResultReader
from examples.streams.hours import COLUMNS, FLIGHTS, OBSERVED_COLUMNS
from examples.streams.topics import KEPT, PARTITIONS, YearProducer, create_topics
from examples.streams.verdict import Results, row_of
from headrace.core.clock import Deadline
from headrace.core.records import TopicPartition
from headrace.devstack.errors import LocalStackError
from headrace.devstack.jars import KAFKA_STREAMS, cached
from headrace.devstack.jvm import SHORT_LIVED, java_command, require_java
from headrace.devstack.server import ServerProcess
from headrace.devstack.wait import wait_for
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.errors import OffsetStoreError
from headrace.kafka.offsets import KafkaOffsetStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    from examples.harness.daemons import Endpoints
    from examples.streams.year import Year

#: Where it writes to.
HOURS, OBSERVED = "kafka-streams.hours", "kafka-streams.observed"

_SOURCE = Path(__file__).with_name("KafkaStreamsYear.java")

#: Of each topic that it writes.
_WRITTEN_PARTITIONS = 1

#: The group of its program, by its name.
_GROUP = "kafka-streams-year"

#: How many times the span of the flights later come the flights that end the grace of its windows,
#: and the weather that ends the grace of its join.
_CLOSING_FLIGHTS = 5
_CLOSING_WEATHER = (8, 10)

_CHECK_TIMEOUT = 60.0

#: Seconds after which what is not there is taken to be lost; two cores take 30 s.
_PATIENCE = 300.0


class NotRunError(DemoError):
    """Kafka Streams cannot be had here; the message says what is missing."""


def run_kafka_streams(endpoints: Endpoints, folder: Path, year: Year, windows: int) -> Results:
    """Run the topology as a program of Kafka Streams over the topics, and return its results.

    Blocks until it has written as many windows, or for minutes. It reads partitions in no order of
    their times, and what is after the end of a grace is dropped. So its graces are longer than the
    demo's topics, and flights and weather that end them are produced once it has read all flights.

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
    create_topics(endpoints, {HOURS: KEPT, OBSERVED: KEPT}, _WRITTEN_PARTITIONS)
    with closing(_Program(endpoints, [*command, *arguments], folder, windows)) as program:
        program.wait_read(FLIGHTS)
        producer = YearProducer(endpoints)
        producer.send(year.last_flights(_CLOSING_FLIGHTS), Deadline.after(KAFKA_TIMEOUT))
        producer.flush(Deadline.after(KAFKA_TIMEOUT))
        hours = program.read(HOURS)
        for spans in _CLOSING_WEATHER:
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

    def wait_read(self, topic: str) -> None:
        """Wait until the program has committed all records of a topic. Blocks.

        Raises:
            DemoError: the program ended by itself, or has not read them after minutes.
            HeadraceError: the brokers did not answer.
        """
        wanted = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        client, deadline = self._endpoints.client, Deadline.after(KAFKA_TIMEOUT)
        with (
            closing(KafkaTopicCatalog(client, "headrace-demo")) as catalog,
            closing(KafkaOffsetStore(client, _GROUP)) as offsets,
        ):
            last = {each: catalog.watermarks(each, deadline)[1] for each in wanted}
            ends = {each: offset for each, offset in last.items() if offset > 0}

            def has_read() -> bool:
                self._require_running()
                with suppress(OffsetStoreError):
                    # a group that begins may have no coordinator yet: ask again
                    found = offsets.read_many(wanted, Deadline.after(KAFKA_TIMEOUT))
                    return {each: at.offset for each, at in found.items()} == ends
                return False

            if not wait_for(has_read, self._given_up):
                raise DemoError(
                    f"Kafka Streams did not read all of {topic} in {_PATIENCE:.0f} s; see "
                    f"{self._log_file}"
                )

    def read(self, topic: str) -> list[dict[str, Any]]:
        """Return what is written to a topic until it is enough, or takes too long. Blocks.

        Raises:
            DemoError: the program ended by itself.
        """
        found: list[dict[str, Any]] = []
        with closing(ResultReader(self._endpoints, topic, _WRITTEN_PARTITIONS)) as reader:
            while len(found) < self._wanted and not self._given_up.expired:
                found += [json.loads(each.value() or b"") for each in reader.read(POLL_INTERVAL)]
                self._require_running()
        return found

    def _require_running(self) -> None:
        if self._process.exit_code is not None:
            raise DemoError(f"Kafka Streams ended by itself; see {self._log_file}")

    def close(self) -> None:
        """End the program."""
        self._process.kill()
