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
    from headrace.controller.controller import KafkaController
    from headrace.core.clock import Deadline
    from headrace.core.errors import PoisonRecordError, RetryableError
    from headrace.core.records import Assignment, Batch, Record, TopicPartition
    from headrace.core.tables import table_of
    from headrace.extensions.streams.errors import QuestionError
    from headrace.ops.admin.state_client import StateClient
    from headrace.processors import BatchProcessor, BatchResponse, ChannelContext, Request
    from headrace.processors.simple import SimpleKafkaProcessor, SimpleOptions
    from headrace.telemetry.logs import configure_logging
    from headrace.telemetry.metrics import Metrics, MetricsServer

__version__ = VERSION

_HOMES = {
    name: home
    for home, names in {
        "headrace.channel.bounds": ("Until",),
        "headrace.channel.channel": ("InboundKafkaChannel",),
        "headrace.channel.pauses": ("Pause", "PauseMode", "PauseReason"),
        "headrace.channel.runtime": ("ChannelPorts",),
        "headrace.config": ("ChannelConfig", "Config", "load"),
        "headrace.controller.controller": ("KafkaController",),
        "headrace.core.clock": ("Deadline",),
        "headrace.core.errors": ("PoisonRecordError", "RetryableError"),
        "headrace.core.records": ("Assignment", "Batch", "Record", "TopicPartition"),
        "headrace.core.tables": ("table_of",),
        "headrace.extensions.streams.errors": ("QuestionError",),
        "headrace.ops.admin.state_client": ("StateClient",),
        "headrace.processors": ("BatchProcessor", "BatchResponse", "ChannelContext", "Request"),
        "headrace.processors.simple": ("SimpleKafkaProcessor", "SimpleOptions"),
        "headrace.telemetry.logs": ("configure_logging",),
        "headrace.telemetry.metrics": ("Metrics", "MetricsServer"),
    }.items()
    for name in names
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
    "QuestionError",
    "Record",
    "Request",
    "RetryableError",
    "SimpleKafkaProcessor",
    "SimpleOptions",
    "StateClient",
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
