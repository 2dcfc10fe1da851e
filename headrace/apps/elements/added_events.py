"""Events that a part adds to those that come in: to all instances, and to those that are too many.

Both take a look at all rows of a partition, which a reducer of one key cannot have.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.extensions.keyed.codecs import from_json

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from headrace.extensions.keyed.row import KeyRow

    #: Returns the rows of a partition by their keys.
    RowsOf = Callable[[int], Mapping[bytes, KeyRow]]

#: The source of an event that ends an instance of the element that is its value.
EVICTED = "headrace.evicted"


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound of an element: the instances that a partition may have at most.

    A record of ``topics`` makes an instance of its key. ``within``: so may an event of another
    element, which does not show before it is reduced, and is counted with the next micro-batch.
    """

    most: int
    topics: frozenset[str]
    within: bool = False


class AddedEvents:
    """Adds events to the records of a micro-batch. One thread at a time.

    ``everywhere`` are the topics of which each record goes to each key that its partition has.
    ``bounds`` has by element how many instances a partition may have: those that had no event for
    longest end, after the records of the micro-batch.
    """

    def __init__(self, everywhere: Collection[str], bounds: Mapping[str, Bound]) -> None:
        self._everywhere = frozenset(everywhere)
        self._bounds = dict(bounds)
        # by partition and element the keys that may have an instance: no more than are allowed
        self._counted: dict[tuple[int, str], set[bytes]] = {}
        # by topic and partition the last offset
        self._ends: dict[tuple[str, int], int] = {}

    def __call__(self, table: pa.Table, rows_of: RowsOf) -> pa.Table:
        """Return the records with what is added. Blocks for reads of rows where it is."""
        if self._everywhere:
            table = self._repeated(table, rows_of)
        if self._bounds and table.num_rows:
            table = pa.concat_tables([table, *self._endings(table, rows_of)])
        return table

    def _repeated(self, table: pa.Table, rows_of: RowsOf) -> pa.Table:
        """Return records with those of ``everywhere`` once for each key that there is by then."""
        topics = pa.array(sorted(self._everywhere), pa.string())
        is_repeated = pc.is_in(table.column("topic").cast(pa.string()), topics)
        if not pc.any(is_repeated).as_py():
            return table
        live: dict[int, dict[bytes, None]] = {}
        places: list[int] = []
        keys: list[bytes | None] = []
        columns = (table.column(name).to_pylist() for name in ("partition", "key"))
        for place, (number, key, repeats) in enumerate(
            zip(*columns, is_repeated.to_pylist(), strict=True)
        ):
            if number not in live:
                live[number] = dict.fromkeys(rows_of(number))
            if not repeats:
                places.append(place)
                keys.append(key)
                if key is not None:
                    live[number][key] = None
                continue
            places += [place] * len(live[number])
            keys += live[number]
        index = table.schema.get_field_index("key")
        field = table.schema.field("key")
        return table.take(pa.array(places, pa.int64())).set_column(
            index, field, pa.chunked_array([pa.array(keys, field.type)])
        )

    def _endings(self, table: pa.Table, rows_of: RowsOf) -> Iterator[pa.Table]:
        """Yield events that end the instances of a partition that are too many."""
        names = ("topic", "partition", "offset", "key")
        came: dict[int, list[tuple[str, bytes]]] = {}
        last: dict[int, int] = {}
        first: dict[tuple[str, int], int] = {}
        ends: dict[tuple[str, int], int] = {}
        columns = (table.column(name).to_pylist() for name in names)
        for place, (topic, number, offset, key) in enumerate(zip(*columns, strict=True)):
            first.setdefault((topic, number), offset)
            ends[topic, number] = offset
            last[number] = place
            if key is not None:
                came.setdefault(number, []).append((topic, key))
        # what is delivered again was dropped: its instances are to be counted again
        again = {each[1] for each, offset in first.items() if offset <= self._ends.get(each, -1)}
        self._ends.update(ends)
        for number, place in last.items():
            if number in again:
                for element in self._bounds:
                    self._counted.pop((number, element), None)
            ended = [
                (key, element)
                for element in self._bounds
                for key in self._too_many(number, element, came.get(number, ()), rows_of)
            ]
            if ended:
                yield _events(table, place, ended)

    def _too_many(
        self, number: int, element: str, came: Iterable[tuple[str, bytes]], rows_of: RowsOf
    ) -> Sequence[bytes]:
        """Return the keys whose instances of an element are too many in a partition."""
        bound = self._bounds[element]
        made: set[bytes] = set()
        used: dict[bytes, None] = {}
        for topic, key in came:
            if topic in bound.topics:
                made.add(key)
            elif not bound.within:
                continue
            used.pop(key, None)  # the latest is the last
            used[key] = None
        # of a partition that was elsewhere too much may be known, until its next new key
        if not bound.within and self._counted.get((number, element), set()).issuperset(made):
            return ()
        since = dict(_last_events(rows_of(number), element))
        order = sorted((key for key in since if key not in used), key=since.__getitem__)
        order += (key for key in used if key in made or key in since)
        ended = order[: max(0, len(order) - bound.most)]
        self._counted[number, element] = {*order[len(ended) :]}
        return ended


def _last_events(rows: Mapping[bytes, KeyRow], element: str) -> Iterator[tuple[bytes, int]]:
    """Yield the keys that have an instance of an element, and when its last event was."""
    for key, row in rows.items():
        state: Any = None if row.state is None else from_json(row.state)
        if isinstance(state, dict) and element in state:
            yield key, state[element].get("_element", {}).get("last") or 0


def _events(table: pa.Table, place: int, ended: list[tuple[bytes, str]]) -> pa.Table:
    """Return events that end instances, each at the time of a record of their partition."""
    made = table.take(pa.array([place] * len(ended), pa.int64()))
    new = {
        "topic": [EVICTED] * len(ended),
        "key": [key for key, _ in ended],
        "value": [json.dumps(element).encode() for _, element in ended],
        "headers": [None] * len(ended),
    }
    for name, values in new.items():
        field = table.schema.field(name)
        index = table.schema.get_field_index(name)
        made = made.set_column(index, field, pa.chunked_array([pa.array(values, field.type)]))
    return made
