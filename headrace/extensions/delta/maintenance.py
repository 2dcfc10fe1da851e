"""Maintenance of a Delta table: compaction, vacuum and checkpoints, in a process of their own.

delta-rs's own compaction takes no notice of another that ran meanwhile: both are committed, and
rows are there twice (seen with deltalake 1.6.6). This one gives up when a file it has read is no
longer part of the table.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from threading import Condition, Event, Thread
from typing import TYPE_CHECKING, Any

import structlog
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from headrace.core.clock import SYSTEM_CLOCK, Deadline
from headrace.core.errors import SinkFailedError
from headrace.core.processes import python_command
from headrace.extensions.delta.data_files import (
    data_files,
    read_file,
    renew,
    require_plain,
    write_file,
)
from headrace.extensions.delta.errors import NotRewritableError
from headrace.extensions.delta.staging import sync
from headrace.extensions.delta.table import (
    LogFiles,
    added,
    check_retention,
    commit_info,
    file_names,
    removed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from deltalake.transaction import AddAction

    from headrace.extensions.delta.data_files import DataFile, Values
    from headrace.extensions.delta.table import LogAction


#: Bytes that a file grows to: a quarter of what Spark reads as one partition by default.
TARGET_BYTES = 32 << 20


def compact(folder: Path, scratch: Path, metadata: Mapping[str, str], now: float) -> int:
    """Rewrite small files and commit that. Returns how many went. Blocks; any thread.

    ``scratch`` is a folder of the same file system that no reader uses. ``now`` is in seconds since
    the epoch. One file is in memory at a time.

    Raises:
        NotRewritableError: the table has features or values that are not known here, or another
            writer removed one of the files or changed the table itself.
        DeltaError, OSError, pa.ArrowException: it could not be read or written, or what was made
            is gone. Its rows are the same, and nothing changed as far as can be told.
    """
    table = DeltaTable(folder)
    groups = list(_groups(_files(folder, table)))
    if not groups:
        return 0
    made: list[AddAction] = []
    try:
        made.extend(_merged(folder, table, group, now) for group in groups)
        sync(folder)
        gone = [file for group in groups for file in group]
        actions = [
            commit_info("OPTIMIZE", metadata, now),
            *(removed(file, now) for file in gone),
            *(added(file, data_change=False) for file in made),
        ]
        _commit(folder, table.version(), actions, made, scratch)
    except BaseException:
        _remove_unnamed(folder, made)
        raise
    return len(gone)


def _remove_unnamed(folder: Path, made: Sequence[AddAction]) -> None:
    """Remove what the table does not have. A commit that failed may have been made all the same."""
    # a table that cannot be read may have all of them: they stay until a later clean-up
    with suppress(Exception):
        named = file_names(DeltaTable(folder))
        for file in made:
            if file.path not in named:
                (folder / file.path).unlink(missing_ok=True)


def _files(folder: Path, table: DeltaTable) -> list[DataFile]:
    """Return the files that may be rewritten."""
    try:
        require_plain(folder, table)
        return [file for file in data_files(folder, table) if file.is_ours]
    except NotRewritableError as error:
        raise NotRewritableError(
            f"{error}; compact it with what made it so, and set compact_every to 0"
        ) from error


def _groups(files: Sequence[DataFile]) -> Iterator[list[DataFile]]:
    """Yield the files that become one, by partition.

    A file joins when it is no larger than all smaller ones together, so that each row is rewritten
    a number of times that grows with the logarithm of the table, as in size-tiered compaction.
    """
    by_values: dict[Values, list[DataFile]] = {}
    for file in files:
        by_values.setdefault(file.values, []).append(file)
    for same in by_values.values():
        group: list[DataFile] = []
        size = 0
        for file in sorted(same, key=lambda each: each.size):
            if file.size > max(size, 2 * group[0].size if group else 0) or (
                size + file.size > TARGET_BYTES
            ):
                if len(group) > 1:
                    yield group
                group, size = [], 0
            group.append(file)
            size += file.size
        if len(group) > 1:
            yield group


def _merged(folder: Path, table: DeltaTable, group: Sequence[DataFile], now: float) -> AddAction:
    contents = (read_file(folder / file.path) for file in group)
    return write_file(
        folder, table, contents, group[0].values, "compacted", now=now, data_change=False
    )


def _commit(
    folder: Path,
    version: int,
    actions: Sequence[LogAction],
    made: Sequence[AddAction],
    scratch: Path,
) -> None:
    entries = LogFiles(folder)
    gone = {action["remove"]["path"] for action in actions if "remove" in action}
    while True:
        version += 1
        if entries.checkpoint() >= version:
            raise NotRewritableError(f"{folder}: the table went on by too many commits meanwhile")
        renew(folder, made)
        if entries.add(version, actions, scratch, durable=True):
            return
        for action in entries.read(version) or [{"protocol": {}}]:
            if {"metaData", "protocol"} & action.keys() or (
                "remove" in action and action["remove"]["path"] in gone
            ):
                raise NotRewritableError(f"{folder}: version {version} changed what was compacted")


#: Seconds that a task may take. A table that takes longer is better compacted by a cluster.
_PATIENCE = 1800.0

#: Seconds between two looks whether the task has to end, because the daemon does.
_PROCESS_POLL_S = 0.5


class MaintenanceTask(Enum):
    """A maintenance task."""

    PROPERTIES = "properties"
    """Give the table the properties that the configuration has."""

    CHECKPOINT = "checkpoint"
    """Write a checkpoint, and remove entries of the log that are old enough."""

    COMPACTION = "compaction"
    """Make few files of many, and remove files that are old enough."""


@dataclass(frozen=True, slots=True)
class MaintenanceOrder:
    """A task, and what it needs to know. All of it can be written as JSON."""

    task: str
    table: str
    scratch: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)


def carry_out(order: MaintenanceOrder, stopping: Event) -> dict[str, Any]:
    """Run the task in another process, return its result. Blocks; ends early if ``stopping``.

    Every step of a task is whole or not at all, so that its process can be ended at any time.

    Raises:
        SinkFailedError: the process failed, or took too long.
        OSError: it could not be started.
    """
    process = subprocess.Popen(  # noqa: S603 - this interpreter, and a module of ours
        python_command(f"from {__name__} import main; main()"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    said, complaint = _communicate(process, json.dumps(asdict(order)), stopping)
    if stopping.is_set() and process.returncode:
        return {}
    if process.returncode:
        reason = complaint.strip() or f"exit code {process.returncode}"
        raise SinkFailedError(f"{order.table}: {order.task} failed: {reason}")
    found: dict[str, Any] = json.loads(said)
    return found


def _communicate(process: subprocess.Popen[str], text: str, stopping: Event) -> tuple[str, str]:
    ends = SYSTEM_CLOCK.monotonic() + _PATIENCE
    given: str | None = text
    while True:
        try:
            return process.communicate(given, timeout=_PROCESS_POLL_S)
        except subprocess.TimeoutExpired:
            given = None
        if stopping.is_set() or SYSTEM_CLOCK.monotonic() > ends:
            process.kill()


def _properties(order: MaintenanceOrder) -> dict[str, Any]:
    """Change what differs. Members with different settings undo each other's change."""
    table = DeltaTable(order.table)
    found = table.metadata().configuration
    if all(found.get(name) == value for name, value in order.properties.items()):
        return {}
    table.alter.set_table_properties(dict(order.properties))
    return {"properties": dict(order.properties)}


