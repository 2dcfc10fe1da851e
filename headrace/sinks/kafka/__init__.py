"""The Kafka sink. Its clients are in :mod:`headrace.kafka`."""

from __future__ import annotations

from headrace.sinks.kafka.sink import KafkaSink, Transactions

__all__ = ["KafkaSink", "Transactions"]
