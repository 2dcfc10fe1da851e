"""One chore of a Delta table, in a process of its own: what it takes in memory goes with it.

``main`` reads what to do as JSON from standard input and writes what came of it to standard output.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from headrace.clock import SYSTEM_CLOCK
from headrace.errors import HeadraceError
from headrace.processes import python_command
from headrace.spark.sinks.delta.compaction import NotCompactedError, compact
from headrace.spark.sinks.delta.format import check_retention

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from threading import Event

#: Seconds that a chore may take. A table that takes longer is better compacted by a cluster.
_PATIENCE = 1800.0

#: Seconds between two looks whether the chore has to end, because the daemon does.
_LOOK_S = 0.5


class ChoreError(HeadraceError):
    """A chore's process failed; the message has its last words."""


class Chore(Enum):
    """What there is to do."""

    PROPERTIES = "properties"
    """Give the table the properties that the configuration has."""

    CHECKPOINT = "checkpoint"
    """Write a checkpoint, and remove entries of the log that are old enough."""

    COMPACTION = "compaction"
    """Make few files of many, and remove files that are old enough."""


@dataclass(frozen=True, slots=True)
class Order:
    """A chore, and what it needs to know. All of it can be written as JSON."""

    chore: str
    table: str
    scratch: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)


def carry_out(order: Order, stopping: Event) -> dict[str, Any]:
    """Do it in another process and return what came of it. Blocks; ends early when ``stopping``.

    Every step of a chore is whole or not at all, so that its process can be ended at any time.

    Raises:
        ChoreError: the process failed, or took too long.
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
        raise ChoreError(f"{order.table}: {order.chore} failed: {reason}")
    found: dict[str, Any] = json.loads(said)
    return found


def _communicate(process: subprocess.Popen[str], text: str, stopping: Event) -> tuple[str, str]:
    ends = SYSTEM_CLOCK.monotonic() + _PATIENCE
    given: str | None = text
    while True:
        try:
            return process.communicate(given, timeout=_LOOK_S)
        except subprocess.TimeoutExpired:
            given = None
        if stopping.is_set() or SYSTEM_CLOCK.monotonic() > ends:
            process.kill()


def _properties(order: Order) -> dict[str, Any]:
    """Change what differs. Members that are told different things take turns at this."""
    table = DeltaTable(order.table)
    found = table.metadata().configuration
    if all(found.get(name) == value for name, value in order.properties.items()):
        return {}
    table.alter.set_table_properties(dict(order.properties))
    return {"properties": dict(order.properties)}


def _checkpoint(order: Order) -> dict[str, Any]:
    table = DeltaTable(order.table)
    check_retention(Path(order.table), table.metadata().configuration)
    table.create_checkpoint()
    table.cleanup_metadata()
    return {"version": table.version()}


def _compaction(order: Order) -> dict[str, Any]:
    folder = Path(order.table)
    gone = compact(folder, Path(order.scratch), order.metadata, SYSTEM_CLOCK.time())
    removed = DeltaTable(folder).vacuum(dry_run=False, full=True)
    return {"compacted": gone, "removed": len(removed)}


_DONE_BY: dict[Chore, Callable[[Order], dict[str, Any]]] = {
    Chore.PROPERTIES: _properties,
    Chore.CHECKPOINT: _checkpoint,
    Chore.COMPACTION: _compaction,
}


def main() -> None:
    """Do what standard input says.

    Signals to the whole group are the daemon's, which ends this process when it is time.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    order = Order(**json.load(sys.stdin))
    try:
        found = _DONE_BY[Chore(order.chore)](order)
    except TableNotFoundError:
        found = {}
    except NotCompactedError as error:
        found = {"not_compacted": str(error)}
    except Exception as error:  # noqa: BLE001 - its text is all that the daemon gets
        sys.exit(f"{type(error).__name__}: {error}".partition("\n")[0])
    sys.stdout.write(json.dumps(found))
