"""From the section of a topology's channel to its processor."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.config import StreamsRejects
from headrace.config.models.processor import FRAMED
from headrace.config.models.registry import ReaderSchemaConfig
from headrace.core.clock import SYSTEM_CLOCK
from headrace.core.errors import ConfigError, StartError
from headrace.core.imports import load_callable
from headrace.core.letter_headers import LetterHeaders
from headrace.core.tables import Timestamps
from headrace.extensions.keyed.first_records import FirstRecords
from headrace.extensions.keyed.names import changelog_name
from headrace.extensions.keyed.runtime.clients import ChannelClients
from headrace.extensions.keyed.runtime.engines import engine_of, watch_code
from headrace.extensions.keyed.runtime.parts import KeyedParts
from headrace.extensions.keyed.sink import KeyedSink, SinkTopics
from headrace.extensions.keyed.state import LayeredState
from headrace.extensions.keyed.store import RocksStore
from headrace.extensions.keyed.tables import DEAD_LETTERS
from headrace.extensions.streams.decode import columns_of_row, misfits_of
from headrace.extensions.streams.engines import choose_engine
from headrace.extensions.streams.inline.run import topics_in_code
from headrace.extensions.streams.operators import Source, TableSource
from headrace.extensions.streams.runtime.fold import TopologyFold
from headrace.extensions.streams.runtime.operator_figures import OperatorFigures, store_prefixes
from headrace.extensions.streams.runtime.processor import StreamsProcessor
from headrace.extensions.streams.runtime.shared import SharedTables
from headrace.extensions.streams.runtime.tasks import RejectRules, times_of_rows
from headrace.extensions.streams.section import StreamsProcessorConfig
from headrace.formats import json_schema
from headrace.kafka.clients import client_properties
from headrace.processors.micro_batch_processor import (
    JOB_SHARE,
    merge_limits,
    reading_decoder,
)
from headrace.processors.task_merge import MergeRules

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.config import ChannelConfig, ProcessorSite
    from headrace.config.models.registry import RegistryConfig
    from headrace.core.decoders import CustomDecoder
    from headrace.extensions.streams.plan import Channel, Plan


def build_streams(chosen: StreamsProcessorConfig, site: ProcessorSite) -> StreamsProcessor:
    """Build the processor of a part of a topology, whose store is in the channel's folder.

    Raises:
        StartError: the topology cannot be planned, or the channel is not what its part is.
    """
    channel, folder = site.channel, site.state
    assert folder is not None, "a channel with state has a folder"
    plan, part = _planned(chosen, channel)
    plan = replace(plan, decoders=decoders_of(plan, chosen.reader_schemas, site.registry))
    clients = ChannelClients(client_properties(site.kafka), channel.group)
    store = RocksStore(folder / "db", chosen.state.cache, groups=store_prefixes(plan, part))
    state = LayeredState(store)
    engine_name = choose_engine(chosen.engine, plan, part).name
    watches = watch_code(engine_name, channel.group, folder)
    shared = SharedTables(plan, part)
    fold = TopologyFold(
        plan,
        part,
        state,
        _rules(channel),
        chosen.state.max_row,
        watches.here,
        watches.of_fold,
        shared.by_place,
        chosen.state.cache,
    )

    def follow(changed: ChannelConfig) -> None:
        section = changed.processor
        assert isinstance(section, StreamsProcessorConfig), "another processor starts again"
        fold.follow(_rules(changed), section.state.max_row)

    topics = _topics(channel, part)
    first = FirstRecords(chosen.code)
    sink = KeyedSink(clients.transactions(site.member), state, topics, SYSTEM_CLOCK, first)
    parts = KeyedParts(
        follow,
        sink,
        state,
        store,
        catalog=clients.catalog,
        source=clients.changelog_source,
        holder=clients.holder,
        operators=OperatorFigures(plan, part, state, store, sink).read,
    )
    return StreamsProcessor(
        engine_of(channel.group, site.spark, fold, load_callable(chosen.code), None, watches),
        parts,
        channel,
        fold=fold,
        by_key=chosen.made_topics(channel),
        formers=plan.former_parts(part),
        shared=shared,
        limits=merge_limits(channel),
        job_timeout=channel.batch_timeout * JOB_SHARE,
        calls=watches.here,
        tasks=_merge_rules(chosen, plan, part),
    )


def _planned(chosen: StreamsProcessorConfig, channel: ChannelConfig) -> tuple[Plan, Channel]:
    try:
        plan = chosen.plan()
        part = plan.part(chosen.part)
    except ConfigError as error:
        raise StartError(f"topology {chosen.topology}: {chosen.code} {error}") from error
    if part.topics != channel.topics:
        raise StartError(
            f"topology {chosen.topology}: part {chosen.part} reads {', '.join(part.topics)}, and "
            f"the channel has {', '.join(channel.topics)}; its code was changed since the "
            "configuration was read: reload that"
        )
    return plan, part


def decoders_of(
    plan: Plan,
    reader_schemas: Mapping[str, ReaderSchemaConfig],
    registry: RegistryConfig | None,
) -> dict[int, CustomDecoder]:
    """Return what reads values that name their schemas, by the sources' places.

    May ask the registry for the readers' schemas: ``reader_schemas`` by topics, or the latest of
    their subjects.

    Raises:
        ConfigError: there is no registry, or a reader's schema cannot be used.
        StartError: the registry does not have one, or does not answer, or rows are not made of it.
    """
    found: dict[int, CustomDecoder] = {}
    for place, operator in enumerate(plan.operators):
        if not isinstance(operator, Source | TableSource) or operator.codec not in FRAMED:
            continue
        assert operator.output is not None, "rows come out"
        topic, codec, row = operator.topic, operator.codec, operator.output.row
        if registry is None:
            said = f"topology {plan.name}: {operator.label} has codec {codec!r}"
            raise ConfigError([f"{said}, which needs the section registry; give registry.url"])
        if codec == "json_schema":
            decoder = json_schema.with_columns(
                json_schema.decoder_of(registry), columns_of_row(row), Timestamps.ISO
            )
        else:
            schema = reader_schemas.get(topic) or ReaderSchemaConfig(subject=f"{topic}-value")
            decoder = reading_decoder("codec", codec, schema, registry)
        decoder.load()
        problems = [] if decoder.kind is None else misfits_of(row, decoder.kind)
        if problems:
            raise StartError(
                f"topology {plan.name}: {operator.label}: rows of {row.__name__} are not made of "
                f"values in {codec}: {'; '.join(problems)}; change the class, or name another "
                f"schema in reader_schemas.{topic}"
            )
        found[place] = decoder
    return found


def _rules(channel: ChannelConfig) -> RejectRules:
    rejects = channel.rejects
    assert isinstance(rejects, StreamsRejects), "the configuration has the processor's"
    letters = LetterHeaders(rejects.headers, channel.group)
    return RejectRules(letters, rejects.failing, rejects.late)


def _topics(channel: ChannelConfig, part: Channel) -> SinkTopics:
    outputs = {topic: topic for topic in part.writes}
    if channel.rejects.topic is not None:
        outputs[DEAD_LETTERS] = channel.rejects.topic
    return SinkTopics(changelog_name(channel.group, channel.topics[0]), outputs)


def _merge_rules(chosen: StreamsProcessorConfig, plan: Plan, part: Channel) -> MergeRules | None:
    """Return how the topics of a task are merged, None of a part that reads one."""
    if len(part.topics) == 1:
        return None
    topics = tuple(topics_in_code(plan, part))
    # an answer counts whenever it comes, and to wait for one would hold up what makes it
    free = plan.answer_topics.intersection(topics)
    return MergeRules(topics, chosen.task_idle, times_of_rows(plan, topics), free=free)
