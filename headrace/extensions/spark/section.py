"""The section of the spark processor."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar, Literal

from typing_extensions import override

from headrace.config.errors import FieldConflict
from headrace.config.models.base import OnlyWith, Restarts, Section
from headrace.config.models.processor import MicroBatchConfig
from headrace.config.types.scalars import FreeText, ImportPath
from headrace.core.extras import Extra

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config import ChannelConfig
    from headrace.config.errors import ConfigProblem, Steps

#: What is quoted in a schema: names, and comments.
_QUOTED = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")

_LIMITED_TEXT = re.compile(r"\b(?:VAR)?CHAR(?:ACTER)?\s*\(\s*\d+\s*\)", re.IGNORECASE)


class SparkReducerConfig(Section):
    """The reducer, which turns the micro-batches of the spark processor into rows."""

    only: ClassVar = {"result": (OnlyWith.none_of("arrow", None, example="arrow"),)}

    reducer: Restarts[ImportPath | None] = None
    """The function reduce(df, batch), which returns a DataFrame or None. Either this, sql or
    arrow."""

    sql: Restarts[FreeText | None] = None
    """A query over the view batch, which has a micro-batch's records."""

    arrow: Restarts[ImportPath | None] = None
    """The function reduce(table, batch), which Spark's workers call with the part of a micro-batch
    that each task has, and which returns a pyarrow.Table or None."""

    result: Restarts[FreeText | None] = None
    """The columns that arrow returns, in Spark's DDL, such as "carrier STRING, total BIGINT"."""

    def conflicts(self) -> Iterator[FieldConflict]:
        ways = [name for name in ("reducer", "sql", "arrow") if getattr(self, name) is not None]
        if not ways:
            yield FieldConflict(
                ("reducer",),
                "is missing; give an import path such as package.module:name, or a query as sql",
            )
        for other in ways[1:]:
            yield FieldConflict((other,), f"is given beside {ways[0]}; give one of them")
        if self.arrow is not None and self.result is None:
            yield FieldConflict(("result",), "is missing; arrow needs the columns that it returns")


# the fields of the last base come first
class SparkProcessorConfig(MicroBatchConfig, SparkReducerConfig):
    """Batches are merged into micro-batches, which a reducer turns into rows for the sink."""

    only: ClassVar = {**MicroBatchConfig.only, **SparkReducerConfig.only}
    reads_by_reference: ClassVar[bool] = True

    builder: ClassVar[str] = "headrace.extensions.spark.build:build_spark"

    type: Restarts[Literal["spark"]] = "spark"
    """This processor."""

    @property
    def on_spark(self) -> bool:
        return True

    @property
    def code_paths(self) -> tuple[str, ...]:
        path = self.reducer or self.arrow
        return () if path is None else (path,)

    @override
    def called(self, channel: ChannelConfig) -> tuple[str, tuple[str, ...]] | None:
        if self.arrow is not None:
            return self.arrow, ("table", "batch")
        return None if self.reducer is None else (self.reducer, ("df", "batch"))

    @property
    def makes_one_result(self) -> str | None:
        if self.reducer is not None:
            return None
        return "sql" if self.sql is not None else "arrow"

    @property
    def extras(self) -> tuple[tuple[Steps, Extra], ...]:
        return ((("type",), Extra.SPARK), *super().extras)

    def refused(self) -> Iterator[ConfigProblem]:
        """Yield what Spark would refuse with the first batch. The rest takes a session."""
        if not self.ddl or self.decode != "json":
            return
        found = _LIMITED_TEXT.search(_QUOTED.sub("x", self.ddl))
        if found is not None:
            sentence = (
                f"{self.ddl!r} has {found[0]}, to which Spark decodes no JSON; write STRING, and "
                "have the reducer look at the length"
            )
            yield ("schema",), sentence
