"""Figures of a running part's operators: what was counted, and the rows and times they have."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from headrace.extensions.keyed.errors import StateStoreError
from headrace.extensions.keyed.row import PartitionKey
from headrace.extensions.keyed.row_groups import NO_ROWS
from headrace.extensions.streams.inline.counts import counts_of
from headrace.extensions.streams.operators import Aggregate, Reduce, StreamJoin
from headrace.extensions.streams.runtime.stores import rows_prefix, time_key
from headrace.telemetry.metrics import OperatorSnapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.extensions.keyed.sink import KeyedSink
    from headrace.extensions.keyed.state import LayeredState
    from headrace.extensions.keyed.store import RocksStore
    from headrace.extensions.streams.operators import Operator
    from headrace.extensions.streams.plan import Channel, Plan, Store


def store_prefixes(plan: Plan, part: Channel) -> dict[str, bytes]:
    """Return what the keys of rows begin with, by the stores of a part."""
    own = (each for each in plan.stores if each.name in part.stores)
    return {each.name: rows_prefix(each.rows) for each in own}


class OperatorFigures:
    """Reads the figures of the operators of a part that have any. Any thread.

    Operator times are rows of the state; they are read from memory, or else from the disk.
    """

    def __init__(
        self, plan: Plan, part: Channel, state: LayeredState, store: RocksStore, sink: KeyedSink
    ) -> None:
        self._topology = plan.name
        self._operators = [plan.operators[place] for place in part.operators]
        self._stores = {each.name: each for each in plan.stores if each.name in part.stores}
        self._state, self._store, self._sink = state, store, sink

    def read(self, partitions: Sequence[int], now: float) -> tuple[OperatorSnapshot, ...]:
        """Return the figures over partitions whose state is there, in the order of the code."""
        sizes, totals = self._store.group_sizes(partitions), self._sink.named_totals
        found = []
        for operator in self._operators:
            counted, name = counts_of(operator), operator.own_name
            if not counted or name is None:
                continue
            own, store = totals.get(name, {}), self._stores.get(name)
            size = None if store is None or sizes is None else sizes.get(name, NO_ROWS)
            times = [] if store is None else self._times(operator, store, partitions)
            lag = max(0.0, round(now - min(times) / 1000, 3)) if times else None
            found.append(
                OperatorSnapshot(
                    self._topology,
                    name,
                    operator.op,
                    None if store is None else store.kind,
                    {count: own.get(count, 0) for count in counted},
                    rows=None if size is None else size.rows,
                    bytes=None if size is None else size.bytes,
                    time_lag=lag,
                )
            )
        return tuple(found)

    def _times(self, operator: Operator, store: Store, partitions: Sequence[int]) -> list[int]:
        """Return the operator times in partitions, of those that had a record."""
        has_time = isinstance(operator, Reduce | StreamJoin) or (
            isinstance(operator, Aggregate) and operator.windows is not None
        )
        found = []
        for number in partitions if has_time else ():
            # what was given up meanwhile, or cannot be read, is told by others
            with suppress(StateStoreError):
                row, _ = self._state.committed(PartitionKey(number, time_key(store.rows)))
                if row is not None and row.state is not None:
                    found.append(int(row.state))
        return found
