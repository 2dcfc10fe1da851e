"""ZooKeeper and Kafka together: what the demo, the tests and the benchmarks start."""

from __future__ import annotations

import fcntl
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import IO, TYPE_CHECKING, final

from pydantic import TypeAdapter, ValidationError

from headrace.core.clock import Deadline
from headrace.devstack.errors import LocalStackError, PortTakenError
from headrace.devstack.issuer import TokenIssuer
from headrace.devstack.jars import kafka_jars
from headrace.devstack.kafka import KafkaBroker, new_cluster_id
from headrace.devstack.registry import SchemaRegistryServer
from headrace.devstack.secured import (
    ALLOWED_URLS,
    BrokerPorts,
    Secured,
    SecuredAccess,
    admit_user,
    door_properties,
    make_certificates,
)
from headrace.devstack.server import LOOPBACK, PortBook, ProcessIdentity, ProcessState
from headrace.devstack.wait import FAR_S
from headrace.devstack.zookeeper import ZooKeeperServer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from headrace.devstack.server import LocalServer


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The number of servers of each kind, and ``properties`` that every broker gets.

    Several ZooKeeper servers form an ensemble. Several brokers form a cluster in which each one is
    a controller as well, and which keeps its own topics on up to three of them. ``short_lived``
    brokers start sooner and serve more slowly, as tests want it. ``secured`` brokers have another
    door besides, with TLS and logins. ``registry``: there is a schema registry as well.
    """

    zookeepers: int = 1
    brokers: int = 1
    properties: Mapping[str, str] = field(default_factory=dict)
    short_lived: bool = False
    secured: Secured | None = None
    registry: bool = False

    def schema_registry(self, directory: Path, ports: PortBook) -> SchemaRegistryServer | None:
        """Return the schema registry, not started; None where there is none."""
        if not self.registry:
            return None
        return SchemaRegistryServer(directory / "registry", port=ports.port("registry"))

    def zookeeper_servers(self, directory: Path, ports: PortBook) -> list[ZooKeeperServer]:
        """Return the servers, not started, with data below ``directory``."""
        peers = {
            number: f"{LOOPBACK}:{ports.port(f'zookeeper-{number}-peer')}"
            f":{ports.port(f'zookeeper-{number}-election')}"
            for number in _numbers(self.zookeepers)
            if self.zookeepers > 1
        }
        return [
            ZooKeeperServer(
                directory / f"zookeeper-{number}",
                port=ports.port(f"zookeeper-{number}"),
                server_id=number,
                peers=peers,
            )
            for number in _numbers(self.zookeepers)
        ]

    def issuer(self, directory: Path, ports: PortBook) -> TokenIssuer | None:
        """Return the issuer of tokens, not started; None where no door takes any."""
        if self.secured is None:
            return None
        return TokenIssuer(
            directory / "issuer", port=ports.port("issuer"), seconds=self.secured.token_seconds
        )

    def kafka_brokers(
        self, directory: Path, ports: PortBook, issuer: TokenIssuer | None = None
    ) -> list[KafkaBroker]:
        """Return the brokers, not started, with data below ``directory``."""
        controllers = {
            number: ports.port(f"kafka-{number}-controller") for number in _numbers(self.brokers)
        }
        properties = {**_replicated(self.brokers), **self.properties}
        cluster_id = _cluster_id(directory)
        made = []
        for number in _numbers(self.brokers):
            port, flags = ports.port(f"kafka-{number}"), []
            if issuer is not None:
                door = ports.port(f"kafka-{number}-secured")
                doors = BrokerPorts(port, door, controllers[number])
                properties = {**properties, **door_properties(directory, doors, issuer)}
                flags = [f"{ALLOWED_URLS}={issuer.keys_url}"]
            broker = KafkaBroker(
                directory / f"kafka-{number}",
                port=port,
                controllers=controllers,
                cluster_id=cluster_id,
                properties=properties,
                node_id=number,
                short_lived=self.short_lived,
                flags=flags,
            )
            made.append(broker)
        return made


def _numbers(count: int) -> range:
    return range(1, count + 1)


def _replicated(brokers: int) -> dict[str, str]:
    """Return how Kafka's own topics are kept, so that one of several brokers may be missing."""
    copies = min(brokers, 3)
    names = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    copied = {f"{name}.replication.factor": str(copies) for name in names}
    required = {f"{name}.min.isr": str(max(1, copies - 1)) for name in names[1:]}
    return {**copied, **required}


def _cluster_id(directory: Path) -> str:
    """Return the folder's cluster id, a new one the first time."""
    file = directory / "cluster-id"
    if not file.exists():
        directory.mkdir(parents=True, exist_ok=True)
        file.write_text(new_cluster_id(), encoding="utf-8")
    return file.read_text(encoding="utf-8")


_FILE = "state.json"

#: The files that have the addresses of a folder's stack, for configurations: ``${file:...}``.
ADDRESS_FILES = ("kafka", "zookeeper")

#: The file that keeps the ports.
PORTS_FILE = "ports.json"


def write_addresses(directory: Path, bootstrap_servers: str, zookeeper_hosts: str) -> None:
    """Put where the folder's stack is, or will be, into the files for configurations."""
    for name, address in zip(ADDRESS_FILES, (bootstrap_servers, zookeeper_hosts), strict=True):
        new = directory / f".{name}"
        new.write_text(f"{address}\n", encoding="utf-8")
        new.replace(directory / name)


def remove_addresses(directory: Path) -> None:
    """Delete these files, if they are there."""
    for name in ADDRESS_FILES:
        (directory / name).unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """One server of the stack."""

    name: str
    address: str
    log_file: str
    process: ProcessIdentity


