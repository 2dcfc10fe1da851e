"""Records that channels skipped or rejected, until an operator acknowledges them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock
from typing import TYPE_CHECKING, Any

import structlog

from headrace.core.files import read_regular, write_whole
from headrace.ops.admin.document import Document, Number, SendableText, moment
from headrace.telemetry.metrics import Summary

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headrace.core.clock import Clock
    from headrace.ops.admin.ports import Controller

log = structlog.get_logger(__name__)

#: What is counted: letters of a channel, records that were passed over but for those that an
#: operator left out, and facts that a channel with state by key rejected.
KINDS = ("dead_letters", "skipped_records", "rejected_facts")

#: The file's name in the process's folder.
FILE = "rejects.json"

#: Bytes of the file that are read at most: a thousand channels have fewer.
_LARGEST = 1 << 20


class RejectsStatus(Document):
    """Records of a channel that need an operator's attention: not acknowledged yet."""

    dead_letters: Number
    """Records put into the dead-letter topic."""
    skipped_records: Number
    """Records passed over, but for those that an operator left out."""
    rejected_facts: Number
    """Facts, records and timers, that a channel with state by key rejected."""
    acknowledged: Number
    """Records of all kinds acknowledged since the process's folder was made."""
    acknowledged_by: SendableText | None
    """The name of the last to acknowledge; null: not acknowledged."""
    acknowledged_at: datetime | None
    """The time at which they were acknowledged last; null: never."""


@dataclass(slots=True)
class _Count:
    """One kind of a channel. ``total`` and ``acknowledged`` outlive the process.

    ``last`` is the counter of this process when it was last read.
    """

    total: int = 0
    acknowledged: int = 0
    last: int = 0

    @property
    def open(self) -> int:
        """Return how many are not acknowledged."""
        return max(0, self.total - self.acknowledged)

    def read(self, counter: int) -> None:
        """Add what the counter has gained; one that is lower began again."""
        self.total += counter - self.last if counter >= self.last else counter
        self.last = counter


@dataclass(slots=True)
class _Channel:
    counts: dict[str, _Count] = field(default_factory=lambda: {kind: _Count() for kind in KINDS})
    by: str | None = None
    at: float | None = None

    def status(self) -> RejectsStatus:
        return RejectsStatus(
            **{kind: count.open for kind, count in self.counts.items()},
            acknowledged=sum(count.acknowledged for count in self.counts.values()),
            acknowledged_by=self.by,
            acknowledged_at=None if self.at is None else moment(self.at),
        )

    def saved(self) -> dict[str, Any]:
        return {
            "by": self.by,
            "at": self.at,
            **{
                kind: {"total": count.total, "acknowledged": count.acknowledged}
                for kind, count in self.counts.items()
            },
        }


class Rejects:
    """Counts by channel. ``sample`` is for one thread, the rest for any; blocks for a small file.

    Without a ``path`` nothing outlives the process.
    """

    def __init__(self, path: Path | None, controller: Controller, clock: Clock) -> None:
        self._path = path
        self._controller = controller
        self._clock = clock
        self._lock = Lock()
        self._channels = {} if path is None else _loaded(path)
        self._written = self._saved()

    def sample(self) -> None:
        """Read the counters, and have the file say what has changed."""
        with self._lock:
            self._read()
            self._write()

    def of(self, name: str) -> RejectsStatus:
        """Return what is open of a channel."""
        with self._lock:
            self._read()
            return self._channels.get(name, _Channel()).status()

    def acknowledge(self, name: str, wanted: Mapping[str, int | None], by: str) -> dict[str, int]:
        """Acknowledge so many of each kind, those that there are where it is None; return how many.

        ``wanted`` has kinds of :data:`KINDS`. What comes later stays open. It is in the file when
        this returns.

        Raises:
            OSError: the file cannot be written; nothing is acknowledged.
        """
        with self._lock:
            self._read()
            channel = self._channels.setdefault(name, _Channel())
            done = {}
            for kind, count in channel.counts.items():
                if kind in wanted:
                    asked = wanted[kind]
                    done[kind] = count.open if asked is None else min(asked, count.open)
            before = channel.by, channel.at
            for kind, number in done.items():
                channel.counts[kind].acknowledged += number
            channel.by, channel.at = by, self._clock.time()
            try:
                self._save()
            except OSError:
                for kind, number in done.items():
                    channel.counts[kind].acknowledged -= number
                channel.by, channel.at = before
                raise
            return done

    def _read(self) -> None:
        summary = Summary(self._controller.metrics)
        for name, channel in dict(self._controller.channels).items():
            done, reader = summary.channel(name), channel.state_reader
            counters = {
                "dead_letters": int(done.dead_letters),
                "skipped_records": int(done.skipped - done.left_out),
                "rejected_facts": 0 if reader is None else reader.snapshot().rejected,
            }
            known = self._channels.setdefault(name, _Channel())
            for kind, counter in counters.items():
                known.counts[kind].read(counter)

    def _saved(self) -> dict[str, Any]:
        return {name: channel.saved() for name, channel in sorted(self._channels.items())}

    def _write(self) -> None:
        try:
            self._save()
        except OSError as error:
            log.warning("rejects_not_saved", file=str(self._path), error=str(error))

    def _save(self) -> None:
        saved = self._saved()
        if self._path is not None and saved != self._written:
            write_whole(self._path, json.dumps(saved, indent=1))
        self._written = saved


def _loaded(path: Path) -> dict[str, _Channel]:
    """Return what the file has; nothing of one that is not there or cannot be understood."""
    try:
        found = json.loads(read_regular(path, _LARGEST))
        return {name: _channel(saved) for name, saved in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        log.warning("rejects_not_read", file=str(path), error=f"{type(error).__name__}: {error}")
        return {}


def _channel(saved: Mapping[str, Any]) -> _Channel:
    counts = {
        kind: _Count(int(saved[kind]["total"]), int(saved[kind]["acknowledged"])) for kind in KINDS
    }
    at = saved["at"]
    return _Channel(counts, saved["by"], None if at is None else float(at))
