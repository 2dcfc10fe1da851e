"""The rows that a micro-batch changed, in columns: from the fold to the store and the changelog.

There may be as many as records: an object of each is made when one is asked for, and not before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from headrace.extensions.keyed.row import KeyRow, PartitionKey, RowChange
from headrace.extensions.keyed.tables import named_tuples

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

#: The columns of rows as they are now, and of those rows as they were before.
AFTER = ("state", "extra")
FORMER = ("former_state", "former_extra")

_SCHEMA = pa.schema(
    [
        ("partition", pa.int32()),
        ("key", pa.binary()),
        *((name, pa.binary()) for name in (*AFTER, *FORMER)),
    ]
)


class ChangedRows(Mapping[PartitionKey, RowChange]):
    """Changed rows by their keys, which are different from each other. Any thread.

    ``columns`` are partition, key, state, extra, former_state and former_extra; a row that is not
    there has neither state nor extra. As a mapping it makes objects when one is first looked up.
    """

    def __init__(self, columns: pa.Table) -> None:
        self.columns = columns.select(_SCHEMA.names).combine_chunks()

    @classmethod
    def of(
        cls,
        changes: Mapping[PartitionKey, RowChange] | Iterable[tuple[PartitionKey, RowChange]],
    ) -> ChangedRows:
        """Return changes in columns; of a key that is there twice the last one counts."""
        found: dict[PartitionKey, RowChange] = dict(changes)
        columns: dict[str, Sequence[Any]] = {
            "partition": [key.partition for key in found],
            "key": [key.key for key in found],
        }
        before, after = zip(*found.values(), strict=True) if found else ((), ())
        columns |= zip(FORMER, columns_of(before), strict=True)
        columns |= zip(AFTER, columns_of(after), strict=True)
        return cls(pa.table(columns, _SCHEMA))

    @override
    def __len__(self) -> int:
        return int(self.columns.num_rows)

    @override
    def __iter__(self) -> Iterator[PartitionKey]:
        return iter(self._by_key)

    @override
    def __getitem__(self, key: PartitionKey) -> RowChange:
        return self._by_key[key]

    @override
    def __contains__(self, key: object) -> bool:
        return key in self._by_key

    @cached_property
    def _by_key(self) -> Mapping[PartitionKey, RowChange]:
        keys = named_tuples(PartitionKey, zip(*self._lists("partition", "key"), strict=True))
        changes = zip(rows_of(*self._lists(*FORMER)), rows_of(*self._lists(*AFTER)), strict=True)
        return dict(zip(keys, named_tuples(RowChange, changes), strict=True))

    def _lists(self, *names: str) -> list[list[Any]]:
        return [self.column(name).to_pylist() for name in names]

    def column(self, name: str) -> pa.Array:
        """Return a column, in one piece."""
        column = self.columns.column(name)
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    @cached_property
    def partitions(self) -> frozenset[int]:
        """Return the numbers of the partitions that rows changed in."""
        return frozenset(self.columns.column("partition").unique().to_pylist())

    @cached_property
    def has_extras(self) -> bool:
        """Return whether a row has or had more than a state: timers, or a quarantine."""
        return any(
            self.columns.column(name).null_count < len(self) for name in (AFTER[1], FORMER[1])
        )

    def by_extras(self) -> tuple[ChangedRows, ChangedRows]:
        """Return the rows that have and had a state alone, and the others."""
        if not self.has_extras:
            return self, NO_CHANGES
        has_extra = pc.or_(*(self.column(name).is_valid() for name in (AFTER[1], FORMER[1])))
        return self.take(pc.invert(has_extra)), self.take(has_extra)

    def within(self, partition: int, prefix: bytes) -> ChangedRows:
        """Return the rows of a partition whose keys begin so."""
        is_own = pc.equal(self.column("partition"), partition)
        return self.take(pc.and_(is_own, pc.starts_with(self.column("key"), prefix)))

    def take(self, mask: pa.Array) -> ChangedRows:
        """Return the rows for which a mask is true."""
        return ChangedRows(self.columns.filter(mask))

    def without(self, others: Sequence[ChangedRows]) -> ChangedRows:
        """Return the rows whose keys are not among those of others."""
        if not others or not self:
            return self
        several = pa.concat_arrays([each.names(_partition_text) for each in others])
        return self.take(pc.invert(pc.is_in(self.names(_partition_text), several)))

    def names(self, prefix_of: Callable[[int], bytes]) -> pa.Array:
        """Return the keys with what stands before those of their partitions."""
        numbers = self.column("partition").dictionary_encode()
        prefixes = pa.array(map(prefix_of, numbers.dictionary.to_pylist()), pa.binary())
        own = prefixes[0] if len(prefixes) == 1 else prefixes.take(numbers.indices)
        return pc.binary_join_element_wise(own, self.column("key"), b"")


def _partition_text(number: int) -> bytes:
    return b"%d/" % number


#: No row has changed.
NO_CHANGES = ChangedRows(_SCHEMA.empty_table())


def columns_of(rows: Sequence[KeyRow | None]) -> tuple[pa.Array, pa.Array]:
    """Return states and extras of rows, neither where there is no row."""
    fields = [row or (None, None) for row in rows]
    state, extra = (pa.array([field[at] for field in fields], pa.binary()) for at in (0, 1))
    return state, extra


def rows_of(
    states: Sequence[bytes | None], extras: Sequence[bytes | None]
) -> Sequence[KeyRow | None]:
    """Return rows of what is stored of keys, None for each that has none."""
    fields = list(zip(states, extras, strict=True))
    nothing = (None, None)
    if nothing not in fields:
        return named_tuples(KeyRow, fields)
    return [None if row == nothing else KeyRow(*row) for row in fields]
