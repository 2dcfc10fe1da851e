"""The tables of offsets and of origins: one row for each partition, moved on a condition only."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import sqlalchemy as sa

from headrace.core.errors import StartError
from headrace.core.records import former_identity, present_identity
from headrace.extensions.sql.database import TABLE_OPTIONS, TableName
from headrace.sinks.contract import Replacement, require_starts
from headrace.sinks.origin import require_known, whole_micro_batches

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from typing import Any

    from sqlalchemy.engine import Connection

    from headrace.extensions.sql.database import Database
    from headrace.extensions.sql.target import SqlTarget
    from headrace.sinks.contract import OffsetMove
    from headrace.sinks.micro_batch import OffsetRange
    from headrace.sinks.origin import Ranges


#: Values in one statement; SQLite takes no more than 999 in versions that are still around.
_CHUNK = 500

#: SQLite numbers rows by itself in columns of this very type.
_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _origins(name: TableName) -> sa.Table:
    return sa.Table(
        name.name,
        sa.MetaData(),
        sa.Column("number", _NUMBER, sa.Identity(), primary_key=True),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("partition", sa.CHAR(64), nullable=False),
        sa.Column("identity", sa.Text, nullable=False),
        sa.Column("micro_batch", sa.String(64), nullable=False),
        sa.Column("first_offset", sa.BigInteger, nullable=False),
        sa.Column("next_offset", sa.BigInteger, nullable=False),
        sa.Index(f"{name.name}_by_partition", "partition", "next_offset"),
        sa.Index(f"{name.name}_by_micro_batch", "micro_batch"),
        schema=name.schema,
        **TABLE_OPTIONS,
    )


class OriginsTable:
    """The rows of one target table in the origins table, one for each partition of a micro-batch.

    ``partition`` is the key of the partition's row among the ``offsets``. Rows are numbered in the
    order in which a partition's were committed. The methods that take a connection act in its
    transaction.
    """

    def __init__(
        self, database: Database, name: TableName, target: SqlTarget, offsets: OffsetsTable
    ) -> None:
        self._database = database
        self._target = target
        self._offsets = offsets
        self._name = name
        self._table = _origins(name)

    def create(self) -> None:
        """Create the table where it is missing. Blocks."""
        with self._database.transaction() as connection:
            found = self._database.located(connection, self._name)
        self._table = _origins(found)
        self._database.create(self._table)
        with self._database.transaction() as connection:
            self._database.require_transactions(connection, found)

    def note(
        self, connection: Connection, micro_batch: str, ranges: Sequence[OffsetMove | OffsetRange]
    ) -> None:
        """Write down what a micro-batch is made of, beside its rows."""
        values = [
            {
                "target": self._offsets.target(connection),
                "partition": self._offsets.key(connection, each.identity),
                "identity": each.identity,
                "micro_batch": micro_batch,
                "first_offset": each.start,
                "next_offset": each.next_offset,
            }
            for each in ranges
        ]
        if values:
            connection.execute(self._table.insert(), values)

    def plan(
        self, connection: Connection, moves: Sequence[OffsetMove]
    ) -> tuple[Replacement, Collection[str]]:
        """Return what replacing takes, and the names of the micro-batches that go.

        Raises:
            ReplaceRefusedError: rows that do not say which records they are of may be of these.
        """
        needed, names = whole_micro_batches(
            moves,
            lambda identity: self._offsets.offset(connection, identity),
            lambda offsets: self._micro_batches_after(connection, offsets),
        )
        if self._target.has_rows_without_origin(connection):
            require_known(
                self._target.place,
                moves,
                needed,
                lambda identity: self._known_from(connection, identity),
            )
        rows = sum(self._target.count(connection, some) for some in _chunks(names))
        return Replacement(needed, rows), names

    def remove(self, connection: Connection, names: Collection[str]) -> int:
        """Remove micro-batches: their rows in the target table, and what is noted of them here."""
        rows = 0
        for some in _chunks(names):
            rows += self._target.delete(connection, some)
            connection.execute(self._table.delete().where(*self._conditions_of(connection, some)))
        return rows

    def _conditions_of(
        self, connection: Connection, names: Sequence[str]
    ) -> list[sa.ColumnElement[bool]]:
        columns = self._table.c
        is_mine = columns.target == self._offsets.target(connection)
        return [columns.micro_batch.in_(names), is_mine]

    def _of_partition(self, connection: Connection, identity: str) -> sa.ColumnElement[bool]:
        """Select the rows of a partition, those of earlier versions too."""
        names = [name for name in (identity, former_identity(identity)) if name is not None]
        return self._table.c.partition.in_([self._offsets.key(connection, name) for name in names])

    def _micro_batches_after(
        self, connection: Connection, offsets: Mapping[str, int]
    ) -> dict[str, Ranges]:
        """Return the micro-batches that have records from an offset on, each with all ranges."""
        columns = self._table.c
        names: set[str] = set()
        for identity, offset in offsets.items():
            mine = self._of_partition(connection, identity)
            wanted = sa.select(columns.micro_batch).where(mine, columns.next_offset > offset)
            names.update(connection.execute(wanted).scalars())
        found: dict[str, dict[str, tuple[int, int]]] = {}
        for some in _chunks(names):
            parts = sa.select(self._table).where(*self._conditions_of(connection, some))
            for row in connection.execute(parts):
                ranges = found.setdefault(row.micro_batch, {})
                ranges[present_identity(row.identity)] = (row.first_offset, row.next_offset)
        return dict(found)

    def _known_from(self, connection: Connection, identity: str) -> int | None:
        """Return the offset from which on a partition's rows have origins: the first noted one."""
        columns = self._table.c
        mine = self._of_partition(connection, identity)
        wanted = sa.select(columns.first_offset).where(mine).order_by(columns.number).limit(1)
        first: int | None = connection.execute(wanted).scalar_one_or_none()
        return first


