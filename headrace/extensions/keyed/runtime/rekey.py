"""The processor of channels that write records again by another key."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from headrace.config import RekeyRejects
from headrace.config.types.secrets import reveal_all
from headrace.core.clock import Deadline
from headrace.core.errors import ImportPathError
from headrace.core.imports import load_callable, make
from headrace.core.letter_headers import LetterHeaders
from headrace.core.records import identity_of
from headrace.extensions.keyed.names import REKEY_SUFFIX, changelog_name, is_by_key
from headrace.extensions.keyed.rekey import Rekey, RekeyFunction, RekeySettings, RekeySink
from headrace.extensions.keyed.runtime.engines import engine_of, watch_code
from headrace.extensions.keyed.runtime.user_code import load_decoder
from headrace.extensions.keyed.section import RekeyProcessorConfig, refuse_key
from headrace.extensions.keyed.topics import open_by_key, require_state
from headrace.kafka import KafkaTopicCatalog, ResultTransactions
from headrace.kafka.clients import client_properties
from headrace.processors.micro_batch_processor import (
    JOB_SHARE,
    MicroBatchProcessor,
    merge_limits,
)
from headrace.sinks.sections import KafkaSinkConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.config import ChannelConfig, ProcessorSite
    from headrace.extensions.keyed.api import Event

#: Seconds in which the brokers have to say what the by-key topic is, at the start.
START_TIMEOUT = 30.0


def build_rekey(chosen: RekeyProcessorConfig, site: ProcessorSite) -> MicroBatchProcessor:
    """Build the processor of a channel that re-keys, which notes its calls in its folder.

    Raises:
        StartError: the function that says the key cannot be imported, or Spark is not installed.
    """
    channel = site.channel
    target, rejects = channel.sink, channel.rejects
    assert isinstance(target, KafkaSinkConfig), "the configuration demands it"
    assert target.topic is not None, "the configuration demands it"
    assert isinstance(rejects, RekeyRejects), "the configuration has the processor's"
    topic, properties = target.topic, client_properties(site.kafka)
    decoder = load_decoder(chosen, site.registry)
    settings = RekeySettings(
        chosen.key,
        topic,
        chosen.value,
        rejects.undecodable,
        rejects.topic,
        LetterHeaders(rejects.headers, channel.group),
        decoder if chosen.framed is None else None,
        decoder if chosen.framed is not None else None,
    )
    user_code = _load_key(chosen)
    watches = watch_code(chosen.engine, channel.group, site.state)
    rekey = Rekey(settings, user_code, watches.of_fold)
    transactions = ResultTransactions(properties, channel.group, site.member)

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

    code = user_code or rekey
    return MicroBatchProcessor(
        engine_of(channel.group, site.spark, RekeyFunction(rekey), code, decoder, watches),
        RekeySink(transactions, prepare),
        limits=merge_limits(channel),
        job_timeout=channel.batch_timeout * JOB_SHARE,
        calls=watches.here,
    )


def _load_key(chosen: RekeyProcessorConfig) -> Callable[[Event[Any]], Any] | None:
    """Return the function that says the key, None where it is found without one.

    Raises:
        ImportPathError: it cannot be imported or made.
    """
    if chosen.code is None or chosen.options is None:
        return None if chosen.code is None else load_callable(chosen.code, "event")
    found = make(chosen.code, reveal_all(chosen.options))
    if not callable(found):
        raise ImportPathError(
            f"{chosen.code!r} returned a {type(found).__name__}, which cannot be called; have it "
            "return a function of an event"
        )
    function: Callable[[Event[Any]], Any] = found
    return function


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
    key, changelog = chosen.key, changelog_name(group, topic)
    require_state(marks, lambda former: refuse_key(former, key, changelog))
