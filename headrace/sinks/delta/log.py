"""A Delta table's log as the files it is: read entry by entry, and added to at its end.

The rules are those of Delta's protocol for tables on a file system: entry N is a file whose name
says N, which appears whole and never changes; whoever makes it first has made version N.
"""

from __future__ import annotations

import json
import os
import uuid
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote

from headrace.core.errors import StartError
from headrace.sinks.staging import sync
from headrace.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from deltalake.transaction import AddAction

    from headrace.sinks.delta.data_files import DataFile


#: What application ids of ours begin with that are no partition's: those have four parts.
OWN_KEYS = "headrace/"

#: The table property by which readers and checkpoints leave out transactions older than it says.
RETENTION_PROPERTY = "delta.setTransactionRetentionDuration"


class ForgottenOffsetsError(StartError):
    """The table's properties have it forget the offsets of partitions that stand still."""


def check_retention(folder: Path, properties: Mapping[str, str | None]) -> None:
    """Refuse a table that does not keep offsets for ever, by its properties.

    Raises:
        ForgottenOffsetsError: one of them has transactions expire.
    """
    duration = properties.get(RETENTION_PROPERTY)
    if duration is not None:
        raise ForgottenOffsetsError(
            f"{folder}: the table's property {RETENTION_PROPERTY} is {duration!r}, so that it "
            "forgets the offsets of partitions that stand still for that long, and takes their "
            f"records twice; remove it with ALTER TABLE delta.`{folder}` UNSET TBLPROPERTIES "
            f"('{RETENTION_PROPERTY}')"
        )


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


def commit_info(
    operation: Literal["WRITE", "OPTIMIZE", "DELETE"], metadata: Mapping[str, str], now: float
) -> Action:
    """Return what an entry says about itself.

    ``WRITE`` is for appended rows or offsets alone, ``OPTIMIZE`` for a compaction, ``DELETE`` for
    rows that are removed.
    """
    appends = operation == "WRITE"
    return {
        "commitInfo": {
            "timestamp": round(now * 1000),
            "operation": operation,
            "operationParameters": {"mode": "Append"} if appends else {},
            "engineInfo": f"headrace/{VERSION}",
            "isBlindAppend": appends,
            **metadata,
        }
    }


def removed(file: DataFile, now: float, *, data_change: bool = False) -> Action:
    """Return the action that takes a file out of the table; without change its rows stay."""
    return {
        "remove": {
            "path": file.path,
            "deletionTimestamp": round(now * 1000),
            "dataChange": data_change,
            "extendedFileMetadata": True,
            "partitionValues": dict(file.values),
            "size": file.size,
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
