"""A Delta table as a writer has to know it: its log, and its newest version, schema and offsets.

The log is read entry by entry, and added to at its end, by the rules of Delta's protocol for tables
on a file system: entry N is a file whose name says N, which appears whole and never changes;
the first writer to create it has made version N.
"""

from __future__ import annotations

import json
import os
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias
from urllib.parse import quote, unquote

import pyarrow as pa
import structlog
from deltalake import DeltaTable

from headrace.core.errors import StartError
from headrace.core.records import former_identity
from headrace.extensions.delta.data_files import data_files, file_added
from headrace.extensions.delta.errors import OvertakenError
from headrace.extensions.delta.staging import sync
from headrace.sinks.contract import are_moved, require_starts
from headrace.sinks.origin import ORIGIN
from headrace.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from deltalake.transaction import AddAction

    from headrace.extensions.delta.data_files import DataFile
    from headrace.sinks.contract import OffsetMove


#: What application ids of ours begin with that are no partition's: those have four parts.
OWN_KEYS = "headrace/"

#: The table property by which readers and checkpoints leave out transactions older than it says.
RETENTION_PROPERTY = "delta.setTransactionRetentionDuration"


def check_retention(folder: Path, properties: Mapping[str, str | None]) -> None:
    """Refuse a table whose properties let offsets expire.

    Raises:
        StartError: one of them has transactions expire.
    """
    duration = properties.get(RETENTION_PROPERTY)
    if duration is not None:
        raise StartError(
            f"{folder}: the table's property {RETENTION_PROPERTY} is {duration!r}, so that it "
            "forgets the offsets of partitions that stand still for that long, and takes their "
            f"records twice; remove it with ALTER TABLE delta.`{folder}` UNSET TBLPROPERTIES "
            f"('{RETENTION_PROPERTY}')"
        )


#: One action as it stands in a line of an entry: {"add": {...}}.
LogAction: TypeAlias = dict[str, Any]

#: What an entry does, as other writers of Delta call it.
Operation: TypeAlias = Literal["WRITE", "OPTIMIZE", "DELETE", "MERGE"]


class Change(NamedTuple):
    """The change that a commit makes, with the files that leave the table by it."""

    operation: Operation
    gone: Sequence[LogAction] = ()


#: Rows are added, or none.
APPENDS = Change("WRITE")

_CHECKPOINT = "_last_checkpoint"


class LogFiles:
    """The log of the table in ``table``. Any thread; every method touches the disk."""

    def __init__(self, table: Path) -> None:
        self.folder = table / "_delta_log"

    def entry(self, version: int) -> Path:
        """Return where an entry is, or would be."""
        return self.folder / f"{version:020}.json"

    def has_entries(self) -> bool:
        """Return whether there is a table. Any entry tells: the first are cleaned away after a
        while.
        """
        return any(self.folder.glob("*.json"))

    def read(self, version: int) -> list[LogAction] | None:
        """Return an entry's actions, None where there is no such entry, or no longer.

        Raises:
            ValueError: the file is no entry.
        """
        try:
            text = self.entry(version).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        # a line ends where JSON has a line end; texts in it may have others of Unicode
        return [json.loads(line) for line in text.split("\n") if line.strip()]

    def checkpoint(self) -> int:
        """Return the version of the newest checkpoint, -1 where there is none."""
        try:
            return int(json.loads((self.folder / _CHECKPOINT).read_bytes())["version"])
        except FileNotFoundError:
            return -1

    def add(
        self, version: int, actions: Sequence[LogAction], scratch: Path, *, durable: bool
    ) -> bool:
        """Make an entry out of a file in ``scratch``; False where another writer has made it.

        Raises:
            OSError: it could not be made, as far as can be told.
        """
        scratch.mkdir(parents=True, exist_ok=True)
        written = scratch / f"entry-{uuid.uuid4().hex}.json"
        text = "".join(_line(action) for action in actions)
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


