"""Joins of tables by a foreign key: whole in one place, or as two sides that ask and answer.

In a channel the right rows are in other partitions, so the left side asks for them: it writes the
foreign key of each left row to a topic, and the side of the right table remembers who asked and
answers, now and whenever that row changes. An answer counts as long as the left row has the foreign
key that it is for.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.extensions.streams.columns import evaluate
from headrace.extensions.streams.decode import decode_values
from headrace.extensions.streams.encode import encode_structs
from headrace.extensions.streams.expressions import FieldNode, walk
from headrace.extensions.streams.inline.batch import QUIET, Change, Written, batch_of, column_of
from headrace.extensions.streams.inline.tables import (
    Pair,
    PairFields,
    TableState,
    count_alone,
    in_task_order,
    unstorable,
)
from headrace.extensions.streams.keys import encode_keys
from headrace.extensions.streams.operators import Join
from headrace.extensions.streams.row_documents import join_row, key_of, split_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace.extensions.streams.inline.batch import Poison, TopicRecords
    from headrace.extensions.streams.inline.tables import Held, View
    from headrace.extensions.streams.operators import Output, TableJoin

    Fields = Mapping[str, Any]


# --- the left side --------------------------------------------------------------------------------


class _Naming(NamedTuple):
    """A change of a left row, with the foreign keys before and after, None where there is none."""

    change: Change
    before: bytes | None
    after: bytes | None

    @property
    def has_moved(self) -> bool:
        """Return whether a row was there that had another foreign key, or is gone."""
        change = self.change
        return change.before is not None and (change.row is None or self.before != self.after)

    @property
    def is_nothing(self) -> bool:
        """Return whether it is a deletion of nothing."""
        return self.change.row is None and self.change.before is None


class _ForeignKeys:
    """Computes the foreign keys of left rows; a row at fault is as if it was not there."""

    def __init__(self, operator: TableJoin, left: Output, right: Output) -> None:
        assert operator.on is not None, "there is a foreign key"
        self._on, self._label, self._left, self._right = operator.on, operator.label, left, right

    def of(self, changes: Sequence[Change], poison: Poison) -> list[_Naming]:
        """Return the changes with their foreign keys."""
        after = self._computed(changes, [each.row for each in changes], poison)
        # what was at fault before was noted when it came, by its own record
        before = self._computed(changes, [each.before for each in changes], QUIET)
        return [
            _Naming(replace(change, row=row, before=former), former_key, key)
            for change, (row, key), (former, former_key) in zip(changes, after, before, strict=True)
        ]

    def of_rows(self, keys: Sequence[bytes], rows: Sequence[Fields | None]) -> list[bytes | None]:
        """Return the foreign keys of rows that are there, None of others."""
        changes = [Change(0, key, None, None, 0, 0) for key in keys]
        return [key for _, key in self._computed(changes, rows, QUIET)]

    def _computed(
        self, changes: Sequence[Change], rows: Sequence[Fields | None], poison: Poison
    ) -> list[tuple[Fields | None, bytes | None]]:
        side = [replace(change, row=row) for change, row in zip(changes, rows, strict=True)]
        batch = batch_of(side, self._left)
        found = evaluate(self._on, batch.columns(), len(batch))
        keys = encode_keys([found.values], self._right.key).to_pylist()
        made: list[tuple[Fields | None, bytes | None]] = []
        for place, (row, key) in enumerate(zip(rows, keys, strict=True)):
            if row is not None and place in found.faults:
                poison.note(changes[place].at, f"{self._label}: {found.faults[place]}")
                made.append((None, None))
            else:
                made.append((row, None if row is None else key))
        return made


class ForeignJoinState:
    """Joins each left row with the right row that one of its fields names, both in one place."""

    def __init__(self, operator: TableJoin, left: Output, right: Output) -> None:
        assert operator.output is not None, "rows come out"
        self._operator = operator
        self._keys = _ForeignKeys(operator, left, right)
        self._pairs = PairFields(operator.fields, left, right, operator.output)
        self._named: dict[bytes, dict[bytes, Fields]] = {}
        self.state = TableState()
        #: How many changes of the last micro-batch were to a row of the left side only.
        self.alone = 0

    def process(
        self, views: tuple[View, View], changes: tuple[list[Change], list[Change]], poison: Poison
    ) -> list[Change]:
        """Return the changes of the result, of each left row in the order of its keys."""
        self.alone = 0
        names = self._keys.of(changes[0], poison)
        found: list[Change] = []
        for at, side, place in in_task_order(changes):
            views[1].advance(at if side else at - 1)
            if side == 1:
                change = changes[1][place]
                for key, left in sorted(self._named.get(change.key, {}).items()):
                    found += self._put(at, key, left, change.row, change.time, poison)
            else:
                found += self._change_left(names[place], views[1], poison)
        return found

    def _change_left(self, naming: _Naming, view: View, poison: Poison) -> Iterable[Change]:
        change, before, after = naming
        if change.before is not None and before is not None:
            self._named[before].pop(change.key, None)
        if change.row is not None and after is not None:
            self._named.setdefault(after, {})[change.key] = change.row
        if naming.is_nothing:
            return ()
        asked = before if change.row is None else after
        right = None if asked is None else view.get(asked)
        alone = self._operator.join is Join.LEFT
        if right is None and not (alone or naming.has_moved):
            return ()
        time = change.time
        if right is not None and not (change.row is None and alone):
            time = max(time, right.time)
        row = None if right is None else right.row
        return self._put(change.at, change.key, change.row, row, time, poison)

    def _put(  # noqa: PLR0917 - both rows, and where they come from
        self,
        at: int,
        key: bytes,
        left: Fields | None,
        right: Fields | None,
        time: int,
        poison: Poison,
    ) -> Iterable[Change]:
        if left is None or (right is None and self._operator.join is Join.INNER):
            return (self.state.put(at, key, None, time),)
        self.alone += right is None
        batch = self._pairs.compute(
            [Pair(at, key, left, right, time)], self._operator.label, poison
        )
        return tuple(self.state.put(at, key, row, time) for row in batch.to_rows())


# --- records between the sides -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subscription:
    """A left row that wants a right row, or wants it no more.

    ``asks``: whether it is to be answered where there is no such row.
    """

    at: int
    foreign_key: bytes
    key: bytes
    time: int
    is_on: bool
    asks: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The right row that a left row wants, None where there is none, with its own time."""

    at: int
    key: bytes
    foreign_key: bytes
    row: Fields | None
    row_time: int
    time: int


