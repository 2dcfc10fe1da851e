"""The format of the offsets in a Delta table: noted in the table, and checked by every writer.

What the table itself says of them is checked with it: whether it keeps them at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import StartError
from headrace.records import former_identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from headrace.spark.sinks.delta.table import KeptTable

#: Under which application id the format stands among the table's transactions. No partition's
#: identity looks like it: those have four parts.
FORMAT_KEY = "headrace/format"

#: What identities and offsets mean. In the first format, and in tables without a note, topic ids
#: in identities have librdkafka's alphabet; in the second one Kafka's. A table gets the second one
#: with the first commit of an identity that differs, because a member of an earlier version would
#: not find its offset.
FORMAT_VERSION = 2

#: The table property by which readers and checkpoints leave out transactions older than it says.
RETENTION_PROPERTY = "delta.setTransactionRetentionDuration"


class ForgottenOffsetsError(StartError):
    """The table's properties have it forget the offsets of partitions that stand still."""

    def __init__(self, folder: Path, duration: str) -> None:
        super().__init__(
            f"{folder}: the table's property {RETENTION_PROPERTY} is {duration!r}, so that it "
            "forgets the offsets of partitions that stand still for that long, and takes their "
            f"records twice; remove it with ALTER TABLE delta.`{folder}` UNSET TBLPROPERTIES "
            f"('{RETENTION_PROPERTY}')"
        )


class LaterFormatError(StartError):
    """A later version of Headrace keeps its offsets in the table in a way we do not know."""

    def __init__(self, folder: Path, found: int) -> None:
        super().__init__(
            f"{folder}: the offsets in the table have format version {found}, this Headrace knows "
            f"up to {FORMAT_VERSION}; upgrade this member, or give it a table of its own"
        )
        self.found = found


def check_format(folder: Path, table: KeptTable) -> None:
    """Refuse a table whose offsets could be misread.

    Raises:
        LaterFormatError: they are of a later format.
    """
    found = table.transaction_version(FORMAT_KEY)
    if found is not None and found > FORMAT_VERSION:
        raise LaterFormatError(folder, found)


def check_retention(folder: Path, properties: Mapping[str, str | None]) -> None:
    """Refuse a table that does not keep offsets for ever, by its properties.

    Raises:
        ForgottenOffsetsError: one of them has transactions expire.
    """
    duration = properties.get(RETENTION_PROPERTY)
    if duration is not None:
        raise ForgottenOffsetsError(folder, duration)


def format_note(table: KeptTable, identities: Iterable[str]) -> dict[str, int]:
    """Return what a commit of these identities has to note; nothing where it is noted already."""
    needed = FORMAT_VERSION if any(map(former_identity, identities)) else 1
    noted = table.transaction_version(FORMAT_KEY)
    return {} if noted is not None and noted >= needed else {FORMAT_KEY: needed}
