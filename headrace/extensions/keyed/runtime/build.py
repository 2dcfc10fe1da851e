"""From the configuration of a channel with state to its processor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.clock import SYSTEM_CLOCK
from headrace.core.letter_headers import LetterHeaders
from headrace.extensions.keyed.codecs import DECODERS
from headrace.extensions.keyed.first_records import FirstRecords
from headrace.extensions.keyed.phases import PhaseReader
from headrace.extensions.keyed.rows import field_times
from headrace.extensions.keyed.runtime.channel_fold import (
    ChannelFold,
    output_names,
    sink_topics,
)
from headrace.extensions.keyed.runtime.clients import ChannelClients
from headrace.extensions.keyed.runtime.engines import engine_of, watch_code
from headrace.extensions.keyed.runtime.parts import KeyedParts
from headrace.extensions.keyed.runtime.processor import KeyedProcessor
from headrace.extensions.keyed.runtime.user_code import load_decoder, load_reducer, phases_of
from headrace.extensions.keyed.sink import KeyedSink
from headrace.extensions.keyed.state import LayeredState
from headrace.extensions.keyed.store import RocksStore
from headrace.kafka.clients import client_properties
from headrace.processors.micro_batch_processor import JOB_SHARE, merge_limits
from headrace.processors.task_merge import MergeRules, record_times

if TYPE_CHECKING:
    from headrace.config import ChannelConfig, ProcessorSite
    from headrace.extensions.keyed.section import KeyedProcessorConfig


def build_keyed(chosen: KeyedProcessorConfig, site: ProcessorSite) -> KeyedProcessor:
    """Build the processor of a channel with state, whose store is in the channel's folder.

    Raises:
        StartError: the reducer cannot be imported or made.
    """
    channel, folder = site.channel, site.state
    assert folder is not None, "a channel with state has a folder"
    clients = ChannelClients(client_properties(site.kafka), channel.group)
    topics = sink_topics(channel)
    letters = LetterHeaders(channel.rejects.headers, channel.group)
    decoder = load_decoder(chosen, site.registry)
    outputs = output_names(topics)
    reducer = load_reducer(chosen, outputs)
    phases = phases_of(chosen, reducer)
    phase_of = (
        None if phases is None else PhaseReader(channel.group, phases, DECODERS[chosen.encoding])
    )
    store = RocksStore(folder / "db", chosen.state.cache, phase_of)
    state = LayeredState(store)
    watches = watch_code(chosen.engine, channel.group, folder)
    fold = ChannelFold(reducer, channel, outputs, letters, decoder, watches, state)
    engine = engine_of(channel.group, site.spark, fold.function, reducer, decoder, watches)
    first = FirstRecords(chosen.code)
    parts = KeyedParts(
        fold.follow,
        KeyedSink(clients.transactions(site.member), state, topics, SYSTEM_CLOCK, first),
        state,
        store,
        catalog=clients.catalog,
        source=clients.changelog_source,
        holder=clients.holder,
        phases=phases,
    )
    return KeyedProcessor(
        engine,
        parts,
        channel,
        limits=merge_limits(channel),
        job_timeout=channel.batch_timeout * JOB_SHARE,
        calls=watches.here,
        tasks=_merge_rules(chosen, channel),
    )


def _merge_rules(chosen: KeyedProcessorConfig, channel: ChannelConfig) -> MergeRules | None:
    """Return how the topics of a task are merged, None of a channel with one topic."""
    if len(channel.topics) == 1:
        return None
    times = record_times if chosen.time == "record" else field_times(chosen.time)
    return MergeRules(channel.topics, chosen.task_idle, times)
