"""The console sink: the first rows of each result as a table, for a quick look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from headrace.spark.sinks.contract import Guarantee
from headrace.spark.sinks.result import rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.spark.micro_batch import MicroBatch
    from headrace.spark.sinks.contract import PartitionCommit
    from headrace.spark.sinks.result import Result

#: Characters of one value that are printed.
_WIDTH = 40


class ConsoleSink:
    """Prints up to ``rows`` rows of every result; the whole result is computed and counted.

    ``console`` is where to print, standard output by default.
    """

    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self, *, rows: int = 20, console: Console | None = None) -> None:
        self._rows = rows
        self._console = console or Console()

    def open(self) -> None:
        """Need nothing."""

    def stored_offset(self, identity: str) -> int | None:  # noqa: ARG002 - keeps no offsets
        """Return None: the group's commit holds the offsets."""
        return None

    def stage(self, micro_batch: MicroBatch, result: Result | None) -> Group:
        """Collect the result and lay it out."""
        rows = pa.table({}) if result is None else rows_of(result)
        shown = min(self._rows, rows.num_rows)
        title = f"{micro_batch.channel}: {micro_batch.records} records, {rows.num_rows} rows"
        if shown < rows.num_rows:
            title += f", the first {shown}"
        table = Table()
        for name in rows.column_names:
            table.add_column(escape(name))
        for row in zip(*(column[:shown].to_pylist() for column in rows.columns), strict=True):
            table.add_row(*map(_text, row))
        return Group(escape(title), table) if rows.num_columns else Group(escape(title))

    def commit(self, staged: Group, offsets: Sequence[PartitionCommit]) -> None:  # noqa: ARG002
        """Print what was laid out."""
        self._console.print(staged)

    def discard(self, staged: Group) -> None:
        """Hold nothing."""

    def close(self) -> None:
        """Hold nothing."""


def _text(value: Any) -> str:
    text = "null" if value is None else str(value)
    return escape(text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…")
