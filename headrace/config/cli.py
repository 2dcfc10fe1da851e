"""The command ``headrace schema``, and what commands print of a configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from headrace.config.guarantee import guarantee
from headrace.config.reference import schema as json_schema

if TYPE_CHECKING:
    from headrace.config.models.root import Config
    from headrace.core.errors import ConfigError

#: The option that names a configuration, also by the variable, and the same where it is optional.
CONFIG_OPTION = typer.Option(
    "--config",
    "-c",
    metavar="FILE",
    envvar="HEADRACE_CONFIG",
    help="The YAML configuration file.",
)
ConfigFile = Annotated[Path, CONFIG_OPTION]

#: The exit code of a configuration that cannot be used.
EXIT_CONFIG = 2


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


def table(config: Config) -> Table:
    """Return the same for people."""
    table = Table("channel", "delivery", "because")
    for name, channel in config.channels.items():
        promise = guarantee(channel)
        table.add_row(name, promise.delivery.value, promise.reason)
    return table
