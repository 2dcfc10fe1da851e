"""The states of a channel's operators in one task, read from the rows of the channel's state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.extensions.streams.inline.aggregates import (
    GroupState,
    StreamedGroups,
    WindowState,
    layout_of,
)
from headrace.extensions.streams.inline.foreign import AnsweringSide, AskingSide
from headrace.extensions.streams.inline.joins import StreamJoinState
from headrace.extensions.streams.inline.readers import emits_of, is_looked_up, is_streamed
from headrace.extensions.streams.inline.reducers import ReduceState
from headrace.extensions.streams.inline.table_groups import TableGroupState
from headrace.extensions.streams.inline.tables import (
    FilteredTable,
    LookupState,
    SourceTable,
    TableJoinState,
)
from headrace.extensions.streams.kernels.records import NO_TIME
from headrace.extensions.streams.operators import (
    Aggregate,
    AggregateChanges,
    Filter,
    Lookup,
    Reduce,
    StreamJoin,
    TableJoin,
    TableSource,
)
from headrace.extensions.streams.plan import SUBSCRIPTIONS
from headrace.extensions.streams.runtime.foreign_store import StoredAnswers, StoredSubscriptions
from headrace.extensions.streams.runtime.join_store import StoredJoin
from headrace.extensions.streams.runtime.reducer_store import StoredReducer
from headrace.extensions.streams.runtime.stores import (
    Changes,
    StoredGroups,
    StoredPanes,
    StoredWindowsByKey,
    read_time,
    rows_prefix,
    time_key,
)
from headrace.extensions.streams.runtime.table_store import StoredTable
from headrace.extensions.streams.windows import TimeWindows

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace.extensions.streams.operators import Operator, Output
    from headrace.extensions.streams.plan import Channel, Plan
    from headrace.extensions.streams.runtime.stores import ChangingStore
    from headrace.extensions.streams.runtime.task_rows import TaskRows
    from headrace.extensions.streams.runtime.window_room import WindowRoom


def _time_text(time: int) -> bytes | None:
    """Return the row of an operator time, None where it has had no record."""
    return None if time == NO_TIME else str(time).encode()


class TaskStates:
    """The states of operators by their places, and what of their rows changed. One thread.

    Buffers of joins, tables and windows by key are read once. Rows of groups and of other windows
    are read as a micro-batch needs them.
    """

    def __init__(
        self,
        plan: Plan,
        channel: Channel,
        rows: TaskRows,
        room: WindowRoom,
        shared: Mapping[int, SourceTable] | None = None,
    ) -> None:
        """Read the rows of a task, with all that is staged; ``shared`` tables are of all tasks.

        The tasks of a channel have one ``room`` for rows of windows.

        Raises:
            StateStoreError: they cannot be read.
        """
        self._plan, self._stored, self._room = plan, rows, room
        kept = [each for each in plan.stores if each.holder in channel.operators]
        wanted = [each for each in kept if each.kind == SUBSCRIPTIONS]
        self._names = {each.operator: each.rows for each in kept if each not in wanted}
        self._stores: dict[int, ChangingStore] = {}
        self._times: dict[int, int] = {}
        #: The state of each operator, None where it has none.
        self.by_place: dict[int, Any] = {
            **dict.fromkeys(range(len(plan.operators))),
            **(shared or {}),
        }
        for place in channel.operators:
            self.by_place[place] = self._open(place, plan.operators[place])
        #: The right sides of joins by a foreign key, by the joins' places.
        self.answering: dict[int, AnsweringSide] = {}
        self._subscriptions: list[StoredSubscriptions] = []
        for each in wanted:
            join = plan.operators[each.operator]
            assert isinstance(join, TableJoin), "others have no subscriptions"
            store = StoredSubscriptions(each.rows)
            store.restore(self._rows(each.rows))
            self._subscriptions.append(store)
            right = self._output(join.inputs[1])
            self.answering[each.operator] = AnsweringSide(join, right, store)

    def _open(self, place: int, operator: Operator) -> Any:
        """Return the state of an operator, with its rows."""
        outputs = [self._output(each) for each in operator.inputs]
        made: Any = None
        match operator:
            case Aggregate(windows=None):
                made = self._open_groups(place, operator, outputs[0])
            case Aggregate():
                made = self._open_windows(place, operator, outputs[0])
            case StreamJoin():
                made = self._open_join(place, operator, (outputs[0], outputs[1]))
            case TableSource():
                made = self._open_table(place)
            case Filter() if outputs[0].is_table and is_looked_up(self._plan, place):
                made = FilteredTable(operator, self._table(operator.inputs[0]))
            case Lookup():
                made = LookupState(operator, *outputs)
            case TableJoin() if operator.on is not None:
                made = self._open_asking(place, operator, outputs)
            case Reduce():
                made = self._open_reducer(place, operator, outputs[0])
            case TableJoin():
                made = TableJoinState(operator, outputs[0], outputs[1])
                made.fill(*map(self._table, operator.inputs))
        return made

    def _open_table(self, place: int) -> SourceTable:
        output, name = self._output(place), self._names[place]
        table = self._stores[place] = StoredTable(name, output.row)
        table.restore(self._rows(name))
        return SourceTable(output, table, is_stored=True)

    def _output(self, place: int) -> Output:
        output = self._plan.operators[place].output
        assert output is not None, "rows come out"
        return output

    def _table(self, place: int) -> Any:
        """Return the rows of a table that was opened before."""
        return self.by_place[place].state.rows

    def _open_groups(
        self, place: int, operator: Aggregate, source: Output
    ) -> GroupState | StreamedGroups:
        name, layout = self._names[place], layout_of(operator)
        groups = self._stores[place] = StoredGroups(name, layout, self._stored)
        keeps_rows = is_looked_up(self._plan, place)
        made: GroupState
        if isinstance(operator, AggregateChanges):
            made = TableGroupState(operator, source, groups, keeps_rows=keeps_rows)
        elif is_streamed(self._plan, place):
            return StreamedGroups(operator, source, groups, emits_of(self._plan, place))
        else:
            made = GroupState(operator, source, groups, keeps_rows=keeps_rows)
        if keeps_rows:
            keys = pa.array([key for key, _ in self._rows(name)], pa.binary())
            made.recall(keys, groups.read(keys))
        return made

    def _open_windows(self, place: int, operator: Aggregate, source: Output) -> WindowState:
        name, layout, windows = self._names[place], layout_of(operator), operator.windows
        assert windows is not None, "groups without windows are opened elsewhere"
        store: StoredPanes | StoredWindowsByKey
        if isinstance(windows, TimeWindows):
            store = StoredPanes(name, layout, windows.pane, self._stored, self._room)
        else:
            store = StoredWindowsByKey(name, layout)
            store.restore(self._rows(name))
        self._stores[place] = store
        time = self._read_time(place)
        emits = emits_of(self._plan, place)
        return WindowState(operator, windows, source, emits, store=store, time=time)

    def _open_join(
        self, place: int, operator: StreamJoin, outputs: tuple[Output, Output]
    ) -> StreamJoinState:
        one, other = (self._plan.fields[each] for each in operator.inputs)
        store = StoredJoin(self._names[place], outputs, (one, other))
        store.restore(self._rows(self._names[place]))
        self._stores[place] = store
        time = self._read_time(place)
        return StreamJoinState(
            operator, outputs, (one, other), buffer=store, time=time, is_stored=True
        )

    def _open_asking(
        self, place: int, operator: TableJoin, outputs: Sequence[Output]
    ) -> AskingSide:
        name = self._names[place]
        store = self._stores[place] = StoredAnswers(name, self._output(place).row)
        store.restore(self._rows(name))
        (mark,) = self._stored.read([store.mark])
        store.is_marked = mark is not None
        left, right = outputs
        return AskingSide(operator, left, right, store, asks_for_all=mark is None)

    def _open_reducer(self, place: int, operator: Reduce, source: Output) -> ReduceState:
        store = StoredReducer(self._names[place], self._stored)
        self._stores[place] = store
        time = self._read_time(place)
        return ReduceState(operator, source, store, partition=self._stored.partition, time=time)

    def _read_time(self, place: int) -> int:
        time = read_time(self._stored, self._names[place])
        self._times[place] = time
        return time

    def _rows(self, store: str) -> Iterable[tuple[bytes, bytes]]:
        """Return the rows of a store, by their keys without its prefix."""
        return self._stored.read_all(rows_prefix(store)).items()

    def late(self) -> dict[int, str]:
        """Return the records of the last micro-batch that were late, each with where it was."""
        found: dict[int, str] = {}
        for place, state in self.by_place.items():
            if isinstance(state, WindowState) and len(state.late_at):
                text = f"{self._names[place]}: its windows were over when it came"
                found |= dict.fromkeys(np.unique(state.late_at).tolist(), text)
        return found

    def take_changes(self) -> Changes:
        """Return the rows that changed since the last call, operator times among them.

        Raises:
            StateStoreError: the rows before them cannot be read.
        """
        found = [each for store in self._subscriptions for each in store.take_changes()]
        times: dict[bytes, bytes | None] = {}
        former_times: dict[bytes, bytes | None] = {}
        for place, store in self._stores.items():
            found += store.take_changes()
            if place in self._times and self.by_place[place].time != self._times[place]:
                time, name = self.by_place[place].time, time_key(self._names[place])
                former_times[name] = _time_text(self._times[place])
                self._times[place] = time
                times[name] = _time_text(time)
        found = [self._with_formers(each) for each in (*found, Changes.of(times, former_times))]
        return Changes(*(pa.concat_arrays(column) for column in zip(*found, strict=True)))

    def _with_formers(self, changes: Changes) -> Changes:
        """Return changes with the rows before them: read, where the store does not know them."""
        if changes.formers is not None:
            return changes
        read = self._stored.read(changes.keys.to_pylist())
        return changes._replace(formers=pa.array(read, pa.binary()))
