"""Which servers a stack consists of: one of each, or an ensemble and a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.local.kafka import KafkaBroker, new_cluster_id
from headrace.local.ports import LOOPBACK
from headrace.local.zookeeper import ZooKeeperServer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headrace.local.ports import PortBook


@dataclass(frozen=True, slots=True)
class Blueprint:
    """How many servers of each kind there are, and ``properties`` that every broker gets.

    Several ZooKeeper servers form an ensemble. Several brokers form a cluster in which each one is
    a controller as well, and which keeps its own topics on up to three of them.
    """

    zookeepers: int = 1
    brokers: int = 1
    properties: Mapping[str, str] = field(default_factory=dict)

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

    def kafka_brokers(self, directory: Path, ports: PortBook) -> list[KafkaBroker]:
        """Return the brokers, not started, with data below ``directory``."""
        controllers = {
            number: ports.port(f"kafka-{number}-controller") for number in _numbers(self.brokers)
        }
        properties = {**_replicated(self.brokers), **self.properties}
        cluster_id = _cluster_id(directory)
        return [
            KafkaBroker(
                directory / f"kafka-{number}",
                port=ports.port(f"kafka-{number}"),
                controllers=controllers,
                cluster_id=cluster_id,
                properties=properties,
                node_id=number,
            )
            for number in _numbers(self.brokers)
        ]


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
