"""The sides of the comparison: what each is run with, and in which Python."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import TYPE_CHECKING, Any

from benchmarks import stack
from benchmarks.committed import committed
from benchmarks.peer_sides.headrace_work import for_round
from benchmarks.peer_sides.wire import Request
from benchmarks.peers.environments import python_of
from benchmarks.peers.process import PeerError, Program, SideProcess
from benchmarks.peers.topics import counts
from benchmarks.summing import BY_RECORDS, BY_TABLES
from headrace.config import load
from headrace.kafka import clients

if TYPE_CHECKING:
    from collections.abc import Mapping

    from benchmarks.rounds import Measured
    from headrace.devstack import LocalStack

#: What librdkafka needs to be fed without pauses; the sides that are on it all have it.
_FED = {"fetch.queue.backoff.ms": 10}

_WORK = "benchmarks.peer_sides.headrace_work"

#: Micro-batches of up to 100,000 records, of four partitions, with room for three of them.
_MERGED = {
    "batch": {"max_records": 25_000, "linger": "100ms"},
    "buffer": {"max_bytes": "512MiB"},
    "sink": "noop",
}

#: The schema names what the reducer uses; a whole object is decoded by the other sides.
_DECODE = {"decode": "json", "schema": "key STRING"}


class Role(Enum):
    """What a side is in the comparison."""

    CEILING = "ceiling"
    """A loop around the client with nothing else."""

    OURS = "ours"
    """A channel of Headrace."""

    PEER = "peer"
    """Another library, with packages of its own."""


@dataclass(frozen=True, slots=True)
class Side:
    """One program. ``channels`` has the configuration of a channel for each kind of work."""

    name: str
    module: str
    role: Role
    channels: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


def _custom(name: str, settings: Mapping[str, Any] = BY_TABLES) -> dict[str, Any]:
    return {**settings, "processor": {"type": "custom", "factory": f"{_WORK}:{name}"}}


def _merged(kind: str, function: str, **decode: str) -> dict[str, Any]:
    reducer = {"type": kind, "reducer": f"{_WORK}:{function}_in_{kind}", "max_records": 100_000}
    return {**_MERGED, "processor": {**reducer, **decode}}


SIDES = (
    Side("raw", "raw", Role.CEILING),
    Side(
        "headrace",
        "with_headrace",
        Role.OURS,
        {"sum": _custom("Summing"), "json": _custom("CountingKeys")},
    ),
    Side(
        "headrace_records",
        "with_headrace",
        Role.OURS,
        {
            "sum": _custom("SummingRecords", BY_RECORDS),
            "json": _custom("CountingKeysOfRecords", BY_RECORDS),
        },
    ),
    Side(
        "headrace_arrow",
        "with_headrace",
        Role.OURS,
        {"sum": _merged("arrow", "sum"), "json": _merged("arrow", "count", **_DECODE)},
    ),
    Side(
        "headrace_spark",
        "with_headrace",
        Role.OURS,
        {"sum": _merged("spark", "sum"), "json": _merged("spark", "count", **_DECODE)},
    ),
    Side("aiokafka", "with_aiokafka", Role.PEER),
    Side("faststream", "with_faststream", Role.PEER, settings={"properties": _FED}),
    Side("quix", "with_quix", Role.PEER, settings={"properties": _FED}),
    Side(
        "arroyo",
        "with_arroyo",
        Role.PEER,
        settings={"properties": {**_FED, "auto.commit.interval.ms": 1000}},
    ),
    Side("faust", "with_faust", Role.PEER),
)

PEERS = tuple(side.name for side in SIDES if side.role is Role.PEER)

#: Of a channel's client properties, what the raw loop sets for itself.
_NOT_FED = ("group.id", "log_level")

_GROUPS = count()


class Runner:
    """Runs the rounds of one side doing one kind of work, and checks what it counted.

    Raises:
        PeerError: it cannot be installed or run, or its counts are wrong.
    """

    def __init__(self, side: Side, work: str, servers: LocalStack) -> None:
        self.side, self.work = side, work
        self.name = f"{side.name}-{work}"
        self._servers = servers
        self._folder = servers.directory / "sides" / self.name
        python = str(python_of(side.name)) if side.role is Role.PEER else sys.executable
        command = (python, "-m", f"benchmarks.peer_sides.{side.module}")
        self._program = Program(self.name, command, self._folder)
        channel = side.channels.get(work, _custom("Summing"))
        self._path = stack.configuration(
            self._folder,
            stack.addresses(servers),
            {"topics": ["peers"], "group": "bench", **channel},
            spark={"warm_up": 50},
        )
        self._config = load(self._path)
        self._settings = {**side.settings, "directory": str(self._folder), **self._own()}
        #: a Spark session is too expensive to be started for each round
        self._stays = side.name == "headrace_spark"
        self._process: SideProcess | None = None

    def round(self, topic: stack.Topic) -> Measured:
        """Have the side read a topic. Blocks."""
        request = Request(
            self.work,
            self._servers.bootstrap_servers,
            topic.name,
            f"{self.name}-{next(_GROUPS)}",
            topic.records,
            self._settings,
        )
        process = self._process or SideProcess(self._program)
        self._process = process
        try:
            measured = process.round(request)
            if self._stays:
                process.stopped()
            else:
                self.close()
        except BaseException:
            process.kill()
            self._process = None
            raise
        self._check(measured, topic, request.group)
        return _figures(measured, self.side.role)

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _own(self) -> dict[str, Any]:
        """Return what the side needs that depends on the servers and folders of this run."""
        if self.side.role is Role.PEER:
            return {}
        return {"config": str(self._path)} if self.side.channels else {"properties": self._fed()}

    def _fed(self) -> dict[str, Any]:
        """Return the client's properties as a channel sets them, but for what it has called."""
        channel = self._config.channels["bench"]
        prefetch = int(channel.buffer.max_bytes * clients.PREFETCH_SHARE)
        source = clients.source({}, "", prefetch)
        return {name: value for name, value in source.items() if name not in _NOT_FED}

    def _check(self, measured: Measured, topic: stack.Topic, group: str) -> None:
        """Compare what was counted and committed with what is there."""
        found = (measured["records"], measured["bytes"], measured.pop("keys"))
        wanted = (
            (topic.records, topic.bytes, {})
            if self.work == "sum"
            else (topic.records, 0, counts(topic.records))
        )
        if found != wanted:
            raise PeerError(f"{self.name} counted {found} where there is {wanted}")
        if self.side.role is not Role.CEILING:
            stored = committed(for_round(self._config, topic.name, group), topic.ends)
            if stored != topic.ends:
                raise PeerError(f"{self.name} committed {stored} of {topic.ends}")


def _figures(measured: Measured, role: Role) -> Measured:
    """Return what counts of a round: a peer's clock begins with its first record.

    What a framework does between its assignment and its first record is thereby left out.
    """
    begin = "from_first" if role is Role.PEER else "from_assignment"
    seconds, records = measured[begin], measured["records"]
    return {
        "rate": round(records / seconds),
        "records": records,
        "seconds": round(seconds, 3),
        "first_batch_s": round(measured["from_assignment"] - measured["from_first"], 3),
        **{name: measured[name] for name in ("cpu_seconds", "memory_mib", "threads")},
    }
