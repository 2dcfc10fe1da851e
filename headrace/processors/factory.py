"""From a channel's configuration to its processor and its sink.

Here an engine is chosen, and imported: a process has the libraries of those that it uses only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace import config
from headrace.core.errors import ImportPathError
from headrace.core.extras import Extra, required
from headrace.core.imports import load_callable, make
from headrace.kafka.java_client import java_client_properties
from headrace.processors.contract import BatchProcessor
from headrace.sinks.factory import open_sink

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.core.call_watch import CallWatch
    from headrace.extensions.spark.arrow_to_spark import SparkInput
    from headrace.extensions.spark.reducer import Reducer
    from headrace.extensions.spark.runtime import SparkRuntime
    from headrace.processors.engine import Engine
    from headrace.sinks import Sink


def build_processor(
    channel: config.ChannelConfig,
    spark: Callable[[], SparkRuntime],
    member: str,
    kafka: config.KafkaConfig | None = None,
    state: Path | None = None,
) -> BatchProcessor:
    """Build what ``channel.processor`` describes, for a member of this name.

    ``spark`` is called only where it is needed. ``kafka`` is the cluster that is read, ``state``
    the folder of the channel's own: for its state, and for what call its reducer is in.

    Raises:
        StartError: code that it names cannot be imported or has a wrong shape.
        ConfigError: the sink's path cannot be used, or Spark cannot be told how to reach Kafka.
    """
    cluster = kafka or config.KafkaConfig()
    match channel.processor:
        case config.SparkProcessorConfig() as chosen:
            sink = open_sink(channel, member, cluster)
            return _spark(channel, chosen, spark(), sink, _input(channel, cluster))
        case config.ArrowProcessorConfig() as chosen:
            return _arrow(channel, chosen, open_sink(channel, member, cluster), state)
        case config.KeyedProcessorConfig():
            with required(Extra.KEYED, f"the keyed processor of group {channel.group}"):
                from headrace.extensions.keyed.runtime.build import build_keyed  # noqa: PLC0415 - an extra

            assert state is not None, "a channel with state has a folder"
            return build_keyed(channel, spark, member, cluster, state)
        case config.RekeyProcessorConfig():
            from headrace.extensions.keyed.runtime.rekey import build_rekey  # noqa: PLC0415 - as above

            return build_rekey(channel, spark, member, cluster, state)
        case config.SimpleProcessorConfig() as chosen:
            return _simple(channel, chosen)
        case config.CustomProcessorConfig() as chosen:
            return _custom(chosen)


def _spark(
    channel: config.ChannelConfig,
    chosen: config.SparkProcessorConfig,
    runtime: SparkRuntime,
    sink: Sink[Any],
    source: SparkInput,
) -> BatchProcessor:
    from headrace.extensions.spark.engine import SparkEngine  # noqa: PLC0415 - as above
    from headrace.extensions.spark.reducer import send_by_value  # noqa: PLC0415 - as above
    from headrace.processors.micro_batch_processor import decode  # noqa: PLC0415 - for this engine

    for each in config.single_sinks(channel.sink).values():
        if each.code is not None:
            send_by_value(load_callable(each.code))
    engine = SparkEngine(runtime, reducer_of(chosen), decode(chosen, channel.rejects), source)
    return _micro_batches(channel, engine, sink)


def _input(channel: config.ChannelConfig, kafka: config.KafkaConfig) -> SparkInput:
    from headrace.extensions.spark.arrow_to_spark import ByReference, ByValue  # noqa: PLC0415 - as above

    if channel.by_reference:
        properties = java_client_properties(kafka)
        return ByReference(properties, channel.group, channel.batch.max_records)
    return ByValue()


def _arrow(
    channel: config.ChannelConfig,
    chosen: config.ArrowProcessorConfig,
    sink: Sink[Any],
    folder: Path | None,
) -> BatchProcessor:
    from headrace.core.call_watch import CallWatch  # noqa: PLC0415 - for this engine only
    from headrace.extensions.arrow.engine import ArrowEngine  # noqa: PLC0415 - for this engine only
    from headrace.extensions.arrow.reducer import (  # noqa: PLC0415 - as above
        WatchedReducer,
        load_arrow_reducer,
    )
    from headrace.processors.micro_batch_processor import decode  # noqa: PLC0415 - as above

    calls = CallWatch(None if folder is None else folder / "call")
    reducer = WatchedReducer(load_arrow_reducer(chosen.reducer), calls)
    engine = ArrowEngine(reducer, decode(chosen, channel.rejects), calls)
    return _micro_batches(channel, engine, sink, calls)


def _micro_batches(
    channel: config.ChannelConfig,
    engine: Engine,
    sink: Sink[Any],
    calls: CallWatch | None = None,
) -> BatchProcessor:
    from headrace.processors.admission import AdmissionRules  # noqa: PLC0415 - for an engine only
    from headrace.processors.micro_batch_processor import (  # noqa: PLC0415 - as above
        JOB_SHARE,
        MicroBatchProcessor,
        merge_limits,
    )

    return MicroBatchProcessor(
        engine,
        sink,
        limits=merge_limits(channel),
        job_timeout=channel.batch_timeout * JOB_SHARE,
        admission=AdmissionRules.of(channel),
        calls=calls,
    )


def reducer_of(chosen: config.SparkProcessorConfig) -> Reducer:
    """Return the reducer that is configured: a function, a query, or a function for the workers.

    Raises:
        ImportPathError: it cannot be imported, or called as it will be.
    """
    from headrace.extensions.arrow.reducer import load_arrow_reducer  # noqa: PLC0415 - as above
    from headrace.extensions.spark.reducer import WorkerReducer, load_reducer  # noqa: PLC0415 - as above
    from headrace.extensions.spark.sql import SqlReducer  # noqa: PLC0415 - as above

    if chosen.sql is not None:
        return SqlReducer(chosen.sql)
    if chosen.arrow is not None:
        assert chosen.result is not None, "the configuration demands it"
        return WorkerReducer(load_arrow_reducer(chosen.arrow), chosen.result)
    assert chosen.reducer is not None, "the configuration demands one of them"
    return load_reducer(chosen.reducer)


def _simple(channel: config.ChannelConfig, chosen: config.SimpleProcessorConfig) -> BatchProcessor:
    assert channel.sink is not None, "the configuration demands a function"
    assert channel.sink.code is not None, "the configuration demands a function"
    from headrace.processors.simple import (  # noqa: PLC0415 - for this processor only
        CommitFirstProcessor,
        SimpleKafkaProcessor,
        SimpleOptions,
    )

    function = load_callable(channel.sink.code, chosen.deliver)
    options = SimpleOptions.of(chosen)
    if chosen.no_duplication:
        return CommitFirstProcessor(function, options)
    return SimpleKafkaProcessor(function, options)


def _custom(chosen: config.CustomProcessorConfig) -> BatchProcessor:
    processor = make(chosen.factory, chosen.keyword_arguments())
    if not isinstance(processor, BatchProcessor):
        raise ImportPathError(
            f"{chosen.factory!r} returned a {type(processor).__name__}; it must return a "
            "headrace.BatchProcessor"
        )
    return processor
