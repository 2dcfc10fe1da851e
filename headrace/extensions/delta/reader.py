"""A Delta table seen from outside: its rows, and its log commit by commit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from headrace.core.errors import SinkFailedError
from headrace.extensions.delta.sink import MEMBER_KEY
from headrace.extensions.delta.table import OWN_KEYS, LogFiles

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One version of a table.

    ``at`` is in seconds since the epoch by the writer's clock, ``rows`` counts the rows added, and
    ``offsets`` has the next offset of each partition that moved, by the partition's identity.
    ``member`` is None where no member of Headrace made the commit.
    """

    version: int
    at: float
    member: str | None
    rows: int
    offsets: Mapping[str, int]


class DeltaLog:
    """Follows the log of a table, which need not exist yet. For one thread.

    It goes no further than to an entry that is not there any more. What a checkpoint made
    superfluous is cleaned away after an hour, or when the table or ``log_retention`` says.
    """

    def __init__(self, folder: Path) -> None:
        self._entries = LogFiles(folder)
        self._next = 0

    def read_new(self) -> list[TableCommit]:
        """Return the commits since the last call, oldest first. Reads small files only.

        Raises:
            SinkFailedError: a file of the log is not what Delta's protocol says.
        """
        found = []
        while (commit := self._read(self._next)) is not None:
            self._next += 1
            found.append(commit)
        return found

    def _read(self, version: int) -> TableCommit | None:
        try:
            actions = self._entries.read(version)
            return None if actions is None else _commit(version, actions)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SinkFailedError(
                f"{self._entries.entry(version)} is no commit of a Delta table ({error}); the "
                "table is damaged"
            ) from error


def read_rows(folder: Path, columns: Sequence[str]) -> pa.Table:
    """Return these columns of all rows of the table's newest version. Blocks; all in memory.

    Raises:
        SinkFailedError: there is no table, or a file or a column of it is missing.
    """
    try:
        return DeltaTable(folder).to_pyarrow_table(columns=list(columns))
    except TableNotFoundError as error:
        raise SinkFailedError(f"{folder} holds no Delta table; give another folder") from error
    except (DeltaError, OSError, ValueError) as error:
        raise SinkFailedError(f"the table in {folder} cannot be read: {error}") from error


def _commit(version: int, actions: Sequence[Mapping[str, Any]]) -> TableCommit:
    info: Mapping[str, Any] = next(
        (each["commitInfo"] for each in actions if "commitInfo" in each), {}
    )
    # files of these have what stays of others
    is_new = info.get("operation") not in {"DELETE", "MERGE"}
    added = [each["add"] for each in actions if "add" in each and each["add"]["dataChange"]]
    moved = [each["txn"] for each in actions if "txn" in each]
    return TableCommit(
        version=version,
        at=info.get("timestamp", 0) / 1000,
        member=info.get(MEMBER_KEY),
        rows=sum(map(_rows, added)) if is_new else 0,
        offsets={e["appId"]: e["version"] for e in moved if not e["appId"].startswith(OWN_KEYS)},
    )


def _rows(add: Mapping[str, Any]) -> int:
    rows: int = json.loads(add.get("stats") or "{}").get("numRecords", 0)
    return rows
