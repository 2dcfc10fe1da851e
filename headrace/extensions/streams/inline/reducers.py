"""Keyed reducers as steps of a topology: called in the order of the task, with timers.

A timer fires before the first record with which the operator time is its due time or later, in the
order of due time, key and name. So what comes out does not depend on cuts. Timers are in memory,
and rows with them and the states are read as they are needed.
"""

from __future__ import annotations

import json
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from headrace.core.errors import ReducerError, RetryableError
from headrace.core.user_text import describe_error, describe_value, kind_of
from headrace.extensions.keyed.api import Event, Fired, Output, TimerClock
from headrace.extensions.keyed.codecs import DECODERS, ENCODERS
from headrace.extensions.keyed.evaluation import MAX_FIRED_AGAIN
from headrace.extensions.keyed.timers import checked_timers, require_time
from headrace.extensions.streams.fitted import fit_row
from headrace.extensions.streams.inline.batch import Batch
from headrace.extensions.streams.inline.stateless import LAST_TIME, row_objects, split_by_key
from headrace.extensions.streams.kernels.records import NO_TIME
from headrace.extensions.streams.keys import decode_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from headrace.extensions.keyed.api import Timer
    from headrace.extensions.streams.inline.batch import Poison, UserCalls
    from headrace.extensions.streams.operators import Output as RowsOut
    from headrace.extensions.streams.operators import Reduce

_read, _write = DECODERS["json"], ENCODERS["json"]


class Origins(Protocol):
    """The places in topics that the records of a micro-batch come from."""

    def origin(self, at: int) -> tuple[str, int]:
        """Return the topic of a record, and its offset there."""
        ...


class ReducerRows(Protocol):
    """The rows of a reducer by key, in bytes. One thread."""

    def read(self, key: bytes) -> bytes | None:
        """Return the row of a key, None where there is none."""
        ...

    def write(self, key: bytes, value: bytes | None) -> None:
        """Write the row of a key; None deletes it."""
        ...

    def items(self) -> Iterable[tuple[bytes, bytes]]:
        """Return all rows with their keys."""
        ...


