"""A real Kafka broker on loopback: KRaft, broker and controller in one process."""

from __future__ import annotations

import base64
import shutil
import uuid
from typing import TYPE_CHECKING

from headrace.core.clock import Deadline
from headrace.devstack.jars import kafka_jars
from headrace.devstack.jvm import LOGGING_JARS, SHORT_LIVED, java_command, log4j_flag, pick_jars
from headrace.devstack.server import LOOPBACK, LocalServer, free_port, run_to_its_end
from headrace.kafka.errors import KafkaUnavailableError
from headrace.kafka.survey import KafkaSurvey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


#: Seconds for one question to a broker, unless said otherwise.
_PROBE_TIMEOUT_S = 2.0


def live_brokers(address: str, seconds: float = _PROBE_TIMEOUT_S) -> list[int]:
    """Return the ids of the live brokers of the cluster; [] if none answers. Blocks briefly.

    A starting broker accepts connections well before the controller counts it as live. Only
    from then on do metadata list it and topics find a leader.
    """
    properties = {"bootstrap.servers": address, "reconnect.backoff.max.ms": 100}
    try:
        found = KafkaSurvey(properties).cluster(Deadline.after(seconds))
    except KafkaUnavailableError:
        return []
    return list(found.brokers)


_MAIN = "kafka.Kafka"

#: Kafka before 4.0 calls log4j 1.2 by its own name.
_OLDER_JARS = ("log4j-1.2-api-",)
_FORMAT = "kafka.tools.StorageTool"

#: One broker holds everything, groups begin without delay, and a missing topic is an error. Four
#: partitions of Kafka's own topics are enough, and start faster than the usual fifty. A killed
#: broker may register again only when its old session is over: after 3 s instead of 9.
_SETTINGS = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


class KafkaBroker(LocalServer):
    """One broker. Data, settings and log live in ``directory`` and survive a restart.

    ``controllers`` are the controller ports of the cluster's members by node id, itself included;
    without any it is a cluster of its own.
    ``properties`` are added to the broker's own, and win over them. One that is ``short_lived``
    takes less than two thirds of the processor time for its start and its first topics, and more
    for each record. ``flags`` are the JVM's.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        controllers: Mapping[int, int] | None = None,
        cluster_id: str | None = None,
        properties: Mapping[str, str] | None = None,
        node_id: int = 1,
        short_lived: bool = False,
        flags: Sequence[str] = (),
    ) -> None:
        super().__init__(f"kafka-{node_id}", directory)
        self.node_id = node_id
        self.port = free_port() if port is None else port
        self._controllers = dict(controllers or {node_id: free_port()})
        self._cluster_id = cluster_id or new_cluster_id()
        self._properties = dict(properties or {})
        self._flags = [*([SHORT_LIVED] if short_lived else []), *flags]

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def bootstrap_servers(self) -> str:
        """Return what Kafka clients call the address."""
        return self.address

    def _command(self, deadline: Deadline) -> list[str]:
        path = self.directory / "server.properties"
        lines = [f"{key}={value}\n" for key, value in self._all_properties().items()]
        path.write_text("".join(lines), encoding="utf-8")
        self._format(path, deadline)
        return self._java(_MAIN, [str(path)], *self._flags)

    def _answers(self, seconds: float) -> bool:
        return self.node_id in live_brokers(self.address, seconds)

    def _all_properties(self) -> dict[str, str]:
        plain = f"PLAINTEXT://{self.address}"
        return {
            **_SETTINGS,
            "node.id": str(self.node_id),
            "controller.quorum.voters": ",".join(
                f"{node}@{LOOPBACK}:{port}" for node, port in self._controllers.items()
            ),
            "listeners": f"{plain},CONTROLLER://{LOOPBACK}:{self._controllers[self.node_id]}",
            "advertised.listeners": plain,
            "log.dirs": str(self.directory / "data"),
            **self._properties,
        }

    def _format(self, settings: Path, deadline: Deadline) -> None:
        """Prepare an empty data folder; the mark tells a finished one from an interrupted one."""
        mark = self.directory / "formatted"
        if mark.exists():
            return
        shutil.rmtree(self.directory / "data", ignore_errors=True)
        arguments = ["format", f"--cluster-id={self._cluster_id}", "-c", str(settings)]
        output = self.directory / "format.log"
        output.unlink(missing_ok=True)
        run_to_its_end(
            self._java(_FORMAT, arguments, SHORT_LIVED),
            title=f"{self.name}: formatting",
            log_file=output,
            deadline=deadline,
        )
        mark.touch()

    def _java(self, main: str, arguments: list[str], *flags: str) -> list[str]:
        return java_command(
            main,
            arguments,
            class_path=[*pick_jars(LOGGING_JARS, where_there=_OLDER_JARS), *kafka_jars()],
            heap="512m",
            flags=[*flags, log4j_flag(self.directory)],
        )


def new_cluster_id() -> str:
    """Return a random UUID in Kafka's notation: 22 letters of URL-safe base 64."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