def _checkpoint(order: MaintenanceOrder) -> dict[str, Any]:
    table = DeltaTable(order.table)
    check_retention(Path(order.table), table.metadata().configuration)
    table.create_checkpoint()
    table.cleanup_metadata()
    return {"version": table.version()}


def _compaction(order: MaintenanceOrder) -> dict[str, Any]:
    folder = Path(order.table)
    gone = compact(folder, Path(order.scratch), order.metadata, SYSTEM_CLOCK.time())
    removed = DeltaTable(folder).vacuum(dry_run=False, full=True)
    return {"compacted": gone, "removed": len(removed)}


_DONE_BY: dict[MaintenanceTask, Callable[[MaintenanceOrder], dict[str, Any]]] = {
    MaintenanceTask.PROPERTIES: _properties,
    MaintenanceTask.CHECKPOINT: _checkpoint,
    MaintenanceTask.COMPACTION: _compaction,
}


def main() -> None:
    """Run the task that standard input describes.

    Signals to the whole group are the daemon's, which ends this process when it is time.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    order = MaintenanceOrder(**json.load(sys.stdin))
    try:
        found = _DONE_BY[MaintenanceTask(order.task)](order)
    except TableNotFoundError:
        found = {}
    except NotRewritableError as error:
        found = {"not_compacted": str(error)}
    except Exception as error:  # noqa: BLE001 - its text is all that the daemon gets
        sys.exit(f"{type(error).__name__}: {error}".partition("\n")[0])
    sys.stdout.write(json.dumps(found))


log = structlog.get_logger(__name__)

#: Commits between two checkpoints. What a reader has to read after the newest one is at most this.
CHECKPOINT_EVERY = 100

#: What a new table gets where the configuration says nothing, in seconds.
NEW_LOG_RETENTION = 3600.0
NEW_FILE_RETENTION = 24 * 3600.0

#: The same where rows are merged, and each commit leaves files that it has written again.
MERGED_FILE_RETENTION = 3600.0

_LOG_PROPERTY = "delta.logRetentionDuration"
_FILE_PROPERTY = "delta.deletedFileRetentionDuration"

#: Seconds that a stop waits for the process of a task to end.
_STOP_S = 5.0

#: Seconds that the thread waits for a task before it looks whether it has to end.
_LOOK_S = 60.0

#: How many times as long as a task took the next one waits: tasks take a tenth of a core at most,
#: and those that come up meanwhile are done once.
_REST = 9


@dataclass(frozen=True, slots=True)
class MaintenanceConfig:
    """The settings of a table's maintenance.

    ``compact_every`` counts commits, 0 for never. ``log_retention`` is for how many seconds entries
    of the log stay that a checkpoint made superfluous, ``file_retention`` for how many files stay
    that no version of the table from then on has. None leaves to a table what it says itself, and a
    new one gets ``new_file_retention``.
    """

    compact_every: int = 500
    log_retention: float | None = None
    file_retention: float | None = None
    new_file_retention: float = NEW_FILE_RETENTION

    def properties(self, *, new: bool) -> dict[str, str]:
        """Return the table properties that say so; a ``new`` table gets all of them."""
        seconds = {
            _LOG_PROPERTY: self.log_retention or (NEW_LOG_RETENTION if new else None),
            _FILE_PROPERTY: self.file_retention or (self.new_file_retention if new else None),
        }
        return {
            name: f"interval {max(1, round(each))} seconds"
            for name, each in seconds.items()
            if each is not None
        }


class MaintenanceThread:
    """Has the tasks of one table done, one after the other, each in a process of its own.

    The member that commits past a multiple of an interval does it, so that of several mostly
    one does it. Two at once are no harm: a checkpoint says the same from any writer, and of two
    compactions of the same files one gives up.
    """

    def __init__(
        self,
        folder: Path,
        scratch: Path,
        maintenance: MaintenanceConfig,
        metadata: Mapping[str, str],
    ) -> None:
        self._folder = folder
        self._log = log.bind(table=str(folder))
        self._scratch = scratch
        self._config = maintenance
        self._metadata = dict(metadata)
        self._changed = Condition()
        self._tasks: list[MaintenanceTask] = []
        self._stopping = Event()
        self._thread = Thread(target=self._run, name=f"maintenance-{folder.name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        if self._config.properties(new=False):
            self._add(MaintenanceTask.PROPERTIES)
        self._thread.start()

    def went_on(self, before: int, after: int) -> None:
        """Record a commit of ours, after version ``before``. Any thread; does not block."""
        for task, every in (
            (MaintenanceTask.CHECKPOINT, CHECKPOINT_EVERY),
            (MaintenanceTask.COMPACTION, self._config.compact_every),
        ):
            if every and before // every != after // every:
                self._add(task)

    def _add(self, task: MaintenanceTask) -> None:
        with self._changed:
            if task not in self._tasks:
                self._tasks.append(task)
                self._changed.notify()

    def stop(self) -> None:
        """End the thread, and the process of the task under way."""
        self._stopping.set()
        with self._changed:
            self._changed.notify()
        if self._thread.ident is not None:
            Deadline.after(_STOP_S).joined(self._thread)

    def _run(self) -> None:
        while (task := self._next_task()) is not None:
            began = SYSTEM_CLOCK.monotonic()
            try:
                self._run_task(task)
            except Exception:
                log.exception("delta_maintenance_failed", table=str(self._folder), task=task.value)
            self._stopping.wait(_REST * (SYSTEM_CLOCK.monotonic() - began))

    def _next_task(self) -> MaintenanceTask | None:
        """Return what to do next, None once the thread is to end. Blocks."""
        with self._changed:
            while not self._stopping.is_set():
                if self._tasks:
                    return self._tasks.pop(0)
                self._changed.wait(_LOOK_S)
        return None

    def _run_task(self, task: MaintenanceTask) -> None:
        if not self._folder.exists():
            return
        wanted = self._config.properties(new=False) if task is MaintenanceTask.PROPERTIES else {}
        began = SYSTEM_CLOCK.monotonic()
        order = MaintenanceOrder(
            task.value, str(self._folder), str(self._scratch), self._metadata, wanted
        )
        found = carry_out(order, self._stopping)
        if "not_compacted" in found:
            self._log.warning("delta_not_compacted", error=found["not_compacted"])
            return
        if "properties" in found:
            self._log.info("delta_properties_set", **found)
        seconds = round(SYSTEM_CLOCK.monotonic() - began, 3)
        self._log.debug("delta_maintenance_done", task=task.value, seconds=seconds, **found)