def _chunks(names: Collection[str]) -> Iterator[list[str]]:
    listed = sorted(names)
    for at in range(0, len(listed), _CHUNK):
        yield listed[at : at + _CHUNK]


#: What a row means. A row of a later format is neither read nor moved.
FORMAT_VERSION = 1

#: What a row is that earlier versions know a partition's offset by: the offset is in another row
#: now, whose identity has the topic id in Kafka's alphabet. They refuse it as of a later format.
_MOVED_AWAY = 2


#: What the identity of a row begins with that has no offset, but the leader epoch of one.
_LEADER = "headrace/leader/"


def _offsets(name: TableName) -> sa.Table:
    return sa.Table(
        name.name,
        sa.MetaData(),
        sa.Column("id", sa.CHAR(64), primary_key=True),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("identity", sa.Text, nullable=False),
        sa.Column("next_offset", sa.BigInteger, nullable=False),
        sa.Column("format", sa.SmallInteger, nullable=False),
        sa.Column("member", sa.Text),
        sa.Column("micro_batch", sa.Text),
        sa.Column("stored_at", sa.DateTime(timezone=True)),
        sa.Column("note", sa.Text),
        sa.Column("noted_at", sa.DateTime(timezone=True)),
        schema=name.schema,
        **TABLE_OPTIONS,
    )


