"""The section of the Delta sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from headrace.config.models.base import Restarts
from headrace.config.models.sink import SinkConfig
from headrace.config.types.scalars import (
    Distinct,
    Flag,
    FreeText,
    OneOrMore,
    TableFolder,
    WholeNumber,
)
from headrace.config.types.units import Duration
from headrace.core.errors import HeadraceError
from headrace.core.extras import Extra, required
from headrace.core.findings import error, ok
from headrace.sinks.sections import APPENDED_AGAIN, ATOMIC

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config import SinkSite
    from headrace.config.errors import Steps
    from headrace.core.findings import Finding
    from headrace.extensions.delta.sink import DeltaSink


class DeltaSinkConfig(SinkConfig):
    """A Delta table: rows and offsets are committed together, so each record counts once."""

    type: Restarts[Literal["delta"]] = "delta"
    """This sink."""

    path: Restarts[TableFolder]
    """The table's folder, made with the first rows where it is missing."""

    partition_by: Restarts[Annotated[tuple[FreeText, ...], Distinct, OneOrMore]] = ()
    """The columns that a new table is partitioned by."""

    schema_changes: Restarts[Literal["refuse", "add_columns"]] = "refuse"
    """The policy for a result whose columns are not the table's: fail, or add them."""

    origin: Restarts[Flag] = False
    """True if each row says in a column which records it is of, for replays that replace."""

    compact_every: Restarts[Annotated[int, WholeNumber(0, 1_000_000)]] = 500
    """Commits after which small files are made into larger ones; 0 leaves that to others."""

    log_retention: Restarts[Annotated[float, Duration(minimum=10)] | None] = None
    """Time that entries of the table's log are kept after a checkpoint; a new table gets 1h."""

    file_retention: Restarts[Annotated[float, Duration(minimum=60)] | None] = None
    """Time that files replaced by compaction are kept; a new table gets 1d."""

    @property
    def exactly_once(self) -> str:
        return f"the Delta table {ATOMIC}"

    @property
    def place(self) -> str:
        return self.path

    @property
    def extras(self) -> tuple[tuple[Steps, Extra], ...]:
        return ((("type",), Extra.DELTA),)

    @property
    def replayed(self) -> str:
        return APPENDED_AGAIN

    def check(self) -> Iterator[Finding]:
        try:
            seen = self._sink("doctor").check()
        except HeadraceError as problem:
            yield error("sink", str(problem), "correct sink.path, or the table")
        else:
            yield ok("sink", seen)

    def build(self, site: SinkSite) -> DeltaSink:
        return self._sink(site.member)

    def _sink(self, member: str) -> DeltaSink:
        with required(Extra.DELTA, f"the sink of table {self.path}"):
            from headrace.extensions.delta.maintenance import MaintenanceConfig  # noqa: PLC0415
            from headrace.extensions.delta.schema import SchemaChanges  # noqa: PLC0415
            from headrace.extensions.delta.sink import DeltaSink  # noqa: PLC0415 - an extra

        return DeltaSink(
            self.path,
            partition_by=self.partition_by,
            member=member,
            schema_changes=SchemaChanges(self.schema_changes),
            maintenance=MaintenanceConfig(
                self.compact_every, self.log_retention, self.file_retention
            ),
            origin=self.origin,
        )