class MemoryReducerRows:
    """Rows in this process, which end with it."""

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes] = {}

    def read(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def write(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = value

    def items(self) -> Iterable[tuple[bytes, bytes]]:
        return list(self._rows.items())


class KeyState(NamedTuple):
    """A key's state in JSON, None where there is none, and when its timers are due."""

    state: bytes | None
    timers: Mapping[str, int]

    @classmethod
    def of(cls, row: bytes | None) -> KeyState:
        """Return what a row has."""
        if row is None:
            return cls(None, {})
        document = json.loads(row)
        has_state = "state" in document
        return cls(_write(document["state"]) if has_state else None, document.get("timers", {}))

    def row(self) -> bytes | None:
        """Return the row, None where there is neither a state nor a timer."""
        members = [] if self.state is None else [b'"state":' + self.state]
        if self.timers:
            members.append(b'"timers":' + _write(dict(sorted(self.timers.items()))))
        return b"{" + b",".join(members) + b"}" if members else None


class _Made(NamedTuple):
    """A row that a reducer returned: the record that it comes with, its key, time and fields."""

    at: int
    key: bytes
    time: int
    row: Mapping[str, Any] | None


class ReduceState:
    """A reducer with the states and timers of its keys. ``time`` is the operator time."""

    def __init__(
        self,
        operator: Reduce,
        source: RowsOut,
        rows: ReducerRows,
        *,
        partition: int = 0,
        time: int = NO_TIME,
    ) -> None:
        assert operator.output is not None, "rows come out"
        self.time = time
        self._operator, self._source, self._output = operator, source, operator.output
        self._rows, self._partition = rows, partition
        self._names: dict[bytes, Any] = {}
        self._timers = {
            key: timers for key, row in rows.items() if (timers := KeyState.of(row).timers)
        }
        # a timer that was set again or cancelled is left here until it is due
        self._due = [
            (due, key, name) for key, own in self._timers.items() for name, due in own.items()
        ]
        heapify(self._due)

    def process(self, batch: Batch, origins: Origins, poison: Poison, calls: UserCalls) -> Batch:
        """Return the rows that the reducer makes of records, and of timers that are due.

        Raises:
            ReducerError: it fails for a timer, which no record is to blame for.
            RetryableError: the reducer says that it cannot work now.
        """
        label = self._operator.label
        batch, keys = split_by_key(batch, self._source.key, label, poison)
        # those of a micro-batch alone: decoded one by one they would take longer than the reducer
        self._names = self._names_of(keys.unique())
        columns = (keys, pa.array(batch.times), pa.array(batch.at))
        made: list[_Made] = []
        with calls.job():
            rows = zip(*(each.to_pylist() for each in columns), row_objects(batch), strict=True)
            for key, time, at, row in rows:
                is_late, self.time = time < self.time, max(self.time, time)
                made += self._fire(at, calls)
                fact = Event(row, time, *self._place(origins, at), (), is_late)
                try:
                    calls.call(label, at)
                    made += self._call(key, fact, time, at)
                except RetryableError:
                    raise
                except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's function
                    poison.note(at, f"{label}: {describe_error(error)}")
        return self._batch(made)

    def stored(self) -> Iterator[tuple[bytes, Any]]:
        """Yield the state of each key that has one."""
        for key, row in sorted(self._rows.items()):
            state = KeyState.of(row).state
            if state is not None:
                yield key, _read(state)

    def _place(self, origins: Origins, at: int) -> tuple[str, int, int]:
        topic, offset = origins.origin(at)
        return topic, self._partition, offset

    def _fire(self, at: int, calls: UserCalls) -> Iterator[_Made]:
        """Yield what comes of timers that are due, each call at its turn."""
        label, again = self._operator.label, dict[bytes, tuple[int, int]]()
        while self._due and self._due[0][0] <= self.time:
            due, key, name = heappop(self._due)
            if self._timers.get(key, {}).get(name) != due:
                continue
            what = f"{label}: timer {name!r} of key {key!r}, due at {due},"
            latest, fired = again.get(key, (NO_TIME, 0))
            again[key] = (max(due, latest), 1 if due > latest else fired + 1)
            if again[key][1] > MAX_FIRED_AGAIN:
                raise ReducerError(f"{what} is set again and again for a time that has passed")
            calls.call(label, at)
            try:
                yield from self._call(key, Fired(name, due), due, at)
            except RetryableError:
                raise
            except (Exception, SystemExit) as error:
                raise ReducerError(f"{what} fails: {describe_error(error)}") from error

    def _call(self, key: bytes, fact: Event[Any] | Fired, ts: int, at: int) -> list[_Made]:
        """Call the reducer, keep what it returned, and return the rows.

        Raises:
            Exception: it fails, or returns what cannot be used; then nothing is changed.
        """
        known = KeyState.of(self._rows.read(key))
        state = None if known.state is None else _read(known.state)
        state, outputs, timers = self._operator.reducer(self._name(key), state, [fact], self.time)
        made = [self._made(each, key, ts, at) for each in outputs]
        after = KeyState(None if state is None else _write(state), _due_times(timers))
        self._rows.write(key, after.row())
        self._set_timers(key, after.timers, fact)
        return made

    def _names_of(self, keys: pa.Array) -> dict[bytes, Any]:
        """Return keys as the reducer has them: a value, or a tuple of several."""
        parts = decode_keys(keys, self._source.key).parts
        values = zip(*(each.to_pylist() for each in parts), strict=True)
        names = (value[0] if len(value) == 1 else value for value in values)
        return dict(zip(keys.to_pylist(), names, strict=True))

    def _name(self, key: bytes) -> Any:
        """Return a key as the reducer has it, also that of a timer."""
        if key not in self._names:
            self._names |= self._names_of(pa.array([key], pa.binary()))
        return self._names[key]

    def _set_timers(self, key: bytes, timers: Mapping[str, int], fact: Event[Any] | Fired) -> None:
        """Remember when timers are due; one that fired is set only where it was returned."""
        before = dict(self._timers.get(key, {}))
        if isinstance(fact, Fired):
            before.pop(fact.name, None)
        for name, due in timers.items():
            if before.get(name) != due:
                heappush(self._due, (due, key, name))
        if timers:
            self._timers[key] = timers
        else:
            self._timers.pop(key, None)

    def _made(self, output: Any, key: bytes, ts: int, at: int) -> _Made:
        """Return a row that the reducer returned, by itself or as the value of an output.

        Raises:
            TypeError, ValueError: it is none, or says what an output of a topology cannot say.
        """
        time = ts
        if isinstance(output, Output):
            if output.to is not None or output.key is not ... or output.headers:
                raise ValueError(
                    "an output of a topology has a value and a time; write rows by another key "
                    "with key_by, to another topic with branch and to"
                )
            time = ts if output.ts is None else require_time(output.ts, "an output")
            output = output.value
            if output is None:
                return _Made(at, key, _checked(time), None)
        if type(output) is not self._output.row:
            shown = f"{describe_value(output)}, of type {kind_of(output)},"
            raise TypeError(f"{shown} was returned, and {self._output.row.__name__} is expected")
        return _Made(at, key, _checked(time), fit_row(output))

    def _batch(self, made: Sequence[_Made]) -> Batch:
        rows = [each.row for each in made]
        keys = pa.array([each.key for each in made], pa.binary())
        return Batch(
            self._output.row,
            {
                name: pa.array(
                    [None if row is None else row[name] for row in rows], each.type.arrow()
                )
                for name, each in self._output.row.__fields__.items()
            },
            decode_keys(keys, self._output.key).parts,
            np.array([each.time for each in made], np.int64),
            np.array([each.at for each in made], np.int64),
            np.array([row is not None for row in rows], np.bool_),
        )


def _checked(time: int) -> int:
    if not 0 <= time <= LAST_TIME:
        raise ValueError(f"an output is at {time}; its time has to be from 1970 to 9999")
    return time


def _due_times(timers: Mapping[str, Timer]) -> dict[str, int]:
    """Return when timers are due.

    Raises:
        TypeError, ValueError: one cannot be set.
    """
    for name, timer in checked_timers(timers, may_be_event=True).items():
        if timer.clock is TimerClock.CLOCK:
            raise ValueError(
                f"timer {name!r} is of the wall clock, which a topology does not have; set it with "
                "at_event"
            )
    return {name: timer.due for name, timer in timers.items()}
