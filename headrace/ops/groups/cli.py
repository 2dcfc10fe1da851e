"""``headrace group``.

Exit codes: 0 shown; 1 ZooKeeper, Kafka or a sink did not answer, and what did is shown, or the
configuration cannot be used, and what a process that runs with it knows is shown; 2 the command
line or the configuration cannot be used, and no process runs with it.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from headrace.core.options import ConfigFile  # noqa: TC001 - typer reads annotations at run time


def group(
    config: ConfigFile,
    channel: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only this channel, instead of all in the file."),
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=0.1, help="Refresh at this interval, until Ctrl-C."),
    ] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> None:
    """Show the members of a channel's group, their partitions, positions and lag.

    Works whether the channel runs or not, and changes nothing: it joins no group, creates no node
    and commits no offset. Exits with 1 if ZooKeeper or Kafka does not answer, and shows the rest.
    """
    from headrace.ops.groups import commands  # noqa: PLC0415 - takes a second to import
    from headrace.ops.offsets.commands import guarded  # noqa: PLC0415 - takes a second to import

    options: dict[str, Any] = {"channel": channel, "as_json": json, "watch": watch}
    raise typer.Exit(
        guarded(
            config,
            partial(commands.group, **options),
            partial(commands.group_of_process, config, **options),
        )
    )
