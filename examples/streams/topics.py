"""The topics of the demo: how they are made, and what is produced to them."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from examples.harness.run import KAFKA_TIMEOUT
from examples.streams.hours import FLIGHTS, OBSERVED, PLANES, WEATHER
from examples.streams.year import HOUR, plane_records
from headrace.core.clock import Deadline
from headrace.kafka import KafkaTopicCatalog
from headrace.kafka.catalog import NewTopic
from headrace.kafka.topic_producer import TopicProducer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from examples.harness.daemons import Endpoints
    from examples.streams.year import Timed, Year

#: Of each topic that is read and written: partitions that are joined have the same number.
PARTITIONS = 4

#: Where records are written at their own times: the broker's own setting deletes what is years old.
KEPT = {"retention.ms": "-1"}

#: Keys go where Kafka Streams and topologies look for them.
_PARTITIONER = {"partitioner": "murmur2_random"}


def create_topics(
    endpoints: Endpoints, topics: Mapping[str, Mapping[str, str]], partitions: int = PARTITIONS
) -> None:
    """Create topics with their settings. Blocks.

    Raises:
        HeadraceError: the brokers do not create one.
    """
    deadline = Deadline.after(KAFKA_TIMEOUT)
    with closing(KafkaTopicCatalog(endpoints.client, "headrace-demo")) as catalog:
        for name, settings in topics.items():
            catalog.create(NewTopic(name, partitions, settings), deadline)


def prepare_topics(endpoints: Endpoints, year: Year) -> None:
    """Create the topics of the topology, and produce the planes, of before the first flight."""
    settings = {FLIGHTS: {}, WEATHER: {}, PLANES: {"cleanup.policy": "compact"}, OBSERVED: KEPT}
    create_topics(endpoints, settings)
    deadline = Deadline.after(KAFKA_TIMEOUT)
    producer = TopicProducer({**endpoints.client, **_PARTITIONER}, PLANES)
    producer.send(plane_records(year.planes), deadline, time=year.begin - HOUR)
    producer.flush(deadline)


class YearProducer:
    """Produces flights and weather to their topics, each in their order. For one thread."""

    def __init__(self, endpoints: Endpoints) -> None:
        client = {**endpoints.client, **_PARTITIONER}
        self._producers = {name: TopicProducer(client, name) for name in (FLIGHTS, WEATHER)}

    @property
    def failed(self) -> int:
        """How many records the brokers did not take."""
        return sum(each.failed for each in self._producers.values())

    def send(self, records: Iterable[Timed], deadline: Deadline) -> None:
        """Produce records. Blocks while there is no room."""
        taken = list(records)
        for topic, producer in self._producers.items():
            values = ((each.key, each.value) for each in taken if each.topic == topic)
            producer.send(values, deadline)

    def flush(self, deadline: Deadline) -> None:
        """Wait until all that was sent is stored. Blocks."""
        for producer in self._producers.values():
            producer.flush(deadline)
