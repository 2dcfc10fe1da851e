"""The origins table: which records each micro-batch of a target table was made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from headrace.records import former_identity, present_identity
from headrace.spark.sinks.contract import Replacement
from headrace.spark.sinks.origin import require_known, whole_micro_batches

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from sqlalchemy.engine import Connection

    from headrace.spark.micro_batch import OffsetRange
    from headrace.spark.sinks.origin import Ranges
    from headrace.spark.sinks.sql.database import Database, TableName
    from headrace.spark.sinks.sql.offsets import Offset, OffsetsTable
    from headrace.spark.sinks.sql.target import Target

#: Values in one statement; SQLite takes no more than 999 in versions that are still around.
_CHUNK = 500

#: SQLite numbers rows by itself in columns of this very type.
_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


class OriginsTable:
    """The rows of one target table in the origins table, one for each partition of a micro-batch.

    ``partition`` is the key of the partition's row among the ``offsets``. Rows are numbered in the
    order in which a partition's were committed. The methods that take a connection act in its
    transaction.
    """

    def __init__(
        self, database: Database, name: TableName, target: Target, offsets: OffsetsTable
    ) -> None:
        self._database = database
        self._target = target
        self._offsets = offsets
        self._table = sa.Table(
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
        )

    def create(self) -> None:
        """Create the table where it is missing. Blocks.

        Raises:
            SQLAlchemyError: it is missing and cannot be created.
        """
        self._database.create(self._table)

    def note(
        self, connection: Connection, micro_batch: str, ranges: Sequence[Offset | OffsetRange]
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
        self, connection: Connection, moves: Sequence[Offset]
    ) -> tuple[Replacement, Collection[str]]:
        """Return what replacing takes, and the names of the micro-batches that go.

        Raises:
            ReplaceRefusedError: rows that do not say which records they are of may be of these.
        """
        stored = {move.identity: move.start for move in moves}

        def position(identity: str) -> int | None:
            if identity in stored:
                return stored[identity]
            return self._offsets.read(connection, [identity]).get(identity)

        needed, names = whole_micro_batches(
            {move.identity: move.next_offset for move in moves},
            position,
            lambda offsets: self._behind(connection, offsets),
        )
        if self._target.has_rows_without_origin(connection):
            require_known(
                self._target.place,
                stored,
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
            connection.execute(self._table.delete().where(*self._of(connection, some)))
        return rows

    def _of(self, connection: Connection, names: Sequence[str]) -> list[sa.ColumnElement[bool]]:
        columns = self._table.c
        is_mine = columns.target == self._offsets.target(connection)
        return [columns.micro_batch.in_(names), is_mine]

    def _of_partition(self, connection: Connection, identity: str) -> sa.ColumnElement[bool]:
        """Select the rows of a partition, those of earlier versions too."""
        names = [name for name in (identity, former_identity(identity)) if name is not None]
        return self._table.c.partition.in_([self._offsets.key(connection, name) for name in names])

    def _behind(self, connection: Connection, offsets: Mapping[str, int]) -> dict[str, Ranges]:
        """Return the micro-batches that have records from an offset on, each with all ranges."""
        columns = self._table.c
        names: set[str] = set()
        for identity, offset in offsets.items():
            mine = self._of_partition(connection, identity)
            wanted = sa.select(columns.micro_batch).where(mine, columns.next_offset > offset)
            names.update(connection.execute(wanted).scalars())
        found: dict[str, dict[str, tuple[int, int]]] = {}
        for some in _chunks(names):
            parts = sa.select(self._table).where(*self._of(connection, some))
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
