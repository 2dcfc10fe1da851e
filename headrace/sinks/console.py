"""The sinks that keep nothing: console and noop, the smallest sink."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from headrace.core.streams import take_any_text
from headrace.sinks.contract import Guarantee, Sink, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.sinks.contract import PartitionCommit, Result
    from headrace.sinks.micro_batch import MicroBatch


class NoopSink(Sink[None]):
    """Computes every row of the result and drops it; the group's commit holds the offsets."""

    guarantee = Guarantee.NOT_KEPT

    def stage(self, micro_batch: MicroBatch, result: Result | None) -> None:  # noqa: ARG002
        # a table was computed already
        if result is not None and not isinstance(result, pa.Table):
            result.write.format("noop").mode("overwrite").save()

    def commit(self, staged: None, offsets: Sequence[PartitionCommit]) -> None:
        """Store nothing."""


#: Characters of one value that are printed.
_WIDTH = 40


class ConsoleSink(Sink[Group]):
    """Prints up to ``rows`` rows of every result; the whole result is computed and counted.

    ``console`` is where to print, standard output by default.
    """

    guarantee = Guarantee.AT_LEAST_ONCE

    def __init__(self, *, rows: int = 20, console: Console | None = None) -> None:
        self._rows = rows
        if console is None:
            take_any_text()
        self._console = console or Console()

    def stage(self, micro_batch: MicroBatch, result: Result | None) -> Group:
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
        self._console.print(staged)


def _text(value: Any) -> str:
    text = "null" if value is None else str(value)
    return escape(text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…")
