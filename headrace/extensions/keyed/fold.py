"""The fold: what a reducer makes of one key's facts, and of a table of them.

The daemon and Spark's workers run the same: a table of :data:`ROWS` in, one of :data:`RESULT` out.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.columns import HEADERS
from headrace.core.errors import PoisonRecordError, RetryableError
from headrace.core.letter_headers import OUR_HEADERS, Failure, LetterHeaders, Stage, shortened
from headrace.core.records import TopicPartition
from headrace.core.user_text import describe_error, plain_error, plain_text
from headrace.extensions.keyed.api import Event, Fired, Output, Timer, TimerClock, is_batched
from headrace.extensions.keyed.codecs import DECODERS, ENCODERS, key_bytes, output_bytes
from headrace.extensions.keyed.exact import exact_text
from headrace.extensions.keyed.row import PREFIX, TTL, KeyRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from headrace.core.call_watch import CallWatch
    from headrace.extensions.keyed.api import KeyedReducer

    #: What makes a table of a table, here or in Spark's workers.
    TableFunction = Callable[[pa.Table], pa.Table]

    #: What calls one for each of some parts, and returns what it made, in their order.
    PartsRunner = Callable[[TableFunction, Sequence[pa.Table]], Sequence[pa.Table]]

_T = TypeVar("_T")

#: One record as the fold has it. ``time`` is the partition's stream time with it, ``late_by`` by
#: how much it is older than the stream time before it; all in milliseconds.
FACT = pa.struct(
    [
        ("source", pa.string()),
        ("offset", pa.int64()),
        ("ts", pa.int64()),
        ("time", pa.int64()),
        ("late_by", pa.int64()),
        ("value", pa.binary()),
        ("headers", HEADERS),
    ]
)

#: One touched key. ``until`` is the partition's stream time at the end of the micro-batch (null: no
#: record had one yet), ``now`` the micro-batch's wall clock, both in milliseconds.
ROWS = pa.schema(
    [
        ("key", pa.binary()),
        ("partition", pa.int32()),
        ("state", pa.binary()),
        ("extra", pa.binary()),
        ("facts", pa.list_(FACT)),
        ("until", pa.int64()),
        ("now", pa.int64()),
    ]
)

OUTPUT = pa.struct(
    [
        ("to", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("ts", pa.int64()),
        ("headers", HEADERS),
    ]
)

#: What became of a touched key. ``state`` and ``extra`` count where it is ``changed``; both null
#: delete it. ``key`` is null for records without one.
RESULT = pa.schema(
    [
        ("key", pa.binary()),
        ("partition", pa.int32()),
        ("changed", pa.bool_()),
        ("state", pa.binary()),
        ("extra", pa.binary()),
        ("outputs", pa.list_(OUTPUT)),
        ("fired", pa.int32()),
        ("late", pa.int32()),
        ("dropped", pa.int32()),
        ("poison", pa.int32()),
        ("expired", pa.int32()),
    ]
)

#: The name of the output that poison goes to: no output of a configuration can have it.
DEAD_LETTERS = "headrace.dead_letters"

#: Timers that one key may have.
MAX_TIMERS = 100

#: Bytes that a timer's name may have.
MAX_TIMER_NAME = 1000

#: Characters of the reason that is stored with a key that is set aside, at most and at least.
_REASON_LENGTH, _LEAST_REASON = 1000, 100

#: Bytes of a header beside its name and its value, at most.
_HEADER_FRAME = 10

#: Timers of event time that fire for one key after its last record of a micro-batch; those that are
#: left fire in the next one. Before a record all fire that are due.
MAX_FIRED = 10_000

#: Timers of one key that fire one after the other without any of them being later than those
#: before: more are set again and again for a time that has passed.
MAX_FIRED_AGAIN = 10 * MAX_TIMERS

#: Milliseconds since 1970 that a timer or an output may be at, before or after: some 140 million
#: years, so that adding to them stays within 64 bits.
MAX_TIME = 1 << 62

#: What says of a value, a state or a key that it cannot be read or written. Values nested too
#: deeply for the interpreter are among them.
_UNREADABLE = (TypeError, ValueError, RecursionError)


@dataclass(frozen=True, slots=True)
class FoldSettings:
    """How values are read, and what becomes of what cannot be reduced. Sizes are in bytes.

    ``grace`` and ``ttl`` are in milliseconds. ``outputs`` are the names that an output may go to,
    ``letters`` says what headers dead letters have. ``decoder`` reads values in place of what
    ``value`` names.
    """

    outputs: tuple[str, ...] = ()
    keys: str = "string"
    value: str = "json"
    state: str = "json"
    undecodable: str = "fail"
    failing: str = "fail"
    grace: int | None = None
    late: str = "skip"
    ttl: int | None = None
    max_row: int = 512 << 10
    max_output: int = 1_000_000
    letters: LetterHeaders = OUR_HEADERS
    decoder: Callable[[bytes], Any] | None = None

    @property
    def unreadable(self) -> str:
        """What becomes of a fact that cannot be read: as of one that fails, unless it says."""
        return self.failing if self.undecodable == "fail" else self.undecodable


class Fact(NamedTuple):
    """One record of a key, as in :data:`FACT`."""

    source: str
    offset: int
    ts: int
    time: int
    late_by: int
    value: bytes | None
    headers: Any = None


class Touched(NamedTuple):
    """A key with facts or due timers, as in :data:`ROWS`."""

    key: bytes
    partition: int
    row: KeyRow
    facts: Sequence[Fact]
    until: int | None
    now: int
    #: The facts as the reducer is to see them, None where each has to be looked at first.
    events: Sequence[Event[Any]] | None = None


#: A record to be produced, as in :data:`OUTPUT`.
OutputRow: TypeAlias = "tuple[str, bytes | None, bytes | None, int, Any]"


@dataclass(slots=True)
class Folded:
    """What became of one key."""

    row: KeyRow
    outputs: list[OutputRow] = field(default_factory=list)
    fired: int = 0
    late: int = 0
    dropped: int = 0
    poison: int = 0
    expired: int = 0


class _Results:
    """What became of keys, in the order in which they are added."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []
        self._outputs: list[OutputRow] = []
        self._ends = [0]

    def add(self, touched: Touched, found: Folded) -> None:
        """Add a key."""
        after, is_changed = found.row, found.row != touched.row
        numbers = found.fired, found.late, found.dropped, found.poison, found.expired
        self._rows.append((touched.key, touched.partition, is_changed, *after, *numbers))
        self._outputs += found.outputs
        self._ends.append(len(self._outputs))

    def add_plain(
        self,
        key: bytes,
        partition: int,
        before: bytes | None,
        after: bytes | None,
        outputs: Iterable[OutputRow],
    ) -> None:
        """Add a key that has a state and nothing else, before and after."""
        self._rows.append((key, partition, after != before, after, None, 0, 0, 0, 0, 0))
        self._outputs += outputs
        self._ends.append(len(self._outputs))

    def table(self) -> pa.Table:
        """Return a table of :data:`RESULT`."""
        outputs = pa.StructArray.from_arrays(
            _columns(self._outputs, list(OUTPUT)), fields=list(OUTPUT)
        )
        others = [kind for kind in RESULT if kind.name != "outputs"]
        columns = dict(
            zip((kind.name for kind in others), _columns(self._rows, others), strict=True)
        )
        columns["outputs"] = pa.ListArray.from_arrays(pa.array(self._ends, pa.int32()), outputs)
        return pa.Table.from_arrays([columns[name] for name in RESULT.names], schema=RESULT)


