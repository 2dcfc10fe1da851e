"""The command line.

Each command imports what it runs when it runs, so that ``--help`` and the others do not pay for it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.apps.cli import collector, elements
from headrace.apps.workflow_cli import workflow
from headrace.core.options import Commands, ConfigFile, Panel, command_group
from headrace.core.positions import parse_moment
from headrace.core.streams import take_any_text
from headrace.devstack.cli import app as local
from headrace.devstack.connector import app as connector
from headrace.ops.admin.cli import register
from headrace.ops.dead_letters.cli import app as dead_letters
from headrace.ops.demo.cli import demo
from headrace.ops.doctor.cli import check, doctor
from headrace.ops.dryrun.cli import reduce
from headrace.ops.groups.cli import group
from headrace.ops.init import init
from headrace.ops.offsets.cli import app as offsets
from headrace.ops.state.cli import app as state
from headrace.ops.topics.cli import app as topics
from headrace.ops.transactions.cli import app as transactions
from headrace.version import VERSION

if TYPE_CHECKING:
    from headrace.channel.bounds import Until


class _InOrder(Commands):
    """Lists commands as a reader looks for them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names by the alphabet."""
        return sorted(super().list_commands(ctx))


app = command_group(name="headrace", cls=_InOrder, pretty_exceptions_enable=False)
register(app)
for panel, command in (
    (Panel.START, init),
    (Panel.START, demo),
    (Panel.CONFIGURE, check),
    (Panel.CONFIGURE, doctor),
    (Panel.WATCH, group),
    (Panel.DEVELOP, reduce),
):
    app.command(rich_help_panel=panel.value)(command)
for panel, name, commands in (
    (Panel.START, "local", local),
    (Panel.OPERATE, "offsets", offsets),
    (Panel.OPERATE, "state", state),
    (Panel.OPERATE, "dead-letters", dead_letters),
    (Panel.OPERATE, "transactions", transactions),
    (Panel.CONFIGURE, "connector", connector),
    (Panel.CONFIGURE, "topics", topics),
    (Panel.APPLICATIONS, "collector", collector),
    (Panel.APPLICATIONS, "workflow", workflow),
    (Panel.APPLICATIONS, "elements", elements),
):
    app.add_typer(commands, name=name, rich_help_panel=panel.value)


@app.command(rich_help_panel=Panel.CONFIGURE.value)
def schema() -> None:
    """Print the JSON schema of the configuration, for editors."""
    from headrace.config.reference import schema  # noqa: PLC0415 - pydantic takes a while to import

    typer.echo(json.dumps(schema(), indent=2))


@app.command(rich_help_panel=Panel.RUN.value)
def run(
    config: ConfigFile,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="latest|TIME",
            help="Read up to the present end, or to the first record not older than TIME (as in "
            "2013-01-01T05:00:00Z; UTC unless it says otherwise), commit and exit with 0.",
        ),
    ] = None,
) -> None:
    """Run the channels of a configuration until SIGTERM or SIGINT.

    Exit codes: 0 stopped in order, 2 configuration, 3 not started, 4 a channel failed,
    5 the stop overran its deadline, 70 to be started afresh, 1 unexpected.
    """
    from headrace.daemon import run as serve  # noqa: PLC0415 - for this command only

    raise typer.Exit(serve(config, None if until is None else _bound(until)))


def _bound(until: str) -> Until:
    from headrace.channel.bounds import Until  # noqa: PLC0415 - as above

    try:
        return Until(None if until == "latest" else parse_moment(until))
    except ValueError as error:
        raise typer.BadParameter(f"{error}, or latest", param_hint="--until") from None


@app.command(rich_help_panel=Panel.DEVELOP.value)
def plugins() -> None:
    """List the sinks, processors and decoders that installed packages offer, importing none."""
    from headrace.core.plugins import installed_plugins  # noqa: PLC0415 - for this command only

    found = installed_plugins()
    for plugin in found:
        package = f"{plugin.package} {plugin.version}"
        typer.echo(f"{plugin.kind.value} {plugin.name}: {plugin.factory} ({package})")
    if not found:
        typer.echo("no package that is installed offers a plug-in")


@app.command(rich_help_panel=Panel.DEVELOP.value)
def version() -> None:
    """Print the version."""
    typer.echo(VERSION)


def _print_version(*, wanted: bool) -> None:
    if wanted:
        typer.echo(VERSION)
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Inbound Kafka channels: owned through ZooKeeper, reduced by Spark, committed once."""
    del version


def main() -> None:
    """Run the command line."""
    take_any_text()
    app()
