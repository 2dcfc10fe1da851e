"""A Delta table's log as the files it is: read entry by entry, and added to at its end.

The rules are those of Delta's protocol for tables on a file system: entry N is a file whose name
says N, which appears whole and never changes; whoever makes it first has made version N.
"""

from __future__ import annotations

import json
import os
import uuid
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

from headrace.core.errors import StartError
from headrace.core.records import former_identity
from headrace.sinks.origin import ORIGIN
from headrace.sinks.staging import sync
from headrace.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from deltalake import DeltaTable
    from deltalake.transaction import AddAction

    from headrace.sinks.contract import OffsetMove
    from headrace.sinks.delta.table import KeptTable


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


#: One action as it stands in a line of an entry: {"add": {...}}.
Action: TypeAlias = dict[str, Any]

_CHECKPOINT = "_last_checkpoint"


class LogFiles:
    """The log of the table in ``table``. Any thread; every method touches the disk."""

    def __init__(self, table: Path) -> None:
        self.folder = table / "_delta_log"

    def entry(self, version: int) -> Path:
        """Return where an entry is, or would be."""
        return self.folder / f"{version:020}.json"

    def has_entries(self) -> bool:
        """Whether there is a table. Any entry tells: the first are cleaned away after a while."""
        return any(self.folder.glob("*.json"))

    def read(self, version: int) -> list[Action] | None:
        """Return an entry's actions, None where there is no such entry, or no longer.

        Raises:
            ValueError: the file is no entry.
        """
        try:
            text = self.entry(version).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        return [json.loads(line) for line in text.splitlines()]

    def checkpoint(self) -> int:
        """Return the version of the newest checkpoint, -1 where there is none."""
        try:
            return int(json.loads((self.folder / _CHECKPOINT).read_bytes())["version"])
        except FileNotFoundError:
            return -1

    def add(self, version: int, actions: Sequence[Action], scratch: Path, *, durable: bool) -> bool:
        """Make an entry out of a file in ``scratch``; False where another writer has made it.

        Raises:
            OSError: it could not be made, as far as can be told.
        """
        scratch.mkdir(parents=True, exist_ok=True)
        written = scratch / f"entry-{uuid.uuid4().hex}.json"
        text = "".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions)
        try:
            written.write_text(text, encoding="utf-8")
            if durable:
                sync(written)
            made = _link(written, self.entry(version))
        finally:
            written.unlink(missing_ok=True)
        if durable and made:
            sync(self.folder)
        return made


def written(metadata: Mapping[str, str], now: float) -> Action:
    """Return what an entry of appended rows, or of offsets alone, says about itself."""
    return {
        "commitInfo": {
            "timestamp": round(now * 1000),
            "operation": "WRITE",
            "operationParameters": {"mode": "Append"},
            "engineInfo": f"headrace/{VERSION}",
            "isBlindAppend": True,
            **metadata,
        }
    }


def optimized(metadata: Mapping[str, str], now: float) -> Action:
    """Return what an entry of a compaction says about itself."""
    return {
        "commitInfo": {
            **written(metadata, now)["commitInfo"],
            "operation": "OPTIMIZE",
            "operationParameters": {},
            "isBlindAppend": False,
        }
    }


def replaced(metadata: Mapping[str, str], now: float) -> Action:
    """Return what an entry that removes rows and moves offsets says about itself."""
    return {
        "commitInfo": {
            **optimized(metadata, now)["commitInfo"],
            "operation": "DELETE",
        }
    }


def removed(
    path: str,
    size: int,
    values: Mapping[str, str | None],
    now: float,
    *,
    data_change: bool = False,
) -> Action:
    """Return the action that takes a file out of the table; without change its rows stay."""
    return {
        "remove": {
            "path": path,
            "deletionTimestamp": round(now * 1000),
            "dataChange": data_change,
            "extendedFileMetadata": True,
            "partitionValues": dict(values),
            "size": size,
        }
    }


def added(file: AddAction, *, data_change: bool = True) -> Action:
    """Return the action that adds a file to the table."""
    return {
        "add": {
            "path": quote(file.path),
            "partitionValues": dict(file.partition_values),
            "size": file.size,
            "modificationTime": file.modification_time,
            "dataChange": data_change,
            "stats": file.stats,
        }
    }


def moved(identity: str, version: int, now: float) -> Action:
    """Return the action that gives an application id another version."""
    return {"txn": {"appId": identity, "version": version, "lastUpdated": round(now * 1000)}}


def _link(written: Path, entry: Path) -> bool:
    """Give the file its name in the log unless that is taken; both at once, as links are made."""
    try:
        os.link(written, entry)
    except FileExistsError:
        # A network file system may make the link, lose its answer, and try once more.
        return written.samefile(entry)
    return True


#: What application ids of ours begin with that are no partition's: those have four parts.
OWN_KEYS = "headrace/"

_MARK = f"{OWN_KEYS}origin/"

_LEADER = f"{OWN_KEYS}leader/"


def has_origins(table: DeltaTable) -> bool:
    """Whether the table has the column of origins."""
    return any(field.name == ORIGIN for field in table.schema().fields)


def origin_marks(table: KeptTable, offsets: Iterable[OffsetMove]) -> dict[str, int]:
    """Return what a commit with origins has to note, by application id: the first offsets.

    Without the column in the table nothing keeps others from storing rows that have none.
    """
    marks = {
        _MARK + offset.identity: offset.start
        for offset in offsets
        if marked_from(table, offset.identity) is None
    }
    return marks if marks and has_origins(table.opened) else {}


def leader_marks(table: KeptTable, offsets: Iterable[OffsetMove]) -> dict[str, int]:
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
