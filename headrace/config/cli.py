"""The commands ``headrace check`` and ``headrace schema``."""

from __future__ import annotations

import json
import sys
from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from headrace.config.guarantee import guarantee
from headrace.config.load import load
from headrace.config.schema import schema as json_schema
from headrace.config.show import show as shown
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.config.model.root import Config

#: The exit code of a configuration that cannot be used.
EXIT_CONFIG = 2


def check(
    config: Annotated[
        Path, typer.Option("--config", "-c", metavar="FILE", help="The configuration to check.")
    ],
    *,
    show: Annotated[
        bool,
        typer.Option("--show", help="Print it too, with all defaults and with secrets masked."),
    ] = False,
) -> None:
    """Check a configuration and print what each channel guarantees.

    Exits with 0, or with 2 and all problems on standard error. Connects to nothing and imports
    no processor.
    """
    try:
        loaded = load(config)
    except ConfigError as error:
        report(config, error)
        raise typer.Exit(EXIT_CONFIG) from None
    if show:
        typer.echo("".join(f"# {line}\n" for line in guarantees(loaded)) + shown(loaded), nl=False)
    elif sys.stdout.isatty():
        Console().print(_table(loaded))
    else:
        typer.echo("\n".join(guarantees(loaded)))


def schema() -> None:
    """Print the JSON schema of the configuration, for editors."""
    typer.echo(json.dumps(json_schema(), indent=2))


def report(file: Path, error: ConfigError) -> None:
    """Print what is wrong with ``file`` on standard error, one problem a line."""
    count = error.count
    typer.echo(f"{file}: {count} problem{'' if count == 1 else 's'}", err=True)
    for problem in error.problems:
        typer.echo(f"  {problem}", err=True)


def guarantees(config: Config) -> list[str]:
    """Return one line for each channel."""
    return [f"{name}: {guarantee(channel)}" for name, channel in config.channels.items()]


def _table(config: Config) -> Table:
    table = Table("channel", "delivery", "because")
    for name, channel in config.channels.items():
        promise = guarantee(channel)
        table.add_row(name, promise.delivery.value, promise.reason)
    return table
