"""A micro-batch of a channel on its way through the operators of a topology."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.extensions.streams.inline.aggregates import filter_windows
from headrace.extensions.streams.inline.batch import TopicRecords, Unwatched, merge_batches
from headrace.extensions.streams.inline.counts import OperatorCounts
from headrace.extensions.streams.inline.foreign import (
    AskingSide,
    read_subscriptions,
    write_subscriptions,
)
from headrace.extensions.streams.inline.grouped import Grouper, are_few
from headrace.extensions.streams.inline.stage import Notes, StageRows
from headrace.extensions.streams.inline.stateless import (
    apply,
    keep,
    read_records,
    select,
    show,
    with_time,
    with_valid_times,
    write_by_key,
    write_sink,
)
from headrace.extensions.streams.inline.table_groups import write_changes
from headrace.extensions.streams.inline.tables import (
    View,
    emit_changes,
    filter_table,
)
from headrace.extensions.streams.operators import (
    Aggregate,
    AggregateChanges,
    Apply,
    Emitted,
    Filter,
    GroupChanges,
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

    from headrace.extensions.streams.inline.batch import (
        Batch,
        Change,
        Poison,
        UserCalls,
        Written,
    )
    from headrace.extensions.streams.inline.foreign import AnsweringSide
    from headrace.extensions.streams.inline.grouped import Grouped
    from headrace.extensions.streams.inline.stage import Stage
    from headrace.extensions.streams.operators import Operator
    from headrace.extensions.streams.plan import Channel, Plan

_NO_RECORDS = TopicRecords(
    "",
    np.empty(0, np.int64),
    pa.nulls(0, pa.binary()),
    pa.nulls(0, pa.binary()),
    np.empty(0, np.int64),
)


def topics_in_code(plan: Plan, channel: Channel) -> list[str]:
    """Return the topics of a channel in the order in which the code names them."""
    found: dict[str, None] = {}
    for place, operator in enumerate(plan.operators):
        if isinstance(operator, (Source, TableSource)):
            found[operator.topic] = None
        elif place in plan.by_key:
            found[plan.by_key[place]] = None
        elif place in plan.answers:
            answers = plan.answers[place]
            found |= dict.fromkeys((answers.subscribe, answers.respond))
    return [each for each in found if each in {*channel.topics, *channel.shared}]


class ChannelRun:
    """A micro-batch of a channel on its way through the operators.

    ``answering`` are the right sides of joins by a foreign key that the channel has, by the joins'
    places.
    """

    def __init__(  # noqa: PLR0917 - what operators run on
        self,
        plan: Plan,
        channel: Channel,
        states: Mapping[int, Any],
        records: Mapping[str, TopicRecords],
        poison: Poison,
        calls: UserCalls | None = None,
        staged: StageRows | None = None,
        answering: Mapping[int, AnsweringSide] | None = None,
    ) -> None:
        """Start with the records of each topic that has any, and the operators' states.

        The operators of a stage that was run before are not run again.
        """
        self._answering = answering or {}
        self._calls = calls or Unwatched()
        self._plan = plan
        self._channel = channel
        self._states = states
        self._records = records
        self._poison = poison
        #: What is written, by topic and as it came; changes of key among them.
        self.written: list[tuple[str, Written]] = []
        self.counts = OperatorCounts()
        self._rows: dict[int, Any] = {}
        #: The rows that are read of topics, by the places that name these.
        self._reads: dict[int, Batch] = {}
        self._staged = staged
        if staged is not None:
            reads = staged.stage.reads & staged.rows.keys()
            self._reads |= {place: staged.rows[place] for place in reads}

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
            for join in self._plan.joins_with(place):
                if join in self._answering:
                    self._answer(join)

    def _answer(self, join: int) -> None:
        """Write to the left side of a join by a foreign key what it wants of the right one."""
        side, answers = self._answering[join], self._plan.answers[join]
        asked = read_subscriptions(self._records.get(answers.subscribe, _NO_RECORDS))
        view, changes = self._view(answers.right), self._rows[answers.right]
        found = side.process(view, changes, asked)
        if found:
            self.written.append((answers.respond, side.format.write(found, self._poison)))

    def _run(self, place: int, operator: Operator) -> Any:
        if self._staged is None:
            return _STEPS[type(operator)](self, place, operator)
        for at, reason in self._staged.notes.get(place, ()):
            self._poison.note(at, reason)
        if place not in self._staged.stage.operators:
            return _STEPS[type(operator)](self, place, operator)
        if place in self._staged.written:
            topic = operator.topic if isinstance(operator, Sink) else self._plan.by_key[place]
            self.written.append((topic, self._staged.written[place]))
        return self._staged.rows.get(place)

    def read_source(self, place: int, operator: Source) -> Batch:
        """Return the records of a topic, at their times."""
        return with_time(operator, self._read(operator.topic, place, place), self._poison)

    def read_table(self, place: int, operator: TableSource) -> list[Change]:
        """Return the changes of a table by the records of its topic."""
        batch = self._read_table(place, operator)
        self.counts.add(operator, records=len(batch))
        found: list[Change] = self._states[place].process(batch, operator.label, self._poison)
        return found

    def _read_table(self, place: int, operator: TableSource) -> Batch:
        if place not in self._reads:
            batch = self._read(operator.topic, place, place)
            self._reads[place] = with_valid_times(batch, operator.topic, self._poison)
        return self._reads[place]

    def filter(self, place: int, operator: Filter) -> Any:
        """Return the rows of a stream, or the changes of a table, of which a condition is true."""
        (source,) = operator.inputs
        rows = self._rows.get(source)
        if isinstance(rows, list):
            changes = filter_table(operator, rows, self._poison)
            if self._states[place] is not None:
                self._states[place].follow(changes)
            return changes
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
        return apply(operator, self._stream(operator.inputs[0]), self._poison, self._calls)

    def show(self, place: int, operator: Peek) -> Batch:
        """Show the rows to a Python function."""
        del place
        return show(operator, self._stream(operator.inputs[0]), self._poison, self._calls)

    def merge(self, place: int, operator: Merge) -> Batch:
        """Return the rows of several streams."""
        del place
        return merge_batches([self._stream(each) for each in operator.inputs])

    def aggregate(self, place: int, operator: Aggregate) -> Any:
        """Return the changes of a table, or what its windows emit."""
        if self._staged is not None and place in self._staged.merged:
            return self._take_groups(place, operator, self._staged)
        stream, state = self._stream(operator.inputs[0]), self._states[place]
        if not operator.folds:
            found = state.process(stream, self._poison)
        else:
            with self._calls.job():
                self._calls.call(operator.label, None)
                found = state.process(stream, self._poison)
        self.counts.add(operator, records=len(stream), skipped=stream.deletions)
        if operator.windows is not None:
            self.counts.add(operator, late=len(state.late_at), closed=state.closed)
        return found

    def _take_groups(self, place: int, operator: Aggregate, staged: StageRows) -> Any:
        """Return the same of groups that were made of the rows in chunks."""
        state = self._states[place]
        for chunk in staged.groups[place]:
            for at, reason in chunk.notes:
                self._poison.note(at, reason)
            self.counts.add(operator, records=chunk.records, skipped=chunk.skipped)
        found = state.take(staged.merged[place])
        if operator.windows is not None:
            self.counts.add(operator, closed=state.closed)
        return found

    def reduce(self, place: int, operator: Reduce) -> Any:
        """Return the rows that a keyed reducer makes."""
        stream = self._stream(operator.inputs[0])
        self.counts.add(operator, records=len(stream), skipped=stream.deletions)
        return self._states[place].process(stream, self, self._poison, self._calls)

    def origin(self, at: int) -> tuple[str, int]:
        """Return the topic of a record of the micro-batch, and its offset there."""
        return self._origins[at]

    @cached_property
    def _origins(self) -> dict[int, tuple[str, int]]:
        return {
            at: (each.topic, offset)
            for each in self._records.values()
            if each.offsets is not None
            for at, offset in zip(each.at.tolist(), each.offsets.tolist(), strict=True)
        }

    def join_streams(self, place: int, operator: StreamJoin) -> Any:
        """Return the pairs of two streams."""
        left, right = map(self._stream, operator.inputs)
        state = self._states[place]
        found = state.process((left, right), self._poison)
        for side in (left, right):
            self.counts.add(operator, records=len(side), skipped=side.deletions)
        self.counts.add(operator, late=state.late, alone=state.alone)
        return found

    def look_up(self, place: int, operator: Lookup) -> Any:
        """Return the rows of a stream with those of a table."""
        stream, table = operator.inputs
        view, rows, state = self._view(table), self._stream(stream), self._states[place]
        found = state.process(rows, view, self._poison)
        skipped = rows.deletions + state.without_key
        self.counts.add(operator, records=len(rows), skipped=skipped, alone=state.alone)
        return found

    def join_tables(self, place: int, operator: TableJoin) -> Any:
        """Return the changes of a table of two."""
        state = self._states[place]
        if isinstance(state, AskingSide):
            return self._ask(place, state)
        left, right = operator.inputs
        views = (self._view(left), self._view(right))
        changes = (self._rows[left], self._rows[right])
        found: list[Change] = state.process(views, changes, self._poison)
        self.counts.add(operator, records=sum(map(len, changes)), alone=state.alone)
        return found

    def _ask(self, place: int, side: AskingSide) -> list[Change]:
        """Return the changes of a join by a foreign key, and write what is wanted of its right."""
        answers = self._plan.answers[place]
        view = self._view(answers.left)
        asked = []
        if side.asks_for_all:
            asked = side.subscribe_all(view.rows_before(), self._first_at())
        found = side.format.read(self._records.get(answers.respond, _NO_RECORDS), self._poison)
        lefts = self._rows[answers.left]
        changes, more = side.process(view, lefts, found, self._poison)
        operator = self._plan.operators[place]
        self.counts.add(operator, records=len(lefts), alone=side.alone)
        asked += more
        if asked:
            self.written.append((answers.subscribe, write_subscriptions(asked)))
        return changes

    def _first_at(self) -> int:
        """Return the first record of the micro-batch."""
        return min(int(each.at[0]) for each in self._records.values() if len(each.at))

    def _read(self, topic: str, place: int, written: int | None) -> Batch:
        """Return the records of a topic as rows of the operator that names it.

        Values are as the source at ``written`` says, None: in JSON.
        """
        output = self._plan.operators[place].output
        assert output is not None, "rows come out"
        records = self._records.get(topic, _NO_RECORDS)
        codec, decoder = "json", None
        if written is not None:
            source = self._plan.operators[written]
            assert isinstance(source, (Source, TableSource)), "others have no codec"
            codec, decoder = source.codec, self._plan.decoders.get(written)
        fields = self._plan.fields[place]
        return read_records(records, output, fields, codec, self._poison, decoder)

    def _stream(self, place: int) -> Batch:
        """Return the rows of a stream; those of a change of key are read from its topic."""
        if place not in self._plan.by_key:
            found: Batch = self._rows[place]
            return found
        if place not in self._reads:
            topic = self._plan.by_key[place]
            self._reads[place] = self._read(topic, place, self._source_of(place))
        return self._reads[place]

    def _source_of(self, place: int) -> int | None:
        """Return the source whose values are in the topic of a change of key, as they were read.

        None: values are written there in JSON.
        """
        while place in self._plan.as_read or isinstance(
            self._plan.operators[place], (Filter, Peek)
        ):
            (place,) = self._plan.operators[place].inputs
        return place if isinstance(self._plan.operators[place], Source) else None

    def _view(self, place: int) -> View:
        """Return a table as it is before the micro-batch, and moves on with it."""
        return View(self._states[place].state.rows, self._rows[place])

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
        self.written.append((operator.topic, records))

    def write_by_key(self, place: int, operator: KeyBy) -> None:
        """Write the rows to the topic of a change of key."""
        as_read = place in self._plan.as_read
        batch = self._stream(operator.inputs[0])
        records = write_by_key(operator, batch, self._poison, as_read=as_read)
        self.written.append((self._plan.by_key[place], records))

    def group_changes(self, place: int, operator: GroupChanges) -> None:
        """Write the changes of a table to the topic of its groups."""
        (source,) = operator.inputs
        output = self._plan.operators[source].output
        assert output is not None, "rows come in"
        records = write_changes(operator, self._rows[source], output, self._poison)
        self.written.append((self._plan.by_key[place], records))


class StageRun(ChannelRun):
    """A part of a micro-batch on its way through a stage, which needs no states.

    ``groupers`` are the aggregates of which groups are wanted in place of rows.
    """

    def __init__(  # noqa: PLR0917 - what operators run on
        self,
        plan: Plan,
        channel: Channel,
        stage: Stage,
        records: Mapping[str, TopicRecords],
        calls: UserCalls | None = None,
        groupers: Mapping[int, Grouper] | None = None,
    ) -> None:
        self._notes = Notes()
        super().__init__(plan, channel, {}, records, self._notes, calls)
        self._stage = stage
        self._groupers = groupers or {}

    def run(self) -> StageRows:
        """Run each operator of the stage once, and read what others read of topics."""
        found = StageRows(self._stage, notes=self._notes.by_place)
        for place in sorted(self._channel.operators):
            operator = self._plan.operators[place]
            self._notes.begin(place)
            if place in self._stage.operators:
                count = len(self.written)
                self._rows[place] = self._run(place, operator)
                if len(self.written) > count:
                    _, found.written[place] = self.written[-1]
            elif isinstance(operator, TableSource):
                self._read_table(place, operator)
            else:
                for each in self._plan.by_key.keys() & {*operator.inputs}:
                    self._stream(each)
        for place in self._stage.yields:
            batch = self._reads[place] if place in self._stage.reads else self._stream(place)
            groups = self._grouped(place, batch)
            found.groups |= groups
            if not groups:
                found.rows[place] = self._used(place, batch)
        return found

    def _grouped(self, place: int, batch: Batch) -> dict[int, list[Grouped]]:
        """Return the groups of rows by aggregate; none where rows are wanted, or fewer."""
        wanted = [each for each in self._stage.groups.get(place, ()) if each in self._groupers]
        found = {each: [self._groupers[each].group(batch)] for each in wanted}
        few = all(are_few(each, len(batch)) for groups in found.values() for each in groups)
        return found if few else {}

    def _used(self, place: int, batch: Batch) -> Batch:
        """Return rows with the fields in use alone."""
        fields = {name: batch.fields[name] for name in self._plan.fields[place]}
        return replace(batch, fields=fields, values=None)


#: The step of a micro-batch that an operator is.
_STEPS: dict[type[Operator], Callable[[ChannelRun, int, Any], Any]] = {
    Source: ChannelRun.read_source,
    TableSource: ChannelRun.read_table,
    Filter: ChannelRun.filter,
    Select: ChannelRun.select,
    Apply: ChannelRun.apply,
    Peek: ChannelRun.show,
    Merge: ChannelRun.merge,
    KeyBy: ChannelRun.write_by_key,
    GroupChanges: ChannelRun.group_changes,
    Aggregate: ChannelRun.aggregate,
    AggregateChanges: ChannelRun.aggregate,
    Emitted: ChannelRun.emit,
    Reduce: ChannelRun.reduce,
    StreamJoin: ChannelRun.join_streams,
    Lookup: ChannelRun.look_up,
    TableJoin: ChannelRun.join_tables,
    Sink: ChannelRun.write,
}


__all__ = ["ChannelRun", "StageRun", "topics_in_code"]
