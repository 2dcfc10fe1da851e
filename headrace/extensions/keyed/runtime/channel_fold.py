"""The grouping and folding of a channel's micro-batches, as its configuration says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.config import KeyedRejects, single_sinks
from headrace.core.clock import SYSTEM_CLOCK
from headrace.core.imports import load_callable
from headrace.extensions.keyed.fold import fold_of
from headrace.extensions.keyed.function import KeyedFunction
from headrace.extensions.keyed.names import changelog_name
from headrace.extensions.keyed.rows import RowSettings, extension_of, time_of_field
from headrace.extensions.keyed.section import KeyedProcessorConfig
from headrace.extensions.keyed.settings import FoldSettings
from headrace.extensions.keyed.sink import SinkTopics
from headrace.extensions.keyed.tables import DEAD_LETTERS
from headrace.sinks.sections import KafkaSinkConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.config import ChannelConfig
    from headrace.core.decoders import CustomDecoder
    from headrace.core.letter_headers import LetterHeaders
    from headrace.extensions.keyed.api import KeyedReducer
    from headrace.extensions.keyed.runtime.engines import CodeWatches
    from headrace.extensions.keyed.state import LayeredState
    from headrace.extensions.keyed.tables import TableFunction


def sink_topics(channel: ChannelConfig) -> SinkTopics:
    """Return where outputs go, by their names; one that has no name is ``out``."""
    outputs: dict[str, str] = {}
    everywhere = set()
    for steps, sink in single_sinks(channel.sink).items():
        assert isinstance(sink, KafkaSinkConfig), "the configuration demands it"
        assert sink.topic is not None, "the configuration demands it"
        outputs["out" if len(steps) == 1 else str(steps[-1])] = sink.topic
        if sink.to_all:
            everywhere.add(sink.topic)
    if channel.rejects.topic is not None:
        outputs[DEAD_LETTERS] = channel.rejects.topic
    changelog = changelog_name(channel.group, channel.topics[0])
    return SinkTopics(changelog, outputs, frozenset(everywhere))


def output_names(topics: SinkTopics) -> tuple[str, ...]:
    """Return the names that a reducer's outputs may go to."""
    return tuple(name for name in topics.outputs if name != DEAD_LETTERS)


class ChannelFold:
    """The function of a channel with state: records in, folded keys out.

    Reducer and decoder stay; the rest follows the configuration.
    """

    def __init__(  # noqa: PLR0917 - what a fold is made of
        self,
        reducer: KeyedReducer[Any, Any, Any],
        channel: ChannelConfig,
        outputs: tuple[str, ...],
        letters: LetterHeaders,
        decoder: CustomDecoder | None,
        watches: CodeWatches,
        state: LayeredState,
    ) -> None:
        self._reducer = reducer
        self._outputs = outputs
        self._letters = letters
        self._decoder = decoder
        self._watches = watches
        self._time = _time_of(keyed_settings(channel))
        #: What makes of a micro-batch's records the table that the sink takes.
        self.function = KeyedFunction(*self._made_of(channel), state, SYSTEM_CLOCK)

    def follow(self, channel: ChannelConfig) -> None:
        """Group and fold as ``channel`` says, from the next micro-batch on.

        Raises:
            ConfigError: the reducer refuses the limits.
        """
        self.function.follow(*self._made_of(channel))

    def _made_of(self, channel: ChannelConfig) -> tuple[TableFunction, RowSettings]:
        """Return the fold, and how records are grouped for it."""
        chosen, rejects = keyed_settings(channel), channel.rejects
        assert isinstance(rejects, KeyedRejects), "the configuration has the processor's"
        settings = FoldSettings(
            outputs=self._outputs,
            keys=chosen.keys,
            value=chosen.value,
            state=chosen.encoding,
            undecodable=rejects.undecodable,
            failing=rejects.failing,
            grace=_milliseconds(chosen.grace),
            late=rejects.late or "skip",
            ttl=_milliseconds(chosen.ttl),
            max_row=chosen.state.max_row,
            letters=self._letters,
            decoder=None if chosen.framed else self._decoder,
            framed=self._decoder if chosen.framed else None,
        )
        # what reads a field of JSON returns in any case
        watched = None if chosen.time_function is None else self._watches.here
        rows = RowSettings(
            chosen.key,
            self._time,
            settings.unreadable,
            self._letters,
            watched,
            extension_of(self._reducer),
        )
        return fold_of(self._reducer, settings, self._watches.of_fold), rows


def keyed_settings(channel: ChannelConfig) -> KeyedProcessorConfig:
    """Return what the configuration of a keyed channel says of its processor."""
    chosen = channel.processor
    assert isinstance(chosen, KeyedProcessorConfig), "another processor is another class"
    return chosen


def _time_of(chosen: KeyedProcessorConfig) -> Callable[[bytes | None], Any] | None:
    """Return what finds a record's time in its value, None where it is the record's own."""
    if chosen.time_function is not None:
        return load_callable(chosen.time_function)
    return None if chosen.time == "record" else time_of_field(chosen.time)


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
