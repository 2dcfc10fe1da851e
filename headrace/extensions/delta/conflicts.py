"""Options of the Delta sink that do not go with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.config.errors import FieldConflict
from headrace.sinks.by_key import WriteMode, key_conflicts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

#: Why the output of a range is not replaced where rows are merged.
NOT_REPLACED = (
    "with mode merge what a row was before is not kept, so that nothing can be taken back; remove "
    "the rows by hand and read all records of them again, because a replay with append adds to the "
    "sums that are there"
)


def merge_conflicts(
    key: Collection[str], merge: Collection[str], partition_by: Collection[str], *, origin: bool
) -> Iterator[FieldConflict]:
    """Yield what does not go with rows that are merged by ``key``."""
    yield from key_conflicts(WriteMode.MERGE.value, key, merge)
    for name in partition_by:
        if name not in key:
            yield FieldConflict(
                ("partition_by",),
                f"names {name}, which is not in key, so that a row would move from one partition "
                "of the table to another; add it to key, or leave it out",
            )
    if origin:
        yield FieldConflict(
            ("origin",),
            "does not go with mode: merge, where what a row was before is not kept; leave it out",
        )
