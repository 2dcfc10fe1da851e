"""From the configuration to a processor on Spark, apart from the section, which needs no Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace import config
from headrace.core.imports import load_callable
from headrace.extensions.spark.arrow_to_spark import ByReference, ByValue
from headrace.extensions.spark.engine import SparkEngine
from headrace.extensions.spark.reducer import WorkerReducer, load_reducer, send_by_value
from headrace.extensions.spark.sql import SqlReducer
from headrace.kafka.java_client import java_client_properties
from headrace.processors.micro_batch_processor import decode, micro_batch_processor
from headrace.sinks.factory import open_sink

if TYPE_CHECKING:
    from headrace.config.models.processor import ProcessorSite
    from headrace.extensions.spark.arrow_to_spark import SparkInput
    from headrace.extensions.spark.reducer import Reducer
    from headrace.extensions.spark.section import SparkProcessorConfig
    from headrace.processors.contract import BatchProcessor


def build_spark(chosen: SparkProcessorConfig, site: ProcessorSite) -> BatchProcessor:
    """Build the processor of micro-batches that Spark reduces; starts Spark where it is not there.

    Raises:
        StartError: code that it names cannot be imported or has a wrong shape.
        ConfigError: the sink's path cannot be used, or Spark cannot be told how to reach Kafka.
    """
    channel = site.channel
    sink = open_sink(channel, site.member, site.kafka, site.registry)
    runtime, source = site.spark(), _input(channel, site.kafka)
    for each in config.single_sinks(channel.sink).values():
        if each.code is not None:
            send_by_value(load_callable(each.code))
    decoding = decode(chosen, channel.rejects, site.registry)
    engine = SparkEngine(runtime, reducer_of(chosen), decoding, source)
    return micro_batch_processor(channel, engine, sink)


def _input(channel: config.ChannelConfig, kafka: config.KafkaConfig) -> SparkInput:
    if channel.by_reference:
        properties = java_client_properties(kafka)
        return ByReference(properties, channel.group, channel.batch.max_records)
    return ByValue()


def reducer_of(chosen: SparkProcessorConfig) -> Reducer:
    """Return the reducer that is configured: a function, a query, or a function for the workers.

    Raises:
        ImportPathError: it cannot be imported, or called as it will be.
    """
    if chosen.sql is not None:
        return SqlReducer(chosen.sql)
    if chosen.arrow is not None:
        assert chosen.result is not None, "the configuration demands it"
        return WorkerReducer(load_callable(chosen.arrow, "table", "batch"), chosen.result)
    assert chosen.reducer is not None, "the configuration demands one of them"
    return load_reducer(chosen.reducer)
