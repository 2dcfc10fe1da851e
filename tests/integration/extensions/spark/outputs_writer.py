"""Processes that write to several outputs, each killed a step later than the one before.

    python -m tests.integration.extensions.spark.outputs_writer FOLDER

Two Delta tables, with two tables of a SQLite file between them. Each record becomes one row in
each. What a killed process left is looked at, and completed, by the next one.
"""

from __future__ import annotations

import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset  # else each process would import on its own what is imported when needed
import structlog
from deltalake import DeltaTable

from headrace.core.errors import SinkFailedError
from headrace.core.records import TopicPartition
from headrace.extensions.delta.sink import DeltaSink
from headrace.extensions.sql.sink import SqlSink
from headrace.sinks import several
from headrace.sinks.contract import PartitionCommit
from headrace.sinks.micro_batch import MicroBatch
from headrace.sinks.several import OutputGroup, SeveralSink, alone
from headrace.testing.kills import killed_at_every_line
from tests.unit.extensions.sql.sql_tables import Base

if TYPE_CHECKING:
    from collections.abc import Callable

PARTITIONS = range(2)
TABLES = ("middle", "other")


class Site:
    """The outputs, as one process has them."""

    def __init__(self, folder: Path) -> None:
        self.base = Base(folder / "base.db")
        self.deltas = {name: folder / name for name in ("first", "last")}
        first, last = (DeltaSink(path, durable=False) for path in self.deltas.values())
        tables = {name: SqlSink(self.base.url, name) for name in TABLES}
        self.sink = SeveralSink(
            [
                alone("first", first),
                OutputGroup(tables, SqlSink.commit_together),
                alone("last", last),
            ]
        )
        self.sink.open()

    def work(self, start: dict[int, int]) -> None:
        """Process one micro-batch as a channel does, or its partitions one by one."""
        shares = [self._share(number, at) for number, at in start.items()]
        try:
            self._commit(shares)
        except SinkFailedError:
            for share in shares:
                self._commit([share])

    def _share(self, number: int, start: int) -> PartitionCommit:
        boundary = self.sink.boundary(f"id/{number}", start)
        end = start + 3 if boundary is None else min(start + 3, boundary)
        return PartitionCommit(f"id/{number}", TopicPartition("t", number), start, end)

    def _commit(self, shares: list[PartitionCommit]) -> None:
        rows = [
            {"partition": share.partition.partition, "offset": at}
            for share in shares
            for at in range(share.start, share.next_offset)
        ]
        result: Any = dict.fromkeys(self.sink.names, pa.Table.from_pylist(rows))
        self.sink.commit(self.sink.stage(MicroBatch(uuid.uuid4().hex, "c", ()), result), shares)

    def starts(self) -> dict[int, int]:
        """Return where each partition goes on; the group is where nothing was answered yet."""
        return {number: self.sink.stored_offset(f"id/{number}") or 0 for number in PARTITIONS}

    def require_whole(self) -> None:
        """Every output has each record below its offset once, and no other."""
        for name, keeper in self.sink.offset_moves.outputs.items():
            found = Counter(self._rows(name))
            stored = {number: keeper.stored_offset(f"id/{number}") or 0 for number in PARTITIONS}
            expected = {(number, at) for number in stored for at in range(stored[number])}
            assert set(found) == expected, (name, found, stored)
            assert not found or set(found.values()) == {1}, (name, found)

    def _rows(self, name: str) -> list[tuple[Any, ...]]:
        if name in TABLES:
            return self.base.run(f'SELECT "partition", "offset" FROM {name}')
        folder = self.deltas[name]
        if not DeltaTable.is_deltatable(str(folder)):
            return []
        rows = DeltaTable(folder).to_pyarrow_table().to_pylist()
        return [(row["partition"], row["offset"]) for row in rows]


def main(folder: Path) -> None:
    """Kill processes until one comes to its end; print its number, and how many found work left."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    columns = '("partition" INTEGER NOT NULL, "offset" INTEGER NOT NULL)'
    Base(folder / "base.db").run(*(f"CREATE TABLE {name} {columns}" for name in TABLES))

    def prepare(number: int) -> Callable[[], object]:
        del number
        site = Site(folder)
        site.require_whole()
        starts = site.starts()
        apart = any(site.sink.boundary(f"id/{each}", starts[each]) for each in PARTITIONS)
        with (folder / "apart").open("a", encoding="utf-8") as file:
            file.write("x" if apart else "")
        return lambda: site.work(starts)

    last = killed_at_every_line(prepare, [several])
    Site(folder).require_whole()
    apart = len((folder / "apart").read_text(encoding="utf-8"))
    sys.stdout.write(f"{last} {apart}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