@dataclass(frozen=True, slots=True)
class StackState:
    """A stack kept by a process of its own, the keeper, and the processes it consists of."""

    keeper: ProcessIdentity
    zookeeper_hosts: str
    bootstrap_servers: str
    servers: tuple[ServerEntry, ...]
    secured: SecuredAccess | None = None
    registry_url: str | None = None

    @classmethod
    def of(cls, stack: LocalStack) -> StackState:
        """Return the state of a running stack that this process keeps."""
        keeper = ProcessIdentity.of(os.getpid())
        assert keeper is not None, "this process lives"
        entries = (
            ServerEntry(server.name, server.address, str(server.log_file), server.identity)
            for server in stack.servers
            if server.identity is not None
        )
        registry = stack.registry
        return cls(
            keeper,
            stack.zookeeper_hosts,
            stack.bootstrap_servers,
            tuple(entries),
            stack.secured,
            None if registry is None else registry.url,
        )

    @property
    def kept(self) -> bool:
        """Return whether the keeper lives; where it does not, its servers do not either."""
        return self.keeper.state is not ProcessState.GONE

    def write(self, directory: Path) -> None:
        """Put the state into the folder's file, whole or not at all."""
        new = directory / f".{_FILE}"
        new.write_text(json.dumps(asdict(self), indent=2), encoding="utf-8")
        new.replace(directory / _FILE)


def read_state(directory: Path) -> StackState | None:
    """Return what the folder's file says, True or not by now; None if there is no file.

    Raises:
        LocalStackError: the file does not hold a state.
    """
    path = directory / _FILE
    try:
        return TypeAdapter(StackState).validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise LocalStackError(
            f"{path} does not hold the state of a local stack ({error.errors()[0]['msg']}); delete "
            "it"
        ) from error


def remove_state(directory: Path) -> None:
    """Delete the folder's file, if it is there."""
    (directory / _FILE).unlink(missing_ok=True)


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
        self,
        directory: Path,
        zookeepers: Sequence[ZooKeeperServer],
        brokers: Sequence[KafkaBroker],
        issuer: TokenIssuer | None = None,
        registry: SchemaRegistryServer | None = None,
    ) -> None:
        self.directory = directory
        self.zookeepers = list(zookeepers)
        self.brokers = list(brokers)
        self.issuer = issuer
        self.registry = registry
        #: The way through the secured door, once the brokers run; None without one.
        self.secured: SecuredAccess | None = None
        self._lock: IO[str] | None = None

    @classmethod
    def start(
        cls,
        directory: Path,
        deadline: Deadline | None = None,
        *,
        blueprint: Blueprint | None = None,
        usual_ports: Mapping[str, int] | None = None,
    ) -> LocalStack:
        """Start one ZooKeeper and one broker, or as ``blueprint`` says, data in ``directory``.

        Blocks. A folder that was used before wants the same blueprint again.

        The ports are free ones, by a server's name those of ``usual_ports`` if they are free, and
        kept in the folder for the next time it is used.

        Kafka's jars are fetched first where they are missing; that does not count towards the
        deadline, which is ``FAR_S`` from then unless given. A server that shows no sign of work for
        ``SILENCE_S`` seconds has failed before it.

        Raises:
            LocalStackError: a server did not start, Java or the jars are missing, or another
                process runs a stack in the same folder. Nothing is left running.
        """
        kafka_jars()
        blueprint = blueprint or Blueprint()
        deadline = deadline or Deadline.after(FAR_S)
        directory = directory.absolute()
        lock = _lock(directory)
        ports = PortBook(directory / PORTS_FILE, usual_ports)
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
        issuer = blueprint.issuer(directory, ports)
        stack = cls(
            directory,
            blueprint.zookeeper_servers(directory, ports),
            blueprint.kafka_brokers(directory, ports, issuer),
            issuer,
            blueprint.schema_registry(directory, ports),
        )
        try:
            if issuer is not None:
                # a broker that cannot fetch the keys does not start
                make_certificates(directory)
                _start_all([issuer], deadline, lock)
            registries = [] if stack.registry is None else [stack.registry]
            _start_all([*stack.zookeepers, *stack.brokers, *registries], deadline, lock)
            if issuer is not None:
                admit_user(directory, stack.bootstrap_servers, deadline)
                door = [ports.port(f"kafka-{broker.node_id}-secured") for broker in stack.brokers]
                stack.secured = SecuredAccess.of(directory, door, issuer)
        except BaseException:
            stack.stop(Deadline.after(0))
            raise
        ports.save()
        stack._lock = lock
        return stack

    @property
    def servers(self) -> list[LocalServer]:
        """Return all servers, ZooKeeper's first."""
        others = (self.issuer, self.registry)
        return [*self.zookeepers, *self.brokers, *(each for each in others if each is not None)]

    @property
    def zookeeper(self) -> ZooKeeperServer:
        """Return the first ZooKeeper server."""
        return self.zookeepers[0]

    @property
    def kafka(self) -> KafkaBroker:
        """Return the first broker."""
        return self.brokers[0]

    @property
    def zookeeper_hosts(self) -> str:
        """Return the connection string for ZooKeeper clients: ``host:port``, comma-separated."""
        return ",".join(server.address for server in self.zookeepers)

    @property
    def bootstrap_servers(self) -> str:
        """Return the connection string for Kafka clients: ``host:port``, comma-separated."""
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

    def __exit__(self, *_: object) -> None:
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
