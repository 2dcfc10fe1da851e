"""Rows that are merged into those with their keys, in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.errors import ResultMisfitError, RowsRefusedError
from headrace.sinks.by_key import Merging

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

#: Bytes of files that a partition of the table may have, unless something else is said.
DEFAULT_LIMIT = 64 << 20

#: Types in the words of Delta and Spark: of whole numbers, of columns that a table with keys is
#: partitioned by, whose spelling in the log is sure, and of keys.
_WHOLE = frozenset(("byte", "short", "integer", "long"))
_PARTITIONING = _WHOLE | {"string", "boolean", "date"}
_EXACT = _PARTITIONING | {"binary", "timestamp", "timestamp_ntz", "decimal"}
_SUMMED = _WHOLE | {"float", "double", "decimal"}
_NESTED = frozenset(("struct", "array", "map"))

#: A row's number in a table, and a column that all rows have in common.
_NUMBER, _SAME = "_headrace_number", "_headrace_same"


@dataclass(frozen=True, slots=True)
class MergeRule:
    """The columns that make a row unique, and the treatment of each other one.

    ``limit`` is the bytes of files that a partition of the table may have; a table that is not
    partitioned is one.
    """

    key: tuple[str, ...]
    columns: Mapping[str, Merging]
    limit: int = DEFAULT_LIMIT

    @property
    def names(self) -> list[str]:
        """Return the columns of a result."""
        return [*self.key, *self.columns]

    def misfits(self, kinds: Mapping[str, Any]) -> Iterator[str]:
        """Yield a sentence for each column that a result lacks, or has beside those of the rule.

        ``kinds`` are types by column, as in the JSON of Spark's schemas.
        """
        for name in self.names:
            if name not in kinds:
                yield f"column {name!r} is missing"
        for name in kinds:
            if name not in self.names:
                yield f"column {name!r} is neither in key nor in merge"

    def wrong_types(self, kinds: Mapping[str, Any], partition_by: Collection[str]) -> Iterator[str]:
        """Yield a sentence for each column, of those that are there, which its type keeps out."""
        for name in self.key:
            kind = _word(kinds, name)
            if kind is not None and kind not in (_PARTITIONING if name in partition_by else _EXACT):
                place = "partition_by" if name in partition_by else "the key"
                yield f"column {name!r} of {place} is {kind}; have the reducer make text of it"
        for name, merging in self.columns.items():
            kind = _word(kinds, name)
            if kind is None or merging is Merging.LAST:
                continue
            if merging is Merging.SUM and kind not in _SUMMED:
                yield (
                    f"merge: {name}: sum takes a column of numbers, and {name} is {kind}; use min, "
                    "max or last"
                )
            elif kind in _NESTED:
                yield (
                    f"merge: {name}: {merging.value} takes a column of single values, and {name} "
                    f"is {kind}; use last"
                )


def _word(kinds: Mapping[str, Any], name: str) -> str | None:
    """Return the word for a column's type, None where there is no such column."""
    kind = kinds.get(name)
    word: str | None = kind["type"] if isinstance(kind, dict) else kind
    return "decimal" if word is not None and word.startswith("decimal") else word


