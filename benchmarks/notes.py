"""What processors in daemons note for a benchmark outside: one JSON object a line."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.core.records import Assignment


@dataclass(frozen=True, slots=True)
class Note:
    """One line. ``at`` is the machine's monotonic time."""

    at: float
    event: str
    partition: int | None
    epoch: int | None
    pid: int
    topic: str | None = None


class NoteFile:
    """Where a processor writes. Safe on any thread: a line is one write."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, event: str, assignment: Assignment | None = None) -> None:
        """Append a line."""
        place = None if assignment is None else assignment.partition
        facts = {
            "at": SYSTEM_CLOCK.monotonic(),
            "event": event,
            "topic": None if place is None else place.topic,
            "partition": None if place is None else place.partition,
            "epoch": None if assignment is None else assignment.epoch,
            "pid": os.getpid(),
        }
        os.write(self._file, json.dumps(facts).encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Notes:
    """Reads a file of notes as it grows. For one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._notes: list[Note] = []

    def all(self) -> list[Note]:
        """Return what was noted so far."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                whole = file.read().rpartition(b"\n")[0]
            if whole:
                self._read += len(whole) + 1
                self._notes += [Note(**json.loads(line)) for line in whole.splitlines()]
        return self._notes

    def since(self, at: float, *events: str) -> list[Note]:
        """Return the notes of these events from a moment on."""
        return [note for note in self.all() if note.event in events and note.at >= at]
