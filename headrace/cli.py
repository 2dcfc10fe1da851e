"""The command line.

Each command imports what it runs when it runs, so that ``--help`` and the others do not pay for it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.core.commands import Command, CommandTable
from headrace.core.options import Commands, ConfigFile, Panel, command_group
from headrace.core.positions import parse_moment
from headrace.core.streams import take_any_text
from headrace.version import VERSION

if TYPE_CHECKING:
    from headrace.channel.bounds import Until


_ADMIN = "headrace.ops.admin.cli:app"

#: The commands of other rooms: what ``--help`` says of each, and where it is imported from.
COMMANDS = (
    Command(
        "acknowledge",
        Panel.OPERATE,
        "Mark dead letters, skipped records and rejected facts as seen: all of them, or a number.",
        _ADMIN,
    ),
    Command(
        "check",
        Panel.CONFIGURE,
        "Check a configuration and print what each channel guarantees.",
        "headrace.ops.doctor.cli:check",
    ),
    Command(
        "collector",
        Panel.APPLICATIONS,
        "Collect the answers that groups of events wait for: one outcome for each group.",
        "headrace.apps.collector.cli:app",
    ),
    Command(
        "connector",
        Panel.CONFIGURE,
        "Fetch Spark's Kafka connector, for channels with source: by_reference.",
        "headrace.devstack.connector:app",
    ),
    Command(
        "dead-letters",
        Panel.OPERATE,
        "List a channel's dead letters, or replay them to where they came from, each once.",
        "headrace.ops.dead_letters.cli:app",
    ),
    Command(
        "doctor",
        Panel.CONFIGURE,
        "Check that this machine, ZooKeeper, Kafka and Spark are ready for a configuration.",
        "headrace.ops.doctor.cli:doctor",
    ),
    Command(
        "elements",
        Panel.APPLICATIONS,
        "Run applications of processing elements and the streams between them.",
        "headrace.apps.elements.cli:app",
    ),
    Command(
        "group",
        Panel.WATCH,
        "Show the members of a channel's group, their partitions, positions and lag.",
        "headrace.ops.groups.cli:group",
    ),
    Command(
        "health",
        Panel.WATCH,
        "Check the health of a configuration's process on this machine.",
        _ADMIN,
    ),
    Command(
        "init",
        Panel.START,
        "Write a project that runs: a configuration, a reducer with its test, and records for it.",
        "headrace.ops.init:init",
    ),
    Command(
        "local",
        Panel.START,
        "Run a real ZooKeeper and a real Kafka on this machine's loopback address.",
        "headrace.devstack.cli:app",
    ),
    Command(
        "loglevel",
        Panel.OPERATE,
        "Change the log level, until the next start or for a while.",
        _ADMIN,
    ),
    Command(
        "offsets",
        Panel.OPERATE,
        "Show a channel's offsets, or move those of a stopped one: the group's and its sink's.",
        "headrace.ops.offsets.cli:app",
    ),
    Command("pause", Panel.OPERATE, "Pause delivery, and wait until it has stopped.", _ADMIN),
    Command(
        "reduce",
        Panel.DEVELOP,
        "Try a reducer on a file or on a range of offsets, and print its rows.",
        "headrace.ops.dryrun.cli:reduce",
    ),
    Command("reload", Panel.RUN, "Apply the configuration file as it is now.", _ADMIN),
    Command("resume", Panel.OPERATE, "End the pause that you began.", _ADMIN),
    Command(
        "seek",
        Panel.OPERATE,
        "Move partitions of a paused channel, in the group and in the sink.",
        _ADMIN,
    ),
    Command("skip", Panel.OPERATE, "Skip one record that cannot be processed.", _ADMIN),
    Command(
        "state",
        Panel.OPERATE,
        "Look at the state of a keyed channel's keys, and move the state of a stopped one.",
        "headrace.ops.state.cli:app",
    ),
    Command(
        "status",
        Panel.WATCH,
        "Show what a process is doing: channels, pauses, and the partitions that it holds.",
        _ADMIN,
    ),
    Command("stop", Panel.RUN, "Stop a process cleanly, as SIGTERM does.", _ADMIN),
    Command(
        "streams",
        Panel.CONFIGURE,
        "Look at topologies of streams, and work on their state.",
        "headrace.ops.streams.cli:app",
    ),
    Command(
        "tap", Panel.WATCH, "Show records of a running channel as they pass, until Ctrl-C.", _ADMIN
    ),
    Command(
        "top",
        Panel.WATCH,
        "Show lag, rates and errors of all channels and partitions, refreshed until Ctrl-C.",
        _ADMIN,
    ),
    Command(
        "topics",
        Panel.CONFIGURE,
        "Create the topics that a configuration needs.",
        "headrace.ops.topics.cli:app",
    ),
    Command(
        "transactions",
        Panel.OPERATE,
        "List transactions that a channel's readers wait for, and end those that hang.",
        "headrace.ops.transactions.cli:app",
    ),
    Command(
        "workflow",
        Panel.APPLICATIONS,
        "Run workflows: calls in sequence, in parallel, by choice and in loops.",
        "headrace.apps.workflow.cli:app",
    ),
)


class _InOrder(Commands):
    """Lists commands as a reader looks for them, and imports the one that is run."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        # click asks this mapping for a command by its name, and for all names
        named = {command.name: command for command in COMMANDS} | dict(self.commands)
        self.commands = self.table = CommandTable(sorted(named.items()))

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names by the alphabet."""
        return list(self.table)

    def summary(self, name: str) -> tuple[str | None, str]:
        """Return a command's panel and summary. Imports nothing."""
        listed = self.table.data[name]
        if isinstance(listed, Command):
            return listed.panel.value, listed.summary
        return super().summary(name)


app = command_group(name="headrace", cls=_InOrder, pretty_exceptions_enable=False)


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
            "2013-01-01T05:00:00Z; UTC unless it has an offset), commit and exit with 0.",
        ),
    ] = None,
) -> None:
    """Run the channels of a configuration until SIGTERM or SIGINT.

    Exit codes: 0 stopped cleanly, 2 invalid configuration, 3 not started, 4 a channel failed,
    5 the stop overran its deadline, 70 to be started again, 1 unexpected error.
    """
    from headrace.daemon import run as serve  # noqa: PLC0415 - for this command only

    raise typer.Exit(serve(config, None if until is None else _bound(until)))


def _bound(until: str) -> Until:
    from headrace.channel.bounds import Until  # noqa: PLC0415 - for this command only

    try:
        return Until(None if until == "latest" else parse_moment(until))
    except ValueError as error:
        raise typer.BadParameter(f"{error}, or latest", param_hint="--until") from None


@app.command(rich_help_panel=Panel.DEVELOP.value)
def plugins() -> None:
    """List the plug-ins of installed packages, without importing any."""
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
