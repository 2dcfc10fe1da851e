"""Reading the stores of a running topology: rows as their operators have them, as committed.

A store's rows are read from the state of its channel, by what its operator makes of them: so a
reader sees the fields that the operator writes, and no parts of aggregates.
"""

from __future__ import annotations

import json
from heapq import nsmallest
from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from headrace.extensions.streams.decode import has_bytes
from headrace.extensions.streams.encode import encode_rows
from headrace.extensions.streams.errors import QuestionError
from headrace.extensions.streams.expressions import Part, PartNode
from headrace.extensions.streams.inline.aggregates import Result, layout_of, result_batch
from headrace.extensions.streams.inline.reducers import KeyState
from headrace.extensions.streams.kernels.layout import put_rows, take_rows
from headrace.extensions.streams.kernels.partials import Count, WholeSum
from headrace.extensions.streams.kernels.time_windows import first_open
from headrace.extensions.streams.operators import Aggregate, Reduce, TableJoin, TableSource
from headrace.extensions.streams.plan import stored_order
from headrace.extensions.streams.questions import PageQuestion
from headrace.extensions.streams.row_documents import split_row
from headrace.extensions.streams.runtime.stores import (
    rows_prefix,
    split_times,
    time_in_key,
    time_key,
    times_prefix,
)
from headrace.extensions.streams.types import Kind
from headrace.extensions.streams.windows import SessionWindows, SlidingWindows, TimeWindows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from headrace.extensions.keyed.row import KeyRow
    from headrace.extensions.keyed.standby_reader import StandbyProgress
    from headrace.extensions.keyed.state import CommittedRows, Progress
    from headrace.extensions.keyed.state_reader import RowsReader
    from headrace.extensions.streams.inline.batch import Batch
    from headrace.extensions.streams.kernels.partials import Parts
    from headrace.extensions.streams.plan import Plan, Store
    from headrace.extensions.streams.questions import KeyQuestion

#: Rows that are looked at for one question at most. A page ends there, and goes on with the next.
MOST_ROWS = 100_000
#: Panes that are read for one question at most, and merged into its windows.
MOST_PANES, MOST_MERGED = 10_000, 1_000_000

#: The bounds of a whole number's type.
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


class Window(NamedTuple):
    """The bounds of a window, in milliseconds. Of sessions and sliding windows both are in it."""

    start: int
    end: int


class StoreRow(NamedTuple):
    """A row of a store.

    ``text`` is the row in JSON, None where JSON has no such row, and ``problem`` says why.
    ``time`` is that of its latest record, ``timers`` when those of a reducer are due, both in
    milliseconds.
    """

    key: bytes
    text: str | None
    time: int | None = None
    window: Window | None = None
    timers: Mapping[str, int] = MappingProxyType({})
    problem: str | None = None


class StoreRows(NamedTuple):
    """Rows of a store in one partition, and where it is with them, or where its copy is.

    ``time`` is the operator time in milliseconds, None where there is none. ``next`` is what a page
    begins with that follows, None at the end.
    """

    rows: list[StoreRow]
    progress: Progress | StandbyProgress
    time: int | None
    next: bytes | None = None


class StoreReader(Protocol):
    """Reads committed rows of a store in a partition whose state is there. Any thread; blocks.

    Raises:
        StateStoreError: the rows cannot be read.
        QuestionError: the question takes too many rows, or does not fit the store.
    """

    has_windows: bool

    def get(self, reader: RowsReader, partition: int, question: KeyQuestion) -> StoreRows:
        """Return the rows of keys, or their windows that are not over, the latest one last.

        All of them are of one moment. A key without a row has none.
        """
        ...

    def page(self, reader: RowsReader, partition: int, question: PageQuestion) -> StoreRows:
        """Return rows in the order of the store: by key, or by window and key."""
        ...


