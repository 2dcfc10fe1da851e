"""The ``sink`` of a channel: the section that each kind of sink derives its own from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from headrace.config.kind_table import KindTable
from headrace.config.models.base import Restarts, Section
from headrace.core.plugins import PluginKind

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping

    from headrace.config.errors import ConfigProblem, FieldConflict, Steps
    from headrace.config.models.channel import ChannelConfig
    from headrace.config.models.kafka import KafkaConfig
    from headrace.config.models.registry import RegistryConfig
    from headrace.core.extras import Extra
    from headrace.core.findings import Finding

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SinkSite:
    """The channel that a sink is built for: its group, and the name of this member.

    ``kafka`` is the cluster that the channel reads, ``registry`` has the schemas of values, None
    where there is none.
    """

    member: str
    group: str
    kafka: KafkaConfig
    registry: RegistryConfig | None = None
    _shared: dict[Hashable, Any] = field(default_factory=dict)

    def share(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return what the outputs of this channel share under a key, made for the first of them."""
        if key not in self._shared:
            self._shared[key] = make()
        shared: T = self._shared[key]
        return shared


class SinkConfig(Section):
    """A kind of sink: its fields, and the answers that Headrace needs about it.

    A class derives from it, gives ``type`` a default, which is the name of the kind, and overrides
    ``build`` and those answers that are not right for it. Reading the configuration imports the
    class; a heavy library is imported in ``build``.
    """

    takes_results: ClassVar[bool] = True
    """True if it stores what a reducer returns, by itself and as one of several outputs."""

    writes_records: ClassVar[bool] = False
    """True if it stores records in the cluster that is read, in the member's transactions."""

    keeps_output: ClassVar[bool] = True
    """True if what it stores is still there when records are read again."""

    type: Restarts[str]
    """The kind of sink."""

    def build(self, site: SinkSite) -> object:
        """Return a new sink, an object as ``headrace.Sink`` describes it.

        Called once for each start of the channel, in the thread that starts it, before the former
        sink is closed when a reload replaces it.

        Raises:
            ConfigError: a value cannot be used.
            StartError: a library is missing, or what the section names cannot be imported.
        """
        raise NotImplementedError(f"{type(self).__name__} overrides build")

    @property
    def exactly_once(self) -> str | None:
        """Return why each record counts once, None where rows may be written again.

        The sentence goes on in ``headrace check`` after "exactly-once: ". The sink that ``build``
        returns then has ``Guarantee.EXACTLY_ONCE``.
        """
        return None

    @property
    def at_least_once(self) -> str:
        """Return why rows may be written again, where ``exactly_once`` is None."""
        return f"the {self.type} sink keeps no offsets, so rows may be written again after a crash"

    @property
    def place(self) -> object:
        """Return what identifies the store of its offsets; None: it keeps none.

        Two outputs of a channel cannot have the same place.
        """
        return None

    @property
    def transaction(self) -> Hashable | None:
        """Return what is equal for outputs that are committed together; None: each by itself.

        Their sinks are of one class, whose ``commit_together(staged, offsets)`` commits them.
        """
        return None

    @property
    def extras(self) -> tuple[tuple[Steps, Extra], ...]:
        """Return the extras of Headrace that it needs, each with the key that asks for it."""
        return ()

    @property
    def takes_registry(self) -> str | None:
        """Return the key by which values are written by schemas of a registry; None: none are."""
        return None

    @property
    def code(self) -> str | None:
        """Return the import path of users' code, which a reload follows; None: it names none."""
        return None

    @property
    def topic_written(self) -> str | None:
        """Return the one topic of the cluster that is read to which it writes, None without one."""
        return None

    @property
    def outputs_by_steps(self) -> Mapping[Steps, SinkConfig]:
        """Return the sinks that results go to, by their places in this section."""
        return {(): self}

    @property
    def replayed(self) -> str:
        """Return what becomes of rows whose records are read again: a sentence."""
        return "results go there again"

    @property
    def irreplaceable(self) -> str | None:
        """Return why output cannot be replaced by any sink of this kind, and what to do instead.

        None: a sink that is an ``OutputReplacer`` replaces it.
        """
        return None

    def conflicts_in(self, channel: ChannelConfig, at: Steps) -> Iterator[FieldConflict]:
        """Yield what does not fit the channel around it; ``at`` leads from that to this section."""
        del channel, at
        yield from ()

    def refused(self) -> Iterator[ConfigProblem]:
        """Yield what the start would fail for, by its place in this section. Asks no server."""
        yield from ()

    def check(self) -> Iterator[Finding]:
        """Yield what ``headrace doctor`` tells of it before a start. Blocks; may connect."""
        yield from ()


def _of_text(text: str) -> dict[str, Any]:
    """Return the section of bare text: a function's, or one without other fields than its type."""
    return {"type": "function", "function": text} if ":" in text else {"type": text}


#: The built-in sinks: the import path of each kind's section, by its type. To
#: add a sink, add its line here. The smallest example is ``ConsoleSinkConfig`` in sinks/sections.py
#: with ``ConsoleSink`` in sinks/console.py; one that keeps rows is ``JsonLinesSinkConfig``.
#: Its tests and pages: docs/architecture.md, To add a sink.
SINKS = KindTable(
    SinkConfig,
    PluginKind.SINK,
    {
        "delta": "headrace.extensions.delta.section:DeltaSinkConfig",
        "sql": "headrace.extensions.sql.section:SqlSinkConfig",
        "duckdb": "headrace.extensions.duckdb.section:DuckDbSinkConfig",
        "kafka": "headrace.sinks.sections:KafkaSinkConfig",
        "jsonl": "headrace.sinks.sections:JsonLinesSinkConfig",
        "console": "headrace.sinks.sections:ConsoleSinkConfig",
        "noop": "headrace.sinks.sections:NoopSinkConfig",
        "custom": "headrace.sinks.sections:CustomSinkConfig",
        "several": "headrace.sinks.sections:SeveralSinkConfig",
        "function": "headrace.sinks.sections:FunctionSinkConfig",
    },
    _of_text,
)

#: Those that can be one of several outputs.
OUTPUTS = SINKS.without("several", "function")


def single_sinks(sink: SinkConfig | None) -> Mapping[Steps, SinkConfig]:
    """Return the sinks that results go to, by their places in the channel."""
    if sink is None:
        return {}
    return {("sink", *steps): each for steps, each in sink.outputs_by_steps.items()}


def keeps_offsets(sink: SinkConfig | None) -> bool:
    """Return whether the sink keeps offsets, by which a start goes."""
    return any(each.exactly_once is not None for each in single_sinks(sink).values())


def refuses_late(sink: SinkConfig | None) -> bool:
    """Return whether the sink stores nothing for a former owner.

    That is so where all that it writes to keeps offsets.

    Of several outputs those that keep none are written before the others could refuse.
    """
    singles = single_sinks(sink).values()
    return bool(singles) and all(each.exactly_once is not None for each in singles)
