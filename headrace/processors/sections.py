"""The sections of the processors that come with the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from headrace.config.delivery import DeliveryGuarantee
from headrace.config.errors import FieldConflict
from headrace.config.models.base import Hot, OnlyWith, Restarts
from headrace.config.models.processor import ProcessorConfig
from headrace.config.types.scalars import Flag, PositiveNumber, ProcessorFactory
from headrace.config.types.secrets import Options, reveal_all
from headrace.config.types.units import NonNegativeSeconds, PositiveSeconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config import ChannelConfig
    from headrace.config.models.processor import ProcessorSite
    from headrace.processors.contract import BatchProcessor

_AUTO_ADVANCE_INTERVAL = 30.0


class SimpleProcessorConfig(ProcessorConfig):
    """Batches or single records go to a function."""

    only: ClassVar = {"auto_advance_interval": (OnlyWith.one_of("auto_advance", "periodic"),)}

    fitting_sinks: ClassVar[tuple[str, ...] | None] = ("function",)

    type: Restarts[Literal["simple"]] = "simple"
    """This processor."""

    deliver: Restarts[Literal["batch", "record"]] = "batch"
    """The argument of the function: a whole batch, or one record at a time."""

    auto_advance: Restarts[Literal["every-batch", "periodic"]] = "every-batch"
    """The moment at which offsets advance: with each batch, or by a timer."""

    auto_advance_interval: Hot[PositiveSeconds] = _AUTO_ADVANCE_INTERVAL
    """The timer's interval."""

    no_duplication: Restarts[Flag] = False
    """Commit before processing: a record is then lost rather than delivered again."""

    max_read_rate: Hot[Annotated[float, PositiveNumber()] | None] = None
    """The most records a second for this member; null: no limit."""

    delay: Hot[NonNegativeSeconds] = 0.0
    """Shortest time between a record's own timestamp and its delivery."""

    def conflicts(self) -> Iterator[FieldConflict]:
        periodic = self.auto_advance == "periodic"
        if periodic and self.no_duplication:
            yield FieldConflict(
                ("no_duplication",),
                "is true, which needs a commit before every batch; write auto_advance: every-batch",
            )

    @override
    def promise(self, channel: ChannelConfig) -> tuple[DeliveryGuarantee, str]:
        if self.no_duplication:
            return DeliveryGuarantee.AT_MOST_ONCE, (
                "no_duplication commits before the function runs, so what fails then is not "
                "repeated"
            )
        return DeliveryGuarantee.AT_LEAST_ONCE, (
            "offsets are committed after the function returns, so it may see records again"
        )

    @override
    def called(self, channel: ChannelConfig) -> tuple[str, tuple[str, ...]] | None:
        code = None if channel.sink is None else channel.sink.code
        return None if code is None else (code, (self.deliver,))

    def seconds_between_commits(self, configured: float) -> float:
        # the periodic auto-advance is one by a timer, which then is the timer of commits
        periodic = self.auto_advance == "periodic"
        return self.auto_advance_interval if periodic else configured

    @override
    def build(self, site: ProcessorSite) -> BatchProcessor:
        from headrace.core.imports import load_callable  # noqa: PLC0415 - for this processor only
        from headrace.processors.simple import (  # noqa: PLC0415
            CommitFirstProcessor,
            SimpleKafkaProcessor,
            SimpleOptions,
        )

        sink = site.channel.sink
        assert sink is not None, "the configuration demands a function"
        assert sink.code is not None, "the configuration demands a function"
        function = load_callable(sink.code, self.deliver)
        options = SimpleOptions.of(self)
        if self.no_duplication:
            return CommitFirstProcessor(function, options)
        return SimpleKafkaProcessor(function, options)


class CustomProcessorConfig(ProcessorConfig):
    """Batches go to a custom processor."""

    type: Restarts[Literal["custom"]] = "custom"
    """This processor."""

    factory: Restarts[ProcessorFactory]
    """The class or function that returns a BatchProcessor, or the name of a plug-in."""

    options: Restarts[Annotated[Mapping[str, Any], Options()]] = Field(default={})
    """The keyword arguments of the factory."""

    def keyword_arguments(self) -> dict[str, Any]:
        """Return ``options`` with the secrets in plain text, for the factory only."""
        return reveal_all(self.options)

    @property
    def code_paths(self) -> tuple[str, ...]:
        return (self.factory,)

    @override
    def called(self, channel: ChannelConfig) -> tuple[str, tuple[str, ...]]:
        return self.factory, ()

    @override
    def build(self, site: ProcessorSite) -> object:
        from headrace.core.imports import make  # noqa: PLC0415 - for this processor only

        return make(self.factory, self.keyword_arguments())
