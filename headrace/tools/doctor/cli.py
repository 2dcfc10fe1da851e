"""The commands ``headrace check`` and ``headrace doctor``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from headrace.config.cli import EXIT_CONFIG, ConfigFile, guarantees, report, table
from headrace.config.loading import load
from headrace.config.show import show as shown
from headrace.controller.preflight import preflight
from headrace.core.errors import ConfigError


def check(
    config: ConfigFile,
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
        loaded = load(config, also=preflight)
    except ConfigError as error:
        report(config, error)
        raise typer.Exit(EXIT_CONFIG) from None
    if show:
        typer.echo("".join(f"# {line}\n" for line in guarantees(loaded)) + shown(loaded), nl=False)
    elif sys.stdout.isatty():
        Console().print(table(loaded))
    else:
        typer.echo("\n".join(guarantees(loaded)))


def doctor(
    config: ConfigFile,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Look whether this machine, ZooKeeper, Kafka and Spark are fit for a configuration.

    Prints what was seen and what to do about it, and the least Kafka ACLs as commands. Changes
    nothing but for one ephemeral node, which it deletes, and imports the code that is named.
    Exit codes: 0 no errors, though perhaps warnings; 1 something has to be mended; 2 the
    configuration cannot be used.
    """
    from headrace.tools.doctor import examination  # noqa: PLC0415 - takes a second to import

    raise typer.Exit(examination.doctor(config, as_json=json))
