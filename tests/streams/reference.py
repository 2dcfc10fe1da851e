"""The semantics of topologies, row by row: slow and obvious, what kernels are compared with.

A document (:mod:`tests.streams.scenario`) becomes a graph of operators; a record is pushed through
it, depth first, in the order in which the document names the operators. What an operator does is
in its docstring, in full. ``T`` is the operator's time: the highest time of the records that
reached it, the present one included.

Where Headrace differs from Kafka Streams 4.3 there is a member of :class:`Difference`, and an
operator asks for it at the one place where it matters. With all of them on, the outputs have to be
those of Kafka Streams' test driver, record by record; without any they are Headrace's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


class Difference(Enum):
    """A rule in which Kafka Streams 4.3, without caches, differs from Headrace."""

    LATER_ALONE = auto()
    """A record without a partner may be told some records after its window is over.

    Kafka Streams looks for such records only when the time has passed a bound, which it sets to
    the last record that it looked at, not to the first one that is still open.
    """

    HASTY_ALONE = auto()
    """A record that comes when its reach is over is told alone at once, though grace is not over.

    If a partner comes within the grace, it is told with it as well.
    """

    FORGETFUL_JOIN = auto()
    """A join's buffer forgets by the highest time of its own side, and 1 ms earlier."""

    EARLY_FINAL = auto()
    """A sliding window or a session is told as final at the last time at which it takes a record.

    Such a record makes a second final result of it.
    """

    FORGETFUL_SLIDING = auto()
    """A sliding window is forgotten by the highest begin of a window, of whichever key.

    Those that begin more than two sizes and the grace before that are not there for a late record.
    """

    FORGETFUL_SESSIONS = auto()
    """Sessions are forgotten at the last time at which a record may extend them.

    Such a record makes a session of its own, with the same key and fewer records, which is
    forgotten at once.
    """

    REPEATED_SESSION = auto()
    """A session that takes a record within its bounds is withdrawn before it is told again."""

    START_AS_BEFORE = auto()
    """The row before the first of an aggregate is what its start makes, not none.

    Where the aggregate's table is grouped again, the group of that row is told a null.
    """


#: All of them: Kafka Streams.
KAFKA_STREAMS = frozenset(Difference)

#: None of them: Headrace.
HEADRACE: frozenset[Difference] = frozenset()


class Row(NamedTuple):
    """A value: every stream and table of a scenario has these two fields."""

    n: int
    s: str


class Window(NamedTuple):
    """The key of a row of a windowed table. Ends of sessions and sliding windows are included."""

    key: str
    begin: int
    end: int

    def __str__(self) -> str:
        return f"{self.key}@{self.begin}-{self.end}"


Key = str | Window


class Record(NamedTuple):
    """A record of a stream; without a value it is null."""

    key: Key
    value: Row | None
    time: int


class Held(NamedTuple):
    """A row of a store, and the time of the latest record in it."""

    value: Row
    time: int


@dataclass(frozen=True, slots=True)
class Output:
    """A record that a topology wrote, and the index of the record that made it do so."""

    index: int
    topic: str
    key: str
    value: Row | None
    time: int


@dataclass(slots=True)
class Change:
    """A change of a table's row, with the values before and after; null where there is none."""

    key: Key
    value: Row | None
    before: Row | None
    time: int


Item = Record | Change


class Operator:
    """A node of the graph: takes items on a side, sends items to those who read it."""

    def __init__(self) -> None:
        self.readers: list[tuple[Operator, int]] = []

    def take(self, item: Any, side: int) -> None:
        """Process an item that came on this side: 0 is left, or the only one."""
        raise NotImplementedError

    def send(self, item: Item) -> None:
        """Hand an item to each reader, one after the other."""
        for reader, side in self.readers:
            reader.take(item, side)


class Stateless(Operator):
    """Makes of each record any number of records, at once and of the same time."""

    def __init__(self, function: Callable[[Record], Iterable[Record]]) -> None:
        super().__init__()
        self._function = function

    def take(self, item: Record, side: int) -> None:
        for made in self._function(item):
            self.send(made)


class Topic(Operator):
    """Between two sub-topologies: a record is processed when the one before it is, in order.

    A source is a topic too.
    """

    def __init__(self, queue: deque[tuple[Topic, Item]]) -> None:
        super().__init__()
        self._queue = queue

    def take(self, item: Item, side: int) -> None:
        self._queue.append((self, item))


