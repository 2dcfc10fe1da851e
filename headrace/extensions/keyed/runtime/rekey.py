"""The processor of channels that write records again by another key."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

from headrace.config import KafkaSinkConfig, RekeyProcessorConfig, RekeyRejects
from headrace.config.derived import REKEY_SUFFIX, changelog_name, is_by_key
from headrace.core.call_watch import CallWatch
from headrace.core.clock import Deadline
from headrace.core.imports import load_callable
from headrace.core.letter_headers import LetterHeaders
from headrace.core.records import identity_of
from headrace.extensions.arrow.engine import ArrowEngine
from headrace.extensions.keyed.rekey import Rekey, RekeyFunction, RekeySettings, RekeySink
from headrace.extensions.keyed.runtime.engines import spark_engine, watch_workers
from headrace.extensions.keyed.topics import open_by_key, require_key
from headrace.kafka import KafkaTopicCatalog, ResultTransactions
from headrace.kafka.clients import client_properties
from headrace.processors.micro_batch_processor import (
    JOB_SHARE,
    MicroBatchProcessor,
    decoder_of,
    merge_limits,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from headrace.config import ChannelConfig, KafkaConfig
    from headrace.extensions.spark.runtime import SparkRuntime
    from headrace.processors.engine import Engine

#: Seconds in which the brokers have to say what the by-key topic is, at the start.
START_TIMEOUT = 30.0


def build_rekey(
    channel: ChannelConfig,
    spark: Callable[[], SparkRuntime],
    member: str,
    kafka: KafkaConfig,
    folder: Path | None,
) -> MicroBatchProcessor:
    """Build the processor of a channel that re-keys, which notes its calls in ``folder``.

    Raises:
        StartError: the function that says the key cannot be imported, or Spark is not installed.
    """
    chosen, target, rejects = channel.processor, channel.sink, channel.rejects
    assert isinstance(chosen, RekeyProcessorConfig), "another processor is built elsewhere"
    assert isinstance(target, KafkaSinkConfig), "the configuration demands it"
    assert target.topic is not None, "the configuration demands it"
    assert isinstance(rejects, RekeyRejects), "the configuration has the processor's"
    topic, properties = target.topic, client_properties(kafka)
    decoder = decoder_of(chosen.decoder)
    if decoder is not None:
        decoder.load()
    settings = RekeySettings(
        chosen.key,
        topic,
        chosen.value,
        rejects.undecodable,
        rejects.topic,
        LetterHeaders(rejects.headers, channel.group),
        decoder,
    )
    user_code = None if chosen.code is None else load_callable(chosen.code, "event")
    calls = CallWatch(None if folder is None else folder / "call")
    workers = None if chosen.engine == "arrow" else watch_workers(channel.group, calls, folder)
    rekey = Rekey(settings, user_code, calls if workers is None else cast("CallWatch", workers))
    function = RekeyFunction(rekey)
    transactions = ResultTransactions(properties, channel.group, member)

    def prepare() -> None:
        with closing(KafkaTopicCatalog(properties, channel.group)) as catalog:
            open_by_key(
                catalog,
                topic,
                channel.subscription.names,
                Deadline.after(START_TIMEOUT),
                create=chosen.internal.create,
                replication_factor=chosen.internal.replication_factor,
                partitions=chosen.internal.partitions,
            )
            _require_key(catalog, properties, channel, topic)

    engine: Engine
    if workers is None:
        engine = ArrowEngine(function, calls=calls)
    else:
        engine = spark_engine(
            channel.group, spark, function.reduce, user_code or rekey, decoder, workers
        )
    return MicroBatchProcessor(
        engine,
        RekeySink(transactions, prepare),
        limits=merge_limits(channel),
        job_timeout=channel.batch_timeout * JOB_SHARE,
        calls=calls,
    )


def _require_key(
    catalog: KafkaTopicCatalog, properties: Mapping[str, Any], channel: ChannelConfig, topic: str
) -> None:
    """Return if the state that is made of a by-key topic is of facts by the channel's key.

    Raises:
        StartError: it is of another one; or no broker answered.
    """
    group, chosen = channel.group.removesuffix(REKEY_SUFFIX), channel.processor
    assert isinstance(chosen, RekeyProcessorConfig), "another processor is built elsewhere"
    if not is_by_key(group, topic):
        return
    deadline = Deadline.after(START_TIMEOUT)
    info, cluster = catalog.describe([topic], deadline)[topic], catalog.cluster_id(deadline)
    names = [identity_of(cluster, group, info.topic_id, n) for n in range(info.partitions)]
    with closing(ResultTransactions(properties, group, channel.group)) as transactions:
        stored = transactions.last_entries(names, deadline).values()
    marks = [each.changelog for each in stored if each.changelog is not None]
    require_key(marks, chosen.key, changelog_name(group, topic))
