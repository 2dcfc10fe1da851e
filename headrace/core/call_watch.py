"""The call of user code that a lane is in: interrupted when it hangs, and known after a crash.

A lane notes each call in a few bytes of a file that is mapped into memory. Its content outlives
the process, whatever ends it, so that the next one can say which key or which batches the code was
given when the former one ended.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
from contextlib import contextmanager, suppress
from struct import Struct
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any

import structlog

from headrace.core.calls import Call
from headrace.core.errors import FatalError, JobTimeoutError
from headrace.core.supervision import PeriodicThread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

log = structlog.get_logger(__name__)

#: Bytes of the file, and of a key and of a place in it. What is longer is cut off.
_SIZE, MOST_KEY, _MOST_PLACE = 4096, 1024, 1024

#: State, partition, and the sizes of key and place. The first byte says what form it has.
_HEADER = Struct("<4sBiHH")
_MAGIC = b"HRC1"
_IDLE, _CALLED, _HUNG = range(3)
_KEY_AT = _HEADER.size
_PLACE_AT = _KEY_AT + MOST_KEY

#: Size of a key where there is none, as of a record whose time is looked for.
_NO_KEY = 0xFFFF

#: Where the call is that a process ended in last, and in how many processes one after the other.
_END = Struct("<16sB")
_END_AT = _PLACE_AT + _MOST_PLACE

#: Processes that end in a call for the same record or timer, after which the code is not called
#: with it any more. Fewer may be chance: a process is killed while some call is under way.
MOST_ENDS = 3

#: Looks within the seconds that a call may take, and seconds between two at most.
_LOOKS, _LONGEST_INTERVAL = 8, 1.0

#: How often as long as it may a call takes before it is taken for one that nothing interrupts.
_FINALLY = 2

#: Keys whose calls hung that are known at a time.
_MOST_KEYS = 1000


class _InterruptedError(BaseException):
    """Raised in the lane's thread where it is; no handler for failures takes it for one."""


class CallFile:
    """The file in which the call under way is noted. One thread writes at a time.

    Raises:
        OSError: the file cannot be made.
    """

    def __init__(self, path: Path | None) -> None:
        self.map: mmap.mmap | bytearray = bytearray(_SIZE)
        if path is not None:
            self.map = _mapped(path)

    def begin(self, partition: int, key: bytes | None, place: bytes) -> None:
        """Record a call; ``partition`` is -1 for one that is given whole batches."""
        place = place[:_MOST_PLACE]
        self.map[_PLACE_AT : _PLACE_AT + len(place)] = place
        size, key = (_NO_KEY, b"") if key is None else (min(len(key), MOST_KEY), key[:MOST_KEY])
        data = _HEADER.pack(_MAGIC, _CALLED, partition, size, len(place)) + key
        self.map[: len(data)] = data

    def end(self) -> None:
        """Record that no call is under way."""
        self.map[4] = _IDLE

    def give_up(self) -> None:
        """Record that the call under way hangs."""
        self.map[4] = _HUNG

    def read(self) -> Call | None:
        """Return the call that is noted, None where none was under way."""
        magic, state, partition, key_size, place_size = _HEADER.unpack_from(self.map, 0)
        if magic != _MAGIC or state == _IDLE:
            return None
        key = bytes(self.map[_KEY_AT : _KEY_AT + min(key_size, MOST_KEY)])
        place = bytes(self.map[_PLACE_AT : _PLACE_AT + min(place_size, _MOST_PLACE)])
        return Call(
            partition if partition >= 0 else None,
            key if partition >= 0 and key_size != _NO_KEY else None,
            place.decode("utf-8", "replace"),
            state == _HUNG,
        )

    def count_end(self, call: Call) -> int:
        """Record that a process ended in a call; return how many ended in it in a row."""
        named = repr((call.partition, call.key, call.place)).encode()
        digest = hashlib.blake2b(named, digest_size=16).digest()
        before, count = _END.unpack_from(self.map, _END_AT)
        count = min(count + 1, MOST_ENDS) if before == digest else 1
        self.map[_END_AT : _END_AT + _END.size] = _END.pack(digest, count)
        return count


