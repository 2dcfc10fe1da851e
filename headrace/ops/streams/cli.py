"""``headrace streams plan``.

Exit codes: 0 shown; 2 the configuration or the command line cannot be used.
"""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.core.options import ConfigFile, command_group

app = command_group(help="Show the channels, topics and stores that a topology of streams becomes.")


@app.callback()
def streams() -> None:
    """Keep ``plan`` a subcommand although it is the only one."""


@app.command()
def plan(
    config: ConfigFile,
    topology: Annotated[
        str | None,
        typer.Argument(metavar="TOPOLOGY", help="The topology, if the configuration has several."),
    ] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
    mermaid: Annotated[
        bool, typer.Option("--mermaid", help="Print a picture in the language of Mermaid.")
    ] = False,
) -> None:
    """Show the channels of a topology: topics, operators, and stores with their changelogs.

    Channels come in the order of the data. Imports the topology's code and connects to nothing.
    """
    from headrace.ops.offsets.commands import guarded  # noqa: PLC0415 - takes a second to import
    from headrace.ops.streams import commands  # noqa: PLC0415 - takes a second to import

    if json and mermaid:
        raise typer.BadParameter(
            "does not go with --json; choose one of them", param_hint="--mermaid"
        )
    form = commands.Form.JSON if json else commands.Form.MERMAID if mermaid else commands.Form.TEXT
    raise typer.Exit(guarded(config, lambda loaded: commands.show_plan(loaded, topology, form)))
