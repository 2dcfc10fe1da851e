"""The calls of a keyed reducer in Spark's workers: interrupted when they hang, known after a crash.

A worker notes each call in a file of its task, as a lane without Spark does in one of its own. The
driver reads the file once the task is lost. Where workers are on other machines there is no such
file: then calls are interrupted, and what ends a worker stays without a name.
"""

from __future__ import annotations

import re
from contextlib import contextmanager, suppress
from struct import Struct
from time import monotonic
from typing import TYPE_CHECKING, Any

import structlog
from pyspark import TaskContext
from typing_extensions import override

from headrace.core.call_watch import CallFile, CallWatch, CallWatchdog

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from headrace.core.calls import Call

log = structlog.get_logger(__name__)

#: The part of a job's time that one call in it may take: the job ends by itself at all of it.
_SHARE = 1 / 2

#: The part of a job's time after which the call that a task is in at its end is taken to hang.
_LEAST_SHARE = 1 / 4

#: Where a file has the monotonic time at which its call began.
_BEGAN = Struct("<d")
_BEGAN_AT = 4000

#: What Spark says where a worker ended under a task, and which task it was.
_WORKER_ENDED = re.compile(r"Python worker exited unexpectedly")
_TASK = re.compile(r"[Tt]ask (\d+)(?:\.\d+)? in stage")


class WorkerCalls:
    """A channel's calls in Spark's workers, for the lane. What is sent to a worker watches there.

    ``calls`` knows the keys, for the channel's life; ``folder`` is the channel's, for the files of
    tasks. Without it a call that ends its worker has no name.
    """

    def __init__(self, calls: CallWatch, folder: Path | None) -> None:
        self._calls = calls
        self._folder = None if folder is None else folder / "tasks"

    def __reduce__(self) -> tuple[Any, ...]:
        seconds = self._calls.seconds
        limit = None if seconds is None else seconds * _SHARE
        return _in_worker, (self._folder, limit, self._calls.known)

    def begin_job(self, seconds: float | None) -> None:
        """Start a job with a time limit; the remains of former ones are dropped."""
        self._calls.limit(seconds)
        for file in self._files():
            file.unlink(missing_ok=True)

    def note_interrupted(self, call: Call) -> None:
        """Record a call that a worker interrupted."""
        self._calls.note_interrupted(call, (self._calls.seconds or 0) * _SHARE)

    def overdue(self) -> list[Call]:
        """Return the calls that tasks were in when their job was past its time, and note them."""
        least = (self._calls.seconds or 0) * _LEAST_SHARE
        found = [call for file in self._files() for call, lasted in _read(file) if lasted >= least]
        for call in found:
            self._calls.note_interrupted(call, self._calls.seconds)
        return found

    def ended(self, text: str) -> Call | None:
        """Return the call that a worker ended in, and note it; ``text`` is what Spark says."""
        task = _TASK.search(text)
        if task is None or self._folder is None or _WORKER_ENDED.search(text) is None:
            return None
        for call, _ in _read(self._folder / task[1]):
            log.error("worker_ended_in_call", **self._calls.facts(call))
            self._calls.note_end(call)
            return call
        return None

    def _files(self) -> list[Path]:
        return [] if self._folder is None else list(self._folder.glob("[0-9]*"))


def _read(path: Path) -> list[tuple[Call, float]]:
    """Return the call that a file has, if any, and for how long it has lasted."""
    with suppress(OSError):
        if path.stat().st_size:
            file = CallFile(path)
            call = file.read()
            (began,) = _BEGAN.unpack_from(file.map, _BEGAN_AT)
            return [] if call is None else [(call, monotonic() - began)]
    return []


def _in_worker(
    folder: Path | None, limit: float | None, known: dict[tuple[int, bytes | None], set[str]]
) -> CallWatch:
    return _WorkerWatch(folder, limit, known)


class _WorkerWatch(CallWatch):
    """Watches the calls of one task in a worker. Nothing outlives the worker but the task's file.

    The driver records what is interrupted here, and logs it.
    """

    def __init__(
        self,
        folder: Path | None,
        limit: float | None,
        known: dict[tuple[int, bytes | None], set[str]],
    ) -> None:
        super().__init__()
        self._folder = folder
        self._hung = known
        self.limit(limit)

    @override
    @contextmanager
    def job(self) -> Iterator[None]:
        task = TaskContext.get()
        if task is not None and self._folder is not None:
            with suppress(OSError):
                self._file = CallFile(self._folder / str(task.partitionId()))
        watchdog = CallWatchdog(self, "keyed", _leave_to_spark)
        watchdog.start()
        try:
            with super().job():
                yield
        finally:
            watchdog.request_stop()

    @override
    def call(self, partition: int, key: bytes | None, place: bytes = b"") -> None:
        super().call(partition, key, place)
        self._note_time()

    @override
    def each(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        for row in super().each(rows):
            self._note_time()
            yield row

    def _note_time(self) -> None:
        _BEGAN.pack_into(self._file.map, _BEGAN_AT, monotonic())

    @override
    def note_interrupted(self, call: Call, seconds: float | None) -> None:
        """Return at once: the driver records it."""


def _leave_to_spark(error: BaseException) -> None:
    """Return at once: Spark ends the worker with its job."""