class Table(Operator):
    """A table by key: what a row is now can be asked for at any time."""

    def get(self, key: str) -> Held | None:
        """Return the row of a key."""
        raise NotImplementedError


class StoredTable(Table):
    """A table that a store holds."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[str, Held] = {}

    def get(self, key: str) -> Held | None:
        return self.rows.get(key)

    def put(self, key: str, value: Row | None, time: int) -> None:
        """Store a value, or delete the row, and send the change."""
        before = self.rows.pop(key, None)
        if value is not None:
            self.rows[key] = Held(value, time)
        self.send(Change(key, value, before and before.value, time))


class SourceTable(StoredTable):
    """A topic as a table: the last record of a key in its order, whatever its time.

    A null value deletes the row. A deletion of nothing is sent like any other.
    """

    def take(self, item: Record, side: int) -> None:
        self.put(str(item.key), item.value, item.time)


class Aggregate(StoredTable):
    """Aggregates by key, without windows.

    A null value is skipped. The time of a row is that of its latest record.
    """

    def __init__(self, fold: Fold, rules: frozenset[Difference]) -> None:
        super().__init__()
        self._fold = fold
        self._start = Row(0, "") if Difference.START_AS_BEFORE in rules else None

    def take(self, item: Record, side: int) -> None:
        if item.value is None:
            return
        key = str(item.key)
        held = self.rows.get(key)
        value = self._fold.add(key, held and held.value, item.value)
        time = item.time if held is None else max(held.time, item.time)
        self.rows[key] = Held(value, time)
        self.send(Change(key, value, self._start if held is None else held.value, time))


class GroupChanges(Topic):
    """Changes of a table by the field ``s`` of the row before and of the row after.

    Of a row that stays in its group it is one change, else one without a row after in the group
    before, and then one without a row before in the group after.
    """

    def take(self, item: Item, side: int) -> None:
        assert isinstance(item, Change)
        before, after = item.before, item.value
        if before is not None and after is not None and before.s == after.s:
            super().take(Change(after.s, after, before, item.time), side)
            return
        if before is not None:
            super().take(Change(before.s, None, before, item.time), side)
        if after is not None:
            super().take(Change(after.s, after, None, item.time), side)


class TableAggregate(StoredTable):
    """Aggregates of a table's groups: the row before is taken away, then the row after added.

    A group that lost all its rows stays, with what no row comes to. The time of a row is that of
    its latest change.
    """

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def take(self, item: Change, side: int) -> None:
        key = str(item.key)
        held = self.rows.get(key)
        if held is None and item.value is None:
            # there is nothing to take it away from
            self.put(key, None, item.time)
            return
        n = 0 if held is None else held.value.n
        if held is not None and item.before is not None:
            n -= 1 if self._what == "count" else item.before.n
        if item.value is not None:
            n += 1 if self._what == "count" else item.value.n
        self.put(key, Row(n, key), item.time if held is None else max(held.time, item.time))


class Fold:
    """An aggregate: how a row is added to what is there, and two of those are merged."""

    def __init__(self, what: str) -> None:
        self._what = what

    def add(self, key: str, held: Row | None, row: Row) -> Row:
        """Return the aggregate with a row more."""
        match self._what:
            case "count":
                return Row((held.n if held else 0) + 1, key)
            case "total":
                return Row((held.n if held else 0) + row.n, key)
            case _:
                return _best([row.n, *_numbers(held)])

    def merge(self, key: str, left: Row, right: Row) -> Row:
        """Return the aggregate of both."""
        if self._what == "top":
            return _best([*_numbers(left), *_numbers(right)])
        return Row(left.n + right.n, key)


def _numbers(held: Row | None) -> list[int]:
    return [] if held is None else [int(number) for number in held.s.split(",")]


def _best(numbers: list[int]) -> Row:
    found = sorted(numbers, reverse=True)[:3]
    return Row(found[0], ",".join(map(str, found)))


class Windowed(Operator):
    """An aggregate by key and window. A null value is skipped, and does not move ``T``."""

    def __init__(self, fold: Fold, grace: int, rules: frozenset[Difference]) -> None:
        super().__init__()
        self.fold = fold
        self.grace = grace
        self.rules = rules
        self.time = -1
        self.late = 0
        self.rows: dict[Window, Held] = {}

    def take(self, item: Record, side: int) -> None:
        if item.value is None:
            return
        self.time = max(self.time, item.time)
        if not self.add(str(item.key), item.value, item.time):
            self.late += 1

    def add(self, key: str, row: Row, time: int) -> bool:
        """Add a row to its windows; return whether there was one that took it."""
        raise NotImplementedError

    def over(self, window: Window) -> bool:
        """Whether a window takes no record any more."""
        raise NotImplementedError

    def told(self, window: Window) -> bool:
        """Whether a window's result is final."""
        return self.over(window)

    def put(self, window: Window, row: Row, time: int) -> None:
        """Add a row to one window, and send the change."""
        held = self.rows.get(window)
        value = self.fold.add(window.key, held and held.value, row)
        self.store(window, value, time if held is None else max(held.time, time))

    def store(self, window: Window, value: Row, time: int) -> None:
        """Set a window's aggregate, and send the change."""
        before = self.rows.get(window)
        self.rows[window] = Held(value, time)
        self.send(Change(window, value, before and before.value, time))

    def open_rows(self) -> dict[Window, Held]:
        """Return the rows of the windows that are not over; the others are gone."""
        return {window: held for window, held in self.rows.items() if not self.over(window)}