def store_reader_of(plan: Plan, store: Store) -> StoreReader:
    """Return what reads a store.

    Raises:
        QuestionError: its rows are of no key.
    """
    operator = plan.operators[store.operator]
    match operator:
        case Aggregate(windows=None):
            rows = _AggregateRows(operator)
            return _RowsByKey(store, (_PlainRows.of(operator, rows) or rows).read_groups)
        case Aggregate(windows=TimeWindows() as windows):
            return _TimeWindows(store, operator, windows)
        case Aggregate(windows=SessionWindows() | SlidingWindows() as windows):
            return _WindowsByKey(store, operator, windows)
        case TableSource() | TableJoin():
            return _RowsByKey(store, _read_table)
        case Reduce():
            return _RowsByKey(store, _read_states, has_time=True)
    raise QuestionError(
        "no_rows",
        f"store {store.name} has the buffers of a join of streams",
        value=store.name,
        next_step="ask for a store of an aggregate, a table or a reducer",
    )


# --- rows by key --------------------------------------------------------------------------------


class _RowsByKey:
    """Rows of which a key has one. ``read`` makes them of keys and values."""

    has_windows = False

    def __init__(
        self,
        store: Store,
        read: Callable[[Sequence[bytes], Sequence[bytes]], list[StoreRow]],
        *,
        has_time: bool = False,
    ) -> None:
        self._prefix = rows_prefix(store.rows)
        # a row that is never there is not in memory: it would be looked for on the disk each time
        self._times = [time_key(store.rows)] if has_time else []
        self._read = read

    def get(self, reader: RowsReader, partition: int, question: KeyQuestion) -> StoreRows:
        with reader.reading(partition) as rows:
            names = [self._prefix + key for key in question.keys]
            values = rows.get_many([*names, *self._times])
            progress = rows.progress
        time = values.pop() if self._times else None
        pairs = zip(question.keys, values, strict=True)
        there = {key: value for key, value in pairs if value is not None}
        found = self._read(list(there), list(there.values())) if there else []
        return StoreRows(found, progress, _number(time))

    def page(self, reader: RowsReader, partition: int, question: PageQuestion) -> StoreRows:
        first = self._prefix + max(question.prefix, question.first)
        with reader.reading(partition) as rows:
            times = rows.get_many(self._times)
            scanned, progress = rows.scan(first), rows.progress
        time = _number(times[0]) if times else None
        taken = _take(_rest(scanned, self._prefix), lambda _: True, question, question.prefix)
        return StoreRows(self._read(*taken.columns()), progress, time, taken.next)


def _read_table(keys: Sequence[bytes], values: Sequence[bytes]) -> list[StoreRow]:
    """Return rows of a table, whose values have them as they are written."""
    found = []
    for key, value in zip(keys, values, strict=True):
        said, text = split_row(value)
        found.append(StoreRow(key, text.decode(), said["time"]))
    return found


def _read_states(keys: Sequence[bytes], values: Sequence[bytes]) -> list[StoreRow]:
    """Return the states of a reducer."""
    found = []
    for key, value in zip(keys, values, strict=True):
        state, timers = KeyState.of(value)
        found.append(StoreRow(key, None if state is None else state.decode(), timers=timers))
    return found


