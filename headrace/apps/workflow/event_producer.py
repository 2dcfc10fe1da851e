"""Producing what instances read: that they start, and that they are cancelled."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from headrace.apps.workflow.topics import ANSWER_TIMEOUT, PARTITIONER, Topics
from headrace.core.clock import Deadline
from headrace.core.errors import HeadraceError
from headrace.extensions.keyed.codecs import to_json
from headrace.kafka.topic_producer import TopicProducer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Events that brokers take in a second, at least.
_EVENTS_PER_SECOND = 1_000


class EventProducer:
    """Produces events of instances, each under its instance. Any thread."""

    def __init__(self, client: Mapping[str, Any], topics: Topics) -> None:
        self._client = client
        self._topic = topics.events
        self._lock = threading.Lock()
        self._producer: TopicProducer | None = None

    def send(self, events: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """Produce, and wait until the brokers have stored all. Blocks.

        Raises:
            ProduceError: something was not stored, or not for certain.
        """
        records = [(instance.encode(), to_json(message)) for instance, message in events]
        deadline = Deadline.after(ANSWER_TIMEOUT + len(records) / _EVENTS_PER_SECOND)
        with self._lock:
            if self._producer is None:
                self._producer = TopicProducer(
                    {"linger.ms": 1, **self._client, **PARTITIONER}, self._topic
                )
            try:
                self._producer.send(records, deadline)
                self._producer.flush(deadline)
            except HeadraceError:
                self._producer = None
                raise