def commit_info(operation: Operation, metadata: Mapping[str, str], now: float) -> LogAction:
    """Return what an entry says about itself.

    ``WRITE`` is for appended rows or offsets alone, ``OPTIMIZE`` for a compaction, ``DELETE`` for
    rows that are removed, ``MERGE`` for those that take the place of others.
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


def removed(file: DataFile, now: float, *, data_change: bool = False) -> LogAction:
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


def added(file: AddAction, *, data_change: bool = True) -> LogAction:
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


def moved(identity: str, version: int, now: float) -> LogAction:
    """Return the action that gives an application id another version."""
    return {"txn": {"appId": identity, "version": version, "lastUpdated": round(now * 1000)}}


def _line(action: LogAction) -> str:
    """Return an action as a line of an entry.

    Characters stand in it as they are: of escaped ones beyond U+FFFF delta-rs makes others.
    """
    return json.dumps(action, separators=(",", ":"), ensure_ascii=False) + "\n"


def _link(written: Path, entry: Path) -> bool:
    """Link the file to its name in the log unless that is taken; a link is atomic."""
    try:
        os.link(written, entry)
    except FileExistsError:
        # A network file system may make the link, lose its answer, and try once more.
        return written.samefile(entry)
    return True


log = structlog.get_logger(__name__)

#: Actions that say something of the whole table; delta-rs reads them.
_OF_THE_TABLE = frozenset({"metaData", "protocol"})


#: Under which application id the format stands among the table's transactions.
FORMAT_KEY = f"{OWN_KEYS}format"

#: What identities and offsets mean. In the first format, and in tables without a note, topic ids
#: in identities have librdkafka's alphabet; in the second one Kafka's. A table gets the second one
#: with the first commit of an identity that differs, because a member of an earlier version would
#: not find its offset.
FORMAT_VERSION = 2

_ORIGIN = f"{OWN_KEYS}origin/"

_LEADER = f"{OWN_KEYS}leader/"


def file_names(table: DeltaTable) -> set[str]:
    """Return the names of all files that a version of a table has, as they are in its folder."""
    found = pa.table(table.get_add_actions())
    return {unquote(path) for path in found.column("path").to_pylist()}


@dataclass(frozen=True, slots=True)
class CheckedTable:
    """A table, and the version at which its offsets were checked: a commit makes the next one.

    The table may know later versions by then, as when it was opened again for the names of files.
    """

    table: KeptTable
    version: int


class KeptTable:
    """One table, opened by delta-rs once and followed entry by entry from then on.

    delta-rs's own commits list the whole log folder each time (docs/adr/0010): 9 ms with 200
    entries and 57 ms with 2,600. For one thread at a time.

    Raises:
        TableNotFoundError: there is no table in the folder.
        DeltaError: it cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = LogFiles(folder)
        self._open_table()

    def _open_table(self) -> None:
        self.opened = DeltaTable(self._folder)
        self.version: int = self.opened.version()
        self.properties: Mapping[str, str | None] = self.opened.metadata().configuration
        self._moved: dict[str, int] = {}
        self._files: dict[str, DataFile] | None = None

    def transaction_version(self, identity: str) -> int | None:
        """Return what stands under an application id, as of :attr:`version`."""
        if identity in self._moved:
            return self._moved[identity]
        version: int | None = self.opened.transaction_version(identity)
        return version

    @property
    def files(self) -> Mapping[str, DataFile]:
        """Return the files of :attr:`version` by their paths, followed from the first call on.

        Raises:
            NotRewritableError: a partition column has values whose spelling is not sure.
        """
        if self._files is None:
            if self.version != self.opened.version():
                self._open_table()
            found = data_files(self._folder, self.opened)
            self._files = {file.path: file for file in found}
        return self._files

    def offset(self, identity: str) -> int | None:
        """Return a partition's offset, which an earlier version may have stored, as of then."""
        stored, former = self.transaction_version(identity), former_identity(identity)
        return self.transaction_version(former) if stored is None and former else stored

    def found(self, offsets: Iterable[OffsetMove]) -> list[tuple[OffsetMove, int | None]]:
        """Return what is stored for each, as of then."""
        return [(each, self.offset(each.identity)) for each in offsets]

    def checked(self, offsets: Iterable[OffsetMove]) -> CheckedTable:
        """Return the table as one whose offsets are where these begin; raises CommitConflictError.

        The answer is of :attr:`version` alone.
        """
        require_starts(self.found(offsets))
        return CheckedTable(self, self.version)

    def leader_epoch(self, identity: str) -> int | None:
        """Return the leader epoch noted with a partition's offset, as of then."""
        noted = self.transaction_version(_LEADER + identity)
        return noted - 1 if noted else None

    def known_from(self, identity: str) -> int | None:
        """Return the offset from which on a partition's rows have origins; None: none may."""
        return self.offset(_ORIGIN + identity)

    @property
    def has_origins(self) -> bool:
        """Return whether the table has the column of origins."""
        return any(field.name == ORIGIN for field in self.opened.schema().fields)

    def check_format(self) -> None:
        """Refuse a table whose offsets could be misread; raises StartError."""
        found = self.transaction_version(FORMAT_KEY)
        if found is not None and found > FORMAT_VERSION:
            raise StartError(
                f"{self._folder}: the offsets in the table have format version {found}, this "
                f"Headrace knows up to {FORMAT_VERSION}; upgrade this member, or give it a table "
                "of its own"
            )

    def moves(self, offsets: Sequence[OffsetMove], *, with_origins: bool) -> dict[str, int]:
        """Return what a commit sets, by application id: offsets, and what is new beside them.

        That is the format; leader epochs, plus one, where zero stands for one that is not known any
        more; and ``with_origins`` the first offsets of partitions whose rows say what they are of.
        """
        moves = {each.identity: each.next_offset for each in offsets}
        format_version = FORMAT_VERSION if any(map(former_identity, moves)) else 1
        if (self.transaction_version(FORMAT_KEY) or 0) < format_version:
            moves[FORMAT_KEY] = format_version
        for each in offsets:
            wanted = 0 if each.leader_epoch is None else each.leader_epoch + 1
            if wanted != (self.transaction_version(_LEADER + each.identity) or 0):
                moves[_LEADER + each.identity] = wanted
        # without the column in the table nothing keeps others from storing rows that have none
        if with_origins and self.has_origins:
            for each in offsets:
                if self.known_from(each.identity) is None:
                    moves[_ORIGIN + each.identity] = each.start
        return moves

    def refresh(self) -> None:
        """Read up to the newest version: one small file for each that is new, and two more."""
        while (entry := self._log.read(self.version + 1)) is not None:
            self._apply_entry(entry)
        if self._log.checkpoint() > self.version:
            log.info("delta_table_reopened", table=str(self._folder), version=self.version)
            self._open_table()

    def put(
        self,
        after: int,
        actions: Sequence[LogAction],
        offsets: Mapping[str, int],
        scratch: Path,
        *,
        durable: bool,
    ) -> bool:
        """Make the version that follows ``after``, of these actions, which move these ``offsets``.

        Returns False, with nothing stored, where another writer was first, which the table may know
        by now: ``after`` is the version that was checked. A new version counts
        only while no checkpoint is at or after it: entries before a checkpoint are cleaned away,
        and a writer that was stopped for longer than the log is kept could make one of those again,
        which no reader looks at.

        Raises:
            OSError: the entry could not be made, as far as can be told.
            OvertakenError: whether it counts cannot be told.
        """
        version = after + 1
        if self.version != after or self._log.checkpoint() >= version:
            return False
        if not self._log.add(version, actions, scratch, durable=durable):
            return False
        if self._log.checkpoint() >= version:
            self._open_table()
            if any(self.transaction_version(name) != to for name, to in offsets.items()):
                raise OvertakenError(self._folder, version)
            return True
        self._moved.update(offsets)
        self._follow_files(actions)
        self.version = version
        return True

    def _apply_entry(self, entry: Sequence[LogAction]) -> None:
        if any(_OF_THE_TABLE & action.keys() for action in entry):
            self._open_table()
            return
        for action in entry:
            if "txn" in action:
                self._moved[action["txn"]["appId"]] = action["txn"]["version"]
        self._follow_files(entry)
        self.version += 1

    def _follow_files(self, entry: Sequence[LogAction]) -> None:
        if self._files is None:
            return
        for action in entry:
            if "remove" in action:
                self._files.pop(action["remove"]["path"], None)
            elif "add" in action:
                file = file_added(action["add"])
                self._files[file.path] = file


def shows(table: KeptTable, placed: Sequence[AddAction], offsets: Sequence[OffsetMove]) -> bool:
    """Return whether a table, opened again, has what a commit was to store, of these files.

    Its files show that also where the next owner has gone on from its offsets.
    """
    if are_moved(table.found(offsets)):
        return True
    return not file_names(table.opened).isdisjoint(file.path for file in placed)


def adds(entry: Sequence[LogAction] | None, placed: Sequence[AddAction]) -> bool:
    """Return whether an entry of the log has one of these files, wherever it has gone since."""
    names = {action["add"]["path"] for action in entry or () if "add" in action}
    return not names.isdisjoint(quote(file.path) for file in placed)