def _named(name: bytes) -> dict[str, str]:
    """Return a key as a member in JSON: in hexadecimal digits where it is no UTF-8."""
    try:
        return {"key": name.decode()}
    except UnicodeDecodeError:
        return {"hex": name.hex()}


def _dumped(document: Mapping[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _written(
    keys: Sequence[bytes], values: Sequence[bytes], times: Sequence[int], at: Sequence[int]
) -> Written:
    return Written(
        pa.array(keys, pa.binary()),
        pa.array(values, pa.binary()),
        np.array(times, np.int64),
        np.array(at, np.int64),
    )


def write_subscriptions(found: Sequence[Subscription]) -> Written:
    """Return subscriptions as records, by the key of the right rows."""
    values = [
        _dumped({**_named(each.key), "on": each.is_on, "asks": each.asks}).encode()
        for each in found
    ]
    return _written(
        [each.foreign_key for each in found],
        values,
        [each.time for each in found],
        [each.at for each in found],
    )


def read_subscriptions(records: TopicRecords) -> list[Subscription]:
    """Return the subscriptions of records."""
    rows = zip(
        records.at.tolist(),
        records.keys.to_pylist(),
        records.values.to_pylist(),
        records.times.tolist(),
        strict=True,
    )
    found = []
    for at, key, value, time in rows:
        said = json.loads(value)
        found.append(Subscription(at, key, key_of(said), time, said["on"], said["asks"]))
    return found


class AnswerFormat:
    """Writes answers as records, by the key of the left rows, and reads them.

    A value has the fields of the right row that the join reads, as the last member.
    """

    def __init__(self, operator: TableJoin, right: Output) -> None:
        self._row = right.row
        named = {
            each.name
            for node in operator.fields.values()
            for each in walk(node)
            if isinstance(each, FieldNode) and each.row is right.row
        }
        self._names = [name for name in right.row.__fields__ if name in named]
        self._label = operator.label

    def write(self, found: Sequence[Answer], poison: Poison) -> Written:
        """Return answers as records; one with a number that JSON has not is poison."""
        there = [place for place, each in enumerate(found) if each.row is not None]
        rows = [found[place].row for place in there]
        faults: dict[int, str] = {}
        texts = dict(zip(there, self._texts(rows, faults), strict=True))
        for place, reason in sorted(faults.items()):
            poison.note(found[there[place]].at, f"{self._label}: {reason}")
        failed = {there[place] for place in faults}
        kept = [place for place in range(len(found)) if place not in failed]
        values = [self._value(found[place], texts.get(place, "null")) for place in kept]
        some = [found[place] for place in kept]
        return _written(
            [each.key for each in some],
            values,
            [each.time for each in some],
            [each.at for each in some],
        )

    def _texts(self, rows: Sequence[Fields | None], faults: dict[int, str]) -> list[str]:
        fields = self._row.__fields__
        kinds = [pa.field(name, fields[name].type.arrow()) for name in self._names]
        if not kinds:
            return ["{}"] * len(rows)
        columns = [column_of(rows, name, fields[name].type) for name in self._names]
        structs = pa.StructArray.from_arrays(columns, fields=kinds)
        texts: list[str] = encode_structs(structs, self._row, faults).to_pylist()
        return texts

    def _value(self, answer: Answer, text: str) -> bytes:
        return join_row({**_named(answer.foreign_key), "time": answer.row_time}, text)

    def read(self, records: TopicRecords, poison: Poison) -> list[Answer]:
        """Return the answers of records."""
        said, texts = [], []
        for value in records.values.to_pylist():
            members, text = split_row(value)
            said.append(members)
            texts.append(None if text == b"null" else text)
        decoded = decode_values(pa.array(texts, pa.binary()), self._row, self._names)
        lists = {
            name: decoded.columns[FieldNode(self._row, name)].to_pylist() for name in self._names
        }
        places = zip(
            records.at.tolist(), records.keys.to_pylist(), records.times.tolist(), strict=True
        )
        found = []
        for place, (at, key, time) in enumerate(places):
            if place in decoded.faults:
                poison.note(at, f"{self._label}: {decoded.faults[place]}")
                continue
            row = {name: values[place] for name, values in lists.items()}
            own = None if texts[place] is None else row
            foreign_key = key_of(said[place])
            found.append(Answer(at, key, foreign_key, own, said[place]["time"], time))
        return found


# --- the sides ------------------------------------------------------------------------------------


class Answered(TableState):
    """The rows of a join by a foreign key, each with the time of the right row in it."""

    def __init__(self) -> None:
        super().__init__()
        self.right_times: dict[bytes, int] = {}

    def set_right_time(self, key: bytes, right_time: int | None) -> None:
        """Record the time of the right row that a row is made with, None where there is none."""
        if right_time is None:
            self.right_times.pop(key, None)
        else:
            self.right_times[key] = right_time


class _Result(NamedTuple):
    """A result of the join: a pair by its place, or that there is none."""

    at: int
    key: bytes
    time: int
    pair: int | None
    right_time: int | None


class _Round:
    """The results and questions of a micro-batch, change by change, before fields are computed.

    ``state`` is as it was before.
    """

    def __init__(self, state: Answered, *, is_left: bool) -> None:
        self._state, self._is_left = state, is_left
        self.asked: list[Subscription] = []
        self.results: list[_Result] = []
        self.pairs: list[Pair] = []
        self._right_times: dict[bytes, int | None] = {}

    def change(self, naming: _Naming) -> None:
        """Follow a change of a left row: leave the former right row, and ask for the new one."""
        change, key = naming.change, naming.change.key
        if naming.is_nothing:
            return
        if naming.before is not None and naming.has_moved:
            gone = Subscription(change.at, naming.before, key, change.time, is_on=False)
            self.asked.append(gone)
        if change.row is None:
            self._add(change, self._time_of_deletion(change), None, None)
        elif naming.after is not None:
            # also where there is no right row: the result with the former one has to go
            asks = self._is_left or naming.has_moved
            new = Subscription(change.at, naming.after, key, change.time, is_on=True, asks=asks)
            self.asked.append(new)
        elif self._is_left or naming.has_moved:
            self._add(change, change.time, change.row, None)

    def answer(self, answer: Answer, left: Fields, foreign_key: bytes | None) -> None:
        """Join a left row with the right row of an answer, if that is of its foreign key."""
        if foreign_key == answer.foreign_key:
            self._add(answer, answer.time, left, answer)

    def _time_of_deletion(self, change: Change) -> int:
        known = self._right_times.get(change.key, self._state.right_times.get(change.key))
        return change.time if known is None or self._is_left else max(change.time, known)

    def _add(
        self, change: Change | Answer, time: int, left: Fields | None, answer: Answer | None
    ) -> None:
        right = None if answer is None else answer.row
        right_time = None if answer is None or right is None else answer.row_time
        pair = None
        if left is not None and (right is not None or self._is_left):
            pair = len(self.pairs)
            self.pairs.append(Pair(change.at, change.key, left, right, time))
        self._right_times[change.key] = right_time
        self.results.append(_Result(change.at, change.key, time, pair, right_time))


class AskingSide:
    """The left side of a join by a foreign key, in a channel: asks for right rows, and joins them.

    ``state`` has the rows of the join; ``asks_for_all``: whether all left rows ask again, as none
    of them did with this store.
    """

    def __init__(
        self,
        operator: TableJoin,
        left: Output,
        right: Output,
        state: Answered,
        *,
        asks_for_all: bool = False,
    ) -> None:
        assert operator.output is not None, "rows come out"
        self._operator, self._is_left = operator, operator.join is Join.LEFT
        self._keys = _ForeignKeys(operator, left, right)
        self._pairs = PairFields(operator.fields, left, right, operator.output)
        self.format = AnswerFormat(operator, right)
        self.state = state
        self.asks_for_all = asks_for_all
        #: How many changes of the last micro-batch were to a row of the left side only.
        self.alone = 0

    def process(
        self, view: View, changes: list[Change], answers: list[Answer], poison: Poison
    ) -> tuple[list[Change], list[Subscription]]:
        """Return the changes of the result, and what is asked for."""
        names = self._keys.of(changes, poison)
        lefts = self._lefts(view, answers)
        found = _Round(self.state, is_left=self._is_left)
        for _, side, place in _merged(changes, answers):
            if side == 0:
                found.change(names[place])
                continue
            left, foreign_key = lefts[place]
            if left is not None:
                found.answer(answers[place], left, foreign_key)
        return self._put(found.pairs, found.results, poison), found.asked

    def subscribe_all(self, rows: Mapping[bytes, Held], at: int) -> list[Subscription]:
        """Return what left rows ask for that were there before the join was."""
        self.asks_for_all = False
        keys = sorted(rows)
        named = self._keys.of_rows(keys, [rows[key].row for key in keys])
        return [
            Subscription(at, foreign_key, key, rows[key].time, is_on=True, asks=self._is_left)
            for key, foreign_key in zip(keys, named, strict=True)
            if foreign_key is not None
        ]

    def _lefts(
        self, view: View, answers: Sequence[Answer]
    ) -> list[tuple[Fields | None, bytes | None]]:
        """Return the left row of each answer as it is at that place, with its foreign key."""
        rows: list[Fields | None] = []
        for answer in answers:
            view.advance(answer.at)
            held = view.get(answer.key)
            rows.append(None if held is None else held.row)
        keys = self._keys.of_rows([each.key for each in answers], rows)
        return list(zip(rows, keys, strict=True))

    def _put(self, pairs: list[Pair], results: Sequence[_Result], poison: Poison) -> list[Change]:
        self.alone = count_alone(pairs)
        batch, kept = self._pairs.compute_kept(pairs, self._operator.label, poison)
        faults = unstorable(batch)
        for place, reason in sorted(faults.items()):
            poison.note(pairs[kept[place]].at, f"{self._operator.label}: {reason}")
        made = zip(kept, batch.to_rows(), strict=True)
        rows = {pair: row for place, (pair, row) in enumerate(made) if place not in faults}
        found = []
        for each in results:
            if each.pair is not None and each.pair not in rows:
                continue  # at fault: the result before stays
            row = None if each.pair is None else rows[each.pair]
            found.append(self.state.put(each.at, each.key, row, each.time))
            self.state.set_right_time(each.key, each.right_time)
        return found


def _merged(
    changes: Sequence[Change], others: Sequence[Answer | Subscription]
) -> list[tuple[int, int, int]]:
    """Return record, side and place of changes and of others, in the order of the task."""
    found = [(each.at, 0, place) for place, each in enumerate(changes)]
    found += [(each.at, 1, place) for place, each in enumerate(others)]
    return sorted(found)


class Subscriptions:
    """The left rows that want each right row, by its key."""

    def __init__(self) -> None:
        self.by_key: dict[bytes, set[bytes]] = {}

    def add(self, foreign_key: bytes, key: bytes) -> None:
        """Add a left row to those that want a right row."""
        self.by_key.setdefault(foreign_key, set()).add(key)

    def remove(self, foreign_key: bytes, key: bytes) -> None:
        """Remove a left row from those that want a right row."""
        keys = self.by_key.get(foreign_key, set())
        keys.discard(key)
        if not keys:
            self.by_key.pop(foreign_key, None)

    def of(self, foreign_key: bytes) -> list[bytes]:
        """Return the left rows that want a right row, in the order of their keys."""
        return sorted(self.by_key.get(foreign_key, ()))


class AnsweringSide:
    """The right side of a join by a foreign key, in a channel: answers those who want its rows."""

    def __init__(self, operator: TableJoin, right: Output, state: Subscriptions) -> None:
        self.format = AnswerFormat(operator, right)
        self.state = state

    def process(
        self, view: View, changes: list[Change], subscriptions: list[Subscription]
    ) -> list[Answer]:
        """Return the answers to subscriptions, and those that changes of rows make."""
        found: list[Answer] = []
        for at, side, place in _merged(changes, subscriptions):
            view.advance(at)
            if side == 0:
                change = changes[place]
                found += (
                    Answer(at, key, change.key, change.row, change.row_time, change.time)
                    for key in self.state.of(change.key)
                )
                continue
            asked = subscriptions[place]
            if not asked.is_on:
                self.state.remove(asked.foreign_key, asked.key)
                continue
            self.state.add(asked.foreign_key, asked.key)
            held = view.get(asked.foreign_key)
            if held is not None:
                time = max(asked.time, held.time)
                found.append(Answer(at, asked.key, asked.foreign_key, held.row, held.time, time))
            elif asked.asks:
                found.append(Answer(at, asked.key, asked.foreign_key, None, -1, asked.time))
        return found
