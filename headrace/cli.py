"""The command line."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import Annotated

import typer

from headrace.config.cli import check, schema
from headrace.demo.cli import demo
from headrace.local.cli import app as local
from headrace.version import VERSION

app = typer.Typer(
    name="headrace",
    help="Inbound Kafka channels: owned through ZooKeeper, reduced by Spark, committed once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(check)
app.command()(schema)
app.command()(demo)
app.add_typer(local, name="local")


@app.command()
def run(
    config: Annotated[Path, typer.Option("--config", "-c", help="The YAML configuration file.")],
) -> None:
    """Run the channels of a configuration until SIGTERM or SIGINT.

    Exit codes: 0 stopped in order, 2 configuration, 3 not started, 4 a channel failed,
    5 the stop overran its deadline, 70 to be started afresh, 1 unexpected.
    """
    from headrace.daemon import run as serve  # noqa: PLC0415 - Spark takes a second to import

    raise typer.Exit(serve(config))


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(VERSION)


def main() -> None:
    """Run the command line; the console script."""
    app()
