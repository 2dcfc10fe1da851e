"""The Kafka adapter: the one place that imports the client library."""

from __future__ import annotations

from headrace.kafka.catalog import KafkaTopicCatalog
from headrace.kafka.offsets import KafkaOffsetStore, TransactionalOffsetStore
from headrace.kafka.ranges import KafkaRangeSource
from headrace.kafka.result_transactions import ResultTransactions
from headrace.kafka.source import KafkaRecordSource

__all__ = [
    "KafkaOffsetStore",
    "KafkaRangeSource",
    "KafkaRecordSource",
    "KafkaTopicCatalog",
    "ResultTransactions",
    "TransactionalOffsetStore",
]