class _AggregateRows:
    """Makes the rows of an aggregate of what is stored of it."""

    def __init__(self, operator: Aggregate) -> None:
        assert operator.output is not None, "rows come out"
        self._operator = operator
        self._bytes = [
            name for name, each in operator.output.row.__fields__.items() if has_bytes(each.type)
        ]
        self.layout = layout_of(operator)

    def read_groups(self, keys: Sequence[bytes], values: Sequence[bytes]) -> list[StoreRow]:
        """Return the rows of groups without windows."""
        return self.finish(keys, self.layout.decode_texts(values))

    def finish(
        self, keys: Sequence[bytes], rows: Parts, windows: Sequence[Window] | None = None
    ) -> list[StoreRow]:
        """Return the rows of keys that have records, in their order."""
        there = np.flatnonzero(self.layout.present(rows)).tolist()
        own, size = take_rows(rows, np.array(there, np.int64)), len(there)
        names = [keys[at] for at in there]
        bounds = None if windows is None else [windows[at] for at in there]
        times = own[0].tolist()
        over = np.flatnonzero(self.layout.overflows(own)).tolist()
        put_rows(own, over, self.layout.empty(len(over)))
        result = Result(
            np.zeros(size, np.int64),
            pa.array(names, pa.binary()),
            own[0],
            self.layout.results(own),
            np.ones(size, np.bool_),
            None if bounds is None else np.array([each.start for each in bounds], np.int64),
            None if bounds is None else np.array([each.end for each in bounds], np.int64),
        )
        texts, found = self._texts(result_batch(self._operator, result))
        # of a table's group the sum goes on, so that what is taken away later is right
        problems = {**found, **dict.fromkeys(over, "an aggregate leaves the range of its type")}
        return [
            StoreRow(
                name,
                None if place in problems else texts[place],
                times[place],
                None if bounds is None else bounds[place],
                problem=problems.get(place),
            )
            for place, name in enumerate(names)
        ]

    def _texts(self, made: Batch) -> tuple[Sequence[str], Mapping[int, str]]:
        """Return rows in JSON, and why some are none."""
        if self._bytes:
            reason = f"{made.row.__name__}.{self._bytes[0]} has bytes, which JSON does not"
            return (), dict.fromkeys(range(len(made)), reason)
        encoded = encode_rows(made.row, made.fields, len(made))
        return [each.decode() for each in encoded.values.to_pylist()], encoded.faults


class _PlainRows:
    """Makes rows that have nothing but text of the key, counts and sums of whole numbers.

    Of a few rows, arrays would take a hundred times as long. They also let go of the interpreter
    many times, and under a load each time is waited for.
    """

    def __init__(
        self, members: Sequence[tuple[str, int | None, bool]], rows: _AggregateRows
    ) -> None:
        #: What stands before each value, where it is stored, None for the key, and whether it is a
        #: sum.
        self._members = members
        self._rows = rows

    @classmethod
    def of(cls, operator: Aggregate, rows: _AggregateRows) -> _PlainRows | None:
        """Return what makes the rows of an operator, None where they have anything else."""
        assert operator.output is not None, "rows come out"
        stored, names = list(stored_order(operator)), list(operator.aggregates)
        if [each.kind for each in operator.output.key] != [Kind.TEXT]:
            return None
        members: list[tuple[str, int | None, bool]] = []
        for name, field in operator.output.row.__fields__.items():
            text = f"{',' if members else '{'}{json.dumps(field.name, ensure_ascii=False)}:"
            if operator.fields.get(name) == PartNode(Part.KEY) and field.type.kind is Kind.TEXT:
                members.append((text, None, False))
                continue
            if name not in names or field.type.kind is not Kind.INT:
                return None
            place = names.index(name)
            partial = type(rows.layout.partials[place + 1])
            if partial not in {Count, WholeSum}:
                return None
            members.append((text, stored.index(place) + 1, partial is WholeSum))
        return cls(members, rows) if members else None

    def read_groups(self, keys: Sequence[bytes], values: Sequence[bytes]) -> list[StoreRow]:
        """Return the rows of groups without windows."""
        found = []
        for key, value in zip(keys, values, strict=True):
            stored = json.loads(value)
            if stored[0] < 0:
                continue
            text = self._text_of(key, stored)
            if text is None:
                return self._rows.read_groups(keys, values)
            found.append(StoreRow(key, text, stored[0]))
        return found

    def _text_of(self, key: bytes, stored: Sequence[Any]) -> str | None:
        """Return a row in JSON, None where it takes arrays to say what it is."""
        parts = []
        for start, place, is_sum in self._members:
            value: Any
            if place is None:
                try:
                    value = json.dumps(key.decode(), ensure_ascii=False)
                except UnicodeDecodeError:
                    return None
            elif is_sum:
                total, count = stored[place]
                if not _LOWEST <= total <= _HIGHEST:
                    return None
                value = total if count else "null"
            else:
                value = stored[place]
            parts.append(f"{start}{value}")
        return "".join(parts) + "}"


