"""A Delta table as a writer has to know it: its newest version, schema and offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa
import structlog
from deltalake import DeltaTable

from headrace.core.errors import HeadraceError
from headrace.core.records import former_identity
from headrace.sinks.contract import are_moved
from headrace.sinks.delta.log import LogFiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from deltalake.transaction import AddAction

    from headrace.sinks.contract import OffsetMove
    from headrace.sinks.delta.log import Action

log = structlog.get_logger(__name__)

#: Actions that say something of the whole table; delta-rs reads them.
_OF_THE_TABLE = frozenset({"metaData", "protocol"})


class OvertakenError(HeadraceError):
    """While we made an entry of the log a later checkpoint appeared that does not show it."""

    def __init__(self, folder: Path, version: int) -> None:
        super().__init__(
            f"{folder}: a checkpoint overtook version {version} while it was written, and does not "
            "show what that stored; was this process stopped for longer than the log is kept?"
        )


class OthersFirstError(HeadraceError):
    """Each time a commit was tried another writer had made one."""

    def __init__(self, folder: Path, attempts: int) -> None:
        super().__init__(
            f"{folder}: other writers were first {attempts} times; let fewer members write to this "
            "table, or larger micro-batches"
        )


def file_names(table: DeltaTable) -> set[str]:
    """Return the names of all files that a version of a table has, as they are in its folder."""
    found = pa.table(table.get_add_actions())
    return {unquote(path) for path in found.column("path").to_pylist()}


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
        self._open()

    def _open(self) -> None:
        self.opened = DeltaTable(self._folder)
        self.version: int = self.opened.version()
        self.properties: Mapping[str, str | None] = self.opened.metadata().configuration
        self._moved: dict[str, int] = {}

    def transaction_version(self, identity: str) -> int | None:
        """Return what stands under an application id, as of :attr:`version`."""
        if identity in self._moved:
            return self._moved[identity]
        version: int | None = self.opened.transaction_version(identity)
        return version

    def offset(self, identity: str) -> int | None:
        """Return a partition's offset, which an earlier version may have stored, as of then."""
        stored, former = self.transaction_version(identity), former_identity(identity)
        return self.transaction_version(former) if stored is None and former else stored

    def found(self, offsets: Iterable[OffsetMove]) -> list[tuple[OffsetMove, int | None]]:
        """Return what is stored for each, as of then."""
        return [(each, self.offset(each.identity)) for each in offsets]

    def refresh(self) -> None:
        """Go on to the newest version. Reads one small file for each that is new, and two more."""
        while (entry := self._log.read(self.version + 1)) is not None:
            self._take(entry)
        if self._log.checkpoint() > self.version:
            log.info("delta_table_reopened", table=str(self._folder), version=self.version)
            self._open()

    def put(
        self,
        actions: Sequence[Action],
        offsets: Mapping[str, int],
        scratch: Path,
        *,
        durable: bool,
    ) -> bool:
        """Make the next version of these actions, which move these ``offsets``.

        Returns False, with nothing stored, where another writer was first. A new version counts
        only while no checkpoint is at or after it: entries before a checkpoint are cleaned away,
        and a writer that was stopped for longer than the log is kept could make one of those again,
        which no reader looks at.

        Raises:
            OSError: the entry could not be made, as far as can be told.
            OvertakenError: whether it counts cannot be told.
        """
        version = self.version + 1
        if self._log.checkpoint() >= version:
            return False
        if not self._log.add(version, actions, scratch, durable=durable):
            return False
        if self._log.checkpoint() >= version:
            self._open()
            if any(self.transaction_version(name) != to for name, to in offsets.items()):
                raise OvertakenError(self._folder, version)
            return True
        self._moved.update(offsets)
        self.version = version
        return True

    def _take(self, entry: Sequence[Action]) -> None:
        if any(_OF_THE_TABLE & action.keys() for action in entry):
            self._open()
            return
        for action in entry:
            if "txn" in action:
                self._moved[action["txn"]["appId"]] = action["txn"]["version"]
        self.version += 1


def shows(table: KeptTable, placed: Sequence[AddAction], offsets: Sequence[OffsetMove]) -> bool:
    """Whether a table, opened again, has what a commit was to store, of these files.

    Its files show that also where the next owner has gone on from its offsets.
    """
    if are_moved(table.found(offsets)):
        return True
    return not file_names(table.opened).isdisjoint(file.path for file in placed)