def _columns(rows: Sequence[tuple[Any, ...]], fields: Sequence[pa.Field]) -> list[pa.Array]:
    """Return rows in columns."""
    columns = zip(*rows, strict=True) if rows else repeat(())
    return [pa.array(values, kind.type) for values, kind in zip(columns, fields, strict=False)]


def made(kind: type[_T], fields: Iterable[tuple[Any, ...]]) -> list[_T]:
    """Return named tuples, without a call of Python's for each."""
    new: Any = tuple.__new__
    return list(map(new, repeat(kind), fields))


def _listed(column: pa.Array) -> list[Any]:
    """Return a column's values; of nothing but nulls, and of numbers, it is soon done."""
    if column.null_count == len(column):
        return [None] * len(column)
    is_whole = pa.types.is_integer(column.type) and not column.null_count
    values: list[Any] = column.to_numpy().tolist() if is_whole else column.to_pylist()
    return values


def _repeated(column: pa.Array) -> Iterator[str]:
    """Return the values of a column that has few: one object for each of them."""
    encoded = column.dictionary_encode()
    return map(encoded.dictionary.to_pylist().__getitem__, _listed(encoded.indices))


def _pairs(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    """Return a record's headers as an event has them."""
    return () if not headers else tuple((each["key"], each["value"]) for each in headers)


class _Facts:
    """The facts of a batch of keys: in columns, which are made when they are asked for.

    Named tuples are made for one key at a time: where those of all keys live at once, the
    interpreter looks through them for garbage again and again, which takes as long as all else.
    """

    def __init__(self, facts: pa.ListArray) -> None:
        self._ends = pc.subtract(facts.offsets, facts.offsets[0]).to_numpy()
        self._facts = facts.flatten()
        self._is_unreadable = False
        #: Set where the values of the key that comes next are to be read one by one, by the caller.
        self.is_left_unread = False

    def of(self, index: int) -> list[Fact]:
        """Return a key's facts."""
        start, end = self._ends[index : index + 2].tolist()
        part = self._facts.slice(start, end - start)
        columns = (_listed(part.field(name)) for name in FACT.names)
        return made(Fact, zip(*columns, strict=True))

    def events(
        self, partitions: Sequence[int], read: Callable[[bytes], Any]
    ) -> Iterator[list[Event[Any]] | None]:
        """Yield each key's facts as the reducer sees them, None where they need a closer look.

        ``partitions`` are those of the keys. There is no call of Python's for each fact but that
        which reads its value.
        """
        import numpy as np  # noqa: PLC0415 - an extra, without which records are re-keyed

        facts, sizes = self._facts, np.diff(self._ends).tolist()
        headers = facts.field("headers")
        fields = zip(
            self._values(read),
            _listed(facts.field("ts")),
            _repeated(facts.field("source")),
            chain.from_iterable(map(repeat, partitions, sizes)),
            _listed(facts.field("offset")),
            repeat(()) if headers.null_count == len(headers) else map(_pairs, headers.to_pylist()),
            repeat(False),
            strict=False,
        )
        new: Any = tuple.__new__
        events = map(new, repeat(Event), fields)
        places = np.flatnonzero(facts.field("late_by").to_numpy() > 0)
        late = set(np.searchsorted(self._ends, places, side="right").tolist())
        for number, size in enumerate(sizes, 1):
            self._is_unreadable = False
            found = list(islice(events, size))
            yield None if self._is_unreadable or number in late else found

    def _values(self, read: Callable[[bytes], Any]) -> Iterator[Any]:
        """Return values as they are read; a note is taken where one cannot be."""
        values = _listed(self._facts.field("value"))
        return iter(values) if read is DECODERS["bytes"] else self._read(values, read)

    def _read(self, values: Iterable[bytes | None], read: Callable[[bytes], Any]) -> Iterator[Any]:
        for data in values:
            try:
                yield None if data is None or self.is_left_unread else read(data)
            except (Exception, SystemExit):  # noqa: BLE001 - which one it is, is found out one by one
                self._is_unreadable = True
                yield None


def _header(name: Any, data: Any) -> dict[str, Any]:
    """Return an output's header as it is in :data:`OUTPUT`."""
    if not isinstance(name, str) or not (data is None or isinstance(data, bytes)):
        raise TypeError(f"header {name!r} is {data!r}; a header is a text and bytes, or None")
    exact_text(str.__str__(name), "a header's name")
    return {"key": name, "value": data}


def _header_size(header: Mapping[str, Any]) -> int:
    return len(header["key"].encode()) + len(header["value"] or b"") + _HEADER_FRAME


def _whole_time(time: object, what: str) -> int:
    """Return a time in milliseconds, if it is one."""
    if type(time) is not int:
        kind = type(time).__name__
        raise TypeError(f"{what} is at {time!r}, a {kind}; it has to be an int of milliseconds")
    if abs(time) > MAX_TIME:
        raise ValueError(f"{what} is at {time}; that is further off than {MAX_TIME} milliseconds")
    return time


class KeyedTimerError(RetryableError):
    """A reducer failed when it was called with a timer; no record is at fault."""


class _PoisonError(Exception):
    """A fact or a timer that the reducer, or the fold, cannot take."""

    def __init__(self, reason: BaseException | str) -> None:
        super().__init__(plain_text(reason) if isinstance(reason, str) else describe_error(reason))


def in_this_thread(function: TableFunction, parts: Sequence[pa.Table]) -> list[pa.Table]:
    """Call ``function`` for each part, one after the other. A ``PartsRunner``."""
    return list(map(function, parts))


class Fold:
    """Applies a reducer to touched keys. Any thread, one at a time; sent to Spark's workers whole.

    A reducer that has a method ``with_limits`` is asked by it for one that keeps them, and by
    ``with_outputs`` for one that knows the names of the channel's outputs. With ``calls`` each key
    is noted there before the reducer gets it, and a call that takes too long is interrupted; that
    is for folds in this process.

    Raises:
        PoisonRecordError: a fact cannot be reduced, and ``failing`` is ``fail``.
        KeyedTimerError: the same of a timer.
        JobTimeoutError: the reducer did not return from a call in time.
    """

    def __init__(
        self,
        reducer: KeyedReducer[Any, Any, Any],
        settings: FoldSettings,
        calls: CallWatch | None = None,
    ) -> None:
        bounded = getattr(reducer, "with_limits", None)
        if bounded is not None:
            reducer = bounded(max_row=settings.max_row, max_output=settings.max_output)
        knowing = getattr(reducer, "with_outputs", None)
        if knowing is not None:
            reducer = knowing(settings.outputs)
        self.reducer = reducer
        self.settings = settings
        self.calls = calls
        self.batched = is_batched(reducer)
        self.read_value = settings.decoder or DECODERS[settings.value]
        self.read_state = DECODERS[settings.state]
        self.write_state = ENCODERS[settings.state]

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return a table of :data:`RESULT` with a row for each of ``rows``, in their order."""
        results = _Results()
        with nullcontext() if self.calls is None else self.calls.job():
            for batch in rows.to_batches():
                self._fold_batch(batch, results)
        return results.table()

    def _fold_batch(self, batch: pa.RecordBatch, results: _Results) -> None:
        """Fold the keys of a batch."""
        facts = _Facts(batch.column("facts"))
        names = ("key", "partition", "state", "extra", "until", "now")
        columns = [_listed(batch.column(name)) for name in names]
        calls = self.calls
        keys: Iterable[tuple[Any, ...]] = zip(*columns, strict=True)
        if calls is not None:
            keys = calls.each(keys)
        each_events = facts.events(columns[1], self.read_value)
        is_plain = self.settings.ttl is None
        for index, row_before in enumerate(keys):
            key, partition, state, extra, until, now = row_before
            # what hung may be what reads the values
            has_failed = facts.is_left_unread = calls is not None and calls.is_known(partition, key)
            events = next(each_events)
            if has_failed:
                events = None
            elif is_plain and extra is None and events:
                try:
                    found = self._reduced(key, state, events, now)
                except (Exception, SystemExit):  # noqa: BLE001 - what it is, and of what, is found out below
                    has_failed = True
                else:
                    if found is not None:
                        results.add_plain(key, partition, state, *found)
                        continue
                    is_plain = False  # others will have timers as well
                    events = None  # the reducer has had these, and may have changed them
            row = KeyRow(state, extra)
            touched = Touched(key, partition, row, facts.of(index), until, now, events)
            results.add(touched, self.fold(touched, careful=has_failed))

    def _reduced(
        self, key: bytes, stored: bytes | None, events: list[Event[Any]], now: int
    ) -> tuple[bytes | None, list[OutputRow]] | None:
        """Return state and outputs of a key without timers; None where the reducer sets one.

        What :class:`_KeyPass` does of all that it can, in few steps: most keys are so. What fails
        here fails there, too.
        """
        name: Any = key.decode() if self.settings.keys == "string" else key
        state = None if stored is None else self.read_state(stored)
        outputs: list[OutputRow] = []
        for facts in [events] if self.batched else map(list, zip(events, strict=True)):
            ts = facts[-1].ts
            state, said, timers = self.reducer(name, state, facts, now)  # type: ignore[arg-type]
            if timers:
                return None
            outputs += [self.output(key, each, ts) for each in said]
        if state is None:
            return None, outputs
        data = self.write_state(state)
        if len(key) + len(data) > self.settings.max_row:
            self.require_row(key, KeyRow(data))
        return data, outputs

    def require_row(self, key: bytes, row: KeyRow) -> None:
        """Raise a ValueError if a key's row is too large: key, state and timers."""
        state, extra = row.state or b"", row.extra or b""
        size, most = len(key) + len(state) + len(extra), self.settings.max_row
        if size <= most:
            return
        if len(state) > most:
            raise ValueError(f"the state has {len(state)} bytes, and max_row is {most}")
        raise ValueError(
            f"the row has {size} bytes, {len(key)} of them the key, {len(state)} the state and "
            f"{len(extra)} its timers with their names, and max_row is {most}; have fewer or "
            "shorter ones, or raise state.max_row"
        )

    def output(self, own_key: bytes, output: Output, ts: int) -> OutputRow:
        """Return what an output of a key at a time is, as in :data:`OUTPUT`.

        Raises:
            TypeError, ValueError: it cannot be produced.
        """
        if not isinstance(output, Output):
            raise TypeError(f"an output is a {type(output).__name__}; it has to be an Output")
        said, to, key, at, named = output
        own = own_key if key is ... else None if key is None else key_bytes(key)
        value = output_bytes(said)
        to, size = self._output_name(to), len(own or b"") + len(value or b"")
        headers = [_header(*each) for each in named] if named else None
        if headers:
            size += sum(map(_header_size, headers))
        if size > self.settings.max_output:
            raise ValueError(
                f"an output to {to} has {size} bytes, and {self.settings.max_output} are allowed"
            )
        if at is not None and _whole_time(at, "an output") < 0:
            raise ValueError(f"an output is at {at}; its time has to be in 1970 or later")
        return to, own, value, max(ts, 0) if at is None else at, headers or None

    def _output_name(self, to: str | None) -> str:
        names = self.settings.outputs
        if to in names:
            return to
        if to is None and len(names) == 1:
            return names[0]
        there = f"the outputs are {', '.join(names)}" if names else "the channel has no sink"
        if to is not None:
            raise ValueError(f"there is no output {to!r}; {there}")
        raise ValueError(f"an output does not say where it goes with to=, and {there}")

    def fold(self, touched: Touched, *, careful: bool = False) -> Folded:
        """Return what becomes of one key.

        What a reducer did to its state before it failed cannot be undone, so that the key is folded
        again from what is stored: with a copy of the state before each call. It is so at once where
        it is known that something fails.
        """
        if not careful:
            with suppress(_PoisonError):
                return _KeyPass(self, touched, careful=False).run()
        return _KeyPass(self, touched, careful=True).run()


class _KeyPass:
    """One key on its way through a micro-batch.

    ``careful`` deals with each failure as the settings say, and calls the reducer with one fact
    at a time; without it the first failure is raised.
    """

    def __init__(self, fold: Fold, touched: Touched, *, careful: bool) -> None:
        self._fold = fold
        self._settings = fold.settings
        self._touched = touched
        self._careful = careful
        row = touched.row
        self._state: Any = None
        self._name: Any = touched.key
        timers, self._quarantined = row.read_extra()
        self._timers = {name: timer for name, timer in timers.items() if name != TTL}
        self._ttl = timers[TTL].due if TTL in timers else None
        self._unreadable: str | None = None
        self._called = False
        self._result = Folded(row)
        #: The state as it is stored, and after each call of a careful run.
        self._stored = row.state
        self._latest_fired: int | None = None
        self._fired_again = 0
        self._due = self._next_due() if timers else None

    def run(self) -> Folded:
        """Return what became of the key.

        Raises:
            _PoisonError: something failed, and this is no careful run.
            PoisonRecordError, KeyedTimerError: ``failing`` is ``fail``, in a careful one.
        """
        touched = self._touched
        self._open()
        facts: Iterable[tuple[Fact, Event[Any] | None]] = (
            zip(touched.facts, touched.events, strict=True)
            if touched.events is not None and self._is_plain()
            else ((fact, None) for fact in touched.facts)
        )
        if self._fold.batched and not self._careful:
            self._take_batched(facts)
        else:
            for fact, ready in facts:
                if self._due is not None:
                    self._fire_until(fact.time)
                event = ready or self._event_of(fact)
                if event is not None:
                    self._call([event], fact)
        if touched.until is not None:
            self._fire_until(touched.until, MAX_FIRED)
        self._fire_clock()
        if self._called:
            self._close()
        return self._result

    def _is_plain(self) -> bool:
        """Whether facts reach the reducer as they are."""
        return not self._careful and self._quarantined is None and self._unreadable is None

    # --- the state --------------------------------------------------------------------------

    def _open(self) -> None:
        """Decode key and state."""
        state = self._touched.row.state
        try:
            if self._settings.keys == "string":
                self._name = self._touched.key.decode()
            if state is not None:
                self._state = self._fold.read_state(state)
        except _UNREADABLE as error:
            self._unreadable = f"the key or its state cannot be read: {error}"

    def _close(self) -> None:
        state = self._stored
        if not self._careful and self._unreadable is None:
            try:
                state = None if self._state is None else self._fold.write_state(self._state)
                row = self._row(state, self._timers, self._ttl)
                self._fold.require_row(self._touched.key, row)
            except _UNREADABLE as error:
                raise _PoisonError(plain_error(error)) from None
        else:
            row = self._row(state, self._timers, self._ttl)
        if self._quarantined is not None:
            reason = self._stored_reason(row, self._quarantined)
            row = self._row(state, self._timers, self._ttl, reason)
        self._result.row = row

    def _row(
        self,
        state: bytes | None,
        timers: Mapping[str, Timer],
        ttl: int | None,
        quarantined: str | None = None,
    ) -> KeyRow:
        """Return what is stored of the key, with its end as a timer."""
        if self._settings.ttl is not None and ttl is not None and (state is not None or timers):
            timers = {**timers, TTL: Timer(ttl)}
        return KeyRow.of(state, timers, quarantined)

    def _stored_reason(self, row: KeyRow, reason: str) -> str:
        """Return why the key is set aside, in as many words as its row has room for."""
        sizes = (len(data or b"") for data in (self._touched.key, row.state, row.extra))
        room = (self._settings.max_row - sum(sizes)) // 6  # bytes of a character in JSON, at most
        return plain_text(reason, min(_REASON_LENGTH, max(_LEAST_REASON, room)))

    # --- facts ------------------------------------------------------------------------------

    def _event_of(self, fact: Fact) -> Event[Any] | None:
        """Return a fact as the reducer is to see it, None where it is not to."""
        if self._quarantined is not None:
            self._refuse_quarantined(fact)
            return None
        if fact.late_by > 0 and not self._takes_late(fact):
            return None
        if self._unreadable is not None:
            self._give_up(fact, self._unreadable)
            return None
        if self._careful and self._fold.calls is not None and self._hangs(fact, self._fold.calls):
            return None
        try:
            value = None if fact.value is None else self._fold.read_value(fact.value)
        except _UNREADABLE as error:
            self._give_up(fact, plain_error(error), Stage.VALUE)
            return None
        partition, late = self._touched.partition, fact.late_by > 0
        headers = _pairs(fact.headers)
        return Event(value, fact.ts, fact.source, partition, fact.offset, headers, late)

    def _takes_late(self, fact: Fact) -> bool:
        self._result.late += 1
        grace = self._settings.grace
        if grace is None or fact.late_by <= grace:
            return True
        if self._settings.late == "dead_letter":
            self._set_aside(fact, f"it is late by {fact.late_by} ms, and grace is {grace} ms")
        else:
            self._result.dropped += 1
        return False

    def _take_batched(self, facts: Iterable[tuple[Fact, Event[Any] | None]]) -> None:
        """Call the reducer with all facts up to the next timer that is due."""
        waiting: list[Event[Any]] = []
        last, ttl = None, self._settings.ttl
        lives_until: int | None = None
        for fact, ready in facts:
            # the key may end between what waits and this one: that is known once it is reduced
            ends = any(due is not None and due <= fact.time for due in (self._due, lives_until))
            if last is not None and ends:
                self._call(waiting, last)
                waiting, last, lives_until = [], None, None
            if self._due is not None:
                self._fire_until(fact.time)
            event = ready or self._event_of(fact)
            if event is not None:
                waiting.append(event)
                last = fact
                if ttl is not None:
                    own = event.ts + ttl
                    lives_until = own if lives_until is None else max(lives_until, own)
        if last is not None:
            self._call(waiting, last)

    # --- timers -----------------------------------------------------------------------------

    def _next_due(self) -> int | None:
        if self._quarantined is not None:
            return None
        due = [timer.due for timer in self._timers.values() if timer.clock is TimerClock.EVENT]
        if self._ttl is not None and self._settings.ttl is not None:
            due.append(self._ttl)
        return min(due, default=None)

    def _fire_until(self, time: int, most: int | None = None) -> None:
        """Fire timers of event time that are due, in the order of due and name.

        Those beyond ``most`` are left for the next micro-batch. A key is at its end after what is
        due at the same time.
        """
        fired = 0
        while self._due is not None and self._due <= time and fired != most:
            due = [
                (timer.due, name)
                for name, timer in self._timers.items()
                if timer.clock is TimerClock.EVENT and timer.due == self._due
            ]
            if due:
                at, name = min(due)
                self._fire(Fired(name, at))
                fired += 1
            else:
                self._expire()

    def _fire_clock(self) -> None:
        """Fire timers of the wall clock that are due, each once: missed ones collapse."""
        due = sorted(
            (timer.due, name)
            for name, timer in self._timers.items()
            if timer.clock is TimerClock.CLOCK and timer.due <= self._touched.now
        )
        for at, name in due:
            is_set = self._timers.get(name) == Timer(at, TimerClock.CLOCK)
            if is_set and self._quarantined is None:
                self._fire(Fired(name, at, TimerClock.CLOCK))

    def _fire(self, fired: Fired) -> None:
        del self._timers[fired.name]
        self._called = True
        self._result.fired += 1
        if fired.clock is TimerClock.EVENT and self._has_fired_at(fired.due) > MAX_FIRED_AGAIN:
            self._give_up(
                fired,
                f"{MAX_FIRED_AGAIN} timers fired at {fired.due} or before; the reducer sets timers "
                "again that are due by then",
            )
        elif self._unreadable is not None:
            self._give_up(fired, self._unreadable)
        else:
            self._call([fired], fired)
        self._due = self._next_due()

    def _has_fired_at(self, due: int) -> int:
        """Return how many timers fired in a row without being later than those before."""
        if self._latest_fired is None or due > self._latest_fired:
            self._latest_fired, self._fired_again = due, 0
        self._fired_again += 1
        return self._fired_again

    def _expire(self) -> None:
        """Delete a key that had no fact for its time to live."""
        self._state, self._stored, self._timers = None, None, {}
        self._ttl, self._due = None, None
        self._called = True
        self._result.expired += 1

    # --- the call ---------------------------------------------------------------------------

    def _call(self, facts: list[Any], last: Fact | Fired) -> None:
        """Call the reducer, and take what it returned."""
        self._called = True
        if self._careful and self._fold.calls is not None and self._hangs(last, self._fold.calls):
            return
        before = self._stored
        try:
            returned = self._fold.reducer(self._name, self._state, facts, self._touched.now)
            state, outputs, timers = returned
            ts = last.due if isinstance(last, Fired) else last.ts
            encoded = [self._fold.output(self._touched.key, output, ts) for output in outputs]
            wanted = self._wanted(timers, last) if timers else {}
            ttl = self._lives_until(facts) if isinstance(last, Fact) else self._ttl
            if self._careful:
                stored = None if state is None else self._fold.write_state(state)
                self._fold.require_row(self._touched.key, self._row(stored, wanted, ttl))
                self._stored = stored
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a reducer's, or for what it returned
            if self._careful:
                self._state = None if before is None else self._fold.read_state(before)
            self._give_up(last, plain_error(error))
            return
        self._state = state
        self._result.outputs += encoded
        self._timers = wanted
        self._ttl = ttl
        if state is None and not wanted:
            self._ttl = None
        self._due = self._next_due() if wanted or self._ttl is not None else None

    def _lives_until(self, facts: Sequence[Event[Any]]) -> int | None:
        """Return when the key ends after facts, None where keys have no time to live."""
        if self._settings.ttl is None:
            return self._ttl
        return max(self._ttl or 0, max(fact.ts for fact in facts) + self._settings.ttl)

    def _hangs(self, last: Fact | Fired, calls: CallWatch) -> bool:
        """Note the call for one fact or timer; where it hung before, give that up instead."""
        key, partition = self._touched.key, self._touched.partition
        place = (
            f"timer {last.name!r}"
            if isinstance(last, Fired)
            else f"offset {last.offset} of {TopicPartition(last.source, partition)}"
        )
        if calls.has_hung(partition, key, place):
            self._give_up(last, f"the reducer does not return when it is called with {place}")
            return True
        calls.call(partition, key, place.encode())
        return False

    def _wanted(self, timers: Mapping[str, Timer], last: Fact | Fired) -> dict[str, Timer]:
        """Return the timers that a reducer wants."""
        if len(timers) > MAX_TIMERS:
            raise ValueError(f"{len(timers)} timers; a key may have {MAX_TIMERS}")
        for name, timer in timers.items():
            if not isinstance(timer, Timer):
                kind = type(timer).__name__
                raise TypeError(f"timer {name!r} is a {kind}; make it with at_event or at_clock")
            if type(name) is not str:
                kind = type(name).__name__
                raise TypeError(f"a timer's name is {name!r}, a {kind}; it has to be a plain text")
            size = len(exact_text(name, "a timer's name"))
            if size > MAX_TIMER_NAME:
                raise ValueError(
                    f"a timer's name has {size} bytes, and {MAX_TIMER_NAME} are allowed: "
                    f"{plain_text(name, 100)!r}; keep what it says in the state"
                )
            _whole_time(timer.due, f"timer {name!r}")
            if type(timer.clock) is not TimerClock:
                kind = type(timer.clock).__name__
                raise TypeError(
                    f"timer {name!r} has a {kind} as its clock; make it with at_event or at_clock"
                )
            if name.startswith(PREFIX):
                raise ValueError(f"timer {name!r}: names that begin with {PREFIX!r} are reserved")
            if self._fold.batched and timer.clock is TimerClock.EVENT and isinstance(last, Fact):
                raise ValueError(
                    f"timer {name!r} is of event time, and the reducer is @batched: when it fires "
                    "would depend on where batches are cut; leave @batched out"
                )
        return dict(timers)

    # --- poison -----------------------------------------------------------------------------

    def _give_up(
        self, last: Fact | Fired, reason: BaseException | str, stage: Stage = Stage.PROCESS
    ) -> None:
        """Deal with what cannot be read or reduced, as the settings say of that."""
        error = _PoisonError(reason)
        if not self._careful:
            raise error
        settings = self._settings
        policy = settings.unreadable if stage is Stage.VALUE else settings.failing
        if policy == "fail":
            raise self._refusal(last, str(error)) from (
                reason if isinstance(reason, BaseException) else None
            )
        if policy == "skip":
            self._result.poison += 1
        elif isinstance(last, Fired):
            self._result.poison += 1
            said = {"partition": str(self._touched.partition), "timer": last.name}
            failure = self._failure(str(error), reason, stage)
            letter = dead_letter(
                self._settings.letters, self._touched.key, None, last.due, failure, said, None
            )
            self._result.outputs.append(letter)
        else:
            self._set_aside(last, str(error), reason, stage)
        if policy == "quarantine":
            self._called = True
            self._quarantined = str(error)
            if isinstance(last, Fired):
                self._timers[last.name] = Timer(last.due, last.clock)
            self._due = None  # timers stay until the key is released

    def _refuse_quarantined(self, fact: Fact) -> None:
        """Deal with a fact of a key that is quarantined, by whatever policy that was."""
        reason = f"the key is quarantined: {self._quarantined}"
        policies = {self._settings.undecodable, self._settings.failing}
        if policies & {"dead_letter", "quarantine"}:
            self._set_aside(fact, reason)
        else:  # there need not be a topic for it
            self._give_up(fact, f"{reason}; headrace state release has it go on")

    def _refusal(self, last: Fact | Fired, reason: str) -> Exception:
        shown = self._touched.key[:100].decode("utf-8", "replace")
        partition = self._touched.partition
        if isinstance(last, Fact):
            source = TopicPartition(last.source, partition)
            return PoisonRecordError(source, last.offset, f"key {shown!r}: {reason}")
        return KeyedTimerError(
            f"key {shown!r} of partition {partition}: timer {last.name!r}, due at {last.due}: "
            f"{reason}"
        )

    def _failure(
        self, message: str, reason: BaseException | str | None, stage: Stage = Stage.PROCESS
    ) -> Failure:
        error = reason if isinstance(reason, BaseException) else None
        return Failure(message, error, stage, self._fold.reducer)

    def _set_aside(
        self,
        fact: Fact,
        message: str,
        reason: BaseException | str | None = None,
        stage: Stage = Stage.PROCESS,
    ) -> None:
        """Make a dead letter of a fact."""
        self._result.poison += 1
        said = {
            "topic": fact.source,
            "partition": str(self._touched.partition),
            "offset": str(fact.offset),
            "timestamp": str(fact.ts),
        }
        letter = dead_letter(
            self._settings.letters,
            self._touched.key,
            fact.value,
            fact.ts,
            self._failure(message, reason, stage),
            said,
            fact.headers,
        )
        self._result.outputs.append(letter)


def dead_letter(  # noqa: PLR0917 - a record's parts
    letters: LetterHeaders,
    key: bytes | None,
    value: bytes | None,
    ts: int,
    failure: Failure,
    said: Mapping[str, str],
    headers: Any,
) -> OutputRow:
    """Return a record for the dead-letter topic, as in :data:`OUTPUT`."""
    ours = letters.of({**said, "message": shortened(failure.message)}, failure)
    named = [{"key": name, "value": data} for name, data in ours]
    return DEAD_LETTERS, key, value, max(0, ts), [*(headers or ()), *named]