def keys_of(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the columns of the key; without any, all rows have one key."""
    if key:
        return rows.select(list(key))
    return same_keys(rows.num_rows)


def same_keys(count: int) -> pa.Table:
    """Return the keys of so many rows where the key has no columns."""
    return pa.table({_SAME: pa.repeat(pa.scalar(0, pa.int8()), count)})


def numbers_of_stored(
    place: object, key: Sequence[str], stored: pa.Table, new: pa.Table
) -> pa.Array:
    """Return the number of the stored row that has the key of each new one, null where none has.

    Both tables are of :func:`keys_of`, with columns of the same types. A new key is there once.
    Messages have ``place`` and ``key``.

    Raises:
        ResultMisfitError: several stored rows have a key that a new one has.
    """
    both = pa.concat_tables([stored, new])
    numbered = both.append_column(_NUMBER, pa.array(range(both.num_rows), pa.int64()))
    groups = numbered.group_by(both.column_names).aggregate(
        [(_NUMBER, "min"), (_NUMBER, "max"), (_NUMBER, "count")]
    )
    # new rows come last
    groups = groups.filter(pc.field(f"{_NUMBER}_max") >= stored.num_rows)
    is_stored = pc.less(groups[f"{_NUMBER}_min"], stored.num_rows)
    if pc.any(pc.greater(groups[f"{_NUMBER}_count"], pc.add(is_stored.cast("int64"), 1))).as_py():
        raise ResultMisfitError(
            f"{place}: rows cannot be merged: the table has several rows of one {', '.join(key)}; "
            "make one of them, or name another table"
        )
    groups = groups.sort_by(f"{_NUMBER}_max")
    first = groups[f"{_NUMBER}_min"].combine_chunks()
    return pc.if_else(pc.less(first, stored.num_rows), first, pa.scalar(None, pa.int64()))


def without(rows: pa.Table, numbers: pa.Array) -> pa.Table:
    """Return the rows but for those of these numbers; null is the number of none."""
    own = pa.array(range(rows.num_rows), pa.int64())
    return rows.filter(pc.invert(pc.is_in(own, value_set=numbers.drop_null())))


def merged(place: object, rule: MergeRule, stored: pa.Table, new: pa.Table) -> pa.Table:
    """Return each new row merged into the stored one, all of whose columns are null without one.

    Both tables have the same columns, or ``stored`` has more, which keep their values. ``place`` is
    the table as messages name it.

    Raises:
        RowsRefusedError: a sum does not fit its column.
    """
    columns = []
    for field in stored.schema:
        if field.name in rule.columns:
            values = stored.column(field.name), new.column(field.name)
            columns.append(_value(place, field, rule.columns[field.name], *values))
        else:
            columns.append((new if field.name in rule.key else stored).column(field.name))
    return pa.table(columns, schema=stored.schema)


def fold(place: object, rule: MergeRule, results: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of several results, which have the columns of the rule, as one result.

    Each is merged into those before it. Raises as :func:`merged`.
    """
    folded, *others = results
    for new in others:
        numbers = numbers_of_stored(
            place, rule.key, keys_of(folded, rule.key), keys_of(new, rule.key)
        )
        changed = merged(place, rule, folded.take(numbers), new)
        folded = pa.concat_tables([without(folded, numbers), changed])
    return folded


def _value(
    place: object, field: pa.Field, merging: Merging, stored: pa.ChunkedArray, new: pa.ChunkedArray
) -> pa.ChunkedArray:
    match merging:
        case Merging.LAST:
            return new
        case Merging.SUM:
            try:
                return pc.coalesce(_sum(field.type, stored, new), stored, new)
            except pa.ArrowInvalid as error:
                raise RowsRefusedError(
                    f"{place}: column {field.name!r}: a sum does not fit {field.type}; take a "
                    "wider type in a new table"
                ) from error
        case Merging.MIN:
            return _extreme(pc.min_element_wise, field.type, stored, new)
        case Merging.MAX:
            return _extreme(pc.max_element_wise, field.type, stored, new)


def _sum(kind: pa.DataType, stored: pa.ChunkedArray, new: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_decimal(kind):
        wide = pa.decimal256(kind.precision, kind.scale)
        return pc.add_checked(stored.cast(wide), new.cast(wide)).cast(kind)
    return pc.add_checked(stored, new)


def _extreme(
    function: Callable[[pa.ChunkedArray, pa.ChunkedArray], pa.ChunkedArray],
    kind: pa.DataType,
    stored: pa.ChunkedArray,
    new: pa.ChunkedArray,
) -> pa.ChunkedArray:
    """Return the smaller or larger of both; Arrow compares no moments and no truth values."""
    plain = kind
    if pa.types.is_boolean(kind):
        plain = pa.int8()
    elif pa.types.is_timestamp(kind):
        plain = pa.int64()
    return function(stored.cast(plain), new.cast(plain)).cast(kind)
