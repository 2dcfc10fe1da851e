"""The commands ``headrace check`` and ``headrace doctor``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headrace.core.errors import ConfigError
from headrace.core.options import ConfigFile  # noqa: TC001 - typer reads annotations at run time


def check(
    config: ConfigFile,
    *,
    show: Annotated[
        bool,
        typer.Option(
            "--show", help="Print the configuration too, with all defaults and with secrets masked."
        ),
    ] = False,
) -> None:
    """Check a configuration and print what each channel guarantees.

    Exits with 0, or with 2 and all problems on standard error. Connects to nothing. Imports the
    code of topologies, which says what their channels are, and no processor.
    """
    from headrace.config import cli, load  # noqa: PLC0415 - pydantic takes a while to import
    from headrace.config.show import show as shown  # noqa: PLC0415 - pydantic takes a while to import
    from headrace.controller.preflight import preflight  # noqa: PLC0415 - pydantic takes a while to import

    try:
        loaded = load(config, also=preflight)
    except ConfigError as error:
        cli.report(config, error)
        raise typer.Exit(cli.EXIT_CONFIG) from None
    if show:
        comments = "".join(f"# {line}\n" for line in cli.guarantees(loaded))
        typer.echo(comments + shown(loaded), nl=False)
    elif sys.stdout.isatty():
        cli.print_table(loaded)
    else:
        typer.echo("\n".join(cli.guarantees(loaded)))


def doctor(
    config: ConfigFile,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Check that this machine, ZooKeeper, Kafka and Spark are ready for a configuration.

    Prints what it found and what to do about it, and the least Kafka ACLs as commands. Imports the
    code that the file names. Changes nothing, except for one ephemeral node, which it deletes.
    Exit codes: 0 no errors, perhaps warnings; 1 something has to be fixed; 2 the configuration
    cannot be used.
    """
    from headrace.ops.doctor import run  # noqa: PLC0415 - takes a second to import

    raise typer.Exit(run.doctor(config, as_json=json))
