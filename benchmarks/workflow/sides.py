"""The sides of the comparison: what each is run with, and what its effects have to be."""

from __future__ import annotations

import shutil
import socket
import sys
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from benchmarks.peer_sides.wire import Request
from benchmarks.peer_sides.workflow_work import STEPS
from benchmarks.peers.environments import python_of
from benchmarks.peers.process import PeerError, Program, SideProcess
from headrace.devstack.server import LOOPBACK, LocalServer, free_port

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.rounds import Measured
    from headrace.core.clock import Deadline
    from headrace.devstack import LocalStack

#: What is called, where its package comes from.
_REDIS = "redis-server"


@dataclass(frozen=True, slots=True)
class Side:
    """One system. ``engine`` is that of a reducer of ours, None: it is another system.

    ``peer`` names the environment that its packages are in, beside those of this process.
    """

    name: str
    module: str
    engine: str | None = None
    peer: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)


#: Seconds after which a task is delivered again that a worker has taken and not acknowledged. The
#: default is an hour, and then it is looked for every 100 seconds.
VISIBILITY_TIMEOUT = 10

SIDES = (
    Side("arrow", "workflow_kafka", "arrow"),
    Side("spark", "workflow_kafka", "spark"),
    Side(
        "celery",
        "workflow_celery",
        peer="celery",
        settings={
            "celery": {
                "task_acks_late": True,
                "task_reject_on_worker_lost": True,
                "worker_prefetch_multiplier": 16,
                "broker_transport_options": {
                    "visibility_timeout": VISIBILITY_TIMEOUT,
                    "unacked_restore_interval": 1,
                    "unacked_restore_throttle": 1,
                },
                "broker_connection_retry_on_startup": True,
            },
            "options": [
                "--concurrency=4",
                "--without-gossip",
                "--without-mingle",
                "--without-heartbeat",
                "--loglevel=WARNING",
            ],
        },
    ),
    Side("temporal", "workflow_temporal", peer="temporal"),
    Side("asyncio", "workflow_kafka", peer="aiokafka"),
)

#: Those that are not ours.
OTHERS = tuple(side.name for side in SIDES if side.engine is None)

#: What a side has as counts that promises each of it once at least.
REPEATED = ("outcomes_twice", "calls_again")

_GROUPS = count()


class PeerServer(LocalServer):
    """A server that a side needs beside Kafka, on a port of its own."""

    def __init__(self, name: str, directory: Path) -> None:
        super().__init__(name, directory)
        self._port = free_port()

    @property
    @override
    def address(self) -> str:
        return f"{LOOPBACK}:{self._port}"

    @override
    def _answers(self, seconds: float) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self._port), timeout=seconds) as connection:
                return self._greets(connection)
        except OSError:
            return False

    def _greets(self, connection: socket.socket) -> bool:
        """Whether a connection is to a server that is ready."""
        return connection.fileno() >= 0


class RedisServer(PeerServer):
    """Redis without persistence, as it is fastest: what it has is lost with it."""

    @override
    def _command(self, deadline: Deadline) -> list[str]:
        options = {"bind": LOOPBACK, "port": self._port, "dir": self.directory, "save": ""}
        options["appendonly"] = "no"
        found = [part for name, value in options.items() for part in (f"--{name}", str(value))]
        return [redis_program(), *found]

    @override
    def _greets(self, connection: socket.socket) -> bool:
        connection.sendall(b"PING\r\n")
        return connection.recv(16).startswith(b"+PONG")


class TemporalServer(PeerServer):
    """Temporal's development server, with what it has in memory."""

    @override
    def _command(self, deadline: Deadline) -> list[str]:
        program = python_of("temporal").parent / "temporal"
        options = ("--headless", "--log-level", "error", "--ip", LOOPBACK)
        return [str(program), "server", "start-dev", *options, "--port", str(self._port)]


def server_of(side: Side, directory: Path) -> LocalServer | None:
    """Return the server that a side needs beside Kafka, not started; None where it needs none."""
    made = {"celery": RedisServer, "temporal": TemporalServer}.get(side.name)
    return None if made is None else made(side.name, directory / side.name)


def redis_program() -> str:
    """Return the program of Redis.

    Raises:
        PeerError: there is none.
    """
    found = shutil.which(_REDIS)
    if found is None:
        raise PeerError(
            f"there is no {_REDIS} here: install Debian's package {_REDIS}, or leave Celery out "
            "with --without celery"
        )
    return found


