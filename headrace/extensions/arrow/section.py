"""The section of the arrow processor."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from typing_extensions import override

from headrace.config.models.base import Restarts, Section
from headrace.config.models.processor import MicroBatchConfig
from headrace.config.types.scalars import ImportPath
from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config import ChannelConfig
    from headrace.config.errors import ConfigProblem


class ArrowReducerConfig(Section):
    """The reducer, which turns the micro-batches of the arrow processor into rows."""

    reducer: Restarts[ImportPath]
    """The function reduce(table, batch), which returns a pyarrow.Table or None."""


# the fields of the last base come first
class ArrowProcessorConfig(MicroBatchConfig, ArrowReducerConfig):
    """Batches are merged into micro-batches, which a reducer in this process turns into rows."""

    builder: ClassVar[str] = "headrace.extensions.arrow.build:build_arrow"

    type: Restarts[Literal["arrow"]] = "arrow"
    """This processor. It needs no Spark, and no JVM is started for it."""

    @property
    def code_paths(self) -> tuple[str, ...]:
        return (self.reducer,)

    @override
    def called(self, channel: ChannelConfig) -> tuple[str, tuple[str, ...]]:
        return self.reducer, ("table", "batch")

    def refused(self) -> Iterator[ConfigProblem]:
        if not self.ddl:
            return
        from headrace.core.tables import Decoding  # noqa: PLC0415 - takes a while to import
        from headrace.extensions.arrow.decode import schema_of  # noqa: PLC0415

        try:
            schema_of(Decoding.JSON if self.decoder is None else Decoding.CUSTOM, self.ddl)
        except ConfigError as error:
            for problem in error.problems:
                yield ("schema",), problem.removeprefix("decode schema ")
