"""Run a topology on records of a test, without servers: :class:`StreamsTest`."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from headrace.core.errors import PoisonRecordError
from headrace.core.records import TopicPartition
from headrace.extensions.streams.fitted import plain_value
from headrace.extensions.streams.inline.aggregates import GroupState, WindowState
from headrace.extensions.streams.inline.batch import TopicRecords
from headrace.extensions.streams.inline.foreign import ForeignJoinState
from headrace.extensions.streams.inline.joins import StreamJoinState
from headrace.extensions.streams.inline.readers import emits_of, is_looked_up
from headrace.extensions.streams.inline.reducers import MemoryReducerRows, ReduceState
from headrace.extensions.streams.inline.run import ChannelRun
from headrace.extensions.streams.inline.table_groups import TableGroupState
from headrace.extensions.streams.inline.tables import (
    FilteredTable,
    LookupState,
    SourceTable,
    TableJoinState,
)
from headrace.extensions.streams.inline.times import columns_of, in_task_order
from headrace.extensions.streams.operators import (
    Aggregate,
    AggregateChanges,
    Filter,
    Lookup,
    Reduce,
    Source,
    StreamJoin,
    TableJoin,
    TableSource,
)
from headrace.extensions.streams.plan import SUBSCRIPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.extensions.streams.inline.batch import TopicRecords
    from headrace.extensions.streams.operators import Output
    from headrace.extensions.streams.plan import Channel, Plan
    from headrace.extensions.streams.rows import Row
    from headrace.extensions.streams.topology import Topology


@dataclass(frozen=True, slots=True)
class InRecord:
    """A record of a topic, in bytes."""

    topic: str
    offset: int
    key: bytes | None
    value: bytes | None
    time: int


@dataclass(frozen=True, slots=True)
class OutRecord:
    """A record that a topology wrote: its key as text, its value from JSON, its time."""

    key: str | None
    value: Any
    time: int


class StreamsTest:
    """A topology in this process, with one partition a topic. One thread.

    ``batch`` is how many records are processed together: 1 as if each was committed alone. Results
    of ``each()`` and ``final()`` are the same for all.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        batch: int = 1,
        on_poison: Literal["fail", "drop"] = "fail",
    ) -> None:
        """Plan a topology.

        Raises:
            ConfigError: the topology does not fit together.
        """
        self.plan: Plan = topology.plan()
        self.poison: list[PoisonRecordError] = []
        self._batch = batch
        self._fails = on_poison == "fail"
        self._states = {
            place: _state_of(self.plan, place) for place in range(len(self.plan.operators))
        }
        self._waiting: dict[str, list[InRecord]] = {}
        self._written: dict[str, list[OutRecord]] = {}
        self._offsets: dict[str, int] = {}
        self._count = 0
        self._channels = _in_order(self.plan)
        self._inputs = {
            each.topic for each in self.plan.operators if isinstance(each, (Source, TableSource))
        }

    def pipe(
        self,
        topic: str,
        value: Row | Mapping[str, Any] | str | bytes | None,
        *,
        key: str | bytes | int | None = None,
        time: int = 0,
    ) -> None:
        """Write a record to a topic that the topology reads, and process it once a batch is full.

        Args:
            topic: one that the topology reads.
            value: a row, a mapping, text or bytes; None is a tombstone.
            key: the record's key.
            time: its time, in milliseconds.

        Raises:
            KeyError: the topology does not read the topic.
            PoisonRecordError: a record cannot be processed, and ``on_poison`` is fail.
        """
        if topic not in self._inputs:
            known = ", ".join(sorted(self._inputs))
            raise KeyError(f"the topology does not read {topic!r}; it reads {known}")
        self._put(topic, (bytes_of(key), bytes_of(value), time))
        self._count += 1
        if self._count >= self._batch:
            self.run()

    def run(self) -> None:
        """Process all records that wait.

        Raises:
            PoisonRecordError: a record cannot be processed, and ``on_poison`` is fail.
        """
        self._count = 0
        # a channel may read by-key topics of its own: then it has records again
        while any(self._waiting.get(topic) for each in self._channels for topic in each.topics):
            for channel in self._channels:
                records = self._take(channel)
                if records:
                    self._process(channel, records)

    def read(self, topic: str) -> list[OutRecord]:
        """Return the records of a topic that were written since it was read last."""
        self.run()
        return self._written.pop(topic, [])

    def store(self, name: str) -> dict[Any, Any]:
        """Return the rows of a store by key, of windows by key and begin; a reducer's states.

        Raises:
            KeyError: there is no such store; or it is of a join, which :meth:`buffered` shows.
        """
        self.run()
        state = self._state(name)
        if isinstance(state, WindowState):
            return {(key.decode(), begin): dict(row) for key, begin, row in state.stored()}
        if isinstance(state, ReduceState):
            return {key.decode(): held for key, held in state.stored()}
        if isinstance(state, StreamJoinState):
            raise KeyError(f"{name!r} has the buffers of a join; take buffered({name!r})")
        return {key.decode(): dict(held.row) for key, held in sorted(state.state.rows.items())}

    def buffered(self, name: str) -> list[tuple[str, int, dict[str, Any]]]:
        """Return the records in the buffers of a join: key, time, fields.

        Raises:
            KeyError: there is no such join.
        """
        self.run()
        state = self._state(name)
        if not isinstance(state, StreamJoinState):
            raise KeyError(f"{name!r} is no join of streams")
        return [(key.decode(), time, dict(row)) for key, time, row in state.buffered()]

    def time(self, name: str) -> int:
        """Return the operator time of an aggregate in windows, a join or a reducer; -1 at first.

        Raises:
            KeyError: no operator of this name has one.
        """
        self.run()
        state = self._state(name)
        if isinstance(state, (WindowState, StreamJoinState, ReduceState)):
            return state.time
        raise KeyError(f"{name!r} has no windows, so no operator time")

    def late(self, name: str) -> int:
        """Return how many records came after their windows were over.

        Raises:
            KeyError: no aggregate in windows has this name.
        """
        self.run()
        state = self._state(name)
        if isinstance(state, WindowState):
            return state.late
        raise KeyError(f"{name!r} has no windows")

    def _state(self, name: str) -> Any:
        # both sides of a join by a foreign key are in one place here, so nothing is subscribed to
        stores = [each for each in self.plan.stores if each.kind != SUBSCRIPTIONS]
        for each in stores:
            if each.name == name:
                return self._states[each.operator]
        known = ", ".join(each.name for each in stores) or "none"
        raise KeyError(f"there is no store {name!r}; there are {known}")

    def _put(self, topic: str, record: tuple[bytes | None, bytes | None, int]) -> None:
        offset = self._offsets.get(topic, 0)
        self._offsets[topic] = offset + 1
        self._waiting.setdefault(topic, []).append(InRecord(topic, offset, *record))

    def _take(self, channel: Channel) -> list[InRecord]:
        """Return the records that wait for a channel, in the order of its task."""
        waiting = {topic: self._waiting.pop(topic, []) for topic in channel.topics}
        waiting |= {topic: self._waiting.pop(topic, []) for topic in channel.shared}
        return in_task_order(self.plan, channel, waiting)

    def _process(self, channel: Channel, records: list[InRecord]) -> None:
        """Run the operators of a channel on records in the order of its task."""
        poison = _NotedPoison(records, self.poison, fails=self._fails)
        run = ChannelRun(self.plan, channel, self._states, _by_topic(records), poison)
        run.process()
        own = {*self.plan.by_key.values()}
        for topic, written in run.written:
            columns = (written.keys, written.values, pa.array(written.times))
            rows = zip(*(each.to_pylist() for each in columns), strict=True)
            for row in rows:
                if topic in own:
                    self._put(topic, row)
                else:
                    self._written.setdefault(topic, []).append(_out_record(*row))


