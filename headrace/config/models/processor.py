"""The sections of the processors, and of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from headrace.config.errors import FieldConflict
from headrace.config.models.base import Hot, Rebuilds, Restarts, Section
from headrace.config.types.addresses import Connector
from headrace.config.types.scalars import (
    Count,
    Flag,
    FreeText,
    ImportPath,
    PositiveNumber,
    WholeNumber,
)
from headrace.config.types.secrets import Options, Properties, PropertyValue, reveal_all
from headrace.config.types.units import GIB, MIB, Duration, Pause, Size, Span

if TYPE_CHECKING:
    from collections.abc import Iterator


_FIELDS = {
    "spark.master": "master",
    "spark.app.name": "app_name",
    "spark.driver.memory": "driver_memory",
}

#: Spark refuses to start below 450 MiB of usable heap, and the collector keeps a part for itself.
_MIN_DRIVER_MEMORY = 512 * MIB


def _refusal(name: str) -> str | None:
    if name in _FIELDS:
        return f"is said by spark.{_FIELDS[name]}; use that field"
    return None if name.startswith("spark.") else "does not begin with 'spark.'"


class SparkConfig(Section):
    """The Spark session that all channels of the process share."""

    master: Rebuilds[FreeText] = "local[*]"
    """Where Spark runs: local[cores], or the URL of a cluster."""

    app_name: Rebuilds[FreeText] = "headrace"
    """The application's name in Spark's own pages and logs."""

    driver_memory: Rebuilds[Annotated[int, Size(_MIN_DRIVER_MEMORY)]] = GIB
    """The heap of the driver's Java process; with a local master all work runs in it."""

    connector: Rebuilds[Connector | None] = None
    """Spark's Kafka connector, for channels with source: by_reference. maven: the one that fits
    the installed pyspark, from Maven Central; or a Maven coordinate; or a folder that
    headrace connector fetch has filled. null: none."""

    properties: Rebuilds[Annotated[Mapping[str, PropertyValue], Properties(_refusal)]] = Field(
        default={}
    )
    """Any property of Spark, by its full name."""

    warm_up: Rebuilds[Annotated[int, WholeNumber(0, 1000)]] = 20
    """Small jobs to run before the process is ready: the first ones are several times slower."""

    start_timeout: Rebuilds[Annotated[float, Duration(10, 3600)]] = 120.0
    """How long a session may take to be ready, warm-up included; on a cluster that counts the wait
    for executors. A service manager has to wait longer."""

    def session_properties(self) -> dict[str, Any]:
        """Return ``properties`` with the secrets in plain text, for Spark only."""
        return reveal_all(self.properties)


_AUTO_ADVANCE_INTERVAL = 30.0


class MicroBatchConfig(Section):
    """How batches are merged into micro-batches, and how their values are decoded."""

    decode: Restarts[Literal["none", "json"]] = "none"
    """How the reducer sees values: as bytes, or as typed columns decoded from JSON."""

    ddl: Restarts[FreeText | None] = Field(default=None, alias="schema")
    """The columns to decode, in Spark's DDL, such as "carrier STRING, delay DOUBLE"."""

    undecodable: Hot[Literal["fail", "skip"]] = "fail"
    """What a record that cannot be decoded does: fail its batch, or count and leave it out."""

    max_records: Hot[Count] = 100_000
    """The most records that one micro-batch is merged of."""

    target_duration: Hot[Span | None] = None
    """How long a micro-batch is meant to take: fewer are merged where more take longer."""

    reload: Hot[Flag] = False
    """Whether the channel starts again with changed code when files of its package change."""

    def contradictions(self) -> Iterator[FieldConflict]:
        yield from super().contradictions()
        if self.decode == "json" and self.ddl is None:
            yield FieldConflict(("schema",), "is missing; decode: json needs the columns to decode")
        if self.decode == "none" and self.ddl is not None:
            yield FieldConflict(("schema",), "has no effect with decode: none; write decode: json")
        if self.decode == "none" and self.undecodable == "skip":
            yield FieldConflict(
                ("undecodable",), "is skip, which has no effect with decode: none; leave it out"
            )


class SparkReducerConfig(Section):
    """What turns the micro-batches of the spark processor into rows."""

    type: Restarts[Literal["spark"]] = "spark"
    """This processor."""

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

    @property
    def code(self) -> str | None:
        """The import path of the reducer, None for a query."""
        return self.reducer or self.arrow

    def contradictions(self) -> Iterator[FieldConflict]:
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
        if self.arrow is None and self.result is not None:
            yield FieldConflict(("result",), "goes with arrow only; leave it out")


# the fields of the last base come first
class SparkProcessorConfig(MicroBatchConfig, SparkReducerConfig):
    """Batches are merged into micro-batches, which a reducer turns into rows for the sink."""


class ArrowReducerConfig(Section):
    """What turns the micro-batches of the arrow processor into rows."""

    type: Restarts[Literal["arrow"]] = "arrow"
    """This processor. It takes no Spark, and no JVM is started for it."""

    reducer: Restarts[ImportPath]
    """The function reduce(table, batch), which returns a pyarrow.Table or None."""


class ArrowProcessorConfig(MicroBatchConfig, ArrowReducerConfig):
    """Batches are merged into micro-batches, which a reducer in this process turns into rows."""


class SimpleProcessorConfig(Section):
    """Batches or single records go to a function."""

    type: Restarts[Literal["simple"]] = "simple"
    """This processor."""

    deliver: Restarts[Literal["batch", "record"]] = "batch"
    """Whether the function gets whole batches or one record at a time."""

    auto_advance: Restarts[Literal["every-batch", "periodic"]] = "every-batch"
    """Whether offsets advance with each batch or by a timer."""

    auto_advance_interval: Hot[Span] = _AUTO_ADVANCE_INTERVAL
    """The timer's interval, for auto_advance: periodic."""

    no_duplication: Restarts[Flag] = False
    """Whether to commit before processing: a record is then lost rather than delivered again."""

    max_read_rate: Hot[Annotated[float, PositiveNumber()] | None] = None
    """The most records a second for this member; null: no limit."""

    delay: Hot[Pause] = 0.0
    """How long after its own timestamp a record is delivered at the earliest."""

    reload: Hot[Flag] = False
    """Whether the channel starts again with changed code when files of its package change."""

    def contradictions(self) -> Iterator[FieldConflict]:
        periodic = self.auto_advance == "periodic"
        if periodic and self.no_duplication:
            yield FieldConflict(
                ("no_duplication",),
                "is true, which needs a commit before every batch; write auto_advance: every-batch",
            )
        if not periodic and self.auto_advance_interval != _AUTO_ADVANCE_INTERVAL:
            yield FieldConflict(
                ("auto_advance_interval",),
                "has no effect with auto_advance: every-batch; write auto_advance: periodic",
            )


class CustomProcessorConfig(Section):
    """Batches go to a custom processor."""

    type: Restarts[Literal["custom"]] = "custom"
    """This processor."""

    factory: Restarts[ImportPath]
    """The class or function that returns a BatchProcessor."""

    options: Restarts[Annotated[Mapping[str, Any], Options()]] = Field(default={})
    """What the factory is called with, as keyword arguments."""

    reload: Hot[Flag] = False
    """Whether the channel starts again with changed code when files of its package change."""

    def keyword_arguments(self) -> dict[str, Any]:
        """Return ``options`` with the secrets in plain text, for the factory only."""
        return reveal_all(self.options)


ProcessorConfig = Annotated[
    SparkProcessorConfig | ArrowProcessorConfig | SimpleProcessorConfig | CustomProcessorConfig,
    Field(discriminator="type"),
]
