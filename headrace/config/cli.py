"""What commands print of a configuration."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from headrace.config.guarantee import guarantee

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.config.models.root import Config
    from headrace.core.errors import ConfigError

#: The exit code of a configuration that cannot be used.
EXIT_CONFIG = 2


def report(file: Path, error: ConfigError) -> None:
    """Print what is wrong with ``file`` on standard error, one problem a line."""
    count = error.count
    typer.echo(f"{file}: {count} problem{'' if count == 1 else 's'}", err=True)
    for problem in error.problems:
        typer.echo(f"  {problem}", err=True)


def guarantees(config: Config) -> list[str]:
    """Return one line for each channel."""
    return [f"{name}: {guarantee(channel)}" for name, channel in config.channels.items()]


def print_table(config: Config) -> None:
    """Print the same for people."""
    table = Table("channel", "delivery", "because")
    for name, channel in config.channels.items():
        promise = guarantee(channel)
        table.add_row(name, promise.delivery.value, promise.reason)
    Console().print(table)
