"""Run a topology on records of a test, without servers: :class:`StreamsTest`."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from headrace.core.errors import ConfigError
from headrace.extensions.streams.inprocess.aggregates import (
    GroupState,
    WindowState,
    filter_windows,
)
from headrace.extensions.streams.inprocess.batch import (
    Batch,
    InRecord,
    Poison,
    merge_batches,
)
from headrace.extensions.streams.inprocess.stateless import (
    apply,
    keep,
    plain_value,
    read_records,
    select,
    show,
    with_time,
    write_by_key,
    write_sink,
)
from headrace.extensions.streams.inprocess.tables import (
    ForeignJoinState,
    Held,
    LookupState,
    SourceTable,
    StreamJoinState,
    TableJoinState,
    View,
    emit_changes,
    filter_rows,
    filter_table,
)
from headrace.extensions.streams.operators import (
    Aggregate,
    Apply,
    Emitted,
    Filter,
    KeyBy,
    Lookup,
    Merge,
    Peek,
    Reduce,
    Select,
    Sink,
    Source,
    StreamJoin,
    TableJoin,
    TableSource,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.core.errors import PoisonRecordError
    from headrace.extensions.streams.inprocess.batch import Change
    from headrace.extensions.streams.inprocess.stateless import Written
    from headrace.extensions.streams.kernels.rows import Emit
    from headrace.extensions.streams.operators import Operator, Output
    from headrace.extensions.streams.plan import Channel, Plan
    from headrace.extensions.streams.rows import Row
    from headrace.extensions.streams.topology import Topology


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
            ConfigError: the topology does not fit together, or has what runs on servers alone.
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
        found = str(key) if isinstance(key, int) else key
        self._put(topic, (_in_bytes(found), _in_bytes(value), time))
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
                    _ChannelRun(self, channel, records).process()

    def read(self, topic: str) -> list[OutRecord]:
        """Return the records of a topic that were written since it was read last."""
        self.run()
        return self._written.pop(topic, [])

    def store(self, name: str) -> dict[Any, Any]:
        """Return the rows of a store by key, of windows by key and begin.

        Raises:
            KeyError: there is no such store; or it is of a join, which :meth:`buffered` shows.
        """
        self.run()
        state = self._state(name)
        if isinstance(state, WindowState):
            return {(key.decode(), begin): dict(row) for key, begin, row in state.stored()}
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
        """Return the operator time of an aggregate in windows, or of a join; -1 before any record.

        Raises:
            KeyError: no operator of this name has one.
        """
        self.run()
        state = self._state(name)
        if isinstance(state, (WindowState, StreamJoinState)):
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
        for each in self.plan.stores:
            if each.name == name:
                return self._states[each.operator]
        known = ", ".join(each.name for each in self.plan.stores) or "none"
        raise KeyError(f"there is no store {name!r}; there are {known}")

    def _put(self, topic: str, record: tuple[bytes | None, bytes | None, int]) -> None:
        offset = self._offsets.get(topic, 0)
        self._offsets[topic] = offset + 1
        self._waiting.setdefault(topic, []).append(InRecord(topic, offset, *record))

    def _take(self, channel: Channel) -> list[InRecord]:
        """Return the records that wait for a channel, in the order of its task."""
        order = {topic: place for place, topic in enumerate(_topics_in_code(self.plan, channel))}
        found: list[tuple[int, int, int, InRecord]] = []
        for topic, place in order.items():
            highest = -1
            for record in self._waiting.pop(topic, ()):
                # a record out of order comes after those before it
                highest = max(highest, record.time)
                found.append((highest, place, record.offset, record))
        return [each[-1] for each in sorted(found, key=lambda each: each[:3])]

    def state_of(self, place: int) -> Any:
        """Return the state of an operator, None where it has none."""
        return self._states[place]

    def publish(self, topic: str, records: list[Written], *, internal: bool) -> None:
        """Write what an operator made to a topic, for another channel or for the test."""
        for key, value, time, _ in records:
            if internal:
                self._put(topic, (key, value, time))
            else:
                text = None if key is None else key.decode("utf-8", "replace")
                row = None if value is None else _from_bytes(value)
                self._written.setdefault(topic, []).append(OutRecord(text, row, time))

    def poison_of(self, records: list[InRecord]) -> Poison:
        """Return where the poison of a micro-batch is noted."""
        return Poison(records, self.poison, fails=self._fails)


def _in_bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
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


def _topics_in_code(plan: Plan, channel: Channel) -> list[str]:
    """Return the topics of a channel in the order in which the code names them."""
    found: dict[str, None] = {}
    for place, operator in enumerate(plan.operators):
        if isinstance(operator, (Source, TableSource)):
            found[operator.topic] = None
        elif place in plan.by_key:
            found[plan.by_key[place]] = None
    return [each for each in found if each in {*channel.topics, *channel.shared}]


def _in_order(plan: Plan) -> list[Channel]:
    """Return the channels so that each comes after others that write what it reads.

    Of a circle, of changes of key, one comes first: it has its records the next time.
    """
    found: list[Channel] = []
    left = _joined(plan)
    while left:
        ready = [
            each
            for each in left
            if not any({*each.topics}.intersection(other.writes) for other in left if other != each)
        ] or left[:1]
        found += ready
        left = [each for each in left if each not in ready]
    return found


def _joined(plan: Plan) -> list[Channel]:
    """Return the channels; those that ask each other, for a join by a foreign key, as one.

    Of what they write each other, the topics of changes of key alone are read.
    """
    found: list[Channel] = []
    for each in plan.channels:
        together = [each, *(other for other in found if _ask(each, other))]
        found = [other for other in found if other not in together]
        writes = {topic for one in together for topic in one.writes}
        read = {topic for one in together for topic in one.topics}
        asked = read.intersection(writes).difference(plan.by_key.values())
        found.append(
            replace(
                each,
                operators=tuple(sorted(place for one in together for place in one.operators)),
                topics=tuple(sorted(read - asked)),
                writes=tuple(sorted(writes - asked)),
                shared=tuple(sorted({topic for one in together for topic in one.shared})),
            )
        )
    return found


def _ask(one: Channel, other: Channel) -> bool:
    both = ({*one.topics}.intersection(other.writes), {*other.topics}.intersection(one.writes))
    return all(both)


def _state_of(plan: Plan, place: int) -> Any:
    """Return a new state of an operator, None where it has none."""
    operator = plan.operators[place]
    sources = [plan.operators[each].output for each in operator.inputs]
    outputs = [each for each in sources if each is not None]
    made: Any = None
    match operator:
        case TableSource(output=output) if output is not None:
            made = SourceTable(output)
        case Aggregate():
            made = _state_of_aggregate(plan, place, operator, outputs[0])
        case StreamJoin():
            made = StreamJoinState(operator, (outputs[0], outputs[1]))
        case Lookup():
            made = LookupState(operator, *outputs)
        case TableJoin(on=None):
            made = TableJoinState(operator, *outputs)
        case TableJoin():
            made = ForeignJoinState(operator, *outputs)
        case Reduce():
            raise ConfigError([f"{operator.label} does not run in a test; test it by KeyedTest"])
    return made


def _state_of_aggregate(plan: Plan, place: int, operator: Aggregate, source: Output) -> Any:
    if operator.windows is None:
        return GroupState(operator, source)
    return WindowState(operator, operator.windows, source, _emits(plan, place))


def _emits(plan: Plan, place: int) -> frozenset[Emit]:
    """Return in which ways the rows of a table come out."""
    found: set[Emit] = set()
    for at, operator in enumerate(plan.operators):
        if place not in operator.inputs:
            continue
        if isinstance(operator, Emitted):
            found.add(operator.emit)
        elif isinstance(operator, Filter):
            found |= _emits(plan, at)
    return frozenset(found)


#: In place of the record of a row that was there before a micro-batch.
_NO_RECORD = InRecord("", 0, None, None, 0)


class _ChannelRun:
    """A micro-batch of a channel on its way through the operators."""

    def __init__(self, test: StreamsTest, channel: Channel, records: list[InRecord]) -> None:
        self._test = test
        self._plan = test.plan
        self._channel = channel
        self._records = records
        self._poison = test.poison_of(records)
        self._rows: dict[int, Any] = {}
        self._before: dict[int, Mapping[bytes, Held]] = {}

    def process(self) -> None:
        """Run each operator once, in the order of the code."""
        shared = {
            each
            for place in self._channel.operators
            for each in self._plan.operators[place].inputs
            if isinstance(source := self._plan.operators[each], TableSource) and source.shared
        }
        for place in sorted({*self._channel.operators, *shared}):
            self._rows[place] = self._run(place, self._plan.operators[place])

    def _run(self, place: int, operator: Operator) -> Any:
        state = self._test.state_of(place)
        if isinstance(state, (SourceTable, GroupState, TableJoinState, ForeignJoinState)):
            self._before[place] = dict(state.state.rows)
        return _STEPS[type(operator)](self, place, operator)

    def read_source(self, place: int, operator: Source) -> Batch:
        """Return the records of a topic, at their times."""
        return with_time(operator, self._read(operator.topic, place, operator.codec), self._poison)

    def read_table(self, place: int, operator: TableSource) -> list[Change]:
        """Return the changes of a table by the records of its topic."""
        batch = self._read(operator.topic, place, operator.codec)
        found: list[Change] = self._test.state_of(place).process(
            batch, operator.label, self._poison
        )
        return found

    def filter(self, place: int, operator: Filter) -> Any:
        """Return the rows of a stream, or the changes of a table, of which a condition is true."""
        del place
        (source,) = operator.inputs
        rows = self._rows.get(source)
        if isinstance(rows, list):
            return filter_table(operator, rows, self._poison)
        if isinstance(rows, dict):
            return {
                emit: filter_windows(batch, operator.where, operator.label, self._poison, emit)
                for emit, batch in rows.items()
            }
        return keep(operator, self._stream(source), self._poison)

    def select(self, place: int, operator: Select) -> Batch:
        """Return rows of other fields."""
        del place
        return select(operator, self._stream(operator.inputs[0]), self._poison)

    def apply(self, place: int, operator: Apply) -> Batch:
        """Return what a Python function makes of the rows."""
        del place
        return apply(operator, self._stream(operator.inputs[0]), self._poison)

    def show(self, place: int, operator: Peek) -> Batch:
        """Show the rows to a Python function."""
        del place
        return show(operator, self._stream(operator.inputs[0]))

    def merge(self, place: int, operator: Merge) -> Batch:
        """Return the rows of several streams."""
        del place
        return merge_batches([self._stream(each) for each in operator.inputs])

    def aggregate(self, place: int, operator: Aggregate) -> Any:
        """Return the changes of a table, or what its windows emit."""
        return self._test.state_of(place).process(self._stream(operator.inputs[0]), self._poison)

    def join_streams(self, place: int, operator: StreamJoin) -> Any:
        """Return the pairs of two streams."""
        left, right = map(self._stream, operator.inputs)
        return self._test.state_of(place).process((left, right), self._poison)

    def look_up(self, place: int, operator: Lookup) -> Any:
        """Return the rows of a stream with those of a table."""
        stream, table = operator.inputs
        view = self._view(table)
        return self._test.state_of(place).process(self._stream(stream), view, self._poison)

    def join_tables(self, place: int, operator: TableJoin) -> Any:
        """Return the changes of a table of two."""
        left, right = operator.inputs
        views = (self._view(left), self._view(right))
        changes = (self._rows[left], self._rows[right])
        return self._test.state_of(place).process(views, changes, self._poison)

    def _read(self, topic: str, place: int, codec: str) -> Batch:
        """Return the records of a topic as rows of the operator that names it."""
        output = self._plan.operators[place].output
        assert output is not None, "rows come out"
        records = [(at, each) for at, each in enumerate(self._records) if each.topic == topic]
        return read_records(records, output, self._plan.fields[place], codec, self._poison)

    def _stream(self, place: int) -> Batch:
        """Return the rows of a stream; those of a change of key are read from its topic."""
        if place not in self._plan.by_key:
            found: Batch = self._rows[place]
            return found
        topic = self._plan.by_key[place]
        return self._read(topic, place, self._codec_of(place))

    def _codec_of(self, place: int) -> str:
        """Return how the values in the topic of a change of key are written."""
        while place in self._plan.as_read or isinstance(
            self._plan.operators[place], (Filter, Peek)
        ):
            (place,) = self._plan.operators[place].inputs
        source = self._plan.operators[place]
        return source.codec if isinstance(source, Source) else "json"

    def _view(self, place: int) -> View:
        """Return a table as it is before the micro-batch, and moves on with it."""
        return View(self._held(place), self._rows[place])

    def _held(self, place: int) -> Mapping[bytes, Held]:
        operator = self._plan.operators[place]
        if isinstance(operator, Filter):
            # a row at fault was noted when it came
            quiet = Poison([_NO_RECORD], [], fails=False)
            return filter_rows(operator, self._held(operator.inputs[0]), quiet)
        return self._before[place]

    def emit(self, place: int, operator: Emitted) -> Batch:
        """Return the changes of a table as rows of a stream."""
        del place
        rows = self._rows[operator.inputs[0]]
        if isinstance(rows, dict):
            found: Batch = rows[operator.emit]
            return found
        assert operator.output is not None, "rows come out"
        return emit_changes(operator.emit, rows, operator.output)

    def write(self, place: int, operator: Sink) -> None:
        """Write the rows to a topic."""
        del place
        (source,) = operator.inputs
        output = self._plan.operators[source].output
        assert output is not None, "rows come in"
        records = write_sink(operator, self._stream(source), output.key, self._poison)
        self._test.publish(operator.topic, records, internal=False)

    def write_by_key(self, place: int, operator: KeyBy) -> None:
        """Write the rows to the topic of a change of key."""
        as_read = place in self._plan.as_read
        batch = self._stream(operator.inputs[0])
        records = write_by_key(operator, batch, self._poison, as_read=as_read)
        self._test.publish(self._plan.by_key[place], records, internal=True)


#: The step of a micro-batch that an operator is.
_STEPS: dict[type[Operator], Callable[[_ChannelRun, int, Any], Any]] = {
    Source: _ChannelRun.read_source,
    TableSource: _ChannelRun.read_table,
    Filter: _ChannelRun.filter,
    Select: _ChannelRun.select,
    Apply: _ChannelRun.apply,
    Peek: _ChannelRun.show,
    Merge: _ChannelRun.merge,
    KeyBy: _ChannelRun.write_by_key,
    Aggregate: _ChannelRun.aggregate,
    Emitted: _ChannelRun.emit,
    StreamJoin: _ChannelRun.join_streams,
    Lookup: _ChannelRun.look_up,
    TableJoin: _ChannelRun.join_tables,
    Sink: _ChannelRun.write,
}

__all__ = ["OutRecord", "StreamsTest"]
