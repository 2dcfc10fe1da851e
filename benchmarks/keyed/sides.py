"""The sides of the comparison: what each is run with, and what its outputs have to be."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import stack
from benchmarks.keyed.topics import last_values
from benchmarks.peer_sides.wire import Request
from benchmarks.peers.environments import python_of
from benchmarks.peers.process import PeerError, Program, SideProcess
from headrace.devstack.jars import KAFKA_STREAMS, cached
from headrace.devstack.jvm import require_java

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.keyed.topics import KeyedTopics
    from benchmarks.rounds import Measured
    from headrace.devstack import LocalStack

_SOURCE = Path(__file__).with_name("KafkaStreamsCount.java")

#: Micro-batches of up to 100,000 records, of four partitions.
CHANNEL = {"batch": {"max_records": 25_000, "linger": "100ms"}}

_WORK = "benchmarks.peer_sides.keyed_work"


@dataclass(frozen=True, slots=True)
class Side:
    """One program. ``processor`` is that of a channel of ours, None: it is another system.

    ``stays``: one process serves all rounds, as what it does once is not to be measured.
    """

    name: str
    processor: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    stays: bool = True


def _keyed(reducer: str, engine: str = "arrow") -> dict[str, Any]:
    return {"type": "keyed", "reducer": reducer, "engine": engine, "value": "bytes"}


SIDES = (
    Side("arrow", _keyed(f"{_WORK}:count")),
    Side("spark", _keyed(f"{_WORK}:count", "spark")),
    Side("columnar", _keyed("headrace.keyed:count")),
    Side("each", _keyed(f"{_WORK}:count_each")),
    Side("plain", _keyed(f"{_WORK}:count"), {"transactions": False}),
    Side("kafka_streams", settings={"properties": {"num.stream.threads": 2}}),
    Side(
        "kafka_streams_1s",
        settings={"properties": {"num.stream.threads": 2, "commit.interval.ms": 1000}},
    ),
    Side(
        "quix",
        settings={"properties": {"fetch.queue.backoff.ms": 10}},
        stays=False,
    ),
)

#: Those that are not ours.
OTHERS = tuple(side.name for side in SIDES if side.processor is None)

_GROUPS = count()


def command_of(side: Side) -> Sequence[str]:
    """Return the command of a side, with what it needs fetched first.

    Raises:
        PeerError, LocalStackError: it cannot be fetched.
    """
    if side.processor is not None:
        return (sys.executable, "-m", "benchmarks.peer_sides.keyed_headrace")
    if side.name == "quix":
        return (str(python_of("quix")), "-m", "benchmarks.peer_sides.keyed_quix")
    return kafka_streams_command(_SOURCE)


def kafka_streams_command(source: Path) -> Sequence[str]:
    """Return the command of a program in Java, with the jars of Kafka Streams.

    Raises:
        LocalStackError: they cannot be fetched.
    """
    jars = ":".join(map(str, cached(KAFKA_STREAMS)))
    java = require_java().path
    return (str(java), "-Xmx1g", "-XX:-UsePerfData", "-cp", jars, str(source))


class Runner:
    """Runs the rounds of one side, and checks what it counted.

    Raises:
        PeerError: it cannot be run, or its counts are wrong.
    """

    def __init__(self, side: Side, servers: LocalStack, topics: KeyedTopics) -> None:
        self.side, self.name = side, side.name
        #: How many records were read in all rounds.
        self.read = 0
        self._servers = servers
        self._topics = topics
        folder = servers.directory / "keyed" / side.name
        self._program = Program(side.name, command_of(side), folder)
        self._settings: dict[str, Any] = {**side.settings, "directory": str(folder / "state")}
        if side.processor is not None:
            path = stack.configuration(
                folder,
                stack.addresses(servers),
                {
                    "topics": ["keyed"],
                    "group": "bench",
                    **CHANNEL,
                    "processor": dict(side.processor),
                    "sink": {"type": "kafka", "topic": "counts"},
                },
                spark={"warm_up": 50},
            )
            self._settings["config"] = str(path)
        self._process: SideProcess | None = None

    def round(self, topic: stack.Topic) -> Measured:
        """Have the side read a topic. Blocks."""
        group = f"keyed-{self.name}-{next(_GROUPS)}"
        output = f"{group}.counts"
        stack.create(self._servers, output, len(topic.ends))
        request = Request(
            "count",
            self._servers.bootstrap_servers,
            topic.name,
            group,
            topic.records,
            {**self._settings, "output": output},
        )
        process = self._process or SideProcess(self._program)
        self._process = process
        try:
            measured = process.round(request)
            if self.side.stays:
                process.stopped()
            else:
                self.close()
        except BaseException:
            process.kill()
            self._process = None
            raise
        self.read += topic.records
        outputs = self._check(output, topic)
        return self._figures(measured, topic, outputs)

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _check(self, output: str, topic: stack.Topic) -> int:
        """Compare the last count of each key with how often it is there; return the outputs."""
        wanted = self._topics.counts(topic.records)
        found, outputs = last_values(self._servers.bootstrap_servers, output, len(topic.ends))
        counted = {key: int(value) for key, value in found.items()}
        if counted != wanted:
            wrong = [
                key for key in wanted.keys() | counted.keys() if counted.get(key) != wanted[key]
            ]
            shown = ", ".join(
                f"{key.decode()} {counted.get(key)} of {wanted[key]}" for key in sorted(wrong)[:5]
            )
            raise PeerError(f"{self.name} counted {len(wrong)} keys wrongly: {shown}")
        return outputs

    def _figures(self, measured: Measured, topic: stack.Topic, outputs: int) -> Measured:
        """Return what counts of a round: another system's clock begins with its first record.

        What it does between its assignment and its first record is thereby left out.
        """
        begin = "from_first" if self.side.processor is None else "from_assignment"
        seconds = measured[begin]
        found = {
            "rate": round(topic.records / seconds),
            "records": topic.records,
            "seconds": round(seconds, 3),
            "outputs": outputs,
            **{name: measured[name] for name in ("cpu_seconds", "memory_mib", "threads")},
        }
        if measured.get("micro_batches"):
            found["touched"] = round(measured["touched"] / measured["micro_batches"])
            found["commits"] = measured["commits"]
        return found
