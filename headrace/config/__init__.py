"""The configuration: one YAML file, checked as a whole, as frozen models."""

from __future__ import annotations

from headrace.config.guarantee import Delivery, Guarantee, guarantee
from headrace.config.load import load
from headrace.config.model.base import Section
from headrace.config.model.channel import (
    BatchConfig,
    BufferConfig,
    ChannelConfig,
    OnErrorConfig,
)
from headrace.config.model.coordinator import (
    CoordinatorConfig,
    DynamicCoordinator,
    FixedCountCoordinator,
    StaticCoordinator,
)
from headrace.config.model.kafka import KafkaConfig, KafkaSasl
from headrace.config.model.processor import (
    CustomProcessor,
    ProcessorConfig,
    SimpleProcessor,
    SparkProcessor,
)
from headrace.config.model.root import Config, LoggingConfig, MetricsConfig
from headrace.config.model.sink import (
    ConsoleSink,
    DeltaSink,
    FunctionSink,
    JsonLinesSink,
    NoopSink,
    SinkConfig,
)
from headrace.config.model.spark import SparkConfig
from headrace.config.model.tls import KafkaTls, ZooKeeperTls
from headrace.config.model.zookeeper import ZooKeeperConfig, ZooKeeperDigest, ZooKeeperSasl
from headrace.config.show import show

__all__ = [
    "BatchConfig",
    "BufferConfig",
    "ChannelConfig",
    "Config",
    "ConsoleSink",
    "CoordinatorConfig",
    "CustomProcessor",
    "Delivery",
    "DeltaSink",
    "DynamicCoordinator",
    "FixedCountCoordinator",
    "FunctionSink",
    "Guarantee",
    "JsonLinesSink",
    "KafkaConfig",
    "KafkaSasl",
    "KafkaTls",
    "LoggingConfig",
    "MetricsConfig",
    "NoopSink",
    "OnErrorConfig",
    "ProcessorConfig",
    "Section",
    "SimpleProcessor",
    "SinkConfig",
    "SparkConfig",
    "SparkProcessor",
    "StaticCoordinator",
    "ZooKeeperConfig",
    "ZooKeeperDigest",
    "ZooKeeperSasl",
    "ZooKeeperTls",
    "guarantee",
    "load",
    "show",
]
