"""Files on their way into a table: written aside, moved into place, or removed."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from enum import Enum
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import structlog
from deltalake import Schema
from deltalake.transaction import AddAction

from headrace.core.columns import constant, integer
from headrace.core.errors import (
    ConfigError,
    HeadraceError,
    ResultMisfitError,
    RowsRefusedError,
    SinkFailedError,
    StartError,
)
from headrace.core.processes import is_alive
from headrace.extensions.delta.schema import require_storable
from headrace.sinks.origin import ORIGIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from headrace.sinks.contract import Result


#: The values of a file's partition by column, as Delta's log spells them. Null is None there, and
#: so is a text of no characters: the protocol reads one as null.
PartitionValues: TypeAlias = "Mapping[str, str | None]"

_MOMENT = pa.timestamp("us", tz="UTC")

#: Arrow's types that Delta's tables do not have, and those that hold the same there.
_PLAIN: dict[Callable[[pa.DataType], bool], pa.DataType] = {
    pa.types.is_uint8: pa.int16(),
    pa.types.is_uint16: pa.int32(),
    pa.types.is_uint32: pa.int64(),
    pa.types.is_uint64: pa.decimal128(20, 0),
    pa.types.is_float16: pa.float32(),
    pa.types.is_large_string: pa.string(),
    pa.types.is_string_view: pa.string(),
    pa.types.is_large_binary: pa.binary(),
    pa.types.is_binary_view: pa.binary(),
    pa.types.is_fixed_size_binary: pa.binary(),
    pa.types.is_date64: pa.date32(),
}


def plain(table: pa.Table) -> pa.Table:
    """Return the table with types that Delta and Spark know, and the same values.

    Everything is nullable, as in the table: results whose columns have one type fit each other.

    Raises:
        RowsRefusedError: there is none for a column, or it would lose part of a value.
    """
    fields = [_plain_field(field) for field in table.schema]
    columns = [_cast(field, column) for field, column in zip(fields, table.columns, strict=True)]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def storable_schema(place: object, table: pa.Table) -> str:
    """Return the schema of a plain table that can be stored, as :func:`schema_json`.

    Raises:
        ResultMisfitError: a table cannot have its columns.
        RowsRefusedError: a column has no type.
    """
    require_storable(place, _names(pa.struct(list(table.schema))))
    return schema_json(table)


def with_origin(table: pa.Table, origin: str | None) -> pa.Table:
    """Return the table with the column of origins, whose text is in memory once; None: as it is."""
    if origin is None:
        return table
    rows = pa.repeat(integer(0, pa.int32()), table.num_rows)
    text = pa.repeat(constant(pa.string(), origin.encode()), 1)
    return table.append_column(ORIGIN, pa.DictionaryArray.from_arrays(rows, text))


def schema_json(table: pa.Table) -> str:
    """Return the schema of a plain table in the JSON that Delta and Spark share.

    Raises:
        ResultMisfitError: Delta has no such type.
        RowsRefusedError: a column has no type, as no row has a value in it.
    """
    for column in table.schema:
        if pa.types.is_null(column.type):
            raise _unstorable(column, "it has no type, because every value is null")
        if _has_untyped_part(column.type):
            # else the table has that part without a type, and takes no value there from then on
            raise _unstorable(column, "a part of it has no type, because no row has a value there")
        try:
            Schema.from_arrow(pa.schema([column]))
        except Exception as error:
            raise ResultMisfitError(_sentence(column, "a table has no such type")) from error
    text: str = Schema.from_arrow(table.schema).to_json()
    return text


def _has_untyped_part(kind: pa.DataType) -> bool:
    """Return whether nothing but null can be in a type, or in a part of it."""
    parts = [kind.field(at).type for at in range(kind.num_fields)]
    return pa.types.is_null(kind) or any(map(_has_untyped_part, parts))


def _names(kind: pa.DataType) -> Any:
    """Return a type as in Spark's JSON, but for the types of values, which Delta looks at."""
    if pa.types.is_struct(kind):
        fields = [{"name": field.name, "type": _names(field.type)} for field in kind]
        return {"type": "struct", "fields": fields}
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": _names(kind.key_type),
            "valueType": _names(kind.item_type),
        }
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": _names(kind.value_type)}
    return "string"


