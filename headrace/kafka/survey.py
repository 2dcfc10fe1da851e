"""A look at a cluster from where a member will run, for ``headrace doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka import admin as client_admin

from headrace.kafka import clients
from headrace.kafka.errors import KafkaUnavailableError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from headrace.core.clock import Deadline
    from headrace.core.records import TopicPartition

#: The client's types say nothing of these.
_api: Any = client_admin


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The cluster that answered: its id and its brokers as ``host:port``, by their ids."""

    cluster_id: str
    brokers: Mapping[int, str]


class KafkaSurvey:
    """Questions to the brokers that change nothing. One thread; each blocks to its deadline.

    Raises:
        KafkaUnavailableError: there was no answer, or it was refused.
    """

    def __init__(self, client_properties: Mapping[str, Any]) -> None:
        self._admin = _api.AdminClient(clients.silent(client_properties))

    def cluster(self, deadline: Deadline) -> ClusterFacts:
        """Return who is there."""
        found = _result(self._admin.describe_cluster(request_timeout=deadline.left), deadline)
        brokers = {node.id: f"{node.host}:{node.port}" for node in found.nodes}
        return ClusterFacts(str(found.cluster_id), brokers)

    def settings(self, broker: int, deadline: Deadline) -> Mapping[str, str]:
        """Return a broker's configuration, which needs DescribeConfigs on the cluster."""
        asked = _api.ConfigResource(_api.ConfigResource.Type.BROKER, str(broker))
        answers = self._admin.describe_configs([asked], request_timeout=deadline.left)
        found = _result(answers[asked], deadline)
        return {name: entry.value for name, entry in found.items() if entry.value is not None}

    def newest(self, partitions: Collection[TopicPartition], deadline: Deadline) -> float | None:
        """Return the newest timestamp of the partitions' records, in seconds since the epoch."""
        wanted = {
            ClientPartition(p.topic, p.partition): _api.OffsetSpec.max_timestamp()
            for p in partitions
        }
        if not wanted:
            return None
        answers = self._admin.list_offsets(wanted, request_timeout=deadline.left)
        stamps = [_result(answer, deadline).timestamp for answer in answers.values()]
        newest = max((stamp for stamp in stamps if stamp is not None), default=-1)
        return newest / 1000 if newest >= 0 else None


def _result(answer: Any, deadline: Deadline) -> Any:
    try:
        return clients.answer(answer, deadline)
    except KafkaException as error:
        raise KafkaUnavailableError(str(error.args[0].str())) from error
