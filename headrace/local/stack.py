"""ZooKeeper and Kafka together: what the demo, the tests and the benchmarks start."""

from __future__ import annotations

import fcntl
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO, TYPE_CHECKING, final

from headrace.clock import Deadline
from headrace.local.blueprint import Blueprint
from headrace.local.errors import LocalStackError, PortTakenError
from headrace.local.jars import kafka_jars
from headrace.local.ports import PortBook

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    from headrace.local.kafka import KafkaBroker
    from headrace.local.server import LocalServer
    from headrace.local.zookeeper import ZooKeeperServer

#: Both servers need 4 s on two idle cores; a busy machine may take ten times as long.
START_TIMEOUT_S = 60

#: What stopping in order may take before the servers are killed; Kafka needs 1 s.
STOP_TIMEOUT_S = 15

#: How often other ports are tried when someone else takes a chosen one first.
_PORT_ATTEMPTS = 3


@final
class LocalStack:
    """ZooKeeper and Kafka servers in one folder, ended with the process that owns them.

    Leaving it as a context manager stops the servers. So does the end of the process, of
    whatever kind: nothing is left running. The data stays in the folder, where the next stack
    finds it again. Not thread-safe: one thread at a time.
    """

    def __init__(
        self, directory: Path, zookeepers: Sequence[ZooKeeperServer], brokers: Sequence[KafkaBroker]
    ) -> None:
        self.directory = directory
        self.zookeepers = list(zookeepers)
        self.brokers = list(brokers)
        self._lock: IO[str] | None = None

    @classmethod
    def start(
        cls,
        directory: Path,
        deadline: Deadline | None = None,
        *,
        blueprint: Blueprint | None = None,
    ) -> LocalStack:
        """Start one ZooKeeper and one broker, or as ``blueprint`` says, data in ``directory``.

        Blocks. A folder that was used before wants the same blueprint again.

        The ports are free ones, kept in the folder for the next time it is used.

        Kafka's jars are fetched first where they are missing; that does not count towards the
        deadline, which is ``START_TIMEOUT_S`` from then unless given.

        Raises:
            LocalStackError: a server did not start, Java or the jars are missing, or another
                process runs a stack in the same folder. Nothing is left running.
        """
        kafka_jars()
        blueprint = blueprint or Blueprint()
        deadline = deadline or Deadline.after(START_TIMEOUT_S)
        directory = directory.absolute()
        lock = _lock(directory)
        ports = PortBook(directory / "ports.json")
        try:
            for _ in range(_PORT_ATTEMPTS - 1):
                with suppress(PortTakenError):
                    return cls._start_once(directory, ports, lock, deadline, blueprint)
                ports.forget()
            return cls._start_once(directory, ports, lock, deadline, blueprint)
        except BaseException:
            lock.close()
            raise

    @classmethod
    def _start_once(
        cls,
        directory: Path,
        ports: PortBook,
        lock: IO[str],
        deadline: Deadline,
        blueprint: Blueprint,
    ) -> LocalStack:
        stack = cls(
            directory,
            blueprint.zookeeper_servers(directory, ports),
            blueprint.kafka_brokers(directory, ports),
        )
        try:
            _start_all(stack.servers, deadline, lock)
        except BaseException:
            stack.stop(Deadline.after(0))
            raise
        ports.save()
        stack._lock = lock
        return stack

    @property
    def servers(self) -> list[LocalServer]:
        """All servers, ZooKeeper's first."""
        return [*self.zookeepers, *self.brokers]

    @property
    def zookeeper(self) -> ZooKeeperServer:
        """The first ZooKeeper server."""
        return self.zookeepers[0]

    @property
    def kafka(self) -> KafkaBroker:
        """The first broker."""
        return self.brokers[0]

    @property
    def zookeeper_hosts(self) -> str:
        """The connection string for ZooKeeper clients: ``host:port``, comma-separated."""
        return ",".join(server.address for server in self.zookeepers)

    @property
    def bootstrap_servers(self) -> str:
        """The connection string for Kafka clients: ``host:port``, comma-separated."""
        return ",".join(broker.address for broker in self.brokers)

    def stop(self, deadline: Deadline | None = None) -> None:
        """Stop all servers, by force those that overrun the deadline. Blocks."""
        deadline = deadline or Deadline.after(STOP_TIMEOUT_S)
        with ThreadPoolExecutor(len(self.servers), "local-stop") as pool:
            list(pool.map(lambda server: server.stop(deadline), self.servers))
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> LocalStack:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def _start_all(servers: Sequence[LocalServer], deadline: Deadline, lock: IO[str]) -> None:
    """Start the servers at the same time; the first error counts once all have been tried."""
    with ThreadPoolExecutor(len(servers), "local-start") as pool:
        for server in servers:
            server.keep_open = [lock.fileno()]
        started = [pool.submit(server.start, deadline) for server in servers]
    for future in started:
        future.result()


def _lock(directory: Path) -> IO[str]:
    """Lock the folder for this stack; the servers' supervisors share the lock while they live."""
    directory.mkdir(parents=True, exist_ok=True)
    lock = (directory / "lock").open("a", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise LocalStackError(
            f"a local stack runs in {directory} already; stop it or choose another folder"
        ) from None
    return lock