class HoppingWindows(Windowed):
    """Windows of ``size``, one begins each ``every``; tumbling ones where the two are the same.

    A record at ``t`` is in the windows that begin at ``w``, a multiple of ``every`` and not below
    0, with ``w <= t < w + size``. A window is over when ``w + size + grace <= T``. The windows of
    a record are told from the first to the last.
    """

    def __init__(
        self, fold: Fold, size: int, every: int, grace: int, rules: frozenset[Difference]
    ) -> None:
        super().__init__(fold, grace, rules)
        self._size = size
        self._every = every

    def over(self, window: Window) -> bool:
        return window.end + self.grace <= self.time

    def add(self, key: str, row: Row, time: int) -> bool:
        first = max(0, (time - self._size) // self._every + 1) * self._every
        windows = [
            Window(key, begin, begin + self._size) for begin in range(first, time + 1, self._every)
        ]
        taken = [window for window in windows if not self.over(window)]
        for window in taken:
            self.put(window, row, time)
        return bool(taken)


class SlidingWindows(Windowed):
    """Windows of ``size``, ends included, that begin and end with records.

    A record at ``t`` has a left window ``[t - size, t]`` and a right window
    ``[t + 1, t + 1 + size]``. Left windows that would begin below 0 are one, ``[0, size]``. A
    window is over when ``end + grace < T``, and is then neither made nor told any more, but
    remembered as long as what follows needs it. A record is late when the last window that could
    contain it is over, ``t + size + grace < T``.

    A record is added to the windows of its key in this order:

    1. to each window that contains ``t`` and ends later, from the last to the first;
    2. to its left window, if there is one. Has that a record at ``t`` already, all is done;
    3. to the right window of the record before, which is made, if there was none and it contains
       ``t``. The record before is the latest one in the last window that ends before ``t``, or
       else in the left window;
    4. to its left window, which is made, if there was none: with the content of that last window,
       if its latest record is within ``size``.
    5. Its right window is made, if there was none, with what was in the last window of step 1
       before, if that had a record after ``t``; without such a window it is not made.

    A record with ``t < size`` takes the order 1 (from the first to the last), 5, 3, 2 or 4: its
    left window ``[0, size]`` counts as a window of step 1 in step 5 where there is no other one,
    and the record before is the latest one in it, if that is before ``t``.

    So windows are made of windows, not of records: a record leaves no trace where all windows that
    end or begin with it are over or were not made.
    """

    def __init__(self, fold: Fold, size: int, grace: int, rules: frozenset[Difference]) -> None:
        super().__init__(fold, grace, rules)
        self._size = size
        #: The highest begin of a window that was stored: Kafka Streams' store forgets by it.
        self._stored = -1

    def over(self, window: Window) -> bool:
        return window.end + self.grace < self.time

    def told(self, window: Window) -> bool:
        if Difference.EARLY_FINAL in self.rules:
            return window.end + self.grace <= self.time
        return self.over(window)

    def store(self, window: Window, value: Row, time: int) -> None:
        self._stored = max(self._stored, window.begin)
        super().store(window, value, time)

    def add(self, key: str, row: Row, time: int) -> bool:
        if self.over(self._window(key, time)):
            return False
        windows = self._near(key, time)
        left = max(0, time - self._size)
        containing = [begin for begin in sorted(windows) if left < begin <= time]
        after = windows[containing[-1]] if containing else None
        if time < self._size:
            self._add_early(key, row, time, windows, containing)
            return True
        for begin in reversed(containing):
            self._put(key, begin, row, time)
        if left in windows:
            self._put(key, left, row, time)
            if windows[left].time == time:
                return True
        earlier = [begin for begin in windows if begin < left]
        before = windows[max(earlier)] if earlier else None
        previous = before or windows.get(left)
        self._make_previous(key, row, time, windows, previous.time if previous else -1)
        if left not in windows and not self.over(self._window(key, left)):
            held = before.value if before and before.time >= left else None
            self.store(self._window(key, left), self.fold.add(key, held, row), time)
        self._make_right(key, time, windows, after)
        return True

    def _add_early(
        self, key: str, row: Row, time: int, windows: dict[int, Held], containing: list[int]
    ) -> None:
        for begin in containing:
            self._put(key, begin, row, time)
        first = windows.get(0)
        self._make_right(key, time, windows, windows[containing[-1]] if containing else first)
        if first is not None and first.time < time:
            self._make_previous(key, row, time, windows, first.time)
        self._put(key, 0, row, time)

    def _make_previous(
        self, key: str, row: Row, time: int, windows: dict[int, Held], previous: int
    ) -> None:
        begin = previous + 1
        if previous >= 0 and begin not in windows and begin + self._size >= time:
            self._put(key, begin, row, time)

    def _make_right(
        self, key: str, time: int, windows: dict[int, Held], after: Held | None
    ) -> None:
        if time + 1 not in windows and after is not None and after.time > time:
            self.store(self._window(key, time + 1), *after)

    def _near(self, key: str, time: int) -> dict[int, Held]:
        """Return the remembered windows that a record may touch or be made of, by their begin."""
        first = max(0, time - 2 * self._size)
        if Difference.FORGETFUL_SLIDING in self.rules:
            first = max(first, self._stored - 2 * self._size - self.grace + 1)
        return {
            window.begin: held
            for window, held in self.rows.items()
            if window.key == key and first <= window.begin <= time + 1
        }

    def _window(self, key: str, begin: int) -> Window:
        return Window(key, begin, begin + self._size)

    def _put(self, key: str, begin: int, row: Row, time: int) -> None:
        window = self._window(key, begin)
        if not self.over(window):
            self.put(window, row, time)


class Sessions(Windowed):
    """Sessions of a key: records less than or as far as ``gap`` from each other, ends included.

    A session is over when ``end + gap + grace < T``. A record at ``t`` is merged with all sessions
    that are not over, end at ``t - gap`` or later and begin at ``t + gap`` or earlier. It is late
    when what that makes is over, and then changes nothing. Else those sessions of which the bounds
    change are withdrawn, in the order of their ends: a null with the end as its time. Then the
    session is told, with its end as the time.
    """

    def __init__(self, fold: Fold, gap: int, grace: int, rules: frozenset[Difference]) -> None:
        super().__init__(fold, grace, rules)
        self._gap = gap
        #: The highest end of a session that was stored: Kafka Streams' store forgets by it.
        self._stored = -1

    def over(self, window: Window) -> bool:
        return window.end + self._gap + self.grace < self.time

    def told(self, window: Window) -> bool:
        if Difference.EARLY_FINAL in self.rules:
            return window.end + self._gap + self.grace <= self.time
        return self.over(window)

    def add(self, key: str, row: Row, time: int) -> bool:
        own = Window(key, time, time)
        near = sorted(
            (window for window in self.rows if self._meets(window, own)),
            key=lambda window: (window.end, window.begin),
        )
        merged = Window(key, min(w.begin for w in [own, *near]), max(w.end for w in [own, *near]))
        if self.over(merged):
            return False
        held: Row | None = None
        for window in near:
            value = self.rows[window].value
            held = value if held is None else self.fold.merge(key, held, value)
        for window in near:
            before = self.rows.pop(window)
            repeated = Difference.REPEATED_SESSION in self.rules and merged != own
            if window != merged or repeated:
                self.send(Change(window, None, before.value, window.end))
        self._stored = max(self._stored, merged.end)
        self.store(merged, self.fold.add(key, held, row), merged.end)
        return True

    def open_rows(self) -> dict[Window, Held]:
        return {
            window: held
            for window, held in super().open_rows().items()
            if not self._forgotten(window)
        }

    def _forgotten(self, window: Window) -> bool:
        if Difference.FORGETFUL_SESSIONS in self.rules:
            return window.end <= self._stored - self._gap - self.grace
        return self.over(window)

    def _meets(self, window: Window, own: Window) -> bool:
        return (
            not self._forgotten(window)
            and window.key == own.key
            and window.end >= own.end - self._gap
            and window.begin <= own.begin + self._gap
        )


class Each(Operator):
    """Sends each change of a table as a record, nulls included."""

    def take(self, item: Change, side: int) -> None:
        self.send(Record(str(item.key), item.value, item.time))


class Final(Operator):
    """Sends each window once, when it is over, in the order (end, key, begin).

    That is looked at when a record has been added, with the time of the records that were added.
    The time of a result is that of the window's latest record, of a session its end. A session
    that was withdrawn sends nothing.
    """

    def __init__(self, windows: Windowed) -> None:
        super().__init__()
        self._windows = windows
        self._open: dict[Window, Change] = {}

    def take(self, item: Change, side: int) -> None:
        assert isinstance(item.key, Window)
        self._open[item.key] = item
        due = [window for window in self._open if self._windows.told(window)]
        for window in sorted(due, key=lambda w: (w.end, w.key, w.begin)):
            change = self._open.pop(window)
            if change.value is not None:
                self.send(Record(str(window), change.value, change.time))


class Buffered(NamedTuple):
    """A record in a join's buffer; ``order`` is the place in which it came."""

    time: int
    order: int
    key: str
    value: Row


class StreamJoin(Operator):
    """Joins two streams by key: pairs with ``left - before <= right <= left + after`` in time.

    A record without a value joins nothing, but moves ``T``. A pair is told when the second of its
    records is read, with the later time of the two; pairs of one record in the order (time, place)
    of their partners. A partner is remembered while its time is at least
    ``T - before - after - grace``, and one of a side that is told alone while it is not over.

    A record of the left side of ``left``, of both sides of ``outer``, that has no partner is told
    alone, with its own time: when its reach (``after`` of a left record, ``before`` of a right
    one) and ``grace`` are over, ``time + reach + grace < T``; that is looked at with each record
    of which the time is ``T``, before it is joined, in the order (time, right before left, key,
    place). A record for which it holds when it comes is told at once.
    """

    def __init__(
        self, how: str, before: int, after: int, grace: int, rules: frozenset[Difference]
    ) -> None:
        super().__init__()
        self._tells_alone = {"inner": (False, False), "left": (True, False)}.get(how, (True, True))
        self._reach = (after, before)
        self._grace = grace
        self._rules = rules
        self._time = -1
        self._order = 0
        self._buffers: tuple[list[Buffered], list[Buffered]] = ([], [])
        self._alone: list[tuple[int, int, Buffered]] = []
        self._least: float = float("inf")

    def take(self, item: Record, side: int) -> None:
        self._time = max(self._time, item.time)
        if item.value is None:
            return
        self._order += 1
        record = Buffered(item.time, self._order, str(item.key), item.value)
        self._buffers[side].append(record)
        if record.time == self._time:
            self._tell_alone(side)
        partners = sorted(self._partners(record, side))
        for partner in partners:
            self._alone = [
                entry
                for entry in self._alone
                if not (
                    entry[1] == side
                    and (entry[2].time, entry[2].key) == (partner.time, partner.key)
                )
            ]
            pair = (record.value, partner.value)
            left, right = pair if side == 0 else pair[::-1]
            self.send(Record(record.key, joined(left, right), max(record.time, partner.time)))
        if not partners and self._tells_alone[side]:
            hasty = Difference.HASTY_ALONE in self._rules
            if self._over(record, side, grace=0 if hasty else self._grace):
                self._send_alone(record, side)
            else:
                self._least = min(self._least, record.time)
                # the right side's number is lower, so that it sorts before the left one
                self._alone.append((record.time, 1 - side, record))

    def _partners(self, record: Buffered, side: int) -> Iterator[Buffered]:
        backward = self._reach[1 - side]
        forward = self._reach[side]
        others = self._buffers[1 - side]
        remembered = self._time - sum(self._reach) - self._grace
        if Difference.FORGETFUL_JOIN in self._rules:
            own = max((other.time for other in others), default=-1)
            remembered = own - sum(self._reach) - self._grace + 1
        elif self._tells_alone[1 - side]:
            remembered = self._time - self._reach[1 - side] - self._grace
        for other in others:
            if (
                other.key == record.key
                and record.time - backward <= other.time <= record.time + forward
                and other.time >= remembered
            ):
                yield other

    def _over(self, record: Buffered, side: int, grace: int) -> bool:
        return record.time + self._reach[side] + grace < self._time

    def _tell_alone(self, side: int) -> None:
        ordered = sorted(self._alone, key=lambda e: (e[0], e[1], e[2].key, e[2].order))
        if Difference.LATER_ALONE in self._rules:
            ordered = self._looked_at(ordered, side)
        for entry in ordered:
            _, flag, record = entry
            if self._over(record, 1 - flag, self._grace):
                self._alone.remove(entry)
                self._send_alone(record, 1 - flag)

    def _looked_at(
        self, ordered: list[tuple[int, int, Buffered]], side: int
    ) -> list[tuple[int, int, Buffered]]:
        """Return those that Kafka Streams looks at, and set its bound."""
        if self._least + self._reach[side] + self._grace >= self._time:
            return []
        self._least = float("inf")
        found = []
        still_open: set[int] = set()
        for entry in ordered:
            self._least = entry[0]
            if len(still_open) == 2:
                break
            if not self._over(entry[2], 1 - entry[1], self._grace):
                still_open.add(entry[1])
            found.append(entry)
        return found

    def _send_alone(self, record: Buffered, side: int) -> None:
        left, right = (record.value, None) if side == 0 else (None, record.value)
        self.send(Record(record.key, joined(left, right), record.time))


def joined(left: Row | None, right: Row | None) -> Row:
    """Return the row that a join makes of two."""
    return Row(
        (left.n if left else 0) + (right.n if right else 0),
        f"{left.s if left else '-'}+{right.s if right else '-'}",
    )


class StreamTableJoin(Operator):
    """Joins each record with the row that the table has for its key at that moment.

    A record without a value is dropped. ``inner`` drops a record without a row, too. The time is
    the record's, also where the row's is later.
    """

    def __init__(self, how: str, table: Table) -> None:
        super().__init__()
        self._drops = how == "inner"
        self._table = table

    def take(self, item: Record, side: int) -> None:
        if item.value is None:
            return
        held = self._table.get(str(item.key))
        if held is not None or not self._drops:
            self.send(replace_value(item, joined(item.value, held and held.value)))


def replace_value(record: Record, value: Row | None) -> Record:
    """Return the record with another value."""
    return record._replace(value=value)


class TableJoin(Table):
    """Joins two tables by key: each change of either side is told, with the later time of both.

    ``inner``: nothing is told while the other side has no row; a deletion is told as a null.
    ``left``: a change of the right side is told only where the left side has a row; one of the
    left side always, but for a deletion of nothing without a row on the right side.
    ``outer``: always, but for a deletion of nothing without a row on the other side.
    A change that leaves the result as it was is told nevertheless.
    """

    def __init__(self, how: str, left: Table, right: Table) -> None:
        super().__init__()
        self._needed = {"inner": (True, True), "left": (True, False)}.get(how, (False, False))
        self._tables = (left, right)

    def _result(self, left: Row | None, right: Row | None) -> Row | None:
        missing = (left is None, right is None)
        if all(missing) or any(
            needed and gone for needed, gone in zip(self._needed, missing, strict=True)
        ):
            return None
        return joined(left, right)

    def take(self, item: Change, side: int) -> None:
        other = self._tables[1 - side].get(str(item.key))
        if other is None and (
            self._needed[1 - side] or (item.value is None and item.before is None)
        ):
            return
        results = []
        for own in (item.value, item.before):
            pair = (own, other and other.value)
            results.append(self._result(*(pair if side == 0 else pair[::-1])))
        time = item.time if other is None else max(item.time, other.time)
        self.send(Change(item.key, results[0], results[1], time))

    def get(self, key: str) -> Held | None:
        left, right = (table.get(key) for table in self._tables)
        value = self._result(left and left.value, right and right.value)
        if value is None:
            return None
        return Held(value, max(held.time for held in (left, right) if held))


class ForeignKeyJoin(StoredTable):
    """Joins each row of the left table with the right one's row that its field ``s`` names.

    A change of the left row is told with the right row of its key. Where there is none, ``left``
    tells the row alone, ``inner`` a null if the row before had another foreign key, and else
    nothing. A deletion is told as a null, a deletion of nothing not at all.
    A change of the right row is told for each left row that names it, in the order of the left
    keys; where the row was deleted, as a null, or alone with ``left``. The time is the later one
    of both rows after a change of the left one, and the right one's after a change of that; a
    deletion's is its own with ``left``.
    In a cluster each side is asked by topics, so that results between the last ones may be missing.
    """

    def __init__(self, how: str, right: Table) -> None:
        super().__init__()
        self._alone = how == "left"
        self._right = right
        self._named: dict[str, dict[str, Held]] = {}

    def take(self, item: Change, side: int) -> None:
        if side == 0:
            self._take_left(item)
            return
        for key, left in sorted(self._named.get(str(item.key), {}).items()):
            self.put(key, self._result(left.value, item.value), item.time)

    def _take_left(self, change: Change) -> None:
        key, row, before = str(change.key), change.value, change.before
        if before is not None:
            del self._named[before.s][key]
        if row is not None:
            self._named.setdefault(row.s, {})[key] = Held(row, change.time)
        asked = row or before
        if asked is None:
            return
        right = self._right.get(asked.s)
        moved = before is not None and (row is None or row.s != before.s)
        if right is None and not (self._alone or moved):
            return
        time = change.time
        if right is not None and not (row is None and self._alone):
            time = max(time, right.time)
        self.put(key, row and self._result(row, right and right.value), time)

    def _result(self, left: Row, right: Row | None) -> Row | None:
        return None if right is None and not self._alone else joined(left, right)


class Reference:
    """The operators of a document, ready to take records."""

    def __init__(
        self, document: Mapping[str, Any], rules: frozenset[Difference] = HEADRACE
    ) -> None:
        self._rules = rules
        self._queue: deque[tuple[Topic, Item]] = deque()
        self._sources: dict[str, Topic] = {}
        self._written: list[tuple[str, Record]] = []
        self.operators: dict[str, Operator] = {}
        for node in document["nodes"]:
            self._add(node)

    def run(self, records: Sequence[Sequence[Any]]) -> list[Output]:
        """Process records one after the other, each with all that comes of it."""
        outputs = []
        for index, (topic, key, value, time) in enumerate(records):
            row = None if value is None else Row(value["n"], value["s"])
            for sink, record in self.process(topic, Record(key, row, time)):
                outputs.append(Output(index, sink, str(record.key), record.value, record.time))
        return outputs

    def process(self, topic: str, record: Record) -> list[tuple[str, Record]]:
        """Process one record of a topic; return the sinks' topics with what was written."""
        self._written.clear()
        self._sources[topic].take(record, 0)
        while self._queue:
            operator, item = self._queue.popleft()
            operator.send(item)
        return list(self._written)

    def stores(self) -> dict[str, dict[str, Held]]:
        """Return the rows of each store; of windows, those that are not over."""
        found = {}
        for name, operator in self.operators.items():
            if isinstance(operator, StoredTable):
                found[name] = dict(operator.rows)
            elif isinstance(operator, Windowed):
                found[name] = {str(key): held for key, held in operator.open_rows().items()}
        return found

    def _add(self, node: Mapping[str, Any]) -> None:
        name = node["name"]
        if node["op"] == "branch":
            for part, wanted in (("yes", True), ("no", False)):
                self._put(f"{name}.{part}", _branch(node["where"], wanted), node["of"])
        elif node["op"] == "to":
            self._put(name, Sink(node["topic"], self._written), node["of"])
        elif node["op"] in {"stream", "table"}:
            topic = self._sources[node["topic"]] = Topic(self._queue)
            self.operators[name] = topic
            if node["op"] == "table":
                self.operators[name] = SourceTable()
                topic.readers.append((self.operators[name], 0))
        else:
            parents = [node[side] for side in ("of", "left", "right") if side in node]
            made = self._made(node, *map(self.operators.get, parents))
            self._put(name, made, *([] if node["op"] == "group_table" else parents))

    def _group_table(self, node: Mapping[str, Any], table: Operator) -> Operator:
        """Return the aggregate, which reads a topic of changes by group."""
        changes = GroupChanges(self._queue)
        table.readers.append((changes, 0))
        made = TableAggregate(node["what"])
        changes.readers.append((made, 0))
        return made

    def _put(self, name: str, operator: Operator, *parents: str) -> None:
        self.operators[name] = operator
        for side, parent in enumerate(parents):
            if not (side == 1 and isinstance(operator, StreamTableJoin)):
                self.operators[parent].readers.append((operator, side))

    def _made(self, node: Mapping[str, Any], *parents: Any) -> Operator:
        how = node.get("how", "")
        makers: dict[str, Callable[[], Operator]] = {
            "filter": lambda: Stateless(
                lambda record: [record] * holds(node["where"], record.value)
            ),
            "select": lambda: Stateless(
                lambda record: [replace_value(record, _selected(node, record))]
            ),
            "explode": lambda: Stateless(_words),
            "key_by": lambda: KeyBy(self._queue),
            "merge": lambda: Stateless(lambda record: [record]),
            "aggregate": lambda: self._aggregate(node),
            "group_table": lambda: self._group_table(node, parents[0]),
            "each": Each,
            "final": lambda: Final(parents[0]),
            "join": lambda: StreamJoin(
                how, node["before"], node["after"], node["grace"], self._rules
            ),
            "stream_table": lambda: StreamTableJoin(how, parents[1]),
            "table_table": lambda: TableJoin(how, *parents),
            "foreign_key": lambda: ForeignKeyJoin(how, parents[1]),
        }
        return makers[node["op"]]()

    def _aggregate(self, node: Mapping[str, Any]) -> Operator:
        fold, window = Fold(node["what"]), node["window"]
        if window is None:
            return Aggregate(fold, self._rules)
        match window["kind"]:
            case "tumbling":
                size = window["size"]
                return HoppingWindows(fold, size, size, window["grace"], self._rules)
            case "hopping":
                return HoppingWindows(
                    fold, window["size"], window["every"], window["grace"], self._rules
                )
            case "sliding":
                return SlidingWindows(fold, window["size"], window["grace"], self._rules)
            case _:
                return Sessions(fold, window["gap"], window["grace"], self._rules)


class KeyBy(Topic):
    """Writes each record by the key in its field ``s``; a null value is dropped."""

    def take(self, item: Item, side: int) -> None:
        if item.value is not None:
            super().take(Record(item.value.s, item.value, item.time), side)


class Sink(Operator):
    """Notes what is written to a topic."""

    def __init__(self, topic: str, written: list[tuple[str, Record]]) -> None:
        super().__init__()
        self._topic = topic
        self._written = written

    def take(self, item: Record, side: int) -> None:
        self._written.append((self._topic, item))


def holds(where: Sequence[Any], row: Row | None) -> bool:
    """Whether a condition is true of a row; of a null it is not."""
    if row is None:
        return False
    field, operator, value = where
    found = getattr(row, field)
    match operator:
        case "<":
            return bool(found < value)
        case ">=":
            return bool(found >= value)
        case _:
            return bool(found == value)


def _branch(where: Sequence[Any], wanted: bool) -> Stateless:
    return Stateless(
        lambda record: (
            [record] * (record.value is not None and holds(where, record.value) is wanted)
        )
    )


def _selected(node: Mapping[str, Any], record: Record) -> Row | None:
    row = record.value
    return row and Row(row.n * node["times"] + node["plus"], row.s + node["suffix"])


def _words(record: Record) -> list[Record]:
    row = record.value
    if row is None:
        return []
    return [replace_value(record, Row(row.n, word)) for word in row.s.split(" ")]