def _mapped(path: Path) -> mmap.mmap:
    """Map a file of the user's own, whose blocks the disk has: a page without one ends a process.

    Raises:
        OSError: it cannot be made, for want of space or rights.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, _SIZE)
        elif os.fstat(descriptor).st_size < _SIZE:
            os.pwrite(descriptor, bytes(_SIZE), 0)
        return mmap.mmap(descriptor, _SIZE)
    finally:
        os.close(descriptor)


class CallWatch:
    """Watches the calls of user code that one lane makes.

    A call that takes longer than a job may is interrupted, so that its job fails and the lane goes
    on. What does not come back to Python cannot be interrupted: then the process has to end. The
    key of either is known from then on: its facts are given one by one, and that which hangs
    again is not given any more.

    ``open`` and ``close`` are for the owner, ``job``, ``call`` and the questions about keys for
    the lane. Without ``path`` nothing outlives the process.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._file = CallFile(None)
        self._lock = Lock()
        self._number = 0
        self._thread: int | None = None
        self._is_interrupted = False
        self._seconds: float | None = None
        self._hung: dict[tuple[int, bytes | None], set[str]] = {}
        self._channel = ""
        self._watchdog: CallWatchdog | None = None

    # --- the owner ------------------------------------------------------------------------------

    def open(self, channel: str, fail: Callable[[BaseException], None]) -> None:
        """Log the call that the former process ended in, if any, and start watching."""
        self._channel = channel
        if self._path is not None:
            try:
                self._file = CallFile(self._path)
            except OSError as error:
                log.warning(
                    "calls_not_noted", channel=channel, file=str(self._path), error=str(error)
                )
        before = self._file.read()
        self._file.end()
        if before is not None:
            self._report(before)
        self._watchdog = CallWatchdog(self, channel, fail)
        self._watchdog.start()

    def close(self) -> None:
        """End the watch. What a call that still hangs is of stays noted."""
        if self._watchdog is not None:
            self._watchdog.request_stop()

    def _report(self, before: Call) -> None:
        log.error(
            "process_ended_in_call",
            **self.facts(before),
            hung=before.has_hung,
            reason=(
                f"the former process ended while the code was called for {before}; where it ends "
                "there again, that is what the code cannot take"
            ),
        )
        self.note_end(before)

    def note_end(self, call: Call) -> None:
        """Record that a process ended in a call: its key gets its facts one by one from now on.

        The record or timer is not given any more where the call hung, or where as many processes
        as :data:`MOST_ENDS` ended in it one after the other.
        """
        lasts = call.has_hung or (bool(call.place) and self._file.count_end(call) >= MOST_ENDS)
        self.note_key(call, call.place if lasts else "")

    # --- the lane -------------------------------------------------------------------------------

    def limit(self, seconds: float | None) -> None:
        """Limit calls to so many seconds from now on; None removes the limit."""
        self._seconds = seconds

    @contextmanager
    def job(self) -> Iterator[None]:
        """Allow calls in the block to be interrupted; nothing in it may need to be undone.

        Raises:
            JobTimeoutError: a call took too long.
        """
        # else it would go on where the call before it was interrupted, for the watchdog's looks
        self._number += 1
        self._thread = get_ident()
        try:
            try:
                yield
            finally:
                self._leave_call()
        except _InterruptedError:
            raise self._timed_out() from None
        finally:
            self._file.end()

    def call(self, partition: int, key: bytes | None, place: bytes = b"") -> None:
        """Record the call that begins now; the one before it is over.

        ``partition`` is -1 where whole batches are given, which ``place`` names then.
        """
        if self._is_interrupted:
            self._take_back()  # the call before came back just then
        self._number += 1
        self._file.begin(partition, key, place)

    def each(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yield rows, which begin with key and partition, each once it is noted as a call.

        As :meth:`call` for each of them, which takes twice as long.
        """
        found, pack, largest = self._file.map, _HEADER.pack, MOST_KEY
        for row in rows:
            if self._is_interrupted:
                self._take_back()
            self._number += 1
            key = row[0]
            size = len(key)
            if size > largest:
                key, size = key[:largest], largest
            found[: _KEY_AT + size] = pack(_MAGIC, _CALLED, row[1], size, 0) + key
            yield row

    def _leave_call(self) -> None:
        """End the part that may be interrupted. The record of the call stays readable."""
        while True:
            # one that is on its way may come between any two steps, and no second one after it
            with suppress(_InterruptedError):
                self._thread = None
                if self._is_interrupted:
                    self._take_back()
                return

    def _take_back(self) -> None:
        with self._lock:
            _set_exception(get_ident(), None)
            self._is_interrupted = False

    def _timed_out(self) -> JobTimeoutError:
        call = self._file.read() or Call(None, None, "")
        self.note_interrupted(call, self._seconds)
        return JobTimeoutError(
            f"the code did not return in {self._seconds:g} s from a call for {call}, and was "
            "interrupted",
            call,
        )

    def note_interrupted(self, call: Call, seconds: float | None) -> None:
        """Record that a call was interrupted: by name, if it was made by itself."""
        self.note_key(call, call.place)
        log.error("call_interrupted", **self.facts(call), seconds=seconds)

    def facts(self, call: Call) -> dict[str, Any]:
        """Return a call as events have it."""
        return {
            "channel": self._channel,
            "partition": call.partition,
            "key": None if call.key is None else call.key[:100].decode("utf-8", "replace"),
            "place": call.place,
        }

    # --- keys whose calls hung -----------------------------------------------------------------

    def note_key(self, call: Call, place: str) -> None:
        """Record the key of a call: it gets its facts singly, and never the one at ``place``."""
        if call.partition is None:
            return
        known = self._hung
        if len(known) >= _MOST_KEYS:
            known.pop(next(iter(known)))
        key = None if call.key is None else call.key[:MOST_KEY]
        known.setdefault((call.partition, key), set()).add(place)

    @property
    def known(self) -> dict[tuple[int, bytes | None], set[str]]:
        """Return the records and timers that are not given any more, by key."""
        return {key: set(places) for key, places in self._hung.items()}

    def is_known(self, partition: int, key: bytes) -> bool:
        """Return whether a call for the key hung, or a process ended in one."""
        return bool(self._hung) and (partition, key[:MOST_KEY]) in self._hung

    def has_hung(self, partition: int, key: bytes | None, place: str) -> bool:
        """Return whether the call for this record or timer hung, when it was made by itself."""
        if not self._hung or not place:
            return False
        return place in self._hung.get((partition, None if key is None else key[:MOST_KEY]), ())

    # --- the watchdog ---------------------------------------------------------------------------

    @property
    def seconds(self) -> float | None:
        """Return how long a call may take."""
        return self._seconds

    @property
    def number(self) -> int | None:
        """Return the number of the call under way, None where there is none."""
        return None if self._thread is None else self._number

    def interrupt(self, number: int) -> None:
        """Interrupt the call of this number, unless it is over."""
        with self._lock:
            # in this order: the lane leaves first, and asks then
            self._is_interrupted = True
            thread = self._thread
            if thread is not None and self._number == number:
                _set_exception(thread, _InterruptedError)

    def give_up(self, number: int) -> Call | None:
        """Mark the call of this number as hung and return it; None if it is over."""
        if self.number != number:
            return None
        self._file.give_up()
        return self._file.read()


def _set_exception(thread: int, kind: type[BaseException] | None) -> None:
    """Raise ``kind`` in a thread once it runs Python code; None cancels that."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind)
    )


