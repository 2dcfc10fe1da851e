"""What a Delta table says of partitions besides their offsets: origins and leader epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.spark.sinks.origin import ORIGIN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltalake import DeltaTable

    from headrace.spark.sinks.contract import OffsetMove, PartitionCommit
    from headrace.spark.sinks.delta.table import KeptTable

#: What application ids of ours begin with that are no partition's: those have four parts.
OWN_KEYS = "headrace/"

_MARK = f"{OWN_KEYS}origin/"

_LEADER = f"{OWN_KEYS}leader/"


def has_origins(table: DeltaTable) -> bool:
    """Whether the table has the column of origins."""
    return any(field.name == ORIGIN for field in table.schema().fields)


def origin_marks(
    table: KeptTable, offsets: Iterable[PartitionCommit | OffsetMove]
) -> dict[str, int]:
    """Return what a commit with origins has to note, by application id: the first offsets.

    Without the column in the table nothing keeps others from storing rows that have none.
    """
    marks = {
        _MARK + offset.identity: offset.start
        for offset in offsets
        if marked_from(table, offset.identity) is None
    }
    return marks if marks and has_origins(table.opened) else {}


def leader_marks(
    table: KeptTable, offsets: Iterable[PartitionCommit | OffsetMove]
) -> dict[str, int]:
    """Return what a commit has to note, by application id: leader epochs that are new, plus one.

    Zero stands for one that is not known any more.
    """
    found = {}
    for offset in offsets:
        wanted = 0 if offset.leader_epoch is None else offset.leader_epoch + 1
        if wanted != (table.transaction_version(_LEADER + offset.identity) or 0):
            found[_LEADER + offset.identity] = wanted
    return found


def leader_epoch_of(table: KeptTable, identity: str) -> int | None:
    """Return the leader epoch noted with a partition's offset."""
    noted = table.transaction_version(_LEADER + identity)
    return noted - 1 if noted else None


def marked_from(table: KeptTable, identity: str) -> int | None:
    """Return the offset from which on a partition's rows have origins; None: none may have one."""
    return table.offset(_MARK + identity)