class OffsetsTable:
    """The rows of one target table in the offsets table.

    A row's key is a digest of target and identity, because databases differ in how long a key may
    be and in whether it tells upper from lower case; the two are in the row as well, for readers.
    The methods that take a connection act in its transaction.
    """

    def __init__(self, database: Database, name: TableName, target: TableName) -> None:
        self._database = database
        self._target = target
        self._is_there = False
        self._name = name
        self._table = _offsets(name)

    def create(self) -> None:
        """Create the table where it is missing. Blocks."""
        if not self.exists():
            self._database.create(self._table)
        with self._database.transaction() as connection:
            found = TableName(self._table.schema, self._table.name)
            self._database.require_transactions(connection, found)

    def exists(self) -> bool:
        """Return whether the table is there; remembered once it is. Blocks."""
        if not self._is_there:
            with self._database.transaction() as connection:
                self._table = _offsets(self._database.located(connection, self._name))
            self._is_there = self._database.has(self._table)
        return self._is_there

    def offset(self, connection: Connection, identity: str) -> int | None:
        """Return a partition's offset, which may be in a row of an earlier version.

        Raises:
            StartError: the row has a later format.
        """
        found, former = self._row(connection, identity), former_identity(identity)
        return self._row(connection, former) if found is None and former else found

    def move(
        self, connection: Connection, offsets: Sequence[OffsetMove], said: Mapping[str, Any]
    ) -> None:
        """Move the offsets that are where they should be; always in the same order.

        ``said`` goes into the rows besides. In one order, because two writers that take the rows'
        locks in different ones would wait for each other.

        Raises:
            CommitConflictError: some are elsewhere; the caller rolls back.
            StartError: a row has a later format.
        """
        ordered = sorted(offsets, key=lambda each: each.identity)
        require_starts([(each, self._move_offset(connection, each, said)) for each in ordered])
        self._note_leader_epochs(connection, offsets)

    def leader_epoch(self, connection: Connection, identity: str) -> int | None:
        """Return the leader epoch that was stored with a partition's offset."""
        noted = self._row(connection, _LEADER + identity)
        return noted - 1 if noted else None

    def _note_leader_epochs(self, connection: Connection, offsets: Sequence[OffsetMove]) -> None:
        """Store those that are new, each plus one; zero is for one that is not known any more."""
        wanted = {
            _LEADER + each.identity: 0 if each.leader_epoch is None else each.leader_epoch + 1
            for each in offsets
        }
        keys = {self.key(connection, name): name for name in wanted}
        columns = self._table.c
        query = sa.select(columns.id, columns.next_offset).where(columns.id.in_(keys))
        noted = {keys[row.id]: row.next_offset for row in connection.execute(query)}
        for name in sorted(wanted):
            values = {"next_offset": wanted[name]}
            if name in noted and noted[name] != wanted[name]:
                mine = columns.id == self.key(connection, name)
                connection.execute(self._table.update().where(mine).values(values))
            elif name not in noted and wanted[name]:
                self._insert(connection, name, FORMAT_VERSION, values)

    def _move_offset(
        self, connection: Connection, offset: OffsetMove, said: Mapping[str, Any]
    ) -> int | None:
        """Move one offset. Return the stored one where it is not the start."""
        row_id, columns = self.key(connection, offset.identity), self._table.c
        values = {"next_offset": offset.next_offset, **said}
        moved = connection.execute(
            self._table.update()
            .where(columns.id == row_id)
            .where(columns.next_offset == offset.start)
            .where(columns.format == FORMAT_VERSION)
            .values(values)
        )
        if moved.rowcount:
            return None
        found = self._row(connection, offset.identity)
        if found is not None:
            return found
        found = self._take_over(connection, offset)
        if found is None:
            self._insert(connection, offset.identity, FORMAT_VERSION, values)
        return found

    def _take_over(self, connection: Connection, offset: OffsetMove) -> int | None:
        """Retire the row of an earlier version, or have one that keeps such a version away.

        Return the stored offset where it is not the start; nothing is changed then.
        """
        former, columns = former_identity(offset.identity), self._table.c
        if former is None:
            return None
        retired = connection.execute(
            self._table.update()
            .where(columns.id == self.key(connection, former))
            .where(columns.next_offset == offset.start)
            .where(columns.format == FORMAT_VERSION)
            .values(format=_MOVED_AWAY)
        )
        if retired.rowcount:
            return None
        found = self._row(connection, former)
        if found is None:
            self._insert(connection, former, _MOVED_AWAY, {"next_offset": offset.start})
        return found

    def _insert(
        self, connection: Connection, identity: str, row_format: int, values: Mapping[str, Any]
    ) -> None:
        row = {"target": self.target(connection), "identity": identity, "format": row_format}
        row_id = self.key(connection, identity)
        connection.execute(self._table.insert().values(id=row_id, **row, **values))

    def _row(self, connection: Connection, identity: str) -> int | None:
        columns, row_id = self._table.c, self.key(connection, identity)
        wanted = sa.select(columns.next_offset, columns.format).where(columns.id == row_id)
        row = connection.execute(wanted).one_or_none()
        if row is None:
            return None
        if row.format > FORMAT_VERSION:
            raise StartError(
                f"{self._table.fullname} in {self._database.name}: the offsets have format version "
                f"{row.format}, this Headrace knows up to {FORMAT_VERSION}; upgrade this member, "
                "or give it an offsets_table of its own"
            )
        return int(row.next_offset)

    def key(self, connection: Connection, identity: str) -> str:
        """Return the key of a partition's row."""
        key = f"{self.target(connection)}\n{identity}"
        return hashlib.sha256(key.encode()).hexdigest()

    def target(self, connection: Connection) -> str:
        """Return the target with its schema, so that it has one name however it was given."""
        schema = self._target.schema or self._database.default_schema(connection)
        return f"{schema}.{self._target.name}"
