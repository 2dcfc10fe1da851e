"""``headrace topics create``.

Exit codes: 0 all are there; 1 failed, the brokers refused, or a topic is not as it has to be; 2 the
configuration or the command line cannot be used.
"""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.core.options import ConfigFile, command_group

app = command_group(help="Create the topics that a configuration needs.")


@app.callback()
def topics() -> None:
    """Keep ``create`` a subcommand although it is the only one."""


@app.command()
def create(
    config: ConfigFile,
    channel: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only the topics of this channel.")
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Partitions of inputs, outputs and topics for letters; without it as many as the "
            "brokers give. By-key topics and changelogs get as many as their input topic has.",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Replicas; by default the brokers decide."),
    ] = None,
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be created and change nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Create the topics that are missing: inputs, by key, changelogs, outputs, dead letters.

    Existing topics stay as they are, so the command may be repeated. It shows its plan and asks.
    """
    from headrace.ops.offsets.commands import guarded  # noqa: PLC0415 - takes a second to import
    from headrace.ops.topics import commands  # noqa: PLC0415 - takes a second to import

    if json and not (yes or dry_run):
        raise typer.BadParameter(
            "takes --yes or --dry-run, as it asks no question", param_hint="--json"
        )
    sizes = commands.Sizes(partitions, replication_factor)
    raise typer.Exit(
        guarded(
            config,
            lambda loaded: commands.create(
                loaded, channel, sizes, dry_run=dry_run, yes=yes, as_json=json
            ),
        )
    )
