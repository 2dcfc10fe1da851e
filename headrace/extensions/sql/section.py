"""The section of the SQL sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from headrace.config.errors import FieldConflict
from headrace.config.models.base import OnlyWith, Restarts
from headrace.config.models.sink import SinkConfig
from headrace.config.types.addresses import (
    DatabaseUrl,
    driver_of,
    has_own_password,
    scheme_of,
)
from headrace.config.types.scalars import Distinct, Flag, FreeText, OneOrMore, SqlTable
from headrace.config.types.secrets import SecretValue
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
    from headrace.extensions.sql.sink import SqlSink

#: The databases whose rows can be replaced by key.
_UPSERTING = ("postgresql", "sqlite", "mariadb", "mysql")

#: What brings a driver.
_DRIVERS = {"psycopg": Extra.POSTGRESQL, "pymysql": Extra.MYSQL}


class SqlSinkConfig(SinkConfig):
    """A table of a database, which takes rows and offsets in one transaction: headrace[sql]."""

    only: ClassVar = {
        "key": (OnlyWith.one_of("mode", "upsert", "merge"),),
        "merge": (OnlyWith.one_of("mode", "merge"),),
        "repeated": (OnlyWith.one_of("mode", "upsert"),),
        "origins_table": (OnlyWith.one_of("origin", True),),
    }

    type: Restarts[Literal["sql"]] = "sql"
    """This sink."""

    url: Restarts[DatabaseUrl]
    """The database, as SQLAlchemy has it; shown masked, because it may hold a password."""

    password: Restarts[SecretValue | None] = None
    """The password, in place of one in the url, where it would have to be percent-encoded."""

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

    origin: Restarts[Flag] = False
    """True if each row says in a column which micro-batch it is of, for replays that replace."""

    origins_table: Restarts[SqlTable] = "headrace_origins"
    """The table that says what each micro-batch was made of, made where it is missing."""

    def conflicts(self) -> Iterator[FieldConflict]:
        if self.password is not None and has_own_password(self.url):
            yield FieldConflict(
                ("password",), "is given beside the one in the url; leave one of them out"
            )
        if self.mode != "append":
            yield from self._key_conflicts()
        others = {"offsets_table": self.offsets_table, "origins_table": self.origins_table}
        for name, other in others.items():
            if other == self.table:
                yield FieldConflict((name,), "is the table that rows go to; name another one")
        if self.offsets_table == self.origins_table:
            yield FieldConflict(("origins_table",), "is the table of the offsets; name another one")

    def _key_conflicts(self) -> Iterator[FieldConflict]:
        """Yield what does not go with rows that have a key."""
        scheme = scheme_of(self.url)
        yield from key_conflicts(self.mode, self.key, self.merge)
        if scheme not in _UPSERTING:
            yield FieldConflict(
                ("mode",),
                f"is {self.mode}, which takes {' or '.join(_UPSERTING)}, and the url begins with "
                f"{scheme}; use mode: append",
            )
        if self.origin:
            yield FieldConflict(
                ("origin",),
                f"does not go with mode: {self.mode}, where what a row was before is not kept; "
                "leave it out",
            )

    @property
    def exactly_once(self) -> str:
        return f"the database {ATOMIC}"

    @property
    def place(self) -> object:
        return self.url, self.table, self.offsets_table

    @property
    def transaction(self) -> tuple[object, object]:
        return self.url, self.password

    @property
    def extras(self) -> tuple[tuple[Steps, Extra], ...]:
        driver = _DRIVERS.get(driver_of(self.url))
        return ((("type",), Extra.SQL), *(((("url",), driver),) if driver is not None else ()))

    @property
    def replayed(self) -> str:
        match self.mode:
            case "append":
                return APPENDED_AGAIN
            case "upsert":
                return "rows are upserted again by their keys"
            case "merge":
                return MERGED_AGAIN

    def check(self) -> Iterator[Finding]:
        try:
            seen = self._sink("doctor").check()
        except HeadraceError as problem:
            yield error("sink", str(problem), "correct the database, or sink.url and sink.table")
        else:
            yield ok("sink", seen)

    def build(self, site: SinkSite) -> SqlSink:
        return self._sink(site.member)

    def _sink(self, member: str) -> SqlSink:
        with required(Extra.SQL, f"the sink of table {self.table}"):
            from headrace.extensions.sql.sink import SqlSink  # noqa: PLC0415 - an extra

        return SqlSink(
            self.url.get_secret_value(),
            self.table,
            password=None if self.password is None else self.password.get_secret_value(),
            mode=WriteMode(self.mode),
            key=self.key,
            merge={name: Merging(what) for name, what in self.merge.items()},
            repeated=Repeated(self.repeated),
            offsets_table=self.offsets_table,
            origin=self.origin,
            origins_table=self.origins_table,
            member=member,
        )
