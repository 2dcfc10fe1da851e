"""From the configuration to a processor in this process, apart from the section: it needs Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.call_watch import CallWatch
from headrace.extensions.arrow.engine import ArrowEngine
from headrace.extensions.arrow.reducer import WatchedReducer, load_arrow_reducer
from headrace.processors.micro_batch_processor import decode, micro_batch_processor
from headrace.sinks.factory import open_sink

if TYPE_CHECKING:
    from headrace.config.models.processor import ProcessorSite
    from headrace.extensions.arrow.section import ArrowProcessorConfig
    from headrace.processors.contract import BatchProcessor


def build_arrow(chosen: ArrowProcessorConfig, site: ProcessorSite) -> BatchProcessor:
    """Build the processor of micro-batches that a reducer in this process reduces.

    Raises:
        StartError: code that it names cannot be imported or has a wrong shape.
        ConfigError: the sink's path cannot be used.
    """
    channel = site.channel
    sink = open_sink(channel, site.member, site.kafka, site.registry)
    calls = CallWatch(None if site.state is None else site.state / "call")
    reducer = WatchedReducer(load_arrow_reducer(chosen.reducer), calls)
    engine = ArrowEngine(reducer, decode(chosen, channel.rejects, site.registry), calls)
    return micro_batch_processor(channel, engine, sink, calls)
