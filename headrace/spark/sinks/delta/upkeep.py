"""The thread that keeps a Delta table small: checkpoints, clean-up of its log, compaction."""

from __future__ import annotations

from dataclasses import dataclass
from threading import Condition, Event, Thread
from typing import TYPE_CHECKING

import structlog

from headrace.clock import SYSTEM_CLOCK, Deadline
from headrace.spark.sinks.delta.chores import Chore, Order, carry_out

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

log = structlog.get_logger(__name__)

#: Commits between two checkpoints. What a reader has to read behind the newest one is at most this.
CHECKPOINT_EVERY = 100

#: What a new table gets where the configuration says nothing, in seconds.
NEW_LOG_RETENTION = 3600.0
NEW_FILE_RETENTION = 24 * 3600.0

_LOG_PROPERTY = "delta.logRetentionDuration"
_FILE_PROPERTY = "delta.deletedFileRetentionDuration"

#: Seconds that a stop waits for the process of a chore to end.
_STOP_S = 5.0

#: Seconds that the thread waits for a chore before it looks whether it has to end.
_LOOK_S = 60.0

#: How many times as long as a chore took the next one waits: chores take a tenth of a core at most,
#: and those that come up meanwhile are done once.
_REST = 9


@dataclass(frozen=True, slots=True)
class Upkeep:
    """How a table is kept.

    ``compact_every`` counts commits, 0 for never. ``log_retention`` is for how many seconds entries
    of the log stay that a checkpoint made superfluous, ``file_retention`` for how many files stay
    that no version of the table from then on has. None leaves to a table what it says itself.
    """

    compact_every: int = 500
    log_retention: float | None = None
    file_retention: float | None = None

    def properties(self, *, new: bool) -> dict[str, str]:
        """Return the table properties that say so; a ``new`` table gets all of them."""
        seconds = {
            _LOG_PROPERTY: self.log_retention or (NEW_LOG_RETENTION if new else None),
            _FILE_PROPERTY: self.file_retention or (NEW_FILE_RETENTION if new else None),
        }
        return {
            name: f"interval {max(1, round(each))} seconds"
            for name, each in seconds.items()
            if each is not None
        }


class Housekeeper:
    """Has the chores of one table done, one after the other, each in a process of its own.

    Whoever commits past a multiple of an interval has it done, so that of several members mostly
    one does it. Two at once are no harm: a checkpoint says the same whoever writes it, and of two
    compactions of the same files one gives up.
    """

    def __init__(
        self, folder: Path, scratch: Path, upkeep: Upkeep, metadata: Mapping[str, str]
    ) -> None:
        self._folder = folder
        self._scratch = scratch
        self._upkeep = upkeep
        self._metadata = dict(metadata)
        self._changed = Condition()
        self._chores: list[Chore] = []
        self._stopping = Event()
        self._thread = Thread(target=self._run, name=f"upkeep-{folder.name}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        if self._upkeep.properties(new=False):
            self._add(Chore.PROPERTIES)
        self._thread.start()

    def went_on(self, before: int, after: int) -> None:
        """Take note of a commit of ours, after version ``before``. Any thread; does not block."""
        for chore, every in (
            (Chore.CHECKPOINT, CHECKPOINT_EVERY),
            (Chore.COMPACTION, self._upkeep.compact_every),
        ):
            if every and before // every != after // every:
                self._add(chore)

    def _add(self, chore: Chore) -> None:
        with self._changed:
            if chore not in self._chores:
                self._chores.append(chore)
                self._changed.notify()

    def stop(self) -> None:
        """End the thread, and the process of the chore under way."""
        self._stopping.set()
        with self._changed:
            self._changed.notify()
        if self._thread.ident is not None:
            Deadline.after(_STOP_S).joined(self._thread)

    def _run(self) -> None:
        while (chore := self._next()) is not None:
            began = SYSTEM_CLOCK.monotonic()
            try:
                self._do(chore)
            except Exception:
                log.exception("delta_upkeep_failed", table=str(self._folder), chore=chore.value)
            self._stopping.wait(_REST * (SYSTEM_CLOCK.monotonic() - began))

    def _next(self) -> Chore | None:
        """Return what to do next, None once the thread is to end. Blocks."""
        with self._changed:
            while not self._stopping.is_set():
                if self._chores:
                    return self._chores.pop(0)
                self._changed.wait(_LOOK_S)
        return None

    def _do(self, chore: Chore) -> None:
        if not self._folder.exists():
            return
        wanted = self._upkeep.properties(new=False) if chore is Chore.PROPERTIES else {}
        began = SYSTEM_CLOCK.monotonic()
        order = Order(chore.value, str(self._folder), str(self._scratch), self._metadata, wanted)
        found = carry_out(order, self._stopping)
        if "not_compacted" in found:
            log.warning(
                "delta_not_compacted", table=str(self._folder), error=found["not_compacted"]
            )
            return
        if "properties" in found:
            log.info("delta_properties_set", table=str(self._folder), **found)
        log.debug(
            "delta_upkeep_done",
            table=str(self._folder),
            chore=chore.value,
            seconds=round(SYSTEM_CLOCK.monotonic() - began, 3),
            **found,
        )
