"""From a channel's configuration to its sink, with what the sink takes of other adapters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace import config
from headrace.kafka import KafkaResults
from headrace.kafka.clients import client_properties
from headrace.spark.factory import build_sink
from headrace.spark.sinks.kafka import KafkaSink

if TYPE_CHECKING:
    from headrace.spark.sinks import Sink


def open_sink(channel: config.ChannelConfig, member: str, kafka: config.KafkaConfig) -> Sink[Any]:
    """Build a channel's sink for a member of this name; ``kafka`` is the cluster that is read.

    Raises:
        ConfigError: the path, the url or a property cannot be used.
        StartError: the sink takes an extra that is not installed, or its factory cannot be used.
    """
    match channel.sink:
        case None:
            raise AssertionError("the configuration demands a sink")
        case config.KafkaSinkConfig(topic=topic):
            return KafkaSink(KafkaResults(client_properties(kafka), channel.group, member), topic)
        case section:
            return build_sink(section, member)
