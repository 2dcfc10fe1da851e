"""Three brokers, and what an operator sees and does there."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.core.clock import Deadline
from headrace.devstack.wait import wait_for
from tests.brokers import Broker

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.devstack import KafkaBroker, LocalStack

WAIT = 60.0


class Cluster(Broker):
    """An operator's hand on all brokers of a stack."""

    def __init__(self, stack: LocalStack) -> None:
        super().__init__(stack.bootstrap_servers)
        self.brokers = stack.brokers
        self.zookeeper_hosts = stack.zookeeper_hosts
        self._operator = AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    def topic(
        self,
        replicas: Sequence[Sequence[int]] = ((1,),),
        settings: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic whose partitions are on the brokers given, the first of each leading."""
        name = f"topic.{uuid4().hex[:12]}"
        wanted = NewTopic(
            name,
            len(replicas),
            replica_assignment=[list(each) for each in replicas],
            config=dict(settings or {}),
        )
        self._operator.create_topics([wanted])[name].result(WAIT)
        self.wait_leaders(name, [each[0] for each in replicas])
        return name

    def leaders(self, topic: str) -> list[int]:
        """Return the leader of each partition, -1 for one without."""
        partitions = self._operator.list_topics(topic, timeout=WAIT).topics[topic].partitions
        return [partitions[number].leader for number in sorted(partitions)]

    def wait_leaders(self, topic: str, leaders: list[int]) -> None:
        """Wait until the brokers say so."""
        assert wait_for(lambda: self.leaders(topic) == leaders, Deadline.after(WAIT))

    def coordinator(self, group: str) -> KafkaBroker:
        """Return the broker that keeps a group's offsets."""
        described = self._operator.describe_consumer_groups([group])[group].result(WAIT)
        return self.broker(described.coordinator.id)

    def broker(self, node_id: int) -> KafkaBroker:
        """Return a broker by its id."""
        return next(broker for broker in self.brokers if broker.node_id == node_id)
