"""Finding and removing the rows of a Delta table that are of records which are read again."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.extensions.delta.data_files import (
    data_files,
    read_file,
    renew,
    require_plain,
    write_file,
)
from headrace.extensions.delta.errors import NotRewritableError
from headrace.extensions.delta.table import removed
from headrace.sinks.contract import Replacement
from headrace.sinks.errors import ReplaceRefusedError
from headrace.sinks.origin import (
    ORIGIN,
    ranges_of_text,
    require_known,
    whole_micro_batches,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from deltalake.transaction import AddAction

    from headrace.extensions.delta.data_files import DataFile
    from headrace.extensions.delta.table import KeptTable, LogAction
    from headrace.sinks.contract import OffsetMove
    from headrace.sinks.origin import Ranges

#: How many rows a file has of each origin; None: of rows that have none.
_Counts: TypeAlias = "Counter[str | None]"


@dataclass(frozen=True, slots=True)
class AffectedOutput:
    """A table's output of records from some offsets on: whole micro-batches, by their origins."""

    replacement: Replacement
    origins: Collection[str]
    files: Mapping[DataFile, int]


def find_output(folder: Path, table: KeptTable, moves: Sequence[OffsetMove]) -> AffectedOutput:
    """Read one column of every file of the table, as of when it was opened. Blocks.

    Raises:
        ReplaceRefusedError: the table does not say enough, or its files cannot be rewritten.
    """
    counts = _counts(folder, table)
    known = _known_ranges(folder, counts.values())

    def micro_batches_after(offsets: Mapping[str, int]) -> Mapping[str, Ranges]:
        return {
            text: ranges
            for text, ranges in known.items()
            if any(name in offsets and end > offsets[name] for name, (_, end) in ranges.items())
        }

    needed, origins = whole_micro_batches(moves, table.offset, micro_batches_after)
    if any(each[None] for each in counts.values()):
        require_known(folder, moves, needed, table.known_from)
    files = _affected(folder, counts, origins)
    return AffectedOutput(Replacement(needed, sum(files.values())), origins, files)


def _affected(
    folder: Path, counts: Mapping[DataFile, _Counts], origins: Collection[str]
) -> dict[DataFile, int]:
    """Return how many rows of these origins each file has, of files that have some."""
    found = {file: sum(each[text] for text in origins) for file, each in counts.items()}
    files = {file: rows for file, rows in found.items() if rows}
    foreign = [file.path for file in files if not file.is_ours]
    if foreign:
        raise ReplaceRefusedError(
            f"{folder}: {foreign[0]} has rows of the range and lies where another program put it, "
            "which is not rewritten here; remove the rows with that program, and replay with append"
        )
    return files


def without_output(
    folder: Path, table: KeptTable, output: AffectedOutput, now: float, made: list[AddAction]
) -> list[LogAction]:
    """Write what stays of the files, and return the actions that remove them. Blocks.

    New files are put into ``made`` as they are written. One file is in memory at a time.
    """
    gone = []
    for file, rows in output.files.items():
        content = read_file(folder / file.path)
        kept = _without_origins(content, output.origins)
        if kept.num_rows != content.num_rows - rows:
            raise ReplaceRefusedError(f"{folder / file.path} changed while it was read; try again")
        if kept.num_rows:
            made.append(
                write_file(
                    folder,
                    table.opened,
                    [kept],
                    file.values,
                    "replaced",
                    now=now,
                    data_change=True,
                )
            )
        gone.append(removed(file, now, data_change=True))
    renew(folder, made)
    return gone


def _without_origins(content: pa.Table, origins: Collection[str]) -> pa.Table:
    texts = content.column(ORIGIN).unify_dictionaries().combine_chunks()
    is_gone = pc.is_in(texts.dictionary, value_set=pa.array(sorted(origins), pa.string()))
    return content.filter(pc.invert(pc.fill_null(is_gone.take(texts.indices), fill_value=False)))


def _counts(folder: Path, table: KeptTable) -> dict[DataFile, _Counts]:
    if not table.has_origins:
        raise ReplaceRefusedError(
            f"{folder}: the table's rows do not say which records they are of; set origin: true in "
            "the sink for those to come, and remove these by hand before a replay with append"
        )
    if table.opened.metadata().configuration.get("delta.appendOnly") == "true":
        raise ReplaceRefusedError(
            f"{folder}: the table's property delta.appendOnly forbids to remove rows; replay with "
            "append"
        )
    try:
        require_plain(folder, table.opened)
        files = data_files(folder, table.opened)
    except NotRewritableError as error:
        raise ReplaceRefusedError(
            f"{error}; remove the rows with what made it so, and replay with append"
        ) from error
    return {file: _counted(folder, file) for file in files}


def _counted(folder: Path, file: DataFile) -> _Counts:
    path = folder / unquote(file.path)
    metadata = pq.read_metadata(path)
    if ORIGIN not in metadata.schema.to_arrow_schema().names:
        return Counter({None: metadata.num_rows})
    with pq.ParquetFile(path, read_dictionary=[ORIGIN]) as parquet:
        found = parquet.read(columns=[ORIGIN]).column(ORIGIN)
    return Counter({each["values"]: each["counts"] for each in found.value_counts().to_pylist()})


def _known_ranges(folder: Path, counts: Iterable[_Counts]) -> dict[str, Ranges]:
    known = {}
    for text in {text for each in counts for text in each if text is not None}:
        try:
            known[text] = ranges_of_text(text)
        except ValueError as error:
            raise ReplaceRefusedError(
                f"{folder}: {ORIGIN} is {text[:80]!r} in some rows, which Headrace has not "
                "written; set it to null where it is not known, or remove those rows"
            ) from error
    return known
