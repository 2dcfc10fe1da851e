"""The section of the DuckDB sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from headrace.config.errors import FieldConflict
from headrace.config.models.base import OnlyWith, Restarts
from headrace.config.models.sink import SinkConfig
from headrace.config.types.scalars import Distinct, FreeText, LocalPath, OneOrMore, SqlTable
from headrace.core.errors import HeadraceError
from headrace.core.extras import Extra, required
from headrace.core.findings import error, ok
from headrace.sinks.by_key import Merging, Repeated, WriteMode, key_conflicts
from headrace.sinks.sections import APPENDED_AGAIN, ATOMIC, MERGED_AGAIN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.config import SinkSite
    from headrace.config.errors import Steps
    from headrace.core.findings import Finding
    from headrace.extensions.duckdb.sink import DuckDbSink


class DuckDbSinkConfig(SinkConfig):
    """A table in a DuckDB file, which takes rows and offsets in one transaction. One process at a
    time has the file.
    """

    only: ClassVar = {
        "key": (OnlyWith.one_of("mode", "upsert", "merge"),),
        "merge": (OnlyWith.one_of("mode", "merge"),),
        "repeated": (OnlyWith.one_of("mode", "upsert"),),
    }

    type: Restarts[Literal["duckdb"]] = "duckdb"
    """This sink."""

    path: Restarts[LocalPath]
    """The file of the database."""

    table: Restarts[SqlTable]
    """The table that rows go to, which is there already."""

    mode: Restarts[Literal["append", "upsert", "merge"]] = "append"
    """The way of writing: rows are added (append), take the place of those with the same key
    (upsert), or are merged into them (merge)."""

    key: Restarts[Annotated[tuple[FreeText, ...], Distinct, OneOrMore]] = ()
    """The columns of a primary key or unique constraint."""

    merge: Restarts[Mapping[FreeText, Literal["sum", "min", "max", "last"]]] = Field(default={})
    """The treatment of each other column where a row with the key is there: the values are added,
    the smaller or the larger one stays, or the new one takes its place."""

    repeated: Restarts[Literal["fail", "last"]] = "fail"
    """The policy for a key that a result has in several rows: refused, or the last row is
    written."""

    offsets_table: Restarts[SqlTable] = "headrace_offsets"
    """The table that offsets go to, made where it is missing."""

    def conflicts(self) -> Iterator[FieldConflict]:
        if self.mode != "append":
            yield from key_conflicts(self.mode, self.key, self.merge)
        if self.offsets_table == self.table:
            yield FieldConflict(
                ("offsets_table",), "is the table that rows go to; name another one"
            )

    @property
    def exactly_once(self) -> str:
        return f"the DuckDB file {ATOMIC}"

    @property
    def place(self) -> object:
        return self.path, self.table, self.offsets_table

    @property
    def transaction(self) -> object:
        return self.path

    @property
    def extras(self) -> tuple[tuple[Steps, Extra], ...]:
        return ((("type",), Extra.DUCKDB),)

    @property
    def replayed(self) -> str:
        match self.mode:
            case "append":
                return APPENDED_AGAIN
            case "upsert":
                return "rows are upserted again by their keys"
            case "merge":
                return MERGED_AGAIN

    @property
    def irreplaceable(self) -> str:
        return (
            "rows in a DuckDB file do not say which records they are of; remove them by hand and "
            "replay with append"
        )

    def check(self) -> Iterator[Finding]:
        try:
            seen = self._sink("doctor").check()
        except HeadraceError as problem:
            yield error("sink", str(problem), "correct sink.path and sink.table, or the table")
        else:
            yield ok("sink", seen)

    def build(self, site: SinkSite) -> DuckDbSink:
        return self._sink(site.member)

    def _sink(self, member: str) -> DuckDbSink:
        with required(Extra.DUCKDB, f"the sink of table {self.table}"):
            from headrace.extensions.duckdb.sink import DuckDbSink  # noqa: PLC0415 - an extra

        return DuckDbSink(
            self.path,
            self.table,
            mode=WriteMode(self.mode),
            key=self.key,
            merge={name: Merging(what) for name, what in self.merge.items()},
            repeated=Repeated(self.repeated),
            offsets_table=self.offsets_table,
            member=member,
        )