# --- rows by window and key -----------------------------------------------------------------------


class _TimeWindows:
    """Tumbling and hopping windows, which are merged of panes: ``STORE/BEGIN/KEY``."""

    has_windows = True

    def __init__(self, store: Store, operator: Aggregate, windows: TimeWindows) -> None:
        self._name, self._stored = store.name, store.rows
        self._prefix, self._time = rows_prefix(store.rows), time_key(store.rows)
        self._rows = _AggregateRows(operator)
        self._windows = windows
        self._step = windows.every // windows.pane

    def get(self, reader: RowsReader, partition: int, question: KeyQuestion) -> StoreRows:
        with reader.reading(partition) as rows:
            time = _operator_time(rows, self._time)
            numbers = self._open(time, question.since, question.until)
            panes = self._panes_of(numbers)
            begins = [self._pane_key(pane) for pane in panes]
            values = rows.get_many([begin + key for key in question.keys for begin in begins])
            progress = rows.progress
        stored = self._rows.layout.decode_texts(values)
        bounds = [self._bounds(number) for number in numbers]
        firsts = np.arange(len(question.keys)) * len(panes)
        merged = self._merge(stored, firsts, len(bounds))
        names = [key for key in question.keys for _ in bounds]
        found = self._rows.finish(names, merged, bounds * len(question.keys))
        return StoreRows(found, progress, time)

    def page(self, reader: RowsReader, partition: int, question: PageQuestion) -> StoreRows:
        if question.window is not None and question.window % self._windows.every:
            raise QuestionError(
                "invalid_window",
                f"no window of store {self._name} begins at {question.window} ms",
                value=str(question.window),
                next_step=f"they begin at each multiple of {self._windows.every} ms since 1970",
            )
        with reader.reading(partition) as rows:
            time = _operator_time(rows, self._time)
            until = None if question.window is None else question.window + 1
            numbers = self._open(time, question.window, until)
            if not self._windows.tumbling and question.window is None:
                raise self._window_missing(numbers)
            panes = self._panes_of(numbers[:1])
            scanned = rows.scan(self._first_of(panes, question))
            progress = rows.progress
        rest = _rest(scanned, self._prefix)
        if not numbers:
            return StoreRows([], progress, time)
        if self._windows.tumbling:
            found = self._take(rest, numbers, question)
        else:
            found = self._take_merged(rest, numbers[0], panes, question)
        return StoreRows(found.rows, progress, time, found.next)

    def _open(self, time: int | None, since: int | None, until: int | None) -> range:
        """Return the windows that are not over and may have records, by their numbers."""
        if time is None:
            return range(0)
        windows = self._windows
        first = int(first_open(windows, np.array([time]))[0])
        last = time // windows.every
        if since is not None:
            first = max(first, -(-since // windows.every))
        if until is not None:
            last = min(last, (until - 1) // windows.every)
        return range(first, last + 1)

    def _panes_of(self, numbers: range) -> range:
        """Return the panes of windows.

        Raises:
            QuestionError: they are too many.
        """
        if not numbers:
            return range(0)
        panes = range(numbers[0] * self._step, numbers[-1] * self._step + self._windows.panes)
        merged = 0 if self._windows.tumbling else len(numbers) * self._windows.panes
        if len(panes) > MOST_PANES or merged > MOST_MERGED:
            raise QuestionError(
                "too_many_windows",
                f"{len(numbers)} windows of store {self._name} are open",
                value=self._name,
                next_step="ask for those between two times: from and to",
            )
        return panes

    def _window_missing(self, numbers: range) -> QuestionError:
        bounds = "there is none"
        if numbers:
            first, last = (number * self._windows.every for number in (numbers[0], numbers[-1]))
            bounds = f"open ones begin from {first} to {last} ms, each {self._windows.every} ms"
        return QuestionError(
            "window_missing",
            f"a page of hopping windows, as those of store {self._name}, is of one window",
            value=self._name,
            next_step=f"name its start with window; {bounds}",
        )

    def _pane_key(self, pane: int) -> bytes:
        """Return what the keys of a pane's rows begin with."""
        return times_prefix(self._stored, pane * self._windows.pane)

    def _bounds(self, number: int) -> Window:
        start = number * self._windows.every
        return Window(start, start + self._windows.size)

    def _first_of(self, panes: range, question: PageQuestion) -> bytes:
        """Return the first row to look at, of panes that a page is of."""
        if not panes:
            return self._prefix
        first = self._pane_key(panes[0])
        if not self._windows.tumbling:
            return first
        if question.window is not None:
            first += question.prefix
        return max(first, self._prefix + question.first)

    def _merge(self, stored: Parts, firsts: npt.NDArray[np.int64], size: int) -> Parts:
        """Return the rows of ``size`` windows that follow each other, of those of their panes.

        The first pane of each key is at one of ``firsts``.
        """
        layout = self._rows.layout
        starts = np.add.outer(firsts, np.arange(size) * self._step).ravel()
        merged = take_rows(stored, starts)
        for at in range(1, self._windows.panes):
            merged = layout.merge(merged, take_rows(stored, starts + at))
        return merged

    def _take(
        self, scanned: Iterator[tuple[bytes, bytes]], numbers: range, question: PageQuestion
    ) -> _Page:
        """Return rows of tumbling windows, which lie as the page has them."""
        last = numbers[-1] * self._windows.every
        inside = takewhile(lambda row: split_times(row[0], 1)[0][0] <= last, scanned)

        def is_wanted(row: bytes) -> bool:
            return split_times(row, 1)[1].startswith(question.prefix)

        one = question.window
        prefix = b"" if one is None else time_in_key(one) + b"/" + question.prefix
        taken = _take(inside, is_wanted, question, prefix)
        places = [split_times(row, 1) for row in taken.names]
        bounds = [Window(begin, begin + self._windows.size) for (begin,), _ in places]
        stored = self._rows.layout.decode_texts(taken.values)
        return _Page(self._rows.finish([key for _, key in places], stored, bounds), taken.next)

    def _take_merged(
        self,
        scanned: Iterator[tuple[bytes, bytes]],
        number: int,
        panes: range,
        question: PageQuestion,
    ) -> _Page:
        """Return rows of a hopping window, of which each pane has a part."""
        last = panes[-1] * self._windows.pane
        by_key: dict[bytes, dict[int, bytes]] = {}
        keep = question.limit + 1
        for row, value in scanned:
            (begin,), key = split_times(row, 1)
            if begin > last:
                break
            if key.startswith(question.prefix) and key >= question.first:
                by_key.setdefault(key, {})[begin // self._windows.pane] = value
            if len(by_key) > 4 * keep:
                by_key = {key: by_key[key] for key in nsmallest(keep, by_key)}
        keys = nsmallest(keep, by_key)
        shown = keys[: question.limit]
        layout = self._rows.layout
        merged = layout.empty(len(shown))
        for pane in panes:
            own = self._rows.layout.decode_texts([by_key[key].get(pane) for key in shown])
            merged = layout.merge(merged, own)
        rows = self._rows.finish(shown, merged, [self._bounds(number)] * len(shown))
        return _Page(rows, keys[-1] if len(keys) > len(shown) else None)


class _WindowsByKey:
    """Sessions and sliding windows: ``STORE/END/BEGIN/KEY``."""

    has_windows = True

    def __init__(
        self, store: Store, operator: Aggregate, windows: SessionWindows | SlidingWindows
    ) -> None:
        self._name = store.name
        self._prefix, self._time = rows_prefix(store.rows), time_key(store.rows)
        self._rows = _AggregateRows(operator)
        #: By how much the operator time passes the end of a window before it is over.
        self._reach = windows.grace + (windows.gap if isinstance(windows, SessionWindows) else 0)

    def get(self, reader: RowsReader, partition: int, question: KeyQuestion) -> StoreRows:
        found = self._read(
            reader,
            partition,
            PageQuestion(limit=MOST_ROWS),
            (question.since, question.until),
            lambda key: key in question.keys,
        )
        if found.next is not None:
            raise QuestionError(
                "too_many_windows",
                f"store {self._name} has more than {MOST_ROWS} windows of all keys",
                value=self._name,
                next_step="ask for those that end between two times: from and to",
            )
        return found

    def page(self, reader: RowsReader, partition: int, question: PageQuestion) -> StoreRows:
        window = question.window
        bounds = (None, None) if window is None else (window, window + 1)
        prefix = question.prefix
        return self._read(reader, partition, question, bounds, lambda key: key.startswith(prefix))

    def _read(
        self,
        reader: RowsReader,
        partition: int,
        question: PageQuestion,
        ends: tuple[int | None, int | None],
        is_wanted: Callable[[bytes], bool],
    ) -> StoreRows:
        """Return open windows that end between two times, of keys that are wanted."""
        with reader.reading(partition) as rows:
            time = _operator_time(rows, self._time)
            lowest = max(ends[0] or 0, 0 if time is None else time - self._reach)
            first = max(time_in_key(lowest), question.first)
            scanned, progress = rows.scan(self._prefix + first), rows.progress
        rest = _rest(scanned, self._prefix)
        if ends[1] is not None:
            until = ends[1]
            rest = takewhile(lambda row: split_times(row[0], 2)[0][0] < until, rest)
        taken = _take(rest, lambda row: is_wanted(split_times(row, 2)[1]), question)
        places = [split_times(row, 2) for row in taken.names]
        bounds = [Window(begin, end) for (end, begin), _ in places]
        stored = self._rows.layout.decode_texts(taken.values)
        found = self._rows.finish([key for _, key in places], stored, bounds)
        return StoreRows(found, progress, time, taken.next)


# --- pages ----------------------------------------------------------------------------------------


class _Page(NamedTuple):
    """Rows, and the first one of what follows."""

    rows: list[StoreRow]
    next: bytes | None


class _Taken(NamedTuple):
    """Rows as they are stored, by their keys without the store, and the first one that follows."""

    names: list[bytes]
    values: list[bytes]
    next: bytes | None

    def columns(self) -> tuple[list[bytes], list[bytes]]:
        """Return keys and values."""
        return self.names, self.values


def _rest(scanned: Iterator[tuple[bytes, KeyRow]], prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of a store by their keys without it."""
    start = len(prefix)
    for key, row in scanned:
        if not key.startswith(prefix):
            return
        if row.state is not None:
            yield key[start:], row.state


def _take(
    scanned: Iterator[tuple[bytes, bytes]],
    is_wanted: Callable[[bytes], bool],
    question: PageQuestion,
    prefix: bytes = b"",
) -> _Taken:
    """Return rows up to the limit, of those that begin so and are wanted."""
    names: list[bytes] = []
    values: list[bytes] = []
    for count, (row, value) in enumerate(scanned):
        if not row.startswith(prefix):
            break
        if count == MOST_ROWS:
            return _Taken(names, values, row)
        if is_wanted(row):
            if len(names) == question.limit:
                return _Taken(names, values, row)
            names.append(row)
            values.append(value)
    return _Taken(names, values, None)


def _operator_time(rows: CommittedRows, key: bytes) -> int | None:
    (value,) = rows.get_many([key])
    return _number(value)


def _number(value: bytes | None) -> int | None:
    return None if value is None else int(value)
