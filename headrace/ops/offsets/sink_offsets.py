"""The offsets of a channel that live outside of the group: those that its sink keeps."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from headrace.config.models.processor import MergingConfig
from headrace.extensions.keyed.section import StateProcessorConfig
from headrace.ops.offsets.hold import own_name
from headrace.processors.contract import keeps_own_offsets
from headrace.processors.sections import SimpleProcessorConfig
from headrace.sinks.contract import Guarantee, TransactionalOffsets
from headrace.sinks.several import SeveralSink

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from typing import Any

    from headrace import config
    from headrace.sinks import Sink
    from headrace.sinks.several import OutputOffsetMoves


@dataclass(frozen=True, slots=True)
class StartPrecedence:
    """The keeper of offsets that win over the group's at the start.

    ``sink_offsets`` is a sink that can be asked and changed. ``out_of_reach`` names a processor or
    a sink that keeps offsets where only its own code finds them.
    """

    sink_offsets: TransactionalOffsets | None = None
    out_of_reach: str | None = None


def start_precedence(
    channel: config.ChannelConfig, python_path: Iterable[Path], kafka: config.KafkaConfig
) -> StartPrecedence:
    """Find out what keeps offsets for a channel. Custom code is imported and called for it.

    Raises:
        ConfigError: a sink's path cannot be used.
        StartError: the processor, or a custom sink, cannot be imported or built.
    """
    chosen = channel.processor
    if isinstance(chosen, StateProcessorConfig):
        moved_by = "which headrace state forget and import move,"
        return StartPrecedence(out_of_reach=f"state of the {chosen.type} processor, {moved_by}")
    if isinstance(chosen, MergingConfig):
        from headrace.sinks.factory import open_sink  # noqa: PLC0415 - pyspark takes a second

        _import_from(python_path)
        return _kept_by(channel, open_sink(channel, own_name(), kafka))
    if isinstance(chosen, SimpleProcessorConfig):
        return StartPrecedence()
    from headrace.processors.factory import build_processor  # noqa: PLC0415 - imports users' code

    _import_from(python_path)
    processor = build_processor(channel, _no_spark, own_name(), kafka)
    keeps, paths = keeps_own_offsets(processor), chosen.code_paths
    named = f"processor {paths[0]}" if paths else f"processor of type {chosen.type}"
    return StartPrecedence(out_of_reach=named if keeps else None)


def _import_from(python_path: Iterable[Path]) -> None:
    sys.path[:0] = [f for f in map(str, python_path) if f not in sys.path]


def _kept_by(channel: config.ChannelConfig, sink: Sink[Any]) -> StartPrecedence:
    if isinstance(sink, SeveralSink):
        return _kept_by_outputs(sink.offset_moves)
    if isinstance(sink, TransactionalOffsets):
        return StartPrecedence(sink_offsets=sink)
    if sink.guarantee is Guarantee.EXACTLY_ONCE:
        assert channel.sink is not None, "it was built of its section"
        named = channel.sink.code or f"of type {channel.sink.type}"
        return StartPrecedence(out_of_reach=f"sink {named}")
    return StartPrecedence()


def _kept_by_outputs(outputs: OutputOffsetMoves) -> StartPrecedence:
    if not outputs.outputs:
        return StartPrecedence()
    fixed = outputs.unmovable()
    return (
        StartPrecedence(sink_offsets=outputs)
        if fixed is None
        else StartPrecedence(out_of_reach=f"output {fixed}")
    )


def _no_spark() -> NoReturn:
    raise AssertionError("a custom processor is built without Spark")