class _NotedPoison:
    """Records that cannot be processed. They end the test, or are noted."""

    def __init__(
        self, records: Sequence[InRecord], found: list[PoisonRecordError], *, fails: bool
    ) -> None:
        self._records, self._found, self._fails = records, found, fails
        self._noted: set[int] = set()

    def note(self, at: int, reason: str) -> None:
        record = self._records[at]
        error = PoisonRecordError(TopicPartition(record.topic, 0), record.offset, reason)
        if self._fails:
            raise error
        if at not in self._noted:
            self._noted.add(at)
            self._found.append(error)


def _by_topic(records: Sequence[InRecord]) -> dict[str, TopicRecords]:
    """Return records in columns, by topic."""
    places: dict[str, list[int]] = {}
    for at, record in enumerate(records):
        places.setdefault(record.topic, []).append(at)
    return {
        topic: replace(
            columns_of(topic, [records[each] for each in at], at),
            offsets=np.array([records[each].offset for each in at], np.int64),
        )
        for topic, at in places.items()
    }


def _out_record(key: bytes | None, value: bytes | None, time: int) -> OutRecord:
    text = None if key is None else key.decode("utf-8", "replace")
    return OutRecord(text, None if value is None else _from_bytes(value), time)


def bytes_of(value: Any) -> bytes | None:
    """Return a key or a value as a topic has it: text in UTF-8, a number's digits, else JSON."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, int):
        value = str(value)
    if isinstance(value, str):
        return value.encode()
    fields = getattr(type(value), "__fields__", None)
    if fields is not None:
        value = {each.name: plain_value(getattr(value, name)) for name, each in fields.items()}
    return json.dumps(value, ensure_ascii=False, default=str).encode()


def _from_bytes(value: bytes) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def _in_order(plan: Plan) -> list[Channel]:
    """Return the channels so that each comes after others that write what it reads.

    Those that ask each other, for a join by a foreign key, are one, which has no topics of its own
    in between. Of a circle, of changes of key, one comes first: it has its records the next time.
    """
    return [_joined(plan, circle) for circle in plan.circles_in_order]


def _joined(plan: Plan, circle: Sequence[Channel]) -> Channel:
    """Return channels as one; of what they write each other, topics by key alone are read."""
    topics = {topic for one in circle for topic in one.topics}
    writes = {topic for one in circle for topic in one.writes}
    return replace(
        circle[0],
        operators=tuple(sorted(place for one in circle for place in one.operators)),
        topics=tuple(sorted(topics - plan.answer_topics)),
        writes=tuple(sorted(writes - plan.answer_topics)),
        shared=tuple(sorted({topic for one in circle for topic in one.shared})),
    )


def _state_of(plan: Plan, place: int) -> Any:
    """Return a new state of an operator, None where it has none."""
    operator = plan.operators[place]
    sources = [plan.operators[each].output for each in operator.inputs]
    outputs = [each for each in sources if each is not None]
    made: Any = None
    match operator:
        case TableSource(output=output) if output is not None:
            made = SourceTable(output)
        case AggregateChanges():
            made = TableGroupState(operator, outputs[0])
        case Aggregate():
            made = _state_of_aggregate(plan, place, operator, outputs[0])
        case StreamJoin():
            left, right = (plan.fields[each] for each in operator.inputs)
            made = StreamJoinState(operator, (outputs[0], outputs[1]), (left, right))
        case Filter() if outputs[0].is_table and is_looked_up(plan, place):
            made = FilteredTable(operator, {})
        case Lookup():
            made = LookupState(operator, *outputs)
        case TableJoin(on=None):
            made = TableJoinState(operator, outputs[0], outputs[1])
        case TableJoin():
            made = ForeignJoinState(operator, *outputs)
        case Reduce():
            made = ReduceState(operator, outputs[0], MemoryReducerRows())
    return made


def _state_of_aggregate(plan: Plan, place: int, operator: Aggregate, source: Output) -> Any:
    if operator.windows is None:
        return GroupState(operator, source)
    return WindowState(operator, operator.windows, source, emits_of(plan, place))


__all__ = ["OutRecord", "StreamsTest", "bytes_of"]
