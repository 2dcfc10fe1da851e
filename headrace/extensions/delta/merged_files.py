"""The files of a Delta table that merging rewrites: those that have keys of new rows."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import LocalFileSystem

from headrace.core.errors import ResultMisfitError, StartError
from headrace.extensions.delta.data_files import (
    fitted,
    read_file,
    require_plain,
    schema_of_files,
    values_of,
    write_file,
)
from headrace.extensions.delta.errors import NotRewritableError
from headrace.extensions.delta.maintenance import TARGET_BYTES
from headrace.extensions.delta.merging import (
    MergeRule,
    fold,
    keys_of,
    merged,
    numbers_of_stored,
    same_keys,
    without,
)
from headrace.extensions.delta.schema import require_storable
from headrace.extensions.delta.staging import (
    StagedFiles,
    parts,
    plain,
    require_partitions,
    storable_schema,
)
from headrace.extensions.delta.table import Change, removed
from headrace.sinks.by_key import Repeated, WriteMode, one_row_of_each
from headrace.sinks.contract import rows_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from deltalake import DeltaTable
    from deltalake.transaction import AddAction
    from pyarrow import dataset as ds

    from headrace.extensions.delta.data_files import DataFile, Values
    from headrace.extensions.delta.table import KeptTable
    from headrace.sinks.contract import Result

#: Bytes from which on a file gets neither new keys nor rows of other files, so that those with old
#: keys alone stay as they are.
FULL_BYTES = TARGET_BYTES // 8


@dataclass(frozen=True, slots=True)
class Rewriting:
    """Files that were written, and those that they take the place of.

    It holds for versions of the table that have the same files in the same partitions.
    """

    opened: DeltaTable
    looked_at: Mapping[Values, Collection[DataFile]]
    change: Change

    def holds(self, table: KeptTable) -> bool:
        """Return whether it can be committed as the next version."""
        return table.opened is self.opened and self.looked_at == _by_values(
            table.files.values(), self.looked_at
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """New rows of one partition of the table, as its files have them."""

    table: DeltaTable
    values: Values
    schema: pa.Schema
    new: pa.Table
    now: float
    made: list[AddAction]


class TableMerge:
    """Merges results into one table. :meth:`stage` on any thread, the others one at a time.

    ``partition_by`` are columns of the key, so that a row stays where it is.
    """

    def __init__(self, folder: Path, rule: MergeRule, partition_by: Sequence[str]) -> None:
        self._folder = folder
        self._rule = rule
        self._partition_by = tuple(partition_by)
        self._inner_key = [name for name in rule.key if name not in self._partition_by]
        self._footers: dict[str, ds.ParquetFileFragment] = {}

    def stage(self, name: str, result: Result) -> StagedFiles:
        """Return a result's rows, in this process's memory. Blocks for the job of a DataFrame.

        Raises:
            ResultMisfitError: the columns cannot be merged; nothing was computed.
            RowsRefusedError: a key is there twice or null in part, or a column cannot be stored.
        """
        if not isinstance(result, pa.Table):
            require_storable(self._folder, result.schema.jsonValue())
            self._require_fitting(result.schema.jsonValue())
        rows = plain(rows_of(result))
        schema = storable_schema(self._folder, rows)
        self._require_fitting(json.loads(schema))
        require_partitions(schema, self._partition_by)
        rows = self._with_nulls(rows.select(self._rule.names))
        rows = one_row_of_each(
            str(self._folder), rows, self._rule.key, WriteMode.MERGE, Repeated.FAIL
        )
        return StagedFiles(name, schema=schema, rows=rows)

    def _require_fitting(self, schema: Mapping[str, Any]) -> None:
        kinds = {column["name"]: column["type"] for column in schema["fields"]}
        problems = [*self._rule.misfits(kinds), *self._rule.wrong_types(kinds, self._partition_by)]
        if problems:
            raise ResultMisfitError(
                f"{self._folder}: the result cannot be merged: {'; '.join(problems)}; change the "
                "reducer or the sink"
            )

    def _with_nulls(self, rows: pa.Table) -> pa.Table:
        """Return the rows with null in place of texts that Delta's log reads as null."""
        for name in self._partition_by:
            column = rows.column(name)
            if pa.types.is_string(column.type):
                texts = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
                rows = rows.set_column(rows.column_names.index(name), name, texts)
        return rows

    def check(self, table: KeptTable, *, may_lack: bool) -> None:
        """Return if the rows of results can be merged into the table, as far as that is known.

        ``may_lack``: columns of ``merge`` may be missing, because results add them.

        Raises:
            StartError: they cannot.
        """
        columns = json.loads(table.opened.schema().to_json())["fields"]
        kinds = {column["name"]: column["type"] for column in columns}
        needed = self._rule.key if may_lack else self._rule.names
        problems = [
            f"there is no column {name}, which the sink names"
            for name in needed
            if name not in kinds
        ]
        problems += self._rule.wrong_types(kinds, self._partition_by)
        try:
            self._require_rewritable(table)
        except NotRewritableError as error:
            problems.append(str(error))
        if problems:
            raise StartError(
                f"{self._folder}: rows cannot be merged into the table: {'; '.join(problems)}; "
                "correct the sink, or name another table"
            )

    def _require_rewritable(self, table: KeptTable) -> None:
        """Return if the files of the table may be rewritten; raises NotRewritableError."""
        if table.has_origins:
            raise NotRewritableError(
                "its rows say which records they are of, and a merged one is of many"
            )
        if table.properties.get("delta.appendOnly") == "true":
            raise NotRewritableError("its property delta.appendOnly forbids to remove rows")
        require_plain(self._folder, table.opened)
        _ = table.files

    @staticmethod
    def follow_files(table: KeptTable) -> None:
        """Read the files of a table, for which it may be opened again, at a later version.

        Before its offsets are checked, because what is computed before that version is in vain.
        """
        with suppress(NotRewritableError):  # which the merge itself raises
            _ = table.files

    def fold(self, staged: Sequence[StagedFiles]) -> pa.Table:
        """Return the rows of several results, some of which have rows, in their order.

        Raises:
            RowsRefusedError: a sum does not fit its column.
        """
        results = [each.rows for each in staged if each.rows is not None and each.rows.num_rows]
        return fold(self._folder, self._rule, results)

    def rewrite(
        self, table: KeptTable, rows: pa.Table, now: float, made: list[AddAction]
    ) -> Rewriting:
        """Write the files that the table has to get for these rows. Blocks.

        ``made`` gets them as they are written, ``now`` is in seconds since the epoch. Of each
        partition of the table, those files that have keys of new rows are in memory at a time.

        Raises:
            ResultMisfitError: the table is too large, or has what is not rewritten here.
            RowsRefusedError: a sum does not fit its column.
        """
        try:
            self._require_rewritable(table)
        except NotRewritableError as error:
            raise self._misfit("", str(error)) from error
        rows_by_values = {values_of(values): own for values, own in parts(rows, self._partition_by)}
        found = _by_values(table.files.values(), rows_by_values)
        for values, files in found.items():
            self._require_small(values, files)
        gone: list[DataFile] = []
        for values, own in rows_by_values.items():
            schema = schema_of_files(table.opened, dict(values))
            part = _Part(table.opened, values, schema, fitted(own, schema), now, made)
            gone += self._merge(part, found[values])
        self._footers = {path: each for path, each in self._footers.items() if path in table.files}
        actions = [removed(file, now, data_change=True) for file in gone]
        return Rewriting(table.opened, found, Change("MERGE", actions))

    def _require_small(self, values: Values, files: Collection[DataFile]) -> None:
        where = "".join(f" of {name} {value}" for name, value in values)
        foreign = sorted(file.path for file in files if not file.is_ours)
        if foreign:
            raise self._misfit(
                where, f"{foreign[0]} lies where another program put it, and is not rewritten here"
            )
        size = sum(file.size for file in files)
        if size > self._rule.limit:
            raise self._misfit(
                where,
                f"its files have {size} bytes, and merge_limit is {self._rule.limit}; partition a "
                "new table by a column of the key, such as the day, or raise the limit where "
                "commits may take longer",
            )

    def _misfit(self, where: str, why: str) -> ResultMisfitError:
        return ResultMisfitError(f"{self._folder}: rows{where} cannot be merged: {why}")

    def _merge(self, part: _Part, files: Collection[DataFile]) -> list[DataFile]:
        """Write files that have the new rows, and return those that they take the place of."""
        keys = {}
        for file in sorted(files, key=lambda each: each.path):
            if (found := self._keys_in_reach(file, part)) is not None:
                keys[file] = found
        new = keys_of(part.new, self._inner_key)
        stored = pa.concat_tables([new.slice(0, 0), *keys.values()])
        numbers = numbers_of_stored(self._folder, self._rule.key, stored, new)
        gone: list[DataFile] = []
        contents: list[pa.Table] = []
        first = size = 0
        for file, own in keys.items():
            last = first + own.num_rows
            is_own = pc.and_(pc.greater_equal(numbers, first), pc.less(numbers, last))
            if pc.any(is_own).as_py():
                of_file = pc.subtract(numbers, first)
                contents.append(self._merged_content(file, part, is_own, of_file))
                gone.append(file)
                size += file.size
            if contents and size >= FULL_BYTES:
                self._write(part, contents)
                contents, size = [], 0
            first = last
        fresh = part.new.filter(pc.is_null(numbers))
        if contents or fresh.num_rows:
            self._write(part, [*contents, fresh])
        return gone

    def _merged_content(
        self, file: DataFile, part: _Part, is_own: pa.Array, numbers: pa.Array
    ) -> pa.Table:
        """Return a file's rows with new ones merged into those of their numbers."""
        content = fitted(read_file(self._folder / file.path), part.schema)
        own = numbers.filter(is_own)
        changed = merged(self._folder, self._rule, content.take(own), part.new.filter(is_own))
        return pa.concat_tables([without(content, own), changed])

    def _write(self, part: _Part, contents: Sequence[pa.Table]) -> None:
        made = write_file(
            self._folder,
            part.table,
            [pa.concat_tables(contents)],
            part.values,
            "merged",
            now=part.now,
            data_change=True,
        )
        part.made.append(made)

    def _keys_in_reach(self, file: DataFile, part: _Part) -> pa.Table | None:
        """Return the keys of a file's rows, None where it has none between those of new rows."""
        footer = self._footers.get(file.path)
        if footer is None:
            from pyarrow import dataset as ds  # noqa: PLC0415 - it imports pandas

            path = str(self._folder / file.path)
            footer = ds.ParquetFileFormat().make_fragment(path, LocalFileSystem())
            footer.ensure_complete_metadata()
            self._footers[file.path] = footer
        names = self._inner_key
        if not {*names} <= {*footer.physical_schema.names}:
            return None
        for name in names:
            values = part.new.column(name)
            is_alike = footer.physical_schema.field(name).type == values.type
            if is_alike and not footer.subset(_between(name, values)).row_groups:
                return None
        if not names:
            return same_keys(footer.count_rows())
        return fitted(footer.to_table(columns=names), pa.schema(map(part.schema.field, names)))


def _between(name: str, values: pa.ChunkedArray) -> pc.Expression:
    """Return the condition that a column is between the smallest and the largest of values."""
    ends = pc.min_max(values)
    return (pc.field(name) >= ends["min"]) & (pc.field(name) <= ends["max"])


def _by_values(
    files: Iterable[DataFile], wanted: Collection[Values]
) -> dict[Values, frozenset[DataFile]]:
    """Return the files of each of some partitions of the table."""
    found: dict[Values, set[DataFile]] = {values: set() for values in wanted}
    for file in files:
        if file.values in found:
            found[file.values].add(file)
    return {values: frozenset(each) for values, each in found.items()}
