"""The configuration: one YAML file, checked as a whole, as frozen models."""

from __future__ import annotations

from headrace.config.delivery import DeliveryGuarantee
from headrace.config.diff import ChangeKind, ConfigChange, diff
from headrace.config.guarantee import guarantee
from headrace.config.loader import load
from headrace.config.models.admin import (
    AdminConfig,
    AdminTls,
    LogsOtlpConfig,
    MetricsOtlpConfig,
    TracingConfig,
)
from headrace.config.models.base import ReloadEffect, Section, ZooKeeperTls
from headrace.config.models.channel import (
    BatchConfig,
    ChannelConfig,
    CoordinatorConfig,
    DynamicCoordinatorConfig,
    FixedCountCoordinatorConfig,
    KafkaOffsetsConfig,
    StaticCoordinatorConfig,
    ZooKeeperOffsetsConfig,
)
from headrace.config.models.kafka import KafkaConfig, KafkaSasl
from headrace.config.models.processor import (
    CustomDecoding,
    ProcessorConfig,
    ProcessorSite,
    SparkConfig,
)
from headrace.config.models.rejects import (
    DeliveredRejects,
    KeyedRejects,
    LimitedRejects,
    MicroBatchRejects,
    RejectsConfig,
    RekeyRejects,
    RetryConfig,
    StreamsRejects,
)
from headrace.config.models.root import Config, LoggingConfig, ReloadConfig
from headrace.config.models.sink import (
    SinkConfig,
    SinkSite,
    keeps_offsets,
    refuses_late,
    single_sinks,
)
from headrace.config.models.zookeeper import ZooKeeperConfig, ZooKeeperDigest, ZooKeeperSasl
from headrace.config.show import show

__all__ = [
    "AdminConfig",
    "AdminTls",
    "BatchConfig",
    "ChangeKind",
    "ChannelConfig",
    "Config",
    "ConfigChange",
    "CoordinatorConfig",
    "CustomDecoding",
    "DeliveredRejects",
    "DeliveryGuarantee",
    "DynamicCoordinatorConfig",
    "FixedCountCoordinatorConfig",
    "KafkaConfig",
    "KafkaOffsetsConfig",
    "KafkaSasl",
    "KeyedRejects",
    "LimitedRejects",
    "LoggingConfig",
    "LogsOtlpConfig",
    "MetricsOtlpConfig",
    "MicroBatchRejects",
    "ProcessorConfig",
    "ProcessorSite",
    "RejectsConfig",
    "RekeyRejects",
    "ReloadConfig",
    "ReloadEffect",
    "RetryConfig",
    "Section",
    "SinkConfig",
    "SinkSite",
    "SparkConfig",
    "StaticCoordinatorConfig",
    "StreamsRejects",
    "TracingConfig",
    "ZooKeeperConfig",
    "ZooKeeperDigest",
    "ZooKeeperOffsetsConfig",
    "ZooKeeperSasl",
    "ZooKeeperTls",
    "diff",
    "guarantee",
    "keeps_offsets",
    "load",
    "refuses_late",
    "show",
    "single_sinks",
]