def write_files(
    folder: Path, table: pa.Table, partition_by: Sequence[str]
) -> dict[Path, PartitionValues]:
    """Write a plain table, one file for each combination of partition values, and return these.

    Raises:
        ResultMisfitError: a column to partition by is missing or of no use for that.
        RowsRefusedError: a value is of no use for that.
    """
    require_partitions(schema_json(table), partition_by)
    if table.num_rows == 0:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for number, (values, rows) in enumerate(parts(table, partition_by)):
        path = folder / f"part-{number:05}.parquet"
        pq.write_table(rows, path)
        files[path] = values
    return files


def require_partitions(schema: str, partition_by: Sequence[str]) -> None:
    """Return if a result, whose schema is in JSON, has columns to partition it by.

    Raises:
        ResultMisfitError: one is missing, or of a type without an order, or there are no
            others.
    """
    kinds = {field["name"]: field["type"] for field in json.loads(schema)["fields"]}
    for name in partition_by:
        if name not in kinds:
            raise ResultMisfitError(
                f"the result has no column {name!r} to partition by; it has {', '.join(kinds)}"
            )
        kind = kinds[name]
        if not isinstance(kind, str) or kind == "binary":
            named = kind if isinstance(kind, str) else kind["type"]
            raise ResultMisfitError(
                f"column {name!r} holds {named}, which the table cannot be partitioned by; leave "
                "it out of partition_by"
            )
    if partition_by and kinds.keys() <= {*partition_by, ORIGIN}:
        raise ResultMisfitError(
            f"the result has no columns but those of partition_by, {', '.join(partition_by)}; a "
            "table has at least one other: leave one out of partition_by"
        )


def _plain_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _plain(field.type))


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us") if kind.tz is None else _MOMENT
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(field) for field in kind])
    if pa.types.is_nested(kind) and hasattr(kind, "value_type"):
        return pa.list_(_plain(kind.value_type))
    return next((plain for is_of, plain in _PLAIN.items() if is_of(kind)), kind)


