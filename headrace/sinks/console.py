"""The sinks that keep nothing (console, noop), and the one that a user brings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table

from headrace.core.errors import ImportPathError, StartError
from headrace.core.imports import make
from headrace.core.streams import take_any_text
from headrace.sinks.contract import Guarantee, Sink, rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.config import CustomSinkConfig
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


_METHODS = ("open", "stored_offset", "stage", "commit", "discard", "close")


def custom_sink(section: CustomSinkConfig) -> Sink[Any]:
    """Import the factory, call it with the options, and look at what it returns.

    Raises:
        ImportPathError: the factory cannot be imported, does not take the options, fails, or
            returns something that is not a sink.
        StartError: the sink promises less than the configuration demands.
    """
    try:
        made = make(section.factory, section.keyword_arguments())
    except ImportPathError as error:
        raise ImportPathError(f"sink.factory: {error}") from error
    if missing := _missing(made):
        raise ImportPathError(
            f"sink.factory: {section.factory!r} returned {_named(made)}, which is not a sink: "
            f"{missing}; docs/sinks/custom.md says what a sink has"
        )
    if section.guarantee == "exactly_once" and made.guarantee is not Guarantee.EXACTLY_ONCE:
        raise StartError(
            f"sink.guarantee: is exactly_once, and the sink of {section.factory!r} promises "
            f"{made.guarantee.value!r}; leave it out, or have the sink keep offsets"
        )
    return cast("Sink[Any]", made)


def _missing(made: object) -> str | None:
    """Return what it lacks to be a sink, None if that is nothing that can be seen."""
    if isinstance(made, type):
        return "an object is wanted, and that is a class"
    lacking = [name for name in _METHODS if not callable(getattr(made, name, None))]
    if lacking:
        return f"it has no {' and no '.join(lacking)}"
    if not isinstance(getattr(made, "guarantee", None), Guarantee):
        return "its guarantee is none of headrace.sinks.Guarantee"
    return None


def _named(made: object) -> str:
    if made is None or isinstance(made, type):
        return str(made)
    return f"a {type(made).__name__}"


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
