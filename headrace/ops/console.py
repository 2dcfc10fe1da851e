"""Output of commands: tables whose columns say what they show, once or again and again."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from operator import itemgetter
from threading import Event
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

R = TypeVar("R")

#: More than any row takes: a terminal breaks long lines by itself, others want them whole.
_WIDTH = 10_000

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


@dataclass(frozen=True, slots=True)
class Column(Generic[R]):
    """One column: its title, and what a row has in it. None is shown as "-"."""

    title: str
    cell: Callable[[R], object]
    style: str = ""
    is_number: bool = False


def numeric(title: str, cell: Callable[[R], object]) -> Column[R]:
    """Return a column of numbers, which are at the right."""
    return Column(title, cell, is_number=True)


def figures(**keys: str) -> tuple[Column[dict[str, Any]], ...]:
    """Return columns of numbers, each by its title with the key that a row has it under."""
    return tuple(numeric(title, itemgetter(key)) for title, key in keys.items())


def table_of(rows: Iterable[R], columns: Sequence[Column[R]]) -> Table:
    """Return rows as a table without lines."""
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.title, justify="right" if column.is_number else "left")
    for row in rows:
        table.add_row(*(_text_of(column.cell(row), column.style) for column in columns))
    return table


def _text_of(value: object, style: str) -> Text:
    if isinstance(value, Text):
        return value
    return Text("-" if value is None else str(value), style)


def stdout_console() -> Console:
    """Return what prints to standard output: whole lines where that is no terminal."""
    return Console() if sys.stdout.isatty() else Console(soft_wrap=True, width=_WIDTH)


def print_table(rows: Iterable[R], columns: Sequence[Column[R]], *, empty: str = "") -> None:
    """Print rows in whole lines, or what is said where there are none."""
    table = table_of(rows, columns)
    if table.row_count or not empty:
        Console(soft_wrap=True, width=_WIDTH).print(table)
    else:
        typer.echo(empty)


def print_look(
    document: Any, draw: Callable[[Console], None], *, as_json: bool, every: float | None
) -> None:
    """Print one look: as JSON, in one line where there are several, or as it is drawn."""
    if as_json:
        typer.echo(json.dumps(document, indent=2 if every is None else None))
    else:
        console = stdout_console()
        if every is not None and console.is_terminal:
            console.clear()
        draw(console)
    sys.stdout.flush()


def repeated(look: Callable[[], int], every: float | None) -> int:
    """Call ``look`` once, or every so many seconds until Ctrl-C; return its last exit code."""
    code = 0
    try:
        while True:
            code = look()
            if every is None:
                return code
            Event().wait(every)
    except KeyboardInterrupt:
        return code


def duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m {whole % _MINUTE}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h {whole % _HOUR // _MINUTE}m"
    return f"{whole // _DAY}d {whole % _DAY // _HOUR}h"