def _cast(field: pa.Field, column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise _unstorable(field, f"it would have to become {field.type}: {error}") from error


def _unstorable(field: pa.Field, why: str) -> RowsRefusedError:
    return RowsRefusedError(_sentence(field, why))


def _sentence(field: pa.Field, why: str) -> str:
    return f"column {field.name!r} ({field.type}) cannot be stored: {why}; have the reducer cast it"


def parts(
    table: pa.Table, partition_by: Sequence[str]
) -> Iterator[tuple[PartitionValues, pa.Table]]:
    """Yield the partition values and the other columns of each part of a table with rows.

    Values that are spelt alike are one part: no text is null, as Delta has it.
    """
    if not partition_by:
        yield {}, table
        return
    names = list(partition_by)
    numbers = pa.table({f"k{at}": table.column(name) for at, name in enumerate(names)})
    rows = numbers.append_column("row", pa.array(range(table.num_rows)))
    groups = rows.group_by(numbers.column_names).aggregate([("row", "list")])
    columns = [_spelt_all(name, groups.column(f"k{at}")) for at, name in enumerate(names)]
    alike: dict[tuple[str | None, ...], list[pa.Array]] = {}
    for values, positions in zip(zip(*columns, strict=True), groups["row_list"], strict=True):
        alike.setdefault(values, []).append(positions.values)
    others = table.drop_columns(names)
    for values, positions in alike.items():
        yield dict(zip(names, values, strict=True)), others.take(pa.concat_arrays(positions))


def _spelt_all(name: str, column: pa.ChunkedArray) -> list[str | None]:
    """Return values as Delta's log spells them.

    Raises:
        RowsRefusedError: a time is of no year from 1 to 9999.
    """
    try:
        return [_spell_value(value) for value in column.to_pylist()]
    except (ValueError, OverflowError) as error:
        raise RowsRefusedError(
            f"column {name!r} has a value that the table cannot be partitioned by: {error}; leave "
            "it out of partition_by, or have the reducer filter it"
        ) from error


def _spell_value(value: object) -> str | None:
    match value:
        case None | "":
            return None
        case bool():
            return str(value).lower()
        case datetime():
            moment = value if value.tzinfo is None else value.astimezone(UTC)
            return moment.replace(tzinfo=None).isoformat(sep=" ")
        case float():
            return _NOT_FINITE.get(str(value), str(value))
        case str() | int() | date():
            return str(value)
        case _:
            return f"{value:f}"


#: Java reads no other spelling of these.
_NOT_FINITE = {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}

#: What a result may have for the next one to be fetched. Values that are equal take little in a
#: file and much in memory, so that bytes alone say too little.
MOST_ROWS = 50_000
MOST_BYTES = 8 << 20

#: Types, as Spark calls them, whose values are in a file the same from any writer.
_ALIKE = frozenset(
    ("boolean", "byte", "short", "integer", "long", "float", "double", "decimal", "string")
) | {"binary", "date", "timestamp", "timestamp_ntz"}


class FetchPolicy:
    """Takes the last result for a sign of the next one. For one thread: the lane's.

    Nothing is known of the first, and of one after a failure: the tasks write those.
    """

    def __init__(self) -> None:
        self.begins()

    def suits(self, schema: Any) -> bool:
        """Return whether a result of this schema (Spark's) should be fetched."""
        if self._rows > MOST_ROWS or self._bytes > MOST_BYTES:
            return False
        return all(field.dataType.typeName() in _ALIKE for field in schema.fields)

    def begins(self) -> None:
        """Assume that the tasks write the next result, unless a later call says otherwise."""
        self._rows: float = inf
        self._bytes: float = inf

    def fetched(self, table: pa.Table) -> None:
        """Record rows that were fetched."""
        self._rows, self._bytes = table.num_rows, table.nbytes

    def written(self, files: Sequence[Path]) -> None:
        """Record files that tasks have written."""
        found = [pq.read_metadata(file) for file in files]
        self._rows = sum(each.num_rows for each in found)
        groups = [each.row_group(at) for each in found for at in range(each.num_row_groups)]
        self._bytes = sum(group.total_byte_size for group in groups)


log = structlog.get_logger(__name__)

#: Inside the table's folder, so that a file moves into place by a rename. Readers and Delta's
#: vacuum leave names with an underscore alone.
STAGING = "_headrace_staging"

#: Seconds after which the staging folder of a process on another host counts as left behind.
_ABANDONED_AFTER = 24 * 3600.0

#: What Spark's committer makes for a job. Made here it costs microseconds, there a fork of chmod
#: for each level: a staged write of 100 rows 85 -> 65 ms.
_JOB_FOLDERS = "_temporary/0/_temporary"

#: The column by which Spark's writer tells partitions apart, whose name no result has.
_PART = "_headrace_part"

_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


def local_folder(path: str | Path) -> Path:
    """Return the absolute folder; raises ConfigError."""
    if _URI.match(str(path)):
        raise ConfigError(
            [f"table path {str(path)!r} is a URI; give a folder of this host, as in /data/table"]
        )
    return Path(path).absolute()


class Placement(Enum):
    """The progress of a result's files on the way into the table's folder."""

    WAITS = "waits"
    """They are in the staging folder, or were written to the table's and may not be in its entries
    on disk."""

    BEGUN = "begun"
    """Some may be in the table's folder: they are being moved, or that failed."""

    DONE = "done"
    """All are there, on disk if the table is to be durable."""


@dataclass(slots=True)
class StagedFiles:
    """One micro-batch's result on its way: where its files are and whether they may be removed.

    ``files`` are those in the staging folder, as they were written: what is not there any more when
    they are moved was removed. ``values`` are the partition values of those that have
    any. ``may_be_visible`` says that they are, or may be, part
    of the table, and must stay. ``schema`` is in JSON as Delta and Spark spell it, None where the
    reducer returned no result. ``rows`` are those to merge, which have no files yet.
    """

    name: str
    folder: Path | None = None
    schema: str | None = None
    files: Sequence[Path] = ()
    values: Mapping[Path, PartitionValues] = field(default_factory=dict)
    placement: Placement = Placement.WAITS
    placed: list[AddAction] = field(default_factory=list)
    may_be_visible: bool = False
    rows: pa.Table | None = None


class FileStaging:
    """This process's corner of the table's staging folder.

    Its name has host and process id, so that another start can tell what a dead process left.
    """

    def __init__(self, table: Path, *, durable: bool) -> None:
        self._table = table
        self._durable = durable
        self._fetch_policy = FetchPolicy()
        owner = f"{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
        self.own = table / STAGING / owner

    def open(self) -> None:
        """Make the folder and remove those of dead processes; raises StartError."""
        try:
            self.own.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StartError(f"{self.own} cannot be made: {error}") from error
        for other in self.own.parent.iterdir():
            if other != self.own and _is_abandoned(other):
                log.info("staging_removed", folder=str(other))
                shutil.rmtree(other, ignore_errors=True)

    def close(self) -> None:
        """Remove the folder, and the one above it when no other process has one there."""
        shutil.rmtree(self.own, ignore_errors=True)
        with suppress(OSError):
            self.own.parent.rmdir()

    def write(
        self,
        name: str,
        result: Result,
        partition_by: Sequence[str],
        origin: str | None = None,
    ) -> StagedFiles:
        """Write the result. Blocks; a DataFrame's job writes one file a task, or gives its rows.

        ``origin`` is what each row says in the column of origins, None without one.

        Raises:
            ResultMisfitError: a table cannot have the columns; nothing was computed.
            RowsRefusedError: a column cannot be stored as it is.
        """
        folder = self.own / name
        try:
            if isinstance(result, pa.Table):
                rows = with_origin(plain(result), origin)
                staged = StagedFiles(name, folder, storable_schema(self._table, rows))
                staged.values = write_files(folder, rows, partition_by)
            else:
                frame = _with_origin(result, origin)
                staged = StagedFiles(name, folder, frame.schema.json())
                require_storable(self._table, frame.schema.jsonValue())
                require_partitions(frame.schema.json(), partition_by)
                staged.values = self._run(frame, folder, partition_by)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        staged.files = staged_files(folder)
        return staged

    def _run(
        self, frame: DataFrame, folder: Path, partition_by: Sequence[str]
    ) -> Mapping[Path, PartitionValues]:
        """Write the rows of a DataFrame to files in the folder; return these with values."""
        is_small = self._fetch_policy.suits(frame.schema)
        self._fetch_policy.begins()
        if is_small:
            rows = frame.toArrow()
            values = write_files(folder, plain(rows), partition_by)
            self._fetch_policy.fetched(rows)
            return values
        (folder / _JOB_FOLDERS).mkdir(parents=True)
        if partition_by:
            frame = _with_part(frame, partition_by)
        # by the part's own name: in the values' place of a path not every value would have room
        writer = frame.write.mode("append").partitionBy(*([_PART] if partition_by else ()))
        writer.parquet(f"file:{folder}")
        files = staged_files(folder)
        self._fetch_policy.written(files)
        return {file: _values_in(file, partition_by) for file in files} if partition_by else {}

    def place(self, staged: Sequence[StagedFiles]) -> list[AddAction]:
        """Move the files into the table's folder, each once, and describe them for the log.

        They lie flat there: the log alone says which partition a file belongs to, and no value
        has to be spelt in a path.

        Those that are there already are made young: a clean-up of the table, by whichever writer,
        takes files of no version by age, and a process may be stopped for long at any line.

        Raises:
            SinkFailedError: moving some of them failed before, and which are where is not known; or
                some are gone.
        """
        waiting = [each for each in staged if each.placement is not Placement.DONE]
        for each in waiting:
            self._move_files(each)
        if self._durable and any(each.placed for each in waiting):
            sync(self._table)
        for each in staged:
            self._renew(each)
            each.placement = Placement.DONE
        return [action for each in staged for action in each.placed]

    def _move_files(self, staged: StagedFiles) -> None:
        if staged.folder is None:
            return
        if staged.placement is Placement.BEGUN:
            raise SinkFailedError(
                f"{self._table}: the files of micro-batch {staged.name} are partly in place since "
                "a commit failed; it is computed again"
            )
        if (gone := next((path for path in staged.files if not path.exists()), None)) is not None:
            raise SinkFailedError(_gone_message(gone, staged))
        staged.placement = Placement.BEGUN
        for number, source in enumerate(staged.files):
            rows = pq.read_metadata(source).num_rows
            if rows == 0:
                continue
            name = f"part-{staged.name}-{number:05}.parquet"
            os.utime(source)
            if self._durable:
                sync(source)
            source.rename(self._table / name)
            staged.placed.append(
                _add_action(self._table / name, staged.values.get(source, {}), rows)
            )

    def _renew(self, staged: StagedFiles) -> None:
        for action in staged.placed:
            path = self._table / action.path
            try:
                os.utime(path)
            except FileNotFoundError:
                raise SinkFailedError(_gone_message(path, staged)) from None

    @staticmethod
    def keep(staged: Sequence[StagedFiles]) -> None:
        """Mark the files as being, or possibly being, part of the table: they must stay."""
        for each in staged:
            each.may_be_visible = True

    def remove(self, staged: StagedFiles, *, placed: bool = False) -> None:
        """Remove the staged folder and, with ``placed``, the files that were moved out of it."""
        if staged.folder is not None:
            shutil.rmtree(staged.folder, ignore_errors=True)
        if placed and not staged.may_be_visible:
            for action in staged.placed:
                with suppress(OSError):
                    (self._table / action.path).unlink()


def staged_files(folder: Path) -> list[Path]:
    """Return the files of a result in its staging folder, in order."""
    return sorted(folder.rglob("*.parquet"))


def _gone_message(path: Path, staged: StagedFiles) -> str:
    return (
        f"{path} is gone before it was committed; was this process stopped for longer than the "
        f"table keeps files (file_retention)? Micro-batch {staged.name} is computed again"
    )


def sync(path: Path) -> None:
    """Force a file's content, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _with_origin(frame: DataFrame, origin: str | None) -> DataFrame:
    if origin is None:
        return frame
    # in hexadecimal digits, because how a quoted literal is escaped is a setting of the session
    return frame.selectExpr("*", f"CAST(X'{origin.encode().hex()}' AS STRING) AS {ORIGIN}")


def _with_part(frame: DataFrame, partition_by: Sequence[str]) -> DataFrame:
    """Return the frame with a column that tells combinations of partition values apart.

    The columns themselves stay, so that the values can be read from the files as they are: how a
    time is spelt is a setting of the session. Delta's readers take those of the log.
    """
    kinds = {field.name: field.dataType.typeName() for field in frame.schema.fields}
    columns = [
        f"nullif({_quoted(name)}, '') as {_quoted(name)}"
        if name in partition_by and kind == "string"
        else _quoted(name)
        for name, kind in kinds.items()
    ]
    digests = []
    for name in partition_by:
        value = _quoted(name)
        if kinds[name] == "timestamp":
            value = f"unix_micros({value})"  # an hour in autumn is spelt like the one before
        digests.append(f"coalesce(sha2(cast({value} as string), 256), '')")
    part = f"sha2(concat_ws(',', {', '.join(digests)}), 256) as {_PART}"
    return frame.selectExpr(*columns).selectExpr("*", part)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _values_in(file: Path, partition_by: Sequence[str]) -> PartitionValues:
    """Return the partition values that all rows of a file have."""
    rows = plain(pq.ParquetFile(file).read(columns=list(partition_by)))
    found = {name: set(_spelt_all(name, rows.column(name).unique())) for name in partition_by}
    if any(len(values) > 1 for values in found.values()):
        raise HeadraceError(f"{file} has rows of several partitions: {found}")
    return {name: next(iter(values), None) for name, values in found.items()}


def _add_action(path: Path, values: PartitionValues, rows: int) -> AddAction:
    status = path.stat()
    return AddAction(
        path=path.name,
        size=status.st_size,
        partition_values=dict(values),
        modification_time=int(status.st_mtime * 1000),
        data_change=True,
        stats=json.dumps({"numRecords": rows}),
    )


def _is_abandoned(folder: Path) -> bool:
    """Return whether the process that made the staging folder is gone, as far as can be told."""
    host, pid, _ = (*folder.name.rsplit(".", 2), "", "")[:3]
    if host == socket.gethostname() and pid.isdigit():
        return not is_alive(int(pid))
    try:
        return time.time() - folder.stat().st_mtime > _ABANDONED_AFTER
    except OSError:
        return False
