"""Headrace: inbound Kafka channels, owned through ZooKeeper, reduced by Spark, committed once.

The names below are the public library API, together with ``headrace.testing``. They are imported
when they are first asked for, so that ``import headrace`` starts no Spark and costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headrace.version import VERSION

if TYPE_CHECKING:
    from headrace.channel.bounds import Until
    from headrace.channel.channel import InboundKafkaChannel
    from headrace.config import ChannelConfig, Config, load
    from headrace.controller import KafkaController
    from headrace.core.clock import Deadline
    from headrace.core.errors import PoisonRecordError, RetryableError
    from headrace.core.records import Assignment, Batch, Record, TopicPartition
    from headrace.core.tables import table_of
    from headrace.processors import BatchProcessor, BatchResponse, ChannelContext, Request
    from headrace.processors.simple import SimpleKafkaProcessor, SimpleOptions
    from headrace.telemetry.logs import configure_logging
    from headrace.telemetry.metrics import Metrics, MetricsServer

__version__ = VERSION

_HOMES = {
    "Assignment": "headrace.core.records",
    "Batch": "headrace.core.records",
    "BatchProcessor": "headrace.processors",
    "BatchResponse": "headrace.processors",
    "ChannelConfig": "headrace.config",
    "ChannelContext": "headrace.processors",
    "ChannelPorts": "headrace.channel.runtime",
    "Config": "headrace.config",
    "Deadline": "headrace.core.clock",
    "InboundKafkaChannel": "headrace.channel.channel",
    "KafkaController": "headrace.controller",
    "Metrics": "headrace.telemetry.metrics",
    "MetricsServer": "headrace.telemetry.metrics",
    "Pause": "headrace.channel.pausing",
    "PauseMode": "headrace.channel.pausing",
    "PauseReason": "headrace.channel.pausing",
    "PoisonRecordError": "headrace.core.errors",
    "Record": "headrace.core.records",
    "Request": "headrace.processors",
    "RetryableError": "headrace.core.errors",
    "SimpleKafkaProcessor": "headrace.processors.simple",
    "SimpleOptions": "headrace.processors.simple",
    "TopicPartition": "headrace.core.records",
    "Until": "headrace.channel.bounds",
    "configure_logging": "headrace.telemetry.logs",
    "load": "headrace.config",
    "table_of": "headrace.core.tables",
}

__all__ = [
    "Assignment",
    "Batch",
    "BatchProcessor",
    "BatchResponse",
    "ChannelConfig",
    "ChannelContext",
    "ChannelPorts",
    "Config",
    "Deadline",
    "InboundKafkaChannel",
    "KafkaController",
    "Metrics",
    "MetricsServer",
    "Pause",
    "PauseMode",
    "PauseReason",
    "PoisonRecordError",
    "Record",
    "Request",
    "RetryableError",
    "SimpleKafkaProcessor",
    "SimpleOptions",
    "TopicPartition",
    "Until",
    "configure_logging",
    "load",
    "table_of",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