class CallWatchdog(PeriodicThread):
    """The thread that interrupts calls that take too long.

    Time counts by its looks: a process that stood still as a whole has not looked either.
    """

    def __init__(
        self, watch: CallWatch, channel: str, fail: Callable[[BaseException], None]
    ) -> None:
        self._watch = watch
        self._channel = channel
        self._fail_channel = fail
        self._seen: int | None = None
        self._lasted = 0.0
        super().__init__(f"{channel}-calls", fail)

    def _run(self) -> None:
        while True:
            limit = self._watch.seconds
            interval = _LONGEST_INTERVAL
            if limit is not None:
                interval = min(interval, limit / _LOOKS)
            if self._stopping.wait(interval):
                return
            self._check_call(interval, limit)

    def _check_call(self, interval: float, limit: float | None) -> None:
        before, self._seen = self._seen, self._watch.number
        self._lasted = self._lasted + interval if self._seen == before else 0.0
        if self._seen is None or limit is None or self._lasted < limit:
            return
        if self._lasted < limit * _FINALLY:
            # again at each look: code may catch what it is interrupted by
            self._watch.interrupt(self._seen)
            return
        call = self._watch.give_up(self._seen)
        if call is not None:
            self._fail_channel(
                FatalError(
                    f"channel {self._channel}: the code does not return from a call for {call}, "
                    f"and cannot be interrupted after {self._lasted:.1f} s; the process has to be "
                    "restarted. The next one gives it the key's records one by one, and leaves "
                    "out the one that hangs again"
                )
            )
            self._stopping.set()
