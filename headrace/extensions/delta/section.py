"""The section of the Delta sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from headrace.config.models.base import OnlyWith, Restarts
from headrace.config.models.sink import SinkConfig
from headrace.config.types.scalars import (
    Distinct,
    Flag,
    FreeText,
    OneOrMore,
    TableFolder,
    WholeNumber,
)
from headrace.config.types.units import MIB, Duration, Size
from headrace.core.errors import HeadraceError
from headrace.core.extras import Extra, required
from headrace.core.findings import error, ok
from headrace.extensions.delta.conflicts import NOT_REPLACED, merge_conflicts
from headrace.sinks.by_key import Merging
from headrace.sinks.sections import APPENDED_AGAIN, ATOMIC, MERGED_AGAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config import SinkSite
    from headrace.config.errors import FieldConflict, Steps
    from headrace.core.findings import Finding
    from headrace.extensions.delta.sink import DeltaSink


class DeltaSinkConfig(SinkConfig):
    """A Delta table: rows and offsets are committed together, so each record counts once."""

    only: ClassVar = {
        "key": (OnlyWith.one_of("mode", "merge"),),
        "merge": (OnlyWith.one_of("mode", "merge"),),
        "merge_limit": (OnlyWith.one_of("mode", "merge"),),
    }

    type: Restarts[Literal["delta"]] = "delta"
    """This sink."""

    path: Restarts[TableFolder]
    """The table's folder, made with the first rows where it is missing."""

    partition_by: Restarts[Annotated[tuple[FreeText, ...], Distinct, OneOrMore]] = ()
    """The columns that a new table is partitioned by."""

    schema_changes: Restarts[Literal["refuse", "add_columns"]] = "refuse"
    """The policy for a result whose columns are not the table's: fail, or add them."""

    mode: Restarts[Literal["append", "merge"]] = "append"
    """The way of writing: rows are added (append), or merged into those with the same key, whose
    files are then written again (merge)."""

    key: Restarts[Annotated[tuple[FreeText, ...], Distinct, OneOrMore]] = ()
    """The columns that make a row unique."""

    merge: Restarts[Mapping[FreeText, Literal["sum", "min", "max", "last"]]] = Field(default={})
    """The treatment of each other column where a row with the key is there: the values are added,
    the smaller or the larger one stays, or the new one takes its place."""

    merge_limit: Restarts[Annotated[int, Size(1)]] = 64 * MIB
    """Bytes of files that a partition of the table may have, or a table without any; rows are not
    merged into a larger one, because each commit may write all of it again."""

    origin: Restarts[Flag] = False
    """True if each row says in a column which records it is of, for replays that replace."""

    compact_every: Restarts[Annotated[int, WholeNumber(0, 1_000_000)]] = 500
    """Commits after which small files are made into larger ones; 0 leaves that to others."""

    log_retention: Restarts[Annotated[float, Duration(minimum=10)] | None] = None
    """Time that entries of the table's log are kept after a checkpoint; a new table gets 1h."""

    file_retention: Restarts[Annotated[float, Duration(minimum=60)] | None] = None
    """Time that files replaced by compaction or merges are kept; a new table gets 1d, or 1h where
    rows are merged."""

    def conflicts(self) -> Iterator[FieldConflict]:
        if self.mode == "merge":
            yield from merge_conflicts(self.key, self.merge, self.partition_by, origin=self.origin)

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
        return APPENDED_AGAIN if self.mode == "append" else MERGED_AGAIN

    @property
    def irreplaceable(self) -> str | None:
        return None if self.mode == "append" else NOT_REPLACED

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
            from headrace.extensions.delta.maintenance import (  # noqa: PLC0415
                MERGED_FILE_RETENTION,
                NEW_FILE_RETENTION,
                MaintenanceConfig,
            )
            from headrace.extensions.delta.merging import MergeRule  # noqa: PLC0415
            from headrace.extensions.delta.schema import SchemaChanges  # noqa: PLC0415
            from headrace.extensions.delta.sink import DeltaSink  # noqa: PLC0415 - an extra

        rule = None
        if self.mode == "merge":
            merge = {name: Merging(what) for name, what in self.merge.items()}
            rule = MergeRule(self.key, merge, self.merge_limit)
        return DeltaSink(
            self.path,
            partition_by=self.partition_by,
            member=member,
            schema_changes=SchemaChanges(self.schema_changes),
            maintenance=MaintenanceConfig(
                self.compact_every,
                self.log_retention,
                self.file_retention,
                NEW_FILE_RETENTION if rule is None else MERGED_FILE_RETENTION,
            ),
            origin=self.origin,
            merge=rule,
        )