def require(side: Side) -> None:
    """Install the packages of a side, where they are not there.

    Raises:
        PeerError: they, or Redis, cannot be had.
    """
    if side.peer is not None:
        python_of(side.peer)
    if side.peer == "celery":
        redis_program()


class Runner:
    """Runs the rounds of one side, and checks outcomes and effects.

    Raises:
        PeerError: it cannot be run, or something was lost or wrong.
    """

    def __init__(self, side: Side, servers: LocalStack, server: LocalServer | None) -> None:
        self.side, self.name = side, side.name
        folder = servers.directory / "workflow" / side.name
        self._servers = servers
        self._effects = folder / "effects"
        self._read = 0
        python = sys.executable
        if server is not None:
            python = str(python_of(str(side.peer)))
        command = (python, "-m", f"benchmarks.peer_sides.{side.module}")
        self._program = Program(side.name, command, folder)
        self._settings = {
            "directory": str(folder),
            "effects": str(self._effects),
            **self._own(server),
        }
        self._process: SideProcess | None = None

    def round(self, work: str, instances: int, **settings: Any) -> Measured:
        """Have instances run; each has to have its outcome, and each call its effect.

        Raises:
            PeerError: one has not, or there is one twice that must not be: with a side of ours, or
                where a store refuses keys that it knows.
        """
        measured = self._measured(work, instances, settings)
        faults = ["lost", "wrong", "not_applied", "applied_twice"]
        if self.side.engine is not None:
            faults += REPEATED
        if any(measured[name] for name in faults):
            found = ", ".join(f"{measured[name]} {name}" for name in faults)
            raise PeerError(f"{self.name}: of {instances} instances {found}")
        dropped = [name for name in faults if name not in REPEATED]
        return {name: value for name, value in measured.items() if name not in dropped}

    def killed(self, instances: int, **settings: Any) -> Measured:
        """Have instances run while a worker is killed; return what came of it."""
        return self._measured("killed", instances, settings)

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.close()

    def _own(self, server: LocalServer | None) -> dict[str, Any]:
        """Return what the side needs that depends on the servers of this run."""
        if self.side.engine is not None:
            return {"engine": self.side.engine, "zookeeper": self._servers.zookeeper_hosts}
        if server is None:
            return {"python": str(python_of(str(self.side.peer)))}
        if self.side.name == "temporal":
            return {"address": server.address}
        url = f"redis://{server.address}/0"
        own = {**self.side.settings["celery"], "broker_url": url, "result_backend": url}
        return {**self.side.settings, "celery": own}

    def _measured(self, work: str, instances: int, settings: Mapping[str, Any]) -> Measured:
        group = f"{self.name}-{next(_GROUPS)}"
        request = Request(
            work,
            self._servers.bootstrap_servers,
            f"workflow-{self.name}",
            group,
            instances,
            {**self._settings, **settings},
        )
        process = self._process or SideProcess(self._program)
        self._process = process
        try:
            measured = process.round(request)
            process.stopped()
        except BaseException:
            process.kill()
            self._process = None
            raise
        taken = {
            "rate": round(instances / measured["took"], 1),
            "seconds": round(measured["took"], 3),
            "p50_ms": round(measured["p50"] * 1000, 1),
            "p99_ms": round(measured["p99"] * 1000, 1),
        }
        kept = ("instances", "lost", "wrong", "outcomes_twice", "cpu_seconds", "memory_mib")
        return {**taken, **{name: measured[name] for name in kept}, **self._had(group, instances)}

    def _had(self, group: str, instances: int) -> dict[str, int]:
        """Count the effects of a round, which are at the end of the file."""
        with self._effects.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        self._read += len(text)
        return effects_of(text.decode().splitlines(), group, instances)


def effects_of(lines: Sequence[str], group: str, instances: int) -> dict[str, int]:
    """Return how often calls had their effect.

    ``calls_again`` counts those beyond the first of a call: each is an effect that is there twice.
    ``applied_twice`` counts those that a store would have, too, that refuses a key which it knows.
    """
    mine = [line.split() for line in lines if line.startswith(f"{group}-")]
    calls = Counter((instance, step) for instance, step, _ in mine)
    keyed = Counter((instance, step) for instance, step, _ in set(map(tuple, mine)))
    return {
        "calls_again": sum(number - 1 for number in calls.values()),
        "applied_twice": sum(number - 1 for number in keyed.values()),
        "not_applied": instances * len(STEPS) - len(calls),
    }
