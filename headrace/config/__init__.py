"""The configuration: one YAML file, checked as a whole, as frozen models."""

from __future__ import annotations

from headrace.config.diff import Change, ChangeKind, diff
from headrace.config.effects import Effect
from headrace.config.guarantee import Delivery, Guarantee, guarantee
from headrace.config.load import load
from headrace.config.model.admin import AdminConfig, AdminTls
from headrace.config.model.base import Section
from headrace.config.model.channel import (
    BatchConfig,
    BufferConfig,
    ChannelConfig,
    PauseConfig,
)
from headrace.config.model.coordinator import (
    CoordinatorConfig,
    DynamicCoordinatorConfig,
    FixedCountCoordinatorConfig,
    StaticCoordinatorConfig,
)
from headrace.config.model.kafka import KafkaConfig, KafkaSasl
from headrace.config.model.offsets import (
    KafkaOffsetsConfig,
    OffsetsConfig,
    ZooKeeperOffsetsConfig,
)
from headrace.config.model.on_error import DeadLetterConfig, OnErrorConfig
from headrace.config.model.processor import (
    ArrowProcessorConfig,
    CustomProcessorConfig,
    ProcessorConfig,
    SimpleProcessorConfig,
    SparkProcessorConfig,
)
from headrace.config.model.root import Config, LoggingConfig, MetricsConfig, ReloadConfig
from headrace.config.model.sink import (
    ConsoleSinkConfig,
    CustomSinkConfig,
    DeltaSinkConfig,
    FunctionSinkConfig,
    JsonLinesSinkConfig,
    KafkaSinkConfig,
    NoopSinkConfig,
    OutputConfig,
    SeveralSinkConfig,
    SinkConfig,
    SqlSinkConfig,
    keeps_offsets,
    refuses_late,
    single_sinks,
)
from headrace.config.model.spark import SparkConfig
from headrace.config.model.tls import KafkaTls, ZooKeeperTls
from headrace.config.model.tracing import TracingConfig
from headrace.config.model.zookeeper import ZooKeeperConfig, ZooKeeperDigest, ZooKeeperSasl
from headrace.config.show import show

__all__ = [
    "AdminConfig",
    "AdminTls",
    "ArrowProcessorConfig",
    "BatchConfig",
    "BufferConfig",
    "Change",
    "ChangeKind",
    "ChannelConfig",
    "Config",
    "ConsoleSinkConfig",
    "CoordinatorConfig",
    "CustomProcessorConfig",
    "CustomSinkConfig",
    "DeadLetterConfig",
    "Delivery",
    "DeltaSinkConfig",
    "DynamicCoordinatorConfig",
    "Effect",
    "FixedCountCoordinatorConfig",
    "FunctionSinkConfig",
    "Guarantee",
    "JsonLinesSinkConfig",
    "KafkaConfig",
    "KafkaOffsetsConfig",
    "KafkaSasl",
    "KafkaSinkConfig",
    "KafkaTls",
    "LoggingConfig",
    "MetricsConfig",
    "NoopSinkConfig",
    "OffsetsConfig",
    "OnErrorConfig",
    "OutputConfig",
    "PauseConfig",
    "ProcessorConfig",
    "ReloadConfig",
    "Section",
    "SeveralSinkConfig",
    "SimpleProcessorConfig",
    "SinkConfig",
    "SparkConfig",
    "SparkProcessorConfig",
    "SqlSinkConfig",
    "StaticCoordinatorConfig",
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
